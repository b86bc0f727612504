"""Runs of decode steps taken in one go come out as step by step, to the last bit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.manager import KVCache
from kvsim.cache.spec import GroupSpec
from kvsim.engine.clock import Clock
from kvsim.engine.jobs import SchedulerConfig
from kvsim.engine.replica import Replica
from kvsim.engine.scheduler import Scheduler
from kvsim.metrics.records import RequestLog, TimelineLog
from kvsim.times import roofline as times
from kvsim.times.step_time import StepTimeParams, constant_step_time
from kvsim.times.work import Layout
from kvsim.workload.request import Request

WINDOWS = (
    GroupSpec("full", 16),
    GroupSpec("sliding_window", 8, 16),
    GroupSpec("sliding_window", 4, 8),
)
MODELS = {
    "full": (GroupSpec("full", 16),),
    "windows": WINDOWS,
    "look-ahead": (WINDOWS[0], GroupSpec("sliding_window", 8, 16, eagle=True), WINDOWS[2]),
}


def roofline() -> StepTimeParams:
    """Step times that depend on every sequence's length."""
    from kvsim import catalog

    return times.roofline(catalog.model("deepseek-v4-pro"), catalog.gpu("b300"), Layout(8))


@dataclass(frozen=True)
class Case:
    """What is simulated."""

    config: CacheConfig
    requests: list[Request]
    step_time: StepTimeParams
    limits: SchedulerConfig


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small pools, prompts that share spans, arrivals close together."""
    model = draw(st.sampled_from(sorted(MODELS)))
    budget = draw(st.sampled_from((24, 64)))
    asynchronous = draw(st.booleans())
    acceptance = draw(st.sampled_from(((), (), (0.7,), (0.9, 0.5, 0.2))))
    config = CacheConfig(
        num_blocks=draw(st.integers(60, 160)),
        groups=MODELS[model],
        max_model_len=1024,
        max_in_flight_tokens=2 * budget if asynchronous else budget,
        retention_interval=draw(st.sampled_from((None, 0))),
        enable_caching=draw(st.sampled_from((True, True, False))),
        use_eagle=model == "look-ahead",
        key_lookahead_tokens=int(bool(acceptance) and model != "look-ahead"),
        free_queue=draw(st.sampled_from(("append", "prepend-uncached-window", "prepend-uncached"))),
    )
    requests, arrival_s = [], 0.0
    for number in range(draw(st.integers(1, 8))):
        arrival_s += draw(st.sampled_from((0.0, 0.01, 0.035, 0.4)))
        spans = [(1, draw(st.integers(1, 60))), (10 + draw(st.integers(0, 2)), 40)]
        content = Content.from_spans(spans)
        requests.append(
            Request(
                f"r{number}",
                arrival_s,
                content,
                content.num_tokens,
                draw(st.integers(1, 70)),
                1000 + number,
            )
        )
    step_time = constant_step_time(0.01) if draw(st.booleans()) else roofline()
    limits = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=draw(st.sampled_from((2, 8))),
        max_model_len=config.max_model_len,
        asynchronous=asynchronous,
        acceptance=acceptance,
        draw_key=draw(st.integers(0, 2**62)),
    )
    return Case(config, requests, step_time, limits)


def outcome(case: Case, *, one_by_one: bool) -> dict[str, Any]:
    """Everything that can be seen of a run."""
    clock = Clock()
    scheduler = Scheduler(KVCache(case.config), case.limits)
    requests, timeline = RequestLog(), TimelineLog()
    replica = Replica(
        clock,
        scheduler,
        case.step_time,
        requests,
        timeline,
        timeline_interval_s=0.1,
        one_by_one=one_by_one,
    )

    def arrive() -> Any:
        for request in case.requests:
            if request.arrival_s > clock.now:
                yield clock.at(request.arrival_s, before_others=True)
            replica.submit(request)

    clock.process(arrive())
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
    }


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases())
def test_a_run_of_steps_is_its_steps(case: Case) -> None:
    runs, steps = outcome(case, one_by_one=False), outcome(case, one_by_one=True)
    for frame in ("requests", "timeline"):
        pd.testing.assert_frame_equal(runs.pop(frame), steps.pop(frame), check_exact=True)
    assert runs == steps
    assert runs["num_scheduled_tokens"] > 0 or runs["num_steps"] == 0
    assert len(runs["free_queue"]) == case.config.num_blocks - 1, "a block was lost"
