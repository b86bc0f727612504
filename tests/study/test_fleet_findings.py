"""What is said of routers, layouts and losses: no more than the runs show, ties as ties."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.report.page import report_html
from kvsim.results.store import RunResult
from kvsim.results.variants import write_variant
from kvsim.study.comparison import compare
from kvsim.study.fleet_findings import baseline, fleet_findings, has_fleets, rank_fleets
from kvsim.study.frames import layout_name, results_frame, router_name
from kvsim.study.runs import Runs, read_runs
from tests.fleet.results import apart, laid_out, routed, with_loss
from tests.fleet.small import scenario


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of results by what differs in them."""
    sets: dict[str, list[RunResult]] = {
        "routers": [routed("random"), routed("session"), routed("oracle")],
        "losses": [with_loss(False), with_loss(True)],
        "layouts": [laid_out(1), laid_out(4)],
        "one": [routed("random")],
    }
    place = tmp_path_factory.mktemp("fleets")
    for name, results in sets.items():
        for result in results:
            write_variant(place / name, result)
    return {name: place / name for name in sets}


@pytest.fixture(scope="module")
def read(places: dict[str, Path]) -> dict[str, Runs]:
    return {name: read_runs(place) for name, place in places.items()}


def test_names_of_layouts_and_routers() -> None:
    def named(**parts: object) -> tuple[str, str]:
        made = scenario(**parts)
        return layout_name(made), router_name(made)

    assert named() == ("TP1", "")
    assert named(node={"gpus": 8}) == ("TP8", "")
    split = {"gpus": 8, "tensor_parallel": 2, "data_parallel": 4}
    assert named(node=split) == ("TP2 x DP4", "vllm-dp")
    external = {"balancing": "external", "router": "session"}
    assert named(node=split, fleet=external) == ("TP2 x DP4", "session")
    assert named(fleet={"nodes": 4, "router": {"kind": "random"}}) == ("4 x TP1", "random")
    assert layout_name(apart().scenario) == "prefill TP1 + decode 2 x TP1"
    assert router_name(apart().scenario) == "round-robin, session"


def test_routers_are_ranked_and_the_oracle_is_no_choice(read: dict[str, Runs]) -> None:
    runs = read["routers"]
    assert (runs.axes, runs.told_first) == ((), [])
    assert runs.fleet_keys == ("fleet.router.kind",)
    ranking = rank_fleets(runs)
    assert set(ranking.best) | set(ranking.behind) == {"random", "session"}
    said = fleet_findings(runs)
    assert said[0].startswith("Most prompt tokens found: session ")
    assert "; then random " in said[0]
    misrouted = next(text for text in said if text.startswith("Misrouted"))
    assert misrouted.index("oracle 0.0%") < misrouted.index("session") < misrouted.index("random")
    assert any(text.startswith("A router that knows every cache (oracle) finds ") for text in said)


def test_a_tie_is_called_one(tmp_path: Path) -> None:
    from dataclasses import replace

    for name in ("one", "two"):
        write_variant(tmp_path, replace(routed("random"), variant=name))
    runs = read_runs(tmp_path)
    said = fleet_findings(runs)
    assert said[0].startswith("By prompt tokens found none is told from another: one ")


def test_one_fleet_is_described(read: dict[str, Runs]) -> None:
    misrouted, load = fleet_findings(read["one"])
    assert misrouted.startswith("Behind router random, ")
    assert misrouted.endswith("cached on another replica than the chosen one (misrouted).")
    assert load.startswith("Load of the busiest replica over the mean: 1.")


def test_a_loss_is_held_against_the_run_without(read: dict[str, Runs]) -> None:
    runs = read["losses"]
    assert baseline(runs) == "still"
    assert baseline(read["routers"]) is None
    said = fleet_findings(runs)
    assert said[0].startswith(
        "lost (node 1 lost at 4.00 s, node 1 ready at 6.00 s) against still: "
    )
    assert said[0].endswith(" more prompt tokens were computed.")
    assert not any(text.startswith(("Use", "Most")) for text in said)


def test_a_single_replica_has_nothing_of_a_fleet(tmp_path: Path) -> None:
    write_variant(tmp_path, laid_out(1))
    runs = read_runs(tmp_path)
    assert not has_fleets(runs)
    assert fleet_findings(runs) == []


def test_reports_of_fleets(read: dict[str, Runs]) -> None:
    routers = report_html(read["routers"])
    assert "Which of the routers serves its synthetic workload best" in routers
    assert "Use session (router session)" in routers
    assert "Routing and replicas" in routers
    assert "Routers side by side" in routers
    losses = report_html(read["losses"])
    assert "What does a fleet lose as nodes come and go" in losses
    assert "Recovery: hit rate of the fleet" in losses
    assert 'class="best"' not in losses
    layouts = report_html(read["layouts"])
    assert "Which of the layouts serves" in layouts
    assert "Layouts side by side" in layouts
    assert "TP4; DP4" in layouts
    for page in (routers, losses, layouts):
        assert "differ in more than their policy" not in page


def test_comparing_fleets(read: dict[str, Runs]) -> None:
    found = compare(*(read["routers"].results[name] for name in ("random", "session")))
    changes = found.scenario_changes.to_dict("records")
    assert [(row["key"], row["reference"], row["value"]) for row in changes] == [
        ("fleet.router.kind", '"random"', '"session"')
    ]
    assert not any("its requests are not those" in note for note in found.notes)
    scopes = set(found.table["scope"])
    assert {"all", "fleet", "replica 0", "replica 2"} <= scopes
    fleet = found.table[found.table["scope"] == "fleet"].set_index("figure")
    assert fleet.loc["misrouted_share", "difference"] < 0


def test_other_prompts_are_still_told() -> None:
    from kvsim.results.variants import run_variant
    from tests.fleet.results import MORE

    other = scenario({**MORE, "num_sessions": 140}, fleet={"nodes": 3, "router": "random"})
    found = compare(routed("random"), run_variant(other, "fewer"))
    assert any("its requests are not those of random" in note for note in found.notes)


def test_frames_know_routers_and_layouts() -> None:
    frame = results_frame([routed("session"), laid_out(4), laid_out(1)])
    assert frame["router"].tolist() == ["session", "vllm-dp", ""]
    assert frame["layout"].tolist() == ["3 x TP1", "DP4", "TP4"]
