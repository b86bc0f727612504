"""Replicas stepped by compiled code come out as processes do, and as step by step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings

from kvsim.cache.manager import KVCache
from kvsim.engine.clock import Clock
from kvsim.engine.lanes import ROOM
from kvsim.engine.replica import Replica
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.simulation import simulate
from kvsim.engine.stepper import Stepper
from kvsim.metrics.records import RequestLog, TimelineLog
from kvsim.scenario import Scenario
from tests.engine.stepped import MODELS, Case, assert_same, case, cases, request, run

pytestmark = pytest.mark.bounds


@settings(max_examples=150, deadline=None, derandomize=True)
@given(cases())
def test_a_stepped_replica_is_a_process(made: Case) -> None:
    stepped = run(made)
    assert_same(stepped, run(made, stepped=False))
    assert_same(stepped, run(made, one_by_one=True))
    assert stepped["left"] == 0, "somebody was forgotten"
    assert len(stepped["free_queue"]) == made.config.num_blocks - 1, "a block was lost"


def crowd(num: int, output: int = 5, gap_s: float = 0.0) -> list[Any]:
    return [
        request(number, gap_s * number, [(1, 20), (10 + number, 30)], output)
        for number in range(num)
    ]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("num", [ROOM - 1, ROOM, ROOM + 1, 3 * ROOM])
def test_more_wait_than_are_known(num: int, asynchronous: bool) -> None:
    made = case(crowd(num), asynchronous=asynchronous)
    assert_same(run(made), run(made, one_by_one=True))


@pytest.mark.parametrize("model", sorted(MODELS))
def test_more_spans_than_there_is_room_for(model: str) -> None:
    spans = [[(1000 * number + more, 2) for more in range(400)] for number in range(1, 31)]
    requests = [request(number, 0.0, of, 4) for number, of in enumerate(spans)]
    made = case(requests, model=model, num_blocks=300)
    assert_same(run(made), run(made, one_by_one=True))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_who_is_preempted_comes_back(asynchronous: bool) -> None:
    requests = [request(number, 0.0, [(number + 1, 40)], 80) for number in range(6)]
    made = case(requests, num_blocks=24, asynchronous=asynchronous, reserve_whole_prompt=False)
    stepped = run(made)
    assert stepped["counters"]["preemptions"] > 0, "it was to happen"
    assert_same(stepped, run(made, one_by_one=True))


@pytest.mark.parametrize("concurrency", [None, 1, 2])
def test_refused_and_stuck_requests(concurrency: int | None) -> None:
    # The third is too long for a model, the fifth for the pool; the watermark keeps none out
    # for good.
    lengths = (30, 60, 1100, 50, 700, 20)
    requests = [request(n, 0.03 * n, [(n + 1, tokens)], 4) for n, tokens in enumerate(lengths)]
    made = replace(case(requests, num_blocks=30, watermark_blocks=20), concurrency=concurrency)
    stepped = run(made)
    assert stepped["num_refused"] >= 2
    assert_same(stepped, run(made, one_by_one=True))
    assert_same(stepped, run(made, stepped=False))


def test_a_request_for_which_blocks_are_never_free_is_refused_as_by_a_process() -> None:
    requests = [request(0, 0.0, [(1, 300)], 2), request(1, 0.5, [(2, 40)], 3)]
    made = case(requests, num_blocks=24, watermark_blocks=30, reserve_whole_prompt=True)
    assert_same(run(made), run(made, one_by_one=True))


@pytest.mark.parametrize("at_s", [0.05, 0.0501, 0.3, 1.0])
def test_a_run_that_is_looked_at_on_the_way(at_s: float) -> None:
    """Events in between neither move steps nor are passed by."""
    made = case(crowd(4, output=60, gap_s=0.02))
    seen: list[float] = []

    def look(clock: Clock) -> None:
        clock.call(at_s, lambda: seen.append(clock.now))

    assert_same(run(made, look=look), run(made))
    assert seen == [at_s]


@pytest.mark.parametrize("until_s", [0.01, 0.015, 0.3])
def test_a_run_up_to_a_time(until_s: float) -> None:
    """What is due before has happened, what is due later comes when the clock goes on."""
    made = case(crowd(4, output=30, gap_s=0.02))

    def records(*, stepped: bool, until: bool) -> tuple[list[Any], list[Any]]:
        clock, requests = Clock(), RequestLog()
        replica = Replica(
            clock,
            Scheduler(KVCache(made.config), made.limits),
            made.step_time,
            requests,
            TimelineLog(),
            stepper=Stepper(clock) if stepped else None,
        )
        for one in made.requests:
            clock.call(one.arrival_s, partial(replica.submit, one), before_others=True)
        ended = []
        if until:
            clock.run(until=until_s)
            assert clock.now == until_s
            ended = requests.frame()["end_s"].tolist()
            assert all(end_s < until_s for end_s in ended)
        clock.run()
        return ended, requests.frame()["end_s"].tolist()

    ended, whole = records(stepped=True, until=True)
    assert (ended, whole) == records(stepped=False, until=True)
    assert whole == records(stepped=True, until=False)[1]
    assert len(ended) == sum(end_s < until_s for end_s in whole)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_requests_one_after_another(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one arrives when one has ended."""
    requests = [
        {"prompt": [["A", 60], [f"q{n}", 20 + n % 3]], "output": 1 + n % 4} for n in range(30)
    ]
    made = Scenario.from_data(
        {
            "name": "closed",
            "model": {"groups": [{"kind": "full", "block_size": 16}]},
            "node": {"num_blocks": 60},
            "engine": {
                "max_model_len": 1024,
                "max_num_batched_tokens": 128,
                "max_num_seqs": 4,
                "async_scheduling": asynchronous,
            },
            "step_time": {"kind": "constant", "step_s": 0.01},
            "workload": {"kind": "script", "concurrency": 1, "requests": requests},
        }
    )
    stepped, steps = simulate(made), simulate(made, one_by_one=True)
    monkeypatch.setattr("kvsim.engine.replica.COMPILES", False)
    process = simulate(made)
    for other in (steps, process):
        pd.testing.assert_frame_equal(stepped.requests.frame(), other.requests.frame())
        pd.testing.assert_frame_equal(stepped.timeline.frame(), other.timeline.frame())
        assert stepped.counters == other.counters
