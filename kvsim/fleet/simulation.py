"""From a scenario of several replicas to what happened."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from kvsim.engine.clock import Clock
from kvsim.engine.feeding import call_at
from kvsim.engine.simulation import (
    check_some_ran,
    feed,
    make_cache,
    make_step_time,
    run_warnings,
)
from kvsim.errors import Problems
from kvsim.fleet.caches import FleetCaches, looked_at
from kvsim.fleet.figures import fleet_figures
from kvsim.fleet.front import Front
from kvsim.fleet.nodes import Nodes
from kvsim.metrics.fleet import FleetFigures
from kvsim.metrics.records import RequestLog, TimelineLog
from kvsim.metrics.summary import RunCounters
from kvsim.routing import Decider, RoutedRequest, Surroundings, make_router
from kvsim.scenario import FleetEvent, Scenario
from kvsim.scenario.rules import not_simulated
from kvsim.workload import open_workload
from kvsim.workload.streams import stream


@dataclass(frozen=True)
class FleetSimulation:
    """What a run of several replicas leaves behind.

    Attributes:
        requests: a record a request, of all replicas.
        timelines: the state of each replica's pool over time, with the replica's number.
        counters: sums over all replicas.
        figures: what there is to say of the fleet.
        warnings: what the workload cannot show, for people.
    """

    requests: RequestLog
    timelines: list[tuple[int, TimelineLog]]
    counters: RunCounters
    figures: FleetFigures
    warnings: tuple[str, ...]


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
        one_by_one: an event for every step; slower, with the same results.

    Raises:
        KvsimError: the workload cannot be read, none of its requests can run, or the router fails.
    """
    if refused := [str(problem) for problem in not_simulated(scenario)]:
        raise Problems(f"scenario {scenario.name}", refused)
    told = on_progress or (lambda share: None)
    if scenario.fleet is not None and scenario.fleet.pools is not None:
        from kvsim.fleet.split_simulation import simulate_split

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


def make_routers(scenario: Scenario, draws: str = "router") -> tuple[list[Decider], FleetCaches]:
    """The fleet's routers side by side, and the caches they may be told of."""
    fleet, ranks = scenario.fleet, scenario.node.data_parallel
    config = make_cache(scenario).config
    block_tokens = config.groups[looked_at(config)].block_size
    num_nodes = scenario.num_nodes
    num_routers = 1 if fleet is None else fleet.router_replicas
    events = () if fleet is None else fleet.events or ()
    most_nodes = max([num_nodes, *(event.add + 1 for event in events if event.add is not None)])
    per_node = ranks if scenario.balancing == "external" else 1
    behind = 1 if per_node == ranks else ranks
    kind, written = scenario.router
    shown: list[FleetCaches] = []

    def cached_tokens(request: RoutedRequest, target: int) -> int:
        """What a target would find now; of a node the most that one of its ranks would."""
        replicas = range(target * behind, (target + 1) * behind)
        return max(shown[0].cached_tokens(request.content, replica) for replica in replicas)

    deciders = []
    for index in range(num_routers):
        surroundings = Surroundings(
            num_nodes * per_node,
            block_tokens,
            config.num_blocks * behind,
            scenario.max_num_batched_tokens,
            index,
            num_routers,
            cached_tokens,
        )
        router = make_router(kind, written, surroundings, scenario.directory)
        seed = int(stream(scenario.seed, draws, index).integers(2**62))
        deciders.append(Decider(router, random.Random(seed), kind))
    shown.append(FleetCaches(most_nodes * ranks, config, deciders))
    return deciders, shown[0]


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
