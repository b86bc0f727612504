"""Tiers of a rank, of a node, and of the fleet."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.fleet.simulation import simulate_fleet
from kvsim.scenario import Scenario
from tests.fleet.small import frame_of, scenario

MODEL = {"groups": [{"kind": "full", "block_size": 16, "bytes_per_block": 4096}]}
CPU = {"kind": "cpu", "num_chunks": 400}
STORE = {"kind": "mooncake", "capacity": 400 * 4096}


def turns(offload: dict[str, Any], **parts: Any) -> Scenario:
    """One prompt again and again, on other ranks or nodes each time, long after one another."""
    requests = [
        {"prompt": [["A", 160], [f"q{n}", 20]], "output": 2, "at_s": float(n)} for n in range(4)
    ]
    return scenario(requests, model=MODEL, offload=offload, **parts)


def ranks(shared_by: str) -> Scenario:
    node = {"gpus": 2, "data_parallel": 2, "tensor_parallel": 1}
    keys = {"balancing": "external"}
    return turns({**CPU, "shared_by": shared_by}, node=node, fleet=keys)


def test_a_tier_of_each_rank_helps_no_other() -> None:
    run = simulate_fleet(ranks("rank"))
    frame = frame_of(run)
    assert frame["replica"].tolist() == [0, 1, 0, 1]
    assert frame["external_hit_tokens"].tolist() == [0, 0, 0, 0]
    assert run.counters.tiers[0].capacity_bytes == 2 * 400 * 4096


def test_a_tier_of_the_node_serves_all_its_ranks() -> None:
    run = simulate_fleet(ranks("node"))
    assert frame_of(run)["external_hit_tokens"].tolist() == [0, 160, 0, 0]
    assert run.counters.tiers[0].capacity_bytes == 400 * 4096


def test_one_store_serves_all_nodes_and_outlives_them() -> None:
    events = [{"at": 0.5, "lose": 0}]
    run = simulate_fleet(turns(STORE, fleet={"nodes": 3, "events": events}))
    frame = frame_of(run)
    assert frame["replica"].tolist() == [0, 2, 1, 2]
    assert frame["external_hit_tokens"].tolist() == [0, 160, 160, 0]
    assert run.counters.tiers[0].capacity_bytes == 400 * 4096


@pytest.mark.parametrize("offload", [{**CPU, "shared_by": "node"}, STORE])
def test_a_small_shared_tier_under_load(offload: dict[str, Any]) -> None:
    small = {
        **offload,
        **({"num_chunks": 60} if offload["kind"] == "cpu" else {"capacity": 60_000}),
    }
    node = {"gpus": 2, "data_parallel": 2, "tensor_parallel": 1, "num_blocks": 60}
    made = scenario(model=MODEL, offload=small, node=node, fleet={"nodes": 2})
    frame = frame_of(simulate_fleet(made))
    assert frame["end_s"].notna().all()
    assert frame["external_hit_tokens"].sum() > 0
    assert (frame["hit_tokens"] + frame["external_hit_tokens"] < frame["prompt_tokens"]).all()
