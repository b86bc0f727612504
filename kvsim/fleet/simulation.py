"""From a scenario of several replicas to what happened."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.engine.clock import Clock
from kvsim.engine.feeding import call_at
from kvsim.engine.simulation import (
    check_some_ran,
    feed,
    make_step_time,
    run_warnings,
)
from kvsim.errors import Problems
from kvsim.fleet.figures import fleet_figures
from kvsim.fleet.front import Front
from kvsim.fleet.nodes import Nodes
from kvsim.fleet.outcome import FleetSimulation
from kvsim.fleet.routers import make_routers
from kvsim.fleet.split_simulation import simulate_split
from kvsim.metrics.records import RequestLog
from kvsim.scenario import FleetEvent, Scenario
from kvsim.scenario.not_simulated import not_simulated
from kvsim.workload import open_workload
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
    workload = open_workload(scenario.workload, scenario.scheduler_block_tokens, scenario.seed)
    clock = Clock()
    step_time = make_step_time(scenario)
    requests = RequestLog()
    deciders, caches = make_routers(scenario)
    nodes = Nodes(clock, scenario, step_time, requests, caches, one_by_one=one_by_one)
    seed = int(stream(scenario.seed, "front").integers(2**62))
    front = Front(clock, nodes, deciders, requests, seed)
    for number in range(scenario.num_nodes):
        front.add(number, clock.now, at_start=True)
    _set_events(clock, scenario, front)
    feed(clock, workload, front, told)
    clock.run()
    told(1.0)
    lives = [life for node in nodes.all for life in node.lives]
    num_refused = front.num_refused + sum(life.engine.replica.num_refused for life in lives)
    check_some_ran(scenario, requests, num_refused)
    counters, figures = fleet_figures(scenario, nodes, front, caches)
    return FleetSimulation(
        requests,
        [(life.replica, life.engine.timeline) for life in lives],
        counters,
        figures,
        run_warnings(scenario, workload, step_time),
    )


def _set_events(clock: Clock, scenario: Scenario, front: Front) -> None:
    """Set on the clock what happens to nodes."""
    fleet = scenario.fleet
    for event in () if fleet is None else fleet.events or ():

        def happen(event: FleetEvent = event) -> None:
            if event.lose is not None:
                front.lose(event.lose, resend=fleet is None or fleet.lost_requests == "resend")
            elif event.drain is not None:
                front.drain(event.drain)
            elif event.add is not None:
                front.add(event.add, event.at)

        if event.add is not None:
            front.expect(1)
            call_at(clock, event.at + event.ready_after, happen)
        else:
            call_at(clock, event.at, happen)
