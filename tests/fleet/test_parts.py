"""A fleet in parts gives what one process gives, to the last digit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
import pytest

from kvsim.fleet.outcome import FleetSimulation
from kvsim.fleet.parts import (
    Part,
    run_part,
    simulate_in_parts,
    whole_note,
    why_whole,
)
from kvsim.fleet.simulation import NodesRun, simulate_fleet
from kvsim.metrics.records import fleet_timeline
from kvsim.study.parallel import each
from tests.fleet.small import CHAT, EXPERTS, GROUPS, scenario

OPEN = {**CHAT, "sessions": {"starts": "poisson(per_s=8)", "loop": "open"}}
APART = {"compare_caches": False}


def here(work: Callable[[Part], NodesRun], parts: Sequence[Part]) -> Iterator[tuple[int, NodesRun]]:
    """The parts in this process, the last one first."""
    assert len(parts) > 1
    for number in reversed(range(len(parts))):
        yield number, work(parts[number])


def never(work: object, parts: object) -> Iterator[tuple[int, NodesRun]]:
    raise AssertionError("it must run whole")


def assert_same(parts: FleetSimulation, whole: FleetSimulation) -> None:
    frames = [run.requests.frame(fleet=True) for run in (parts, whole)]
    pd.testing.assert_frame_equal(*frames, check_exact=True)
    timelines = [fleet_timeline(run.timelines) for run in (parts, whole)]
    pd.testing.assert_frame_equal(*timelines, check_exact=True)
    assert parts.counters == whole.counters
    assert parts.figures == whole.figures
    assert parts.warnings == whole.warnings


@pytest.mark.parametrize(
    ("workload", "router"),
    [
        (OPEN, "random"),
        (OPEN, "round-robin"),
        (OPEN, "session"),
        (OPEN, {"kind": "production-stack", "logic": "prefix-aware"}),
        (CHAT, "session"),
        (CHAT, {"kind": "production-stack", "logic": "session"}),
    ],
)
def test_parts_are_the_whole(workload: Any, router: Any) -> None:
    made = scenario(workload, fleet={"nodes": 5, "router": router}, output=APART)
    assert_same(simulate_in_parts(made, 3, here), simulate_fleet(made))


def test_routers_side_by_side_and_ranks_of_experts() -> None:
    made = scenario(
        OPEN,
        model={"groups": GROUPS, **EXPERTS},
        node={"gpus": 2, "data_parallel": 2, "tensor_parallel": 1},
        fleet={"nodes": 3, "router": "random", "router_replicas": 2},
        output=APART,
    )
    assert_same(simulate_in_parts(made, 2, here), simulate_fleet(made))


@pytest.mark.parametrize(
    ("backend", "package"), [("loky", "joblib"), ("dask", "distributed"), ("ray", "ray")]
)
def test_in_processes_here_and_on_clusters(backend: str, package: str) -> None:
    pytest.importorskip(package)
    made = scenario(CHAT, fleet={"nodes": 4, "router": "session"}, output=APART)
    in_parts = partial(each, jobs=2, backend=backend)
    assert_same(simulate_in_parts(made, 3, in_parts), simulate_fleet(made))


def test_sessions_that_start_at_one_moment_are_put_in_order_by_one_process() -> None:
    together = {**CHAT, "sessions": {"starts": "together"}}
    made = scenario(together, fleet={"nodes": 3, "router": "session"}, output=APART)
    assert_same(simulate_in_parts(made, 3, here), simulate_fleet(made))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"output.compare_caches": True}, "compare_caches"),
        ({"output.reasons": True}, "output.reasons"),
        ({"fleet.router": "least-requests"}, "state of replicas"),
        ({"fleet.router": "random"}, "wait for answers"),
        ({"fleet.nodes": 1}, "one node"),
        ({"fleet.events": [{"at": "1 s", "lose": 1}]}, "fleet.events"),
        ({"workload.sessions.starts": None, "workload.sessions.concurrency": 4}, "concurrency"),
    ],
)
def test_what_hangs_together_runs_whole(change: dict[str, Any], why: str) -> None:
    made = scenario(CHAT, fleet={"nodes": 3, "router": "session"}, output=APART)
    assert why_whole(made) is None
    whole = made.replace(change)
    assert why in (why_whole(whole) or "")
    assert_same(simulate_in_parts(whole, 3, never), simulate_fleet(whole))


def test_people_are_told_why_replicas_ran_in_one_process() -> None:
    made = scenario(CHAT, fleet={"nodes": 3, "router": "session"})
    assert whole_note(made) == (
        "All replicas ran in one process: output.compare_caches looks at them all."
    )
    seeing = made.replace({"fleet.router": "least-requests"})
    assert whole_note(seeing) == (  # the comparison is not what is in the way
        "All replicas ran in one process: the router goes by the state of replicas."
    )
    assert whole_note(made.replace({"output.compare_caches": False})) is None
    assert whole_note(made.replace({"fleet.nodes": 1})) is None
    assert whole_note(scenario(CHAT)) is None


def test_what_is_not_compared_is_null_and_changes_nothing_else() -> None:
    made = scenario(CHAT, fleet={"nodes": 3, "router": {"kind": "dynamo-kv"}})
    blind = simulate_fleet(made.replace({"output.compare_caches": False}))
    seeing = simulate_fleet(made)
    column = "cached_elsewhere_tokens"
    frames = [run.requests.frame(fleet=True) for run in (blind, seeing)]
    assert frames[0].pop(column).isna().all()
    assert frames[1].pop(column).sum() > 0
    pd.testing.assert_frame_equal(*frames, check_exact=True)
    assert blind.counters == seeing.counters
    assert (blind.figures.duplicate_share, blind.figures.duplicate_tokens) == (None, None)


def test_a_part_runs_its_own_nodes_alone() -> None:
    made = scenario(OPEN, fleet={"nodes": 4, "router": "round-robin"}, output=APART)
    run = run_part(Part(made, [1, 2]))
    assert {life.node for life in run.counted.lives} == {1, 2}
    assert set(run.requests.frame(fleet=True)["replica"]) == {1, 2}
