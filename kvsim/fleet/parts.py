"""A fleet in parts: where its router needs no state of replicas, they run in several processes.

Each process lets the whole workload arrive, asks the router as one process would, and runs some of
the nodes. The results are those of one process to the last digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kvsim.errors import Problems
from kvsim.fleet.figures import FleetCounts, in_order
from kvsim.fleet.outcome import FleetSimulation
from kvsim.fleet.routers import make_routers
from kvsim.fleet.simulation import NodesRun, outcome, run_nodes, simulate_fleet
from kvsim.metrics.records import RequestLog
from kvsim.scenario import MooncakeOffload, Scenario
from kvsim.scenario.not_simulated import not_simulated
from kvsim.workload import open_workload


class Part(NamedTuple):
    """Some nodes of a fleet."""

    scenario: Scenario
    nodes: Sequence[int]


InParts = Callable[[Callable[[Part], NodesRun], Sequence[Part]], Iterable[tuple[int, NodesRun]]]
"""Calls a function with each part, wherever; gives numbers of parts and their results."""


def why_whole(scenario: Scenario) -> str | None:
    """Why the replicas of a fleet have to run in one process, or None."""
    fleet = scenario.fleet
    if fleet is None or fleet.pools is not None:
        return "prefill and decode hand over to each other" if fleet else "it is one node"
    if scenario.num_nodes < 2:
        return "it is one node"
    if fleet.events:
        return "nodes come or go (fleet.events)"
    if scenario.balancing == "hybrid":
        return "the ranks of all nodes are one engine (fleet.balancing: hybrid)"
    if isinstance(scenario.offload, MooncakeOffload):
        return "nodes share a store (offload)"
    deciders, _ = make_routers(scenario)
    if not deciders[0].router.sees.nothing:
        return "the router goes by the state of replicas"
    workload = open_workload(scenario.workload, scenario.scheduler_block_tokens, scenario.seed)
    if workload.concurrency is not None:
        return "a session or request begins when another ends (concurrency)"
    by_session = len(deciders) == 1 and deciders[0].router.by_session
    if workload.sessions is not None and not by_session:
        return "turns wait for answers, and the router does not go by the session alone"
    # Last, as these can be switched off where nothing else is in the way.
    if scenario.output.reasons:
        return "it is noted why tokens are missed (output.reasons)"
    if scenario.output.compare_caches:
        return "output.compare_caches looks at them all"
    return None


def runs_in_parts(scenario: Scenario) -> bool:
    """Whether the replicas of a scenario can run in several processes."""
    return scenario.is_fleet and why_whole(scenario) is None


def whole_note(scenario: Scenario) -> str | None:
    """For people who have several cores: why the replicas of a fleet ran in one process.

    None where they did not, or where there is one node and nobody expects it.
    """
    fleet = scenario.fleet
    if fleet is None or (fleet.pools is None and scenario.num_nodes < 2):
        return None
    why = why_whole(scenario)
    return None if why is None else f"All replicas ran in one process: {why}."


def simulate_in_parts(
    scenario: Scenario,
    num_parts: int,
    in_parts: InParts,
    *,
    on_progress: Callable[[float], None] | None = None,
) -> FleetSimulation:
    """Run a fleet, in so many parts where that changes nothing; see `simulate_fleet`.

    Args:
        scenario: what to run.
        num_parts: most parts.
        in_parts: runs them.
        on_progress: told the share of the workload that has arrived; of parts, of those done.

    Raises:
        KvsimError: as `simulate_fleet`.
    """
    if refused := [str(problem) for problem in not_simulated(scenario)]:
        raise Problems(f"scenario {scenario.name}", refused)
    num_nodes = scenario.num_nodes
    num_parts = min(num_parts, num_nodes)
    if num_parts < 2 or why_whole(scenario) is not None:
        return simulate_fleet(scenario, on_progress=on_progress)
    ends = [num_nodes * part // num_parts for part in range(num_parts + 1)]
    parts = [Part(scenario, range(ends[i], ends[i + 1])) for i in range(num_parts)]
    runs: dict[int, NodesRun] = {}
    for number, run in in_parts(run_part, parts):
        runs[number] = run
        if on_progress is not None:
            on_progress(len(runs) / num_parts)
    together = _together([runs[number] for number in range(num_parts)])
    sizes = [len(run.requests) for run in runs.values()]
    del runs
    workload = open_workload(scenario.workload, scenario.scheduler_block_tokens, scenario.seed)
    if workload.sessions is not None and not together.requests.order_by_arrival(sizes):
        # Which of two came first at one moment is for one process to say.
        return simulate_fleet(scenario, on_progress=on_progress)
    return outcome(scenario, together)


def run_part(part: Part) -> NodesRun:
    """Run the nodes of a part."""
    return run_nodes(part.scenario, part.nodes, lambda share: None)


def _together(runs: Sequence[NodesRun]) -> NodesRun:
    requests = RequestLog()
    for run in runs:
        requests.extend(run.requests)
    first = runs[0].counted
    asked, outside = (sum(run.table_steps[place] for run in runs) for place in (0, 1))
    return NodesRun(
        requests,
        sum(run.num_refused for run in runs),
        FleetCounts(
            [life for run in runs for life in run.counted.lives],
            first.router,
            None,
            None,
            first.ages_s,
            first.events_after_s,
            sum(run.counted.num_dummy_steps for run in runs),
            in_order(link for run in runs for link in run.counted.links),
            first.under_way,
        ),
        runs[0].warnings,
        (asked, outside),
        tuple(note for run in runs for note in run.notes),
    )
