"""One replica stepped by compiled code, as a process, and step by step: what is seen of each."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd
from hypothesis import strategies as st

from kvsim.bundles import COMPILES
from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.manager import KVCache
from kvsim.cache.spec import GroupSpec
from kvsim.engine.clock import Clock
from kvsim.engine.feeding import SessionFeeder
from kvsim.engine.jobs import SchedulerConfig
from kvsim.engine.replica import Replica
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.stepper import Stepper
from kvsim.metrics.records import RequestLog, TimelineLog
from kvsim.times.step_time import StepTimeParams, constant_step_time
from kvsim.workload.request import After, Request, Session, Turn, Workload

MODELS = {
    "full": (GroupSpec("full", 16),),
    "windows": (
        GroupSpec("full", 16),
        GroupSpec("sliding_window", 8, 16),
        GroupSpec("sliding_window", 4, 8),
    ),
    "chunked": (
        GroupSpec("full", 16),
        GroupSpec("chunked_local", 16, attention_chunk_size=32),
    ),
}


@dataclass(frozen=True)
class Case:
    """What is simulated: requests at times, or in sessions one after another."""

    config: CacheConfig
    requests: list[Request]
    step_time: StepTimeParams
    limits: SchedulerConfig
    concurrency: int | None = None
    think_s: float = 0.0
    interval_s: float = 0.1
    max_spans: int = 2


def request(number: int, arrival_s: float, spans: list[tuple[int, int]], output: int) -> Request:
    content = Content.from_spans(spans)
    return Request(f"r{number}", arrival_s, content, content.num_tokens, output, 100_000 + number)


def case(
    requests: list[Request], *, model: str = "full", num_blocks: int = 100, **limits: Any
) -> Case:
    """A plain one, of which anything can be told otherwise."""
    settings: dict[str, Any] = {
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "max_model_len": 1024,
        **limits,
    }
    config = SchedulerConfig(**settings)
    cache = CacheConfig(
        num_blocks, MODELS[model], config.max_model_len, config.max_in_flight_tokens
    )
    return Case(cache, requests, constant_step_time(0.01), config)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small pools, prompts that share spans, arrivals close together."""
    model = draw(st.sampled_from(sorted(MODELS)))
    budget = draw(st.sampled_from((24, 64)))
    asynchronous = draw(st.booleans())
    acceptance = draw(st.sampled_from(((), (), (), (0.7,), (0.9, 0.5, 0.2))))
    limits = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=draw(st.sampled_from((2, 8, 20))),
        max_model_len=draw(st.sampled_from((120, 1024))),
        long_prefill_token_threshold=draw(st.sampled_from((0, 0, 10))),
        max_num_active_seqs=draw(st.sampled_from((None, None, 2))),
        asynchronous=asynchronous,
        watermark_blocks=draw(st.sampled_from((0, 0, 6))),
        reserve_whole_prompt=draw(st.booleans()),
        acceptance=acceptance,
        draw_key=draw(st.integers(0, 2**62)),
    )
    profile = draw(st.sampled_from(("vllm-0.32", "vllm-0.33")))
    config = CacheConfig(
        num_blocks=draw(st.integers(20, 160)),
        groups=MODELS[model],
        max_model_len=limits.max_model_len,
        max_in_flight_tokens=limits.max_in_flight_tokens,
        retention_interval=draw(st.sampled_from((None, 0))),
        enable_caching=draw(st.sampled_from((True, True, True, False))),
        key_lookahead_tokens=int(bool(acceptance)),
        profile=profile,
    )
    requests, arrival_s = [], 0.0
    for number in range(draw(st.integers(1, 16))):
        arrival_s += draw(st.sampled_from((0.0, 0.0, 0.01, 0.02, 0.035, 0.4)))
        spans = [(1, draw(st.integers(1, 60))), (10 + draw(st.integers(0, 2)), 40)]
        spans += [
            (1000 + 50 * number + more, 3) for more in range(draw(st.sampled_from((0, 0, 30))))
        ]
        requests.append(request(number, arrival_s, spans, draw(st.integers(1, 70))))
    step_time = draw(st.sampled_from((constant_step_time(0.01), constant_step_time(0.007, 1.3e-4))))
    return Case(
        config,
        requests,
        step_time,
        limits,
        concurrency=draw(st.sampled_from((None, None, 1, 3))),
        think_s=draw(st.sampled_from((0.0, 0.0, 0.013))),
        interval_s=draw(st.sampled_from((0.01, 0.1, 1.0))),
    )


def sessions(of: Case) -> Workload:
    """The requests two by two, each second one when the first has ended."""
    made = []
    for number in range(0, len(of.requests), 2):
        turns = [
            Turn(replace(one), tuple(After(0, of.think_s) for _ in range(place)))
            for place, one in enumerate(of.requests[number : number + 2])
        ]
        made.append(Session(f"s{number}", 0.0, turns))
    return Workload(iter(()), sessions=iter(made), concurrency=of.concurrency)


def run(
    of: Case,
    *,
    stepped: bool = True,
    one_by_one: bool = False,
    look: Callable[[Clock], None] | None = None,
) -> dict[str, Any]:
    """Everything that can be seen of a run."""
    clock = Clock()
    scheduler = Scheduler(KVCache(of.config), of.limits)
    requests, timeline = RequestLog(), TimelineLog()
    replica = Replica(
        clock,
        scheduler,
        of.step_time,
        requests,
        timeline,
        timeline_interval_s=of.interval_s,
        one_by_one=one_by_one,
        stepper=Stepper(clock) if stepped else None,
    )
    is_stepped = replica._stepper is not None
    assert is_stepped == (stepped and not one_by_one and COMPILES), "it is what was asked for"

    def arrive() -> Generator[Any, None, None]:
        for one in of.requests:
            if one.arrival_s > clock.now:
                yield clock.at(one.arrival_s, before_others=True)
            replica.submit(one)

    if of.concurrency is None:
        clock.process(arrive())
    else:
        SessionFeeder(clock, sessions(of), replica, lambda share: None)
    if look is not None:
        look(clock)
    clock.run()
    return {
        "requests": requests.frame(),
        "timeline": timeline.frame(),
        "counters": asdict(scheduler.counters),
        "num_steps": scheduler.num_steps,
        "num_scheduled_tokens": scheduler.num_scheduled_tokens,
        "evicted": scheduler.cache.num_evicted,
        "free_queue": scheduler.cache.free_queue().tolist(),
        "cached": scheduler.cache.cached_blocks().tolist(),
        "end_s": replica.end_s,
        "num_refused": replica.num_refused,
        "busy_s": replica.busy_s,
        "left": replica.num_requests,
        "outside": of.step_time.tables.outside.tolist(),
    }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """To the last bit, but for the order of sums."""
    for frame in ("requests", "timeline"):
        pd.testing.assert_frame_equal(one[frame], other[frame], check_exact=True, obj=frame)
    rest = [
        {
            name: value
            for name, value in seen.items()
            if name not in ("requests", "timeline", "busy_s")
        }
        for seen in (one, other)
    ]
    assert rest[0] == rest[1]
    assert abs(one["busy_s"] - other["busy_s"]) <= 1e-9 * max(1.0, one["busy_s"])
