"""Fleets against single replicas, and what happens to nodes."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from kvsim.engine.simulation import simulate
from kvsim.errors import Problems
from kvsim.fleet.simulation import simulate_fleet
from kvsim.metrics.records import FLEET_COLUMNS, REQUEST_COLUMNS
from kvsim.scenario import Scenario
from tests.fleet.small import CHAT, alone, fleet, frame_of, scenario

WINDOW = {"kind": "sliding_window", "block_size": 16, "sliding_window": 64}
WINDOWS = {"groups": [{"kind": "full", "block_size": 16}, WINDOW]}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("router", ["round-robin", {"kind": "dynamo-kv"}, "least-requests"])
def test_a_fleet_of_one_node_is_the_replica_alone(router: Any, asynchronous: bool) -> None:
    engine = {"max_model_len": 4096, "max_num_batched_tokens": 256, "max_num_seqs": 8}
    engine["async_scheduling"] = asynchronous
    made = scenario(model=WINDOWS, engine=engine, node={"num_blocks": 90})
    one = simulate(made)
    several = simulate_fleet(made.replace({"fleet": {"nodes": 1, "router": router}}))
    frame = frame_of(several)
    pd.testing.assert_frame_equal(one.requests.frame(), frame[list(REQUEST_COLUMNS)])
    assert (frame["replica"] == 0).all()
    assert (frame["cached_elsewhere_tokens"] == 0).all()
    assert one.counters == several.counters
    ((_, timeline),) = several.timelines
    pd.testing.assert_frame_equal(one.timeline.frame(), timeline.frame())


@pytest.mark.parametrize("one_by_one", [False, True])
def test_round_robin_is_as_many_runs_of_the_split_workload(one_by_one: bool) -> None:
    requests = [
        {"prompt": [[f"p{n % 4}", 200], [f"q{n}", 30 + n]], "output": 5 + n, "at_s": 0.013 * n}
        for n in range(30)
    ]
    together = fleet(scenario(requests, fleet={"nodes": 3}), one_by_one=one_by_one)
    columns = [name for name in REQUEST_COLUMNS if name != "request_id"]
    for replica in range(3):
        apart = alone(scenario(requests[replica::3]))
        own = together[together["replica"] == replica].reset_index(drop=True)
        pd.testing.assert_frame_equal(own[columns], apart[columns])


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("num_blocks", "router"), [(400, {"kind": "dynamo-kv"}), (60, "least-requests")]
)
def test_steps_one_by_one_are_the_same(num_blocks: int, router: Any, asynchronous: bool) -> None:
    """Runs of decodes are taken when they are over; what they evict is told then."""
    engine = {"max_model_len": 4096, "max_num_batched_tokens": 256, "max_num_seqs": 8}
    made = scenario(
        fleet={"nodes": 3, "router": router},
        engine={**engine, "async_scheduling": asynchronous},
        node={"num_blocks": num_blocks},
    )
    told = [] if num_blocks == 400 else ["cached_elsewhere_tokens"]
    runs = [fleet(made, one_by_one=one_by_one).drop(columns=told) for one_by_one in (False, True)]
    pd.testing.assert_frame_equal(*runs)


def test_a_seed_is_a_run_and_several_routers_are_others() -> None:
    made = scenario(fleet={"nodes": 3, "router": "random", "router_replicas": 2})
    pd.testing.assert_frame_equal(fleet(made), fleet(made))
    other = fleet(made.replace({"seed": 1}))
    assert (other["replica"].to_numpy()[:20] != fleet(made)["replica"].to_numpy()[:20]).any()


def test_what_another_replica_had_is_counted() -> None:
    """Round robin sends the second and third request away from the first one's prefix."""
    requests = [
        {"prompt": [["A", 160], [f"q{n}", 20]], "output": 2, "at_s": float(n)} for n in range(4)
    ]
    run = simulate_fleet(scenario(requests, fleet={"nodes": 3}))
    frame = frame_of(run)
    assert frame["replica"].tolist() == [0, 1, 2, 0]
    assert frame["hit_tokens"].tolist() == [0, 0, 0, 160]
    assert frame["cached_elsewhere_tokens"].tolist() == [0, 160, 160, 0]
    # Ten blocks of the prefix on each of three, of 11, 11 and 12 blocks.
    assert run.figures.duplicate_tokens == 2 * 160
    oracle = fleet(scenario(requests, fleet={"nodes": 3, "router": "oracle"}))
    assert oracle["hit_tokens"].tolist() == [0, 160, 160, 160]
    assert oracle["cached_elsewhere_tokens"].sum() == 0


@pytest.mark.parametrize(
    "router",
    [
        "session",
        {"kind": "dynamo-kv"},
        "sglang-cache-aware",
        "llm-d",
        "aibrix-prefix",
        "sticky-until-saturated",
        "production-stack",
        "power-of-two",
        "vllm-dp",
        "oracle",
    ],
)
def test_every_router_serves_everybody(router: Any) -> None:
    frame = fleet(scenario(fleet={"nodes": 3, "router": router}))
    assert frame["refused"].isna().all()
    assert frame["end_s"].notna().all()
    assert set(frame["replica"]) <= {0, 1, 2}


