"""A fleet's keys, and what has to hold between them."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.errors import Problems
from kvsim.scenario import Scenario

WORKLOAD = {"kind": "script", "requests": [{"prompt": [["A", 10]]}]}


def scenario(fleet: Any, node: dict[str, Any] | None = None, **parts: Any) -> Scenario:
    data = {
        "name": "s",
        "model": {"groups": [{"kind": "full", "block_size": 16}]},
        "node": {"num_blocks": 100, **(node or {})},
        "step_time": {"kind": "constant", "step_s": 0.01},
        "workload": WORKLOAD,
        "fleet": fleet,
    }
    return Scenario.from_data({**data, **parts})


def problems(fleet: Any, node: dict[str, Any] | None = None, **parts: Any) -> list[str]:
    with pytest.raises(Problems) as raised:
        scenario(fleet, node, **parts)
    return raised.value.problems


def test_a_fleet_is_read_and_written_again() -> None:
    events = [{"at": "600 s", "lose": 1}, {"at": "15 min", "add": 1, "ready_after": "120 s"}]
    made = scenario({"nodes": 4, "router": {"kind": "random"}, "events": events})
    assert made.fleet is not None
    assert made.fleet.events is not None
    assert [(event.at, event.node) for event in made.fleet.events] == [(600.0, 1), (900.0, 1)]
    assert made.fleet.events[1].ready_after == 120
    assert Scenario.from_data(made.resolved()).fleet == made.fleet
    assert scenario(None).fleet is None


@pytest.mark.parametrize(
    ("fleet", "text"),
    [
        ({"nodes": 0}, "fleet.nodes: 0 is below 1. Use 1 or more."),
        ({"router": 3}, "fleet.router: 3 is no router. Name one, or write {kind: round-robin}."),
        ({"router": {"x": 1}}, "fleet.router: names no kind. Write {kind: round-robin}, with"),
        ({"balancing": "inside"}, "fleet.balancing: unknown balancing 'inside'. Known: internal, "),
        (
            {"nodes": 2, "events": [{"at": 5, "lose": 2}]},
            "fleet.events.0.lose: 2 is no node that is there at 5 s. Nodes there: 0, 1.",
        ),
        (
            {"nodes": 2, "events": [{"at": 9, "lose": 1}, {"at": 5, "drain": 1}]},
            "fleet.events.0.lose: 1 is no node that is there at 9 s. Nodes there: 0.",
        ),
        (
            {"nodes": 2, "events": [{"at": 5, "add": 1}]},
            "fleet.events.0.add: 1 is a node that is there at 5 s. Use 2.",
        ),
        (
            {"nodes": 2, "events": [{"at": 5, "add": 4}]},
            "fleet.events.0.add: 4 leaves numbers out. Use 2.",
        ),
        (
            {"nodes": 2, "events": [{"at": 5}]},
            "fleet.events.0: does nothing. Give one of lose, drain and add, with the number of a",
        ),
        (
            {"nodes": 2, "events": [{"at": 5, "lose": 1, "add": 2}]},
            "fleet.events.0: gives lose and add. Keep one of lose, drain and add, with the number",
        ),
        (
            {"nodes": 2, "events": [{"at": 5, "lose": 1, "ready_after": 3}]},
            "fleet.events.0.ready_after: 3 stands beside lose. It is for add: leave it out.",
        ),
        (
            {"pools": {"prefill": {"nodes": 2}}},
            "fleet.pools.decode: is missing. Give: nodes that make answers.",
        ),
        (
            {"nodes": 2, "pools": {"prefill": {}, "decode": {}}},
            "fleet.nodes: 2 stands beside pools, which have their own. Leave it out.",
        ),
    ],
)
def test_one_problem(fleet: dict[str, Any], text: str) -> None:
    (found,) = problems(fleet)
    assert found.startswith(text)


def test_gpus_that_no_rank_uses_are_named() -> None:
    (found,) = problems(None, {"gpus": 8, "tensor_parallel": 2, "data_parallel": 3})
    assert found == (
        "node.tensor_parallel: 2 x 3 leaves GPUs 6 to 7 of 8 (node.gpus) to nobody. Use "
        "node.data_parallel: 4, or node.gpus: 6."
    )
    (found,) = problems(None, {"gpus": 8, "tensor_parallel": 4, "data_parallel": 4})
    assert found == "node.tensor_parallel: 4 x 4 is above node.gpus (8). Use 2."


def test_experts_of_a_dense_model() -> None:
    (found,) = problems(None, {"gpus": 2, "data_parallel": 2, "expert_parallel": True})
    assert found == "node.expert_parallel: true is set, and custom has no experts. Use false."


def test_an_engine_over_all_nodes_does_not_outlive_one() -> None:
    experts = {"weight_bytes": 100, "expert_bytes": 50, "num_experts": 8, "experts_per_token": 2}
    model = {"groups": [{"kind": "full", "block_size": 16}], **experts}
    fleet = {"nodes": 2, "balancing": "hybrid", "events": [{"at": 5, "lose": 1}]}
    (found,) = problems(fleet, model=model)
    assert found.startswith("fleet.events: one engine spans all nodes (balancing: hybrid), its ")
    scenario({**fleet, "balancing": "internal"}, model=model)
    scenario(fleet)


def test_what_follows_from_a_fleet_is_said() -> None:
    from kvsim.scenario.description import describe

    events = [{"at": 600, "lose": 1}, {"at": 900, "add": 1, "ready_after": 120}]
    fleet = {"nodes": 4, "router": {"kind": "dynamo-kv"}, "router_replicas": 2, "events": events}
    node = {"gpus": 2, "data_parallel": 2, "tensor_parallel": 1}
    text = describe({"a": scenario(fleet, node)})
    assert (
        "Fleet:\n"
        "  4 nodes of 2 GPUs, 2 ranks each: 8 caches of the size above\n"
        "  ranks run each on its own; a rank is chosen by API servers of its node, which is an "
        "engine of its own\n"
        "  router dynamo-kv, 2 of them side by side\n"
        "  at 600 s node 1 is lost\n"
        "  at 900 s node 1 is started, ready 120 s later\n"
    ) in text
    assert "Fleet" not in describe({"a": scenario(None)})


@pytest.mark.parametrize(
    ("router", "text"),
    [
        ("dynamo", "fleet.router: unknown router 'dynamo'. Did you mean 'dynamo-kv'?"),
        ({"kind": "random", "x": 1}, "fleet.router.x: unknown parameter 'x'. This router has none"),
    ],
)
def test_routers_that_are_not_there(router: Any, text: str) -> None:
    (found,) = problems({"nodes": 2, "router": router})
    assert found.startswith(text)
