"""Searches and sweeps of a fleet's keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kvsim
from kvsim.errors import KvsimError
from kvsim.scenario import Scenario
from kvsim.study.fleet_quantities import NODES_MAX
from kvsim.study.quantities import quantity
from kvsim.study.runs import read_runs
from tests.fleet.results import LOSS, MORE
from tests.fleet.small import scenario

BUSY: dict[str, Any] = {**MORE, "num_sessions": 60, "sessions": {"starts": "poisson(per_s=30)"}}


def asked(made: Scenario, name: str) -> str:
    with pytest.raises(KvsimError) as caught:
        quantity(made, name)
    return str(caught.value)


@pytest.mark.parametrize("fleet", [None, {"nodes": 2, "router": "session"}])
def test_the_fewest_nodes_that_meet_an_objective(fleet: dict[str, Any] | None) -> None:
    made = scenario(BUSY, fleet=fleet)
    found = kvsim.find(made, smallest="fleet.nodes", objective="queue_s.p99 < 0.3", jobs=1)
    assert found.value is not None
    assert found.value > 1
    assert found.bracket == (found.value, found.value - 1)
    assert found.monotone
    for nodes in (found.value, found.value - 1):
        result = kvsim.run(made.replace({"fleet.nodes": int(nodes)}))
        assert (result.summary["queue_s"]["p99"] < 0.3) == (nodes == found.value)
    assert any("at fleet.nodes" in note for note in found.notes)


def test_figures_of_a_fleet_are_objectives() -> None:
    made = scenario(fleet={"nodes": 2, "router": "session"})
    objective = "fleet.misrouted_share < 0.9"
    found = kvsim.find(made, smallest="fleet.nodes", objective=objective, jobs=1, high=2)
    assert found.value == 1


def test_more_nodes_that_do_not_help_are_given_up() -> None:
    """Round robin finds less on more nodes, so a hit rate beyond one node's is not reached."""
    made = scenario(fleet={"nodes": 2})
    found = kvsim.find(made, smallest="fleet.nodes", objective="token_hit_rate > 0.95", jobs=1)
    assert found.value is None
    assert [trial.value for trial in found.tried] == [2, 4, 8]
    assert any("more nodes will not do" in note for note in found.notes)


def test_nodes_are_whole_and_have_an_end() -> None:
    nodes = quantity(scenario(fleet={"nodes": 3}), "fleet.nodes")
    assert (nodes.start, nodes.whole, nodes.most, nodes.is_load) == (3, True, NODES_MAX, True)
    assert nodes.overrides(2.2) == {"fleet.nodes": 2}
    assert nodes.rounded(0.2) == 1
    assert quantity(scenario(), "fleet.nodes").start == 1
    pools = {"prefill": {"nodes": 1}, "decode": {"nodes": 2}}
    decode = quantity(scenario(fleet={"pools": pools}), "fleet.pools.decode.nodes")
    assert (decode.start, decode.most) == (2, NODES_MAX)
    assert asked(scenario(fleet={"pools": pools}), "fleet.nodes") == (
        "quantity: fleet.nodes: prefill and decode are apart (fleet.pools). Vary "
        "fleet.pools.prefill.nodes or fleet.pools.decode.nodes."
    )


def test_numbers_of_routers() -> None:
    made = scenario(fleet={"nodes": 2, "router": {"kind": "dynamo-kv", "overlap_credit": 2.0}})
    assert quantity(made, "fleet.router.overlap_credit").start == 2
    written = scenario(fleet={"nodes": 2, "router": "dynamo-kv"})
    credit = quantity(written, "fleet.router.overlap_credit")
    assert credit.start == 1
    changed = written.replace(credit.overrides(0.5))
    assert changed.router == ("dynamo-kv", {"overlap_credit": 0.5})
    assert asked(made, "fleet.router.overlap_crdit") == (
        "quantity: router dynamo-kv: unknown key 'overlap_crdit'. Did you mean 'overlap_credit'?"
    )
    assert asked(scenario(fleet={"nodes": 2}), "fleet.router.load") == (
        "quantity: fleet.router.load: router round-robin has no numbers to vary."
    )
    assert asked(scenario(), "fleet.router.load") == (
        "quantity: fleet.router.load: fleet is null in this scenario. Write it out."
    )
    assert asked(made, "fleet.pools.decode.router.load") == (
        "quantity: fleet.pools.decode.router.load: fleet.pools is null in this scenario. Write it "
        "out."
    )


def test_a_number_of_nodes_that_an_event_does_not_know_is_missed() -> None:
    made = scenario(fleet={"nodes": 3, "events": LOSS})
    found = kvsim.find(made, smallest="fleet.nodes", objective="token_hit_rate > 0", jobs=1)
    assert found.value == 2
    message = next(trial.message for trial in found.tried if trial.value == 1)
    assert message is not None
    assert "fleet.events.0.lose: 1 is no node that is there at 4 s" in message


def test_a_router_alone_is_its_name() -> None:
    made = scenario(fleet={"nodes": 2, "router": {"kind": "session"}})
    assert made.fleet is not None
    assert made.fleet.router == "session"
    other = made.replace({"fleet.router.load_factor": 1.5})
    assert other.router == ("session", {"load_factor": 1.5})


def test_any_key_of_a_fleet_is_an_axis(tmp_path: Path) -> None:
    made = scenario(fleet={"nodes": 2, "router": "random"})
    grid = {"fleet.router.kind": ["random", "session"], "fleet.nodes": [1, 2]}
    swept = kvsim.sweep(made, grid, out=tmp_path / "nodes", jobs=1)
    assert swept.table["fleet.router.kind"].tolist() == ["random", "random", "session", "session"]
    assert swept.table["fleet.nodes"].tolist() == [1, 2, 1, 2]
    runs = read_runs(swept.path)
    assert runs.axes == ("fleet.nodes",)
    assert runs.frame["label"].tolist() == ["random", "random", "session", "session"]
    assert runs.frame["layout"].tolist() == ["TP1", "2 x TP1"] * 2
    ranks = kvsim.sweep(
        scenario(node={"gpus": 2}),
        {"node.data_parallel": [2], "fleet.balancing": ["internal", "external"]},
        out=tmp_path / "ranks",
        jobs=1,
    )
    assert (ranks.table["status"] == "done").all()
    with pytest.raises(KvsimError, match=re.escape("unknown router 'sesion'. Did you mean 'ses")):
        kvsim.sweep(made, {"fleet.router": ["sesion"]}, out=tmp_path / "wrong", jobs=1)
