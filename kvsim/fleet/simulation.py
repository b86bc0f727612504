"""From a scenario of several replicas to what happened."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvsim.engine.clock import Clock
from kvsim.engine.simulation import (
    check_some_ran,
    feed,
    forgotten_evictions,
    make_step_time,
    run_warnings,
)
from kvsim.errors import Problems
from kvsim.fleet.events import set_events
from kvsim.fleet.figures import FleetCounts, count_fleet, fleet_figures
from kvsim.fleet.front import Front
from kvsim.fleet.nodes import Nodes
from kvsim.fleet.outcome import FleetSimulation
from kvsim.fleet.routers import make_routers
from kvsim.fleet.split_simulation import simulate_split
from kvsim.metrics.records import RequestLog
from kvsim.routing import Decider, RoutedRequest
from kvsim.scenario import Scenario
from kvsim.scenario.not_simulated import not_simulated
from kvsim.workload import open_workload
from kvsim.workload.request import Session
from kvsim.workload.streams import stream


def simulate_fleet(
    scenario: Scenario,
    *,
    on_progress: Callable[[float], None] | None = None,
    one_by_one: bool = False,
) -> FleetSimulation:
    """Run a scenario that has no variants; a function of the scenario and its seed.

    Args:
        scenario: what to run.
        on_progress: told the share of the workload that has arrived, 0 to 1, now and then.
        one_by_one: an event for every step; slower. The results are the same but where decodes push
            cached blocks out: what goes in a run of steps reaches routers that go by events, and
            what was cached elsewhere, at the end of that run.

    Raises:
        KvsimError: the workload cannot be read, none of its requests can run, or the router fails.
    """
    if refused := [str(problem) for problem in not_simulated(scenario)]:
        raise Problems(f"scenario {scenario.name}", refused)
    told = on_progress or (lambda share: None)
    if scenario.fleet is not None and scenario.fleet.pools is not None:
        return simulate_split(scenario, told, one_by_one=one_by_one)
    run = run_nodes(scenario, range(scenario.num_nodes), told, one_by_one=one_by_one)
    told(1.0)
    return outcome(scenario, run)


@dataclass(frozen=True)
class NodesRun:
    """What nodes of a fleet leave behind.

    Attributes:
        requests: that they ran, or that were refused.
        num_refused: of these.
        counted: by rank.
        warnings: of the workload.
        table_steps: steps that a table of step times was asked for, and those outside of it.
        notes: of the replicas, for people.
    """

    requests: RequestLog
    num_refused: int
    counted: FleetCounts
    warnings: tuple[str, ...]
    table_steps: tuple[int, int]
    notes: tuple[str, ...]


def run_nodes(
    scenario: Scenario,
    numbers: Sequence[int],
    told: Callable[[float], None],
    *,
    one_by_one: bool = False,
) -> NodesRun:
    """Let the workload arrive at a fleet, and run those nodes of it.

    Args:
        scenario: of the fleet.
        numbers: of the nodes that are run. If they are not all, no node comes or goes, and the
            router chooses by what arrives alone.
        told: the share of the workload that has arrived.
        one_by_one: an event for every step.
    """
    workload = open_workload(scenario.workload, scenario.scheduler_block_tokens, scenario.seed)
    clock = Clock()
    step_time = make_step_time(scenario)
    asked_before = step_time.tables.outside.copy()
    requests = RequestLog()
    deciders, caches = make_routers(scenario)
    nodes = Nodes(
        clock,
        scenario,
        step_time,
        requests,
        caches,
        one_by_one=one_by_one,
        coarse_tokens=workload.block_tokens,
    )
    seed = int(stream(scenario.seed, "front").integers(2**62))
    is_part = len(numbers) < scenario.num_nodes
    front = Front(clock, nodes, deciders, requests, seed, others_apart=is_part)
    for number in numbers:
        front.add(number, clock.now, at_start=True)
    if (fleet := scenario.fleet) is not None:
        set_events(clock, fleet.events, front, resend=fleet.lost_requests == "resend")
    if is_part and workload.sessions is not None:
        # Of others' sessions nobody here knows when their turns arrive.
        workload.sessions = (
            session
            for session in workload.sessions
            if not session.turns or nodes.node_of(_home(deciders[0], session)) in nodes.there
        )
    feed(clock, workload, front, told)
    clock.run()
    lives = [life for node in nodes.all for life in node.lives]
    asked, outside = (step_time.tables.outside - asked_before).tolist()
    return NodesRun(
        requests,
        front.num_refused + sum(life.engine.replica.num_refused for life in lives),
        count_fleet(scenario, nodes, front, caches),
        tuple(workload.warnings),
        (asked, outside),
        forgotten_evictions(life.engine for life in lives),
    )


def outcome(scenario: Scenario, run: NodesRun) -> FleetSimulation:
    """What a fleet leaves behind, from what all its nodes do.

    Raises:
        KvsimError: nothing ran.
    """
    check_some_ran(scenario, run.requests, run.num_refused)
    counters, figures = fleet_figures(scenario, run.counted)
    counters.missed_by_group = run.requests.missed_by_group()
    return FleetSimulation(
        run.requests,
        [(life.replica, life.timeline) for life in run.counted.lives],
        counters,
        figures,
        (*run_warnings(scenario, run.warnings, run.table_steps), *run.notes),
    )


def _home(decider: Decider, session: Session) -> int:
    """Where a router sends a session that goes by the session alone."""
    request = session.turns[0].request
    routed = RoutedRequest(
        request.request_id, request.content, request.num_prompt_tokens, 0.0, session.session_id
    )
    home = decider.router.choose(routed, decider.views, 0.0, random.Random(0))
    assert home is not None, "by the session alone"
    return home