def test_a_router_that_looks_at_caches_finds_more_than_one_that_does_not() -> None:
    made = scenario(fleet={"nodes": 4})
    blind = fleet(made)
    seeing = fleet(made.replace({"fleet.router": {"kind": "dynamo-kv"}}))
    assert seeing["hit_tokens"].sum() > 1.05 * blind["hit_tokens"].sum()
    assert blind["cached_elsewhere_tokens"].sum() > 1.2 * seeing["cached_elsewhere_tokens"].sum()


def node_events(*events: dict[str, Any], **keys: Any) -> Scenario:
    requests = [
        {"prompt": [["A", 160], [f"q{n}", 20]], "output": 20, "at_s": 0.1 * n} for n in range(10)
    ]
    return scenario(requests, fleet={"nodes": 2, "events": list(events), **keys})


def test_a_lost_node_s_requests_are_sent_again() -> None:
    frame = fleet(node_events({"at": 0.25, "lose": 0}))
    assert frame["refused"].isna().all()
    # Of requests 0, 2 and so on those that had not ended at 0.25 s, and all that came later.
    assert frame["replica"].tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    assert frame["resent"].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    resent = frame.iloc[2]
    assert resent["arrival_s"] == pytest.approx(0.2)
    assert resent["queue_s"] >= 0.05
    assert resent["end_s"] > 0.25


def test_a_lost_node_s_requests_can_be_refused() -> None:
    frame = fleet(node_events({"at": 0.25, "lose": 0}, lost_requests="refuse"))
    assert frame["refused"].dropna().tolist() == ["its node was lost at 0.25 s"]


def test_a_node_that_comes_back_is_cold() -> None:
    events = ({"at": 0.25, "lose": 0}, {"at": 0.3, "add": 0, "ready_after": 0.25})
    run = simulate_fleet(node_events(*events))
    frame = frame_of(run)
    # The turns go on: one more was taken for the request that was sent again.
    assert frame["replica"].tolist() == [0, 1, 1, 1, 1, 1, 1, 0, 1, 0]
    assert frame["hit_tokens"].tolist() == [0, 0, 160, 160, 160, 160, 160, 0, 160, 160]
    first, second = run.figures.replicas
    assert (first.replica, second.replica) == (0, 1)
    # It was there up to 0.25 s and from 0.3 s on, where it was started.
    assert first.up_s == pytest.approx(second.up_s - 0.05)
    assert run.figures.gpu_hours == pytest.approx((first.up_s + second.up_s) / 3600)
    assert run.figures.num_lost == 1


def test_a_drained_node_finishes_what_it_has() -> None:
    run = simulate_fleet(node_events({"at": 0.25, "drain": 0}))
    frame = frame_of(run)
    assert frame["replica"].tolist() == [0, 1, 0, 1, 1, 1, 1, 1, 1, 1]
    assert frame["resent"].sum() == 0
    assert run.figures.replicas[0].up_s == pytest.approx(frame["end_s"][2])


def test_without_a_node_left_everybody_is_refused_and_the_run_ends() -> None:
    events = ({"at": 0.25, "lose": 0}, {"at": 0.45, "lose": 1})
    frame = fleet(node_events(*events))
    refused = frame["refused"].notna()
    assert frame["refused"][refused].unique().tolist() == [
        "no node is left (the last one was lost at 0.45 s)"
    ]
    # The third was sent again at 0.25 s and had not ended at 0.45 s.
    assert refused.tolist() == [False, False] + [True] * 8
    everybody = node_events({"at": 0.0, "lose": 0}, {"at": 0.0, "lose": 1})
    with pytest.raises(Problems, match="none of its 10 requests can run"):
        simulate_fleet(everybody)


def test_requests_wait_for_a_node_that_will_come() -> None:
    events = ({"at": 0.25, "lose": 0}, {"at": 0.25, "lose": 1}, {"at": 0.5, "add": 2})
    frame = fleet(node_events(*events))
    assert frame["refused"].isna().all()
    assert (frame["end_s"][2:] > 0.5).all()


def test_a_router_that_fails_is_an_error(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSIM_TRUST", "1")
    path = tmp_path / "mine.py"
    path.write_text(
        "from kvsim.routing import Router\n\n\nclass Mine(Router):\n"
        "    def choose(self, request, views, now_s, rng):\n        return 7\n"
    )
    made = scenario(fleet={"nodes": 2, "router": f"{path}:Mine"})
    with pytest.raises(Exception, match=r"choose\(\) answered 7 for request"):
        simulate_fleet(made)


def test_the_columns_of_a_fleet() -> None:
    assert list(fleet(scenario(fleet={"nodes": 2}))) == [*REQUEST_COLUMNS, *FLEET_COLUMNS]
    assert CHAT["num_sessions"] == 40


def test_states_that_need_more_blocks_than_a_run_of_decodes_may_take() -> None:
    """A pool that is nearly full of states: runs of steps end where room could run short."""
    state = {"kind": "mamba", "block_size": 64, "checkpoint_alignment": 1}
    groups = [{"kind": "full", "block_size": 64}, state, state]
    made = scenario(model={"groups": groups}, node={"num_blocks": 50}, fleet={"nodes": 2})
    pd.testing.assert_frame_equal(fleet(made), fleet(made, one_by_one=True))
