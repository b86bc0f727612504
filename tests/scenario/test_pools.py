"""Prefill and decode apart: keys, and what has to hold between them."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.scenario import Scenario
from kvsim.scenario.pool_rules import SIDES, pool_scenario
from kvsim.scenario.reading import resolved_yaml
from tests.scenario.test_fleet import problems, scenario

POOLS: dict[str, Any] = {"prefill": {}, "decode": {}}


def test_pools_are_read_and_written_again() -> None:
    pools = {"prefill": {"nodes": 2}, "decode": {"node": {"num_blocks": 50}, "router": "random"}}
    transfer = {"kind": "mooncake-push", "lease": "2 min"}
    split = {"uncached_tokens": 16}
    made = scenario({"pools": pools, "transfer": transfer, "split": split})
    assert Scenario.from_data(made.resolved()).fleet == made.fleet
    assert made.fleet is not None
    assert made.fleet.transfer.lease == 120
    apart = {side: pool_scenario(made, side) for side in SIDES}
    assert [apart[side].num_nodes for side in SIDES] == [2, 1]
    assert [apart[side].node.num_blocks for side in SIDES] == [100, 50]
    assert [apart[side].router[0] for side in SIDES] == ["round-robin", "random"]
    assert "mooncake-push" in resolved_yaml(made)


@pytest.mark.parametrize(
    ("fleet", "parts", "text"),
    [
        (
            {"pools": {"decode": {}}},
            {},
            "fleet.pools.prefill: is missing. Give: nodes that",
        ),
        ({"pools": POOLS, "router": "random"}, {}, "fleet.router: 'random' stands beside pools, "),
        (
            {"pools": POOLS, "events": [{"at": 1, "lose": 0}]},
            {},
            "fleet.events.0.pool: is missing beside fleet.pools. Give the pool of the node: pre",
        ),
        (
            {"nodes": 2, "events": [{"at": 1, "lose": 0, "pool": "decode"}]},
            {},
            "fleet.events.0.pool: decode stands without fleet.pools. Give pools, or leave it out.",
        ),
        (
            {
                "pools": POOLS,
                "events": [
                    {"at": 1, "pool": "prefill", "add": 1},
                    {"at": 2, "pool": "decode", "lose": 1},
                ],
            },
            {},
            "fleet.events.1.lose: 1 is no node that is there at 2 s. Nodes there: 0.",
        ),
        (
            {"pools": POOLS, "transfer": {"kv_load_failure_policy": "retry"}},
            {},
            "fleet.transfer.kv_load_failure_policy: ",
        ),
        (
            {"pools": {**POOLS, "prefill": {"router": "nearest"}}},
            {},
            "fleet.pools.prefill.router: unknown router 'nearest'.",
        ),
        (
            {"pools": {**POOLS, "decode": {"node": {"gpus": 4, "tensor_parallel": 2}}}},
            {"step_time": {"kind": "constant", "step_s": 1}, "engine": {"kv_cache_memory": "1 GB"}},
            "fleet.pools.decode.node.tensor_parallel: 2 leaves GPUs 2 to 3 of 4",
        ),
        (
            {"pools": POOLS, "transfer": {"kind": "tcp"}},
            {},
            "fleet.transfer.kind: unknown kind '",
        ),
        (
            {"pools": POOLS, "transfer": {"kind": "mooncake-push", "renew_every": 5}},
            {},
            "fleet.transfer.renew_every: unknown key",
        ),
        ({"split": {"share": 0.5}}, {}, "fleet.split: stands without fleet.pools, between which"),
        (
            {"pools": POOLS, "split": {"share": 7}},
            {},
            "fleet.split.share: 7 is above 1. Use 1 or less.",
        ),
        (
            {"pools": POOLS},
            {"offload": {"kind": "cpu", "overlap_loads": True}},
            "offload.overlap_loads: true: steps do not wait for loads, but do for what is handed",
        ),
        (
            {"pools": POOLS},
            {"offload": {"kind": "cpu"}, "model": "qwen3-next-80b-a3b"},
            "offload: a tier of states beside fleet.pools is not simulated: which of both has the",
        ),
        (
            {
                "pools": {
                    "prefill": {"node": {"gpus": 4, "tensor_parallel": 4, "num_blocks": 100}},
                    "decode": {"node": {"gpus": 2, "tensor_parallel": 2, "num_blocks": 100}},
                }
            },
            {"model": "qwen3-next-80b-a3b"},
            "fleet.pools: tensor_parallel is 4 on the prefill and 2 on the decode side: how ranks",
        ),
        (
            {"pools": POOLS},
            {"engine": {"profile": "vllm-0.23"}},
            "engine.profile: vllm-0.23 is set, and fleet.pools follow vllm-0.33. Use that.",
        ),
        (
            {"pools": POOLS},
            {
                "model": {
                    "groups": [
                        {"kind": "full", "block_size": 16},
                        {"kind": "chunked_local", "block_size": 16, "attention_chunk_size": 64},
                    ]
                }
            },
            "model: has chunked local groups: what is handed over of them by fleet.pools is not",
        ),
    ],
)
def test_one_problem(fleet: dict[str, Any], parts: dict[str, Any], text: str) -> None:
    found = problems(fleet, **parts)
    assert any(problem.startswith(text) for problem in found), found
