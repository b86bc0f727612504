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


@pytest.mark.parametrize("offload", [CPU, {**CPU, "shared_by": "node"}, STORE])
@pytest.mark.parametrize("span", ["rank", "node"])
def test_links_carry_what_tiers_store_and_load(offload: dict[str, Any], span: str) -> None:
    link = {"bandwidth": "1 GB/s", "span": span, "sharing": "fair"}
    node = {"gpus": 2, "data_parallel": 2, "tensor_parallel": 1, "num_blocks": 60}
    made = scenario(model=MODEL, offload={**offload, "link": link}, node=node, fleet={"nodes": 2})
    run = simulate_fleet(made)
    links, (tier,) = run.figures.links, run.counters.tiers
    assert [(one.node, one.replica) for one in links] == (
        [(0, 0), (0, 1), (1, 2), (1, 3)] if span == "rank" else [(0, None), (1, None)]
    )
    assert sum(one.stored_bytes for one in links) == pytest.approx(sum(tier.bytes_stored))
    assert sum(one.loaded_bytes for one in links) == pytest.approx(sum(tier.bytes_loaded))
    assert sum(one.loaded_bytes for one in links) > 0


def test_a_transfer_costs_its_posting_and_its_bytes() -> None:
    """10 blocks of a store are 20 descriptors (keys, values): 300 us + 20 x 1 ms + 41 us."""
    link = {"bandwidth": "1 GB/s"}
    costs = {"fixed_s": 3e-4, "descriptor_s": 1e-3}
    free = ttft(turns({**STORE, "link": link, "fixed_s": 0}, fleet={"nodes": 4}))
    paid = ttft(turns({**STORE, "link": link, **costs}, fleet={"nodes": 4}))
    assert free[0] == paid[0]  # nothing to load
    for quick, slow in zip(free[1:], paid[1:], strict=True):
        assert slow - quick == pytest.approx(0.0203, abs=0.0101)  # seen at the end of a step
        assert slow > quick


def ttft(made: Scenario) -> list[float]:
    found: list[float] = frame_of(simulate_fleet(made))["ttft_s"].tolist()
    return found
