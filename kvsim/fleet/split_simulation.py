"""From a scenario with two pools to what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvsim.engine.clock import Clock
from kvsim.engine.simulation import (
    check_some_ran,
    feed,
    forgotten_evictions,
    make_step_time,
    run_warnings,
)
from kvsim.fleet.events import set_events
from kvsim.fleet.figures import add_counters, count_fleet, fleet_figures
from kvsim.fleet.front import Front
from kvsim.fleet.handoff import Handoffs
from kvsim.fleet.nodes import Nodes
from kvsim.fleet.outcome import FleetSimulation
from kvsim.fleet.routers import make_routers, most_nodes
from kvsim.fleet.sides import Side
from kvsim.fleet.split import PromptFront, SplitFront
from kvsim.metrics.fleet import FleetFigures
from kvsim.metrics.handoff import LegLog, PoolsFigures, SideFigures, SplitLog
from kvsim.metrics.summary import RunCounters
from kvsim.scenario import Scenario
from kvsim.scenario.pool_rules import SIDES, pool_scenario
from kvsim.workload import open_workload
from kvsim.workload.streams import stream


def simulate_split(
    scenario: Scenario, told: Callable[[float], None], *, one_by_one: bool = False
) -> FleetSimulation:
    """Run a scenario with pools; see `kvsim.fleet.simulation.simulate_fleet`."""
    clock = Clock()
    workload = open_workload(scenario.workload, scenario.scheduler_block_tokens, scenario.seed)
    handoffs = Handoffs(scenario, clock)
    pools = {side: pool_scenario(scenario, side) for side in SIDES}
    times = {side: make_step_time(pools[side]) for side in SIDES}
    num_prefill = most_nodes(pools["prefill"]) * pools["prefill"].node.data_parallel
    fleet = scenario.fleet
    assert fleet is not None

    front: SplitFront
    prompts = LegLog(lambda record: front.prompt_ended(record))
    requests = SplitLog(lambda record: front.complete(record))
    nodes, deciders = {}, {}
    for side, log, connect in (
        ("prefill", prompts, handoffs.connect_prefill),
        ("decode", requests, handoffs.connect_decode),
    ):
        deciders[side], caches = make_routers(pools[side], f"{side}-router")
        nodes[side] = Nodes(
            clock,
            pools[side],
            times[side],
            log,
            caches,
            one_by_one=one_by_one,
            connect=connect,
            coarse_tokens=workload.block_tokens,
        )
    resend = fleet.lost_requests == "resend"
    seeds = [int(stream(scenario.seed, f"{side}-front").integers(2**62)) for side in SIDES]
    front = SplitFront(
        clock,
        nodes["decode"],
        deciders["decode"],
        requests,
        seeds[1],
        handoffs=handoffs,
        rules=fleet.split,
        first_replica=num_prefill,
        prefill_deciders=deciders["prefill"],
        resends=resend,
    )
    handoffs.on_failed = front.failed
    front.prefill = PromptFront(
        clock,
        nodes["prefill"],
        deciders["prefill"],
        prompts,
        seeds[0],
        handoffs=handoffs,
        requests=front,
    )
    for part, side in ((front.prefill, "prefill"), (front, "decode")):
        for number in range(pools[side].num_nodes):
            part.add(number, clock.now, at_start=True)
        pool = pools[side].fleet
        set_events(clock, None if pool is None else pool.events, part, resend=resend)
    feed(clock, workload, front, told)
    clock.run()
    told(1.0)
    lives = {side: [life for node in nodes[side].all for life in node.lives] for side in SIDES}
    decode_refused = sum(life.engine.replica.num_refused for life in lives["decode"])
    check_some_ran(scenario, requests, front.num_refused + decode_refused)
    handoffs.check_all_done()
    fronts = {"prefill": front.prefill, "decode": front}
    counters, figures = _figures(scenario, pools, nodes, fronts, handoffs)
    counters.missed_by_group = requests.missed_by_group()
    return FleetSimulation(
        requests,
        [
            (life.replica + first, life.engine.timeline)
            for side, first in (("prefill", 0), ("decode", num_prefill))
            for life in lives[side]
        ],
        counters,
        figures,
        tuple(
            dict.fromkeys(
                (
                    *(
                        warning
                        for side in SIDES
                        for warning in run_warnings(
                            pools[side], workload.warnings, times[side].tables.outside.tolist()
                        )
                    ),
                    *handoffs.warnings,
                    *forgotten_evictions(life.engine for side in SIDES for life in lives[side]),
                )
            )
        ),
    )


def _figures(
    scenario: Scenario,
    pools: dict[str, Scenario],
    nodes: dict[str, Nodes],
    fronts: dict[str, Front],
    handoffs: Handoffs,
) -> tuple[RunCounters, FleetFigures]:
    """Of both pools together and of each; a prompt that was handed over was looked up once."""
    end_s = max(
        life.engine.replica.end_s
        for side in SIDES
        for node in nodes[side].all
        for life in node.lives
    )
    counted = {
        side: fleet_figures(
            pools[side],
            count_fleet(pools[side], nodes[side], fronts[side], nodes[side].caches),
            end_s,
        )
        for side in SIDES
    }
    (prefill, ahead), (decode, behind) = counted["prefill"], counted["decode"]
    total = add_counters([prefill, decode], end_s)
    total.num_blocks = prefill.num_blocks + decode.num_blocks
    total.queried_tokens += handoffs.num_left_tokens
    total.queried_tokens -= handoffs.repeated_queried_tokens
    total.hit_tokens -= handoffs.repeated_hit_tokens
    for receiver in handoffs.decode_sides:
        total.queried_tokens -= receiver.filler.queried_tokens
        total.hit_tokens -= receiver.filler.hit_tokens
    first_node = most_nodes(pools["prefill"])
    first = first_node * pools["prefill"].node.data_parallel
    fleet = scenario.fleet
    assert fleet is not None
    gpu_hours = ahead.gpu_hours + behind.gpu_hours
    costs = [one.gpu_hours * (one.cost_per_gpu_hour or 0.0) for one in (ahead, behind)]
    is_priced = ahead.cost_per_gpu_hour and behind.cost_per_gpu_hour and gpu_hours > 0
    sides = {}
    for side, figures, counters, begin in (
        ("prefill", ahead, prefill, 0),
        ("decode", behind, decode, first),
    ):
        ends: list[Side] = getattr(handoffs, f"{side}_sides")
        link_bytes = [
            sum(end.num_bytes for end in ends if end.replica == one.replica)
            for one in figures.replicas
        ]
        sides[side] = SideFigures(
            nodes=figures.num_nodes,
            router=pools[side].router[0],
            first_replica=begin,
            counters=counters,
            loads=[
                min(1.0, one.busy_s / one.up_s) if one.up_s else 0.0 for one in figures.replicas
            ],
            link_bytes=link_bytes,
        )
    return total, replace(
        behind,
        num_nodes=ahead.num_nodes + behind.num_nodes,
        router=", ".join(pools[side].router[0] for side in SIDES),
        replicas=[
            *(
                replace(one, pool="prefill", bytes_handed_over=moved)
                for one, moved in zip(ahead.replicas, sides["prefill"].link_bytes, strict=True)
            ),
            *(
                replace(
                    one,
                    replica=one.replica + first,
                    node=one.node + first_node,
                    pool="decode",
                    bytes_handed_over=moved,
                )
                for one, moved in zip(behind.replicas, sides["decode"].link_bytes, strict=True)
            ),
        ],
        duplicate_tokens=None
        if ahead.duplicate_tokens is None or behind.duplicate_tokens is None
        else ahead.duplicate_tokens + behind.duplicate_tokens,
        num_lost=ahead.num_lost + behind.num_lost,
        num_dummy_steps=ahead.num_dummy_steps + behind.num_dummy_steps,
        links=[
            *ahead.links,
            *(
                replace(
                    one,
                    node=one.node + first_node,
                    replica=None if one.replica is None else one.replica + first,
                )
                for one in behind.links
            ),
        ],
        gpu_hours=gpu_hours,
        cost_per_gpu_hour=sum(costs) / gpu_hours if is_priced else None,
        pools=PoolsFigures(
            connector=fleet.transfer.kind,
            prefill=sides["prefill"],
            decode=sides["decode"],
            moved_bytes_by_group=handoffs.group_bytes,
            descriptors=handoffs.num_descriptors,
            leases_lost=handoffs.num_lost,
            loads_failed=handoffs.num_failed,
        ),
    )
