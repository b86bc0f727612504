"""The routers of a fleet side by side, and the caches they may be told of."""

from __future__ import annotations

import random

from kvsim.engine.simulation import make_cache
from kvsim.fleet.caches import FleetCaches, looked_at
from kvsim.routing import Decider, RoutedRequest, Surroundings, make_router
from kvsim.scenario import Scenario
from kvsim.workload.streams import stream


def make_routers(scenario: Scenario, draws: str = "router") -> tuple[list[Decider], FleetCaches]:
    """The fleet's routers side by side, and the caches they may be told of."""
    fleet, ranks = scenario.fleet, scenario.node.data_parallel
    config = make_cache(scenario).config
    block_tokens = config.groups[looked_at(config)].block_size
    num_nodes = scenario.num_nodes
    num_routers = 1 if fleet is None else fleet.router_replicas
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
    shown.append(
        FleetCaches(
            most_nodes(scenario) * ranks, config, deciders, compares=scenario.output.compare_caches
        )
    )
    return deciders, shown[0]


def most_nodes(scenario: Scenario) -> int:
    """Numbers of nodes that a fleet has at the start or later."""
    events = () if scenario.fleet is None else scenario.fleet.events or ()
    added = [event.add + 1 for event in events if event.add is not None]
    return max([scenario.num_nodes, *added])
