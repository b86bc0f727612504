"""Random arrivals: the fast scheduler plans what the slow one plans, step after step."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kvsim.cache.content import Content
from kvsim.cache.manager import CacheConfig, KVCache
from kvsim.engine.scheduler import Scheduler
from kvsim.workload.request import Request
from tests.properties.strategies import bounded, caches
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


@dataclass(frozen=True)
class Limits:
    """What a step may do."""

    max_num_seqs: int
    long_prefill_token_threshold: int


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


def request(arrival: Arrival) -> Request:
    content = Content.from_spans(arrival.spans)
    return Request(
        request_id=arrival.name,
        arrival_s=float(arrival.step),
        content=content,
        num_prompt_tokens=content.num_tokens,
        num_output_tokens=arrival.num_output,
        output_uid=arrival.output_uid,
    )


@bounded(100)
@given(
    caches(),
    st.builds(Limits, st.integers(1, 6), st.sampled_from((0, 0, 8, 30))),
    st.integers(0, 2**32 - 1),
)
def test_the_scheduler_plans_as_the_slow_one(
    config: CacheConfig, limits: Limits, seed: int
) -> None:
    numbers = {
        "max_num_batched_tokens": config.max_in_flight_tokens,
        "max_num_seqs": limits.max_num_seqs,
        "max_model_len": config.max_model_len,
        "long_prefill_token_threshold": limits.long_prefill_token_threshold,
    }
    fast = Scheduler(KVCache(config), **numbers)
    slow = SlowScheduler(slow_cache(config), **numbers)
    coming = arrivals(seed, config)
    step = 0
    while coming or slow.busy:
        while coming and coming[0].step <= step:
            arrival = coming.pop(0)
            fast.add(request(arrival))
            slow.add(arrival.name, arrival.spans, arrival.num_output, arrival.output_uid)

        plan = fast.plan()
        scheduled = {job.request.request_id: num for job, num in fast.scheduled()}
        if plan.stuck is not None:
            expected = slow.step()
            assert not expected.scheduled
            assert slow.waiting[0].name == plan.stuck.request.request_id
            return
        _, finished = fast.end_step()
        expected = slow.step()
        assert list(scheduled.items()) == list(expected.scheduled.items())
        admitted = [(job.request.request_id, hit.tokens) for job, hit in plan.started]
        admitted += [(job.request.request_id, hit.tokens) for job, hit in plan.resumed]
        assert admitted == list(expected.admitted.items())
        assert [job.request.request_id for job in plan.preempted] == expected.preempted
        assert [job.request.request_id for job in finished] == expected.finished
        same_state(fast.cache, slow.cache)
        check_pool(fast.cache, [job.sequence for job in fast.running])
        step += 1
        if step > 2000:
            return  # a prompt that is admitted, finds no block and gives up, over and over

    counters = {name: getattr(fast.counters, name) for name in slow.counters}
    assert counters == slow.counters
    assert fast.cache.num_free == config.num_blocks - 1
