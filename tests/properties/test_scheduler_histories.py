"""Random arrivals: the fast scheduler plans what the slow one plans, step after step."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.manager import KVCache
from kvsim.engine.jobs import Job, SchedulerConfig
from kvsim.engine.scheduler import Scheduler
from kvsim.policies.profiles import PROFILES
from kvsim.workload.request import Request
from tests.properties.strategies import bounded, caches, caches_with_states
from tests.properties.twins import check_pool, same_state, slow_cache
from tests.slow_model.slow_scheduler import SlowScheduler


@dataclass(frozen=True)
class Arrival:
    """A request, and the step before which it arrives."""

    step: int
    name: str
    spans: list[list[int]]
    num_output: int
    output_uid: int


@st.composite
def limits(draw: st.DrawFn) -> dict[str, Any]:
    """What a step may do, and how steps follow each other."""
    return {
        "max_num_seqs": draw(st.integers(1, 6)),
        "long_prefill_token_threshold": draw(st.sampled_from((0, 0, 8, 30))),
        "asynchronous": draw(st.booleans()),
        "by_priority": draw(st.sampled_from((False, False, True))),
        "watermark_blocks": draw(st.sampled_from((0, 0, 3))),
        "reserve_whole_prompt": draw(st.sampled_from((True, True, False))),
    }


def arrivals(seed: int, config: CacheConfig) -> list[Arrival]:
    """Fresh prompts, resends, next turns and siblings, close enough together to get in the way."""
    rng = random.Random(seed)
    found: list[Arrival] = []
    step = 0
    for number in range(rng.randrange(2, 14)):
        room = config.max_model_len - 1
        before = rng.choice(found) if found else None
        spans: list[list[int]] = []
        kind = rng.randrange(4) if before else 0
        if before and kind == 1:
            spans = [list(span) for span in before.spans]
        elif before and kind == 2:
            spans = [*map(list, before.spans), [before.output_uid, before.num_output]]
        elif before and kind == 3:
            uid, n = before.spans[0]
            spans = [[uid, rng.randrange(1, n + 1)]]
        room -= sum(n for _, n in spans)
        if kind != 1 and room > 0:
            spans.append([2 * number + 1, rng.randrange(1, 1 + min(room, 80))])
        if sum(n for _, n in spans) >= config.max_model_len:
            continue
        step += rng.choice((0, 0, 1, 2, 9))
        found.append(Arrival(step, f"r{number}", spans, rng.randrange(1, 30), 2 * number + 2))
    return found


def request(arrival: Arrival, priority: int) -> Request:
    content = Content.from_spans(arrival.spans)
    return Request(
        request_id=arrival.name,
        arrival_s=float(arrival.step),
        content=content,
        num_prompt_tokens=content.num_tokens,
        num_output_tokens=arrival.num_output,
        output_uid=arrival.output_uid,
        priority=priority,
    )


def accepted(name: str, num_tokens: int, num_drafts: int) -> int:
    """How many drafts are right: the same for both, as it depends on the answer alone."""
    rng = random.Random(f"{name} {num_tokens}")
    return next((n for n in range(num_drafts) if rng.random() > 0.6), num_drafts)


@bounded(150)
@given(caches(), limits(), st.sampled_from((0, 0, 1, 3)), st.booleans(), st.integers(0, 2**32 - 1))
def test_the_scheduler_plans_as_the_slow_one(
    config: CacheConfig, limits: dict[str, Any], num_drafts: int, keys: bool, seed: int
) -> None:
    run_both(config, limits, num_drafts, keys, seed)


@bounded(60)
@given(caches_with_states(), limits(), st.booleans(), st.integers(0, 2**32 - 1))
def test_it_plans_so_for_models_with_states(
    config: CacheConfig, limits: dict[str, Any], keys: bool, seed: int
) -> None:
    run_both(config, limits, max(group.num_drafts for group in config.groups), keys, seed)


def run_both(
    config: CacheConfig, limits: dict[str, Any], num_drafts: int, keys: bool, seed: int
) -> None:
    keys &= PROFILES[config.profile].has_key_lookahead and not config.use_eagle
    depth = 1 + limits["asynchronous"]
    budget = max(1 + num_drafts, config.max_in_flight_tokens // depth)
    config = replace(
        config,
        max_in_flight_tokens=depth * budget,
        key_lookahead_tokens=num_drafts if keys else 0,
    )
    numbers = {
        "max_num_batched_tokens": budget,
        "max_model_len": config.max_model_len,
        **limits,
    }
    acceptance = (0.5,) * num_drafts
    fast = Scheduler(KVCache(config), SchedulerConfig(**numbers, acceptance=acceptance))
    slow = SlowScheduler(slow_cache(config), **numbers, num_drafts=num_drafts)
    coming = arrivals(seed, config)
    priorities = random.Random(seed)
    planned: list[list[tuple[Job, int, bool]]] = []
    step = 0
    while coming or slow.busy:
        while coming and coming[0].step <= step:
            arrival = coming.pop(0)
            priority = priorities.choice((0, 0, 1, 2))
            fast.add(request(arrival, priority))
            spans, output = arrival.spans, (arrival.num_output, arrival.output_uid)
            slow.add(arrival.name, spans, *output, priority, float(arrival.step))

        plan, expected = fast.plan(), slow.plan()
        scheduled = [(job.request.request_id, num) for job, num in fast.scheduled()]
        assert scheduled == list(expected.scheduled.items())
        if plan.stuck is not None:
            assert slow.waiting[0].name == plan.stuck.request.request_id
            return
        admitted = [(job.request.request_id, hit.tokens) for job, hit in plan.started]
        admitted += [(job.request.request_id, hit.tokens) for job, hit in plan.resumed]
        assert admitted == list(expected.admitted.items())
        assert [job.request.request_id for job in plan.preempted] == expected.preempted
        same_state(fast.cache, slow.cache)
        check_pool(fast.cache, [job.sequence for job in fast.running])
        if plan.num_computing:
            tokens = fast.planned_tokens()
            jobs = [job for job, _ in fast.scheduled()]
            planned.append([(job, *part) for job, part in zip(jobs, tokens, strict=True)])
            assert [drafts for drafts, _ in tokens if drafts] == list(expected.drafts.values())
            assert [makes for _, makes in tokens] == [part.makes for part in expected.parts]
            step += 1
            if len(planned) < depth:
                continue
        if planned:
            parts = planned.pop(0)
            draws = [
                accepted(job.request.request_id, fast.cache.num_tokens(job.sequence), drafts)
                for job, drafts, _ in parts
            ]
            _, finished = fast.end_step(draws)
            done = slow.process(lambda job, n: accepted(job.name, job.num_tokens, n))
            assert [job.request.request_id for job in finished] == done.finished
            same_state(fast.cache, slow.cache)
            check_pool(fast.cache, [job.sequence for job in fast.running])
        else:
            step += 1
        if step > 2000:
            return  # a prompt that is admitted, finds no block and gives up, over and over

    counters = {name: getattr(fast.counters, name) for name in slow.counters}
    assert counters == slow.counters
    assert fast.cache.num_free == config.num_blocks - 1
