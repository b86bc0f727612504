"""Fleets of stepped replicas against fleets of processes, and against step by step."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pandas as pd
import pytest

from kvsim.fleet.simulation import simulate_fleet
from kvsim.scenario import Scenario
from tests.fleet.small import frame_of, scenario

ENGINE = {"max_model_len": 4096, "max_num_batched_tokens": 256, "max_num_seqs": 8}
OPEN = [
    {
        "prompt": [[f"p{n % 4}", 150], [f"q{n}", 30 + 7 * (n % 11)]],
        "output": 3 + 17 * (n % 5),
        "at_s": 0.0137 * (n // 2),
    }
    for n in range(60)
]
QUEUE: dict[str, Any] = {"kind": "dynamo-kv", "queue_threshold": 0.3}


def seen(
    made: Scenario, monkeypatch: pytest.MonkeyPatch, *, stepped: bool, one_by_one: bool = False
) -> tuple[pd.DataFrame, list[pd.DataFrame], dict[str, Any]]:
    """Requests, timelines and counters of a fleet."""
    with monkeypatch.context() as patch:
        if not stepped:
            patch.setattr("kvsim.engine.replica.COMPILES", False)
        run = simulate_fleet(made, one_by_one=one_by_one)
    timelines = [timeline.frame() for _, timeline in run.timelines]
    return frame_of(run), timelines, asdict(run.counters)


def assert_same(one: Any, other: Any) -> None:
    pd.testing.assert_frame_equal(one[0], other[0])
    for timeline, of_other in zip(one[1], other[1], strict=True):
        pd.testing.assert_frame_equal(timeline, of_other)
    assert one[2] == other[2]


@pytest.mark.parametrize("workload", [None, OPEN], ids=["sessions", "requests"])
@pytest.mark.parametrize(
    ("router", "engine"),
    [
        ("round-robin", {}),
        ("least-requests", {"async_scheduling": True}),
        ("power-of-two", {"async_scheduling": True}),
        ("session", {"async_scheduling": True, "long_prefill_token_threshold": 40}),
        (QUEUE, {}),
        (QUEUE, {"async_scheduling": True}),
    ],
    ids=["round-robin", "least", "two", "session", "queue", "queue-async"],
)
def test_a_fleet_that_is_stepped(
    workload: Any, router: Any, engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scenario(
        workload,
        fleet={"nodes": 3, "router": router},
        engine={**ENGINE, **engine},
        output={"timeline_interval_s": 0.05},
    )
    stepped = seen(made, monkeypatch, stepped=True)
    assert_same(stepped, seen(made, monkeypatch, stepped=False))
    assert_same(stepped, seen(made, monkeypatch, stepped=True, one_by_one=True))


@pytest.mark.parametrize("lost_requests", ["resend", "refuse"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_nodes_that_come_and_go(
    lost_requests: str, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [
        {"at": 0.2, "lose": 0},
        {"at": 0.25, "add": 0, "ready_after": 0.1},
        {"at": 0.3, "drain": 1},
        {"at": 0.31, "add": 3, "ready_after": 0.03},
        {"at": 0.9, "lose": 2},
    ]
    made = scenario(
        OPEN,
        fleet={
            "nodes": 3,
            "router": "least-requests",
            "events": events,
            "lost_requests": lost_requests,
        },
        engine={**ENGINE, "async_scheduling": asynchronous},
        node={"num_blocks": 120},
    )
    stepped = seen(made, monkeypatch, stepped=True)
    frame = stepped[0]
    assert set(frame["replica"].dropna()) >= {0, 1, 2, 3}
    assert frame["refused"].isna().all() == (lost_requests == "resend")
    told = ["cached_elsewhere_tokens"]  # of runs of decodes in small pools, see `simulate_fleet`
    for stepped_one, one_by_one in ((False, False), (True, True)):
        other = seen(made, monkeypatch, stepped=stepped_one, one_by_one=one_by_one)
        pd.testing.assert_frame_equal(frame.drop(columns=told), other[0].drop(columns=told))


@pytest.mark.parametrize("router", ["sticky-until-saturated", {"kind": "llm-d"}, "vllm-dp"])
def test_routers_that_are_shown_counts(router: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = scenario(fleet={"nodes": 3, "router": router}, engine=ENGINE)
    assert_same(
        seen(made, monkeypatch, stepped=True)[:2] + ({},),
        seen(made, monkeypatch, stepped=False)[:2] + ({},),
    )
