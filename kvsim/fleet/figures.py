"""What the replicas of a fleet have counted, put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
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


@dataclass(frozen=True, slots=True)
class LifeCounts:
    """What a rank has counted from its start to its end.

    Attributes:
        node: number of its node.
        replica: its own.
        start_s: when its node was started.
        end_s: when that was lost or had left; None before.
        run_end_s: when its last step ended.
        counters: what it counted.
        used_share: mean share of its blocks that requests referred to.
        busy_s: time that steps took.
        timeline: of its pool.
    """

    node: int
    replica: int
    start_s: float
    end_s: float | None
    run_end_s: float
    counters: RunCounters
    used_share: float
    busy_s: float
    timeline: TimelineLog

    def up_s(self, end_s: float) -> float:
        """How long its node was there in a run that ended then."""
        left_s = end_s if self.end_s is None else min(self.end_s, end_s)
        return max(0.0, left_s - self.start_s)


@dataclass(frozen=True)
class FleetCounts:
    """What a fleet, or some nodes of one, leave behind.

    Attributes:
        lives: of every rank there ever was, those of a node together.
        router: who chose.
        duplicate_share: see `FleetFigures`, as the next three.
        duplicate_tokens: at the end.
        ages_s: of counts.
        events_after_s: how late routers learn what caches hold, or None.
        num_dummy_steps: of ranks.
        links: what each has carried.
        under_way: messages of caches that had not reached a router, a value a decision.
    """

    lives: list[LifeCounts]
    router: str
    duplicate_share: float | None
    duplicate_tokens: int | None
    ages_s: Sequence[float]
    events_after_s: float | None
    num_dummy_steps: int
    links: list[LinkFigures]
    under_way: Sequence[int] = ()


def count_fleet(scenario: Scenario, nodes: Nodes, front: Front, caches: FleetCaches) -> FleetCounts:
    """What there is at the end of a run."""
    lives = [_count_life(node, life) for node in nodes.all for life in node.lives]
    return FleetCounts(
        lives,
        scenario.router[0] if len(front.targets) > 1 else "vllm-dp",
        caches.mean_duplicate_share,
        caches.num_duplicate_tokens,
        front.ages_s,
        front.sees.events_after_s,
        sum(g.pace.num_dummies for g in nodes.groups if g.pace is not None),
        _count_links(scenario, nodes),
        front.under_way,
    )


def _count_life(node: Node, life: Life) -> LifeCounts:
    engine = life.engine
    counters = engine.counters(life.start_s)
    return LifeCounts(
        node.number,
        life.replica,
        life.start_s,
        node.end_s,
        engine.replica.end_s,
        counters,
        _used_share(engine.timeline, counters.num_blocks),
        engine.replica.busy_s,
        engine.timeline,
    )


def _count_links(scenario: Scenario, nodes: Nodes) -> list[LinkFigures]:
    """What every link has carried, those of all lives of a replica together."""
    carried: dict[tuple[int, int, str], LinkFigures] = {}
    seen = set()
    for node, life in [(each, life) for each in nodes.all for life in each.lives]:
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
                copies * link.spec.store_bytes_per_s * link.spec.efficiency,
                copies * link.spec.load_bytes_per_s * link.spec.efficiency,
            )
    return in_order(carried.values())


def in_order(links: Iterable[LinkFigures]) -> list[LinkFigures]:
    """Links by node, then replica, those that replicas share first, then name."""

    def place(link: LinkFigures) -> tuple[int, int, str]:
        return link.node, -1 if link.replica is None else link.replica, link.to

    return sorted(links, key=place)


def fleet_figures(
    scenario: Scenario, counted: FleetCounts, end_s: float = 0.0
) -> tuple[RunCounters, FleetFigures]:
    """Sums over all replicas, and what there is to say of each; to ``end_s`` at least."""
    ranks = scenario.node.data_parallel
    end_s = max([end_s, *(life.run_end_s for life in counted.lives)])
    by_replica: dict[int, list[LifeCounts]] = {}
    for one in counted.lives:
        by_replica.setdefault(one.replica, []).append(one)
    replicas = [_replica(number, lives, end_s) for number, lives in sorted(by_replica.items())]
    up_s = sum(life.up_s(end_s) for life in counted.lives[::ranks])
    events = () if scenario.fleet is None else scenario.fleet.events or ()
    figures = FleetFigures(
        num_nodes=scenario.num_nodes,
        router=counted.router,
        replicas=replicas,
        duplicate_share=counted.duplicate_share,
        duplicate_tokens=counted.duplicate_tokens,
        ages_s=counted.ages_s,
        events_after_s=counted.events_after_s,
        under_way=counted.under_way,
        hit_unit_tokens=scenario.scheduler_block_tokens,
        num_lost=sum(event.lose is not None for event in events),
        num_dummy_steps=counted.num_dummy_steps,
        gpu_hours=scenario.node.gpus * up_s / _SECONDS_AN_HOUR,
        cost_per_gpu_hour=scenario.node.cost_per_gpu_hour,
        links=counted.links,
    )
    total = add_counters([life.counters for life in counted.lives], end_s)
    total.num_blocks = sum(lives[0].counters.num_blocks for lives in by_replica.values())
    return total, figures


def _replica(number: int, lives: Sequence[LifeCounts], end_s: float) -> ReplicaFigures:
    """The lives of one number as one."""
    used, up_s = 0.0, 0.0
    for life in lives:
        lived_s = life.up_s(end_s)
        up_s += lived_s
        used += life.used_share * lived_s
    return ReplicaFigures(
        replica=number,
        node=lives[0].node,
        counters=add_counters([life.counters for life in lives], end_s),
        occupancy=used / up_s if up_s else 0.0,
        busy_s=sum(life.busy_s for life in lives),
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
                if value and more:  # else a pool has none
                    more = tuple(_tier(a, b) for a, b in zip(value, more, strict=True))
                value = more or value
            else:
                value = value + more
            setattr(total, name, value)
    total.simulated_s = end_s
    if total.tiers:
        num = sum(bool(one.tiers) for one in counters)
        total.tiers = tuple(_mean(tier, num) for tier in total.tiers)
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
