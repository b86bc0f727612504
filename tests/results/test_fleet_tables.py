"""Tables of fleets in 80 columns, and what they leave out."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from kvsim.results.fleet_tables import fleet_lines, fleet_table, further_lines, replica_table
from tests.fleet.results import apart, routed, with_loss


def shown(table: Any) -> list[str]:
    text = io.StringIO()
    Console(width=80, file=text).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def fleets() -> dict[str, Any]:
    runs = [routed("random"), routed("session"), with_loss(True)]
    return {result.variant: result.summary["fleet"] for result in runs}


def test_fleets_side_by_side() -> None:
    lines = shown(fleet_table(fleets()))
    assert all(len(line) <= 80 for line in lines)
    assert not any("…" in line for line in lines)
    assert lines[1].split() == [
        "fleet", "router", "cas", "routed", "copies", "max/mean", "max/mean", "max/mean", "hours",
    ]  # fmt: skip
    assert [line.split()[:3] for line in lines[3:6]] == [
        ["random", "random", "3"],
        ["session", "session", "3"],
        ["lost", "session", "3"],
    ]
    assert "misrouted: prompt tokens that another replica had cached instead" in lines


def test_a_router_that_gives_a_run_its_name_is_not_said_twice() -> None:
    some = {name: fleet for name, fleet in fleets().items() if name != "lost"}
    assert "router" not in shown(fleet_table(some))[1].split()


def test_one_fleet_in_sentences() -> None:
    lines = list(fleet_lines(with_loss(True).summary["fleet"]))
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].startswith("3 replicas, router session, ")
    assert lines[1].startswith("largest replica over the mean: requests 1.")
    assert lines[2].startswith("misrouted (cached on another replica): ")
    assert lines[3].startswith("copies of what another replica holds too: ")
    resent = with_loss(True).summary["fleet"]["num_resent"]
    assert list(further_lines(with_loss(True).summary["fleet"])) == [
        f"1 node lost, {resent} requests sent again"
    ]


def test_pools_are_named_and_their_imbalance_is_each_their_own() -> None:
    fleet = apart().summary["fleet"]
    names = [line.split()[:2] for line in shown(replica_table(fleet))[3:6]]
    assert names == [["prefill", "0"], ["decode", "1"], ["decode", "2"]]
    loads = [row["load"] for row in fleet["replicas"] if row["pool"] == "decode"]
    assert fleet["imbalance"]["load"] == max(loads) * 2 / sum(loads)
    moved = [row["bytes_handed_over"] for row in fleet["replicas"]]
    assert moved[0] == sum(moved[1:]) == fleet["pools"]["moved_bytes"]
    assert all(row["bytes_stored"] == 0 for row in fleet["replicas"])


def test_events_of_caches_come_late() -> None:
    late = routed("dynamo-kv").summary["fleet"]
    assert late["events_after_s"] == 0.005
    under_way = f"{late['events_under_way']['mean']:.2g}"
    told = f"routers learn 5.00 ms later what caches hold; messages under way: {under_way}"
    lines = list(fleet_lines(late))
    assert told in lines
    assert "hits expected by the router: 0 tokens off, too many in 0.0%, too few in 0.0%" in lines
    assert not any("expected" in line for line in fleet_lines(routed("random").summary["fleet"]))
    assert routed("random").summary["fleet"]["events_after_s"] is None


def test_what_there_is_none_of_is_null() -> None:
    assert all(row["bytes_handed_over"] is None for row in fleets()["lost"]["replicas"])
