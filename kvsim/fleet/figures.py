"""What the replicas of a fleet have counted, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from kvsim.engine.link import LOAD, STORE
from kvsim.fleet.caches import FleetCaches
from kvsim.fleet.front import Front
from kvsim.fleet.nodes import Life, Node, Nodes
from kvsim.metrics.fleet import FleetFigures, LinkFigures, ReplicaFigures
from kvsim.metrics.records import TimelineLog
from kvsim.metrics.summary import RunCounters
from kvsim.metrics.tiers import TierFigures
from kvsim.scenario import Scenario

_SECONDS_AN_HOUR = 3600.0
_OF_ALL = ("name", "source")
_MEANS = ("store_utilization", "load_utilization", "break_even_bytes_per_s")


def fleet_figures(
    scenario: Scenario, nodes: Nodes, front: Front, caches: FleetCaches, end_s: float = 0.0
) -> tuple[RunCounters, FleetFigures]:
    """Sums over all replicas, and what there is to say of each; to ``end_s`` at least."""
    lives = [(node, life) for node in nodes.all for life in node.lives]
    end_s = max([end_s, *(life.engine.replica.end_s for _, life in lives)])
    counted = [(node, life, life.engine.counters(life.start_s)) for node, life in lives]
    by_replica: dict[int, list[tuple[Node, Life, RunCounters]]] = {}
    for one in counted:
        by_replica.setdefault(one[1].replica, []).append(one)
    replicas = [
        _replica(scenario, number, parts, end_s) for number, parts in sorted(by_replica.items())
    ]
    up_s = sum(_up_s(node, end_s) for node in nodes.all)
    events = () if scenario.fleet is None else scenario.fleet.events or ()
    figures = FleetFigures(
        num_nodes=scenario.num_nodes,
        router=scenario.router[0] if len(front.targets) > 1 else "vllm-dp",
        replicas=replicas,
        duplicate_share=caches.mean_duplicate_share,
        duplicate_tokens=caches.num_duplicate_tokens,
        ages_s=front.ages_s,
        num_lost=sum(event.lose is not None for event in events),
        num_dummy_steps=sum(g.pace.num_dummies for g in nodes.groups if g.pace is not None),
        gpu_hours=scenario.node.gpus * up_s / _SECONDS_AN_HOUR,
        cost_per_gpu_hour=scenario.node.cost_per_gpu_hour,
        links=_links(scenario, lives),
    )
    total = add_counters([counters for _, _, counters in counted], end_s)
    total.num_blocks = sum(parts[0][2].num_blocks for parts in by_replica.values())
    return total, figures


def _links(scenario: Scenario, lives: Sequence[tuple[Node, Life]]) -> list[LinkFigures]:
    """What every link has carried, those of all lives of a replica together."""
    carried: dict[tuple[int, int, str], LinkFigures] = {}
    seen = set()
    for node, life in lives:
        for to, link in () if life.engine.tiers is None else life.engine.tiers.links:
            if id(link) in seen:
                continue
            seen.add(id(link))
            is_shared = link.spec.span == "node"
            copies = 1 if is_shared else scenario.num_ranks
            key = (node.number, -1 if is_shared else life.replica, to)
            before = carried.get(key)
            stored, loaded = (copies * link.carried_bytes(way) for way in (STORE, LOAD))
            carried[key] = LinkFigures(
                to,
                node.number,
                None if is_shared else life.replica,
                stored + (0.0 if before is None else before.stored_bytes),
                loaded + (0.0 if before is None else before.loaded_bytes),
            )
    return [carried[key] for key in sorted(carried)]


def _up_s(node: Node, end_s: float) -> float:
    return max(0.0, (end_s if node.end_s is None else min(node.end_s, end_s)) - node.start_s)


def _replica(
    scenario: Scenario, number: int, parts: Sequence[tuple[Node, Life, RunCounters]], end_s: float
) -> ReplicaFigures:
    """The lives of one number as one."""
    counters = add_counters([counters for _, _, counters in parts], end_s)
    used, up_s = 0.0, 0.0
    for node, life, one in parts:
        lived_s = _up_s(node, end_s)
        up_s += lived_s
        used += _used_share(life.engine.timeline, one.num_blocks) * lived_s
    return ReplicaFigures(
        replica=number,
        node=number // scenario.node.data_parallel,
        counters=counters,
        occupancy=used / up_s if up_s else 0.0,
        busy_s=sum(life.engine.replica.busy_s for _, life, _ in parts),
        up_s=up_s,
    )


def _used_share(timeline: TimelineLog, num_blocks: int) -> float:
    """Mean share of the blocks in use, each entry holding to the next."""
    times_s, used = timeline.used_blocks()
    if len(times_s) < 2 or times_s[-1] <= times_s[0]:
        return 0.0
    held = np.dot(used[:-1], np.diff(times_s)) / (times_s[-1] - times_s[0])
    return float(held / (num_blocks - 1))


def add_counters(counters: Sequence[RunCounters], end_s: float) -> RunCounters:
    """Sums; of shares the mean."""
    first, *others = counters
    total = replace(first, tiers=tuple(first.tiers))
    for one in others:
        for field in fields(RunCounters):
            name = field.name
            value, more = getattr(total, name), getattr(one, name)
            if value is None:
                continue
            if name == "evicted_by_group":
                value = [
                    [a + b for a, b in zip(x, y, strict=True)]
                    for x, y in zip(value, more, strict=True)
                ]
            elif name == "tiers":
                value = tuple(_tier(a, b) for a, b in zip(value, more, strict=True))
            else:
                value = value + more
            setattr(total, name, value)
    total.simulated_s = end_s
    if total.tiers:
        total.tiers = tuple(_mean(tier, len(counters)) for tier in total.tiers)
    return total


def _tier(one: TierFigures, other: TierFigures) -> TierFigures:
    """Sums of two tiers of the same kind."""
    values = {}
    for field in fields(TierFigures):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if field.name in _OF_ALL:
            values[field.name] = a
        elif isinstance(a, int | float) and isinstance(b, int | float):
            values[field.name] = a + b
        elif isinstance(a, list | tuple):
            values[field.name] = [x + y for x, y in zip(a, b, strict=True)]
        else:
            values[field.name] = b if a is None else a
    return TierFigures(**values)


def _mean(tier: TierFigures, count: int) -> TierFigures:
    """Of sums of shares, the mean."""
    shares: dict[str, Any] = {
        name: None if (value := getattr(tier, name)) is None else value / count for name in _MEANS
    }
    return replace(tier, **shares)
