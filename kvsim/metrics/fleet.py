"""The figures of a fleet: by replica and together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.metrics.handoff import PoolsFigures, pools_summary, prompts_by_replica
from kvsim.metrics.summary import RunCounters, spread

if TYPE_CHECKING:
    import pandas as pd

REPLICA_KEYS: dict[str, str] = {
    "replica": "its number: node x data_parallel + rank",
    "node": "number of its node",
    "pool": "prefill or decode where they are apart, else null",
    "num_requests": "requests that ran on it last",
    "token_hit_rate": "hit_tokens / queried_tokens, 0 to 1",
    "queried_tokens": "prompt tokens looked up at first admission",
    "hit_tokens": "prompt tokens found in its prefix cache",
    "scheduled_tokens": "tokens computed by its steps",
    "preemptions": "times a running request was preempted",
    "evicted_blocks": "cached blocks that lost their key when they were taken",
    "ttft_s": "arrival to first token (prefill: to the end of the prompt), in s: `mean`, `p50`, "
    "`p90`, `p99`",
    "tpot_s": "time a token after the first, in s: the same",
    "occupancy": "mean share of its blocks that requests referred to, 0 to 1",
    "load": "share of its time in which a step was under way, 0 to 1",
    "up_s": "time it was there",
    "bytes_stored": "bytes that it stored over its link to the tier next to it",
    "bytes_loaded": "bytes that it loaded back over it",
    "bytes_handed_over": "bytes of KV that it sent (prefill) or received (decode), all ranks; null "
    "where the two are together",
}
"""Keys of a replica in `summary.json`, each with its meaning. One that was lost and came back is
the same."""

LINK_KEYS: dict[str, str] = {
    "to": "cpu, disk, mooncake, or transfer for the other pool",
    "node": "number of its node",
    "replica": "number of its replica; null for a link that a node's replicas share",
    "stored_bytes": "bytes it carried away from the GPUs, all ranks",
    "loaded_bytes": "bytes it carried towards them, all ranks",
    "store_bytes_per_s": "what it can carry away from them, all ranks, in bytes/s",
    "load_bytes_per_s": "what it can carry towards them, likewise",
    "store_utilization": "stored_bytes over what it could have carried while its node was there, "
    "0 to 1",
    "load_utilization": "the same of loaded_bytes",
}
"""Keys of a link of a fleet in a summary, each with its meaning."""

EXPECTED_KEYS: dict[str, str] = {
    "num_requests": "requests for which the router looked what its replica has cached",
    "expected_tokens": "prompt tokens it expected there",
    "found_tokens": "prompt tokens found there at first admission",
    "mean_error_tokens": "mean of |expected - found| a request",
    "over_share": "requests that found less than expected, by more than a unit of prefix hits, "
    "0 to 1",
    "under_share": "requests that found more, likewise",
}
"""Keys of `expected_hits`, each with its meaning."""

FLEET_KEYS: dict[str, str] = {
    "num_nodes": "nodes at the start",
    "router": "who chose the node, or the rank where balancing is external",
    "replicas": "by replica, in order; see `kvsim describe replicas`",
    "imbalance": "largest over mean of the replicas: `requests`, `scheduled_tokens`, `load`; where "
    "prefill and decode are apart, of the pool in which that is larger",
    "misrouted_tokens": "prompt tokens that another replica had cached when the request was "
    "routed, beyond what the chosen one had; null, as are the next three, where "
    "output.compare_caches is false",
    "misrouted_share": "the same as a share of the prompt tokens routed, 0 to 1",
    "duplicate_share": "of the tokens cached, the copies beyond the first of each: mean over "
    "arrivals, 0 to 1; counted where attention is full",
    "duplicate_tokens": "tokens cached at the end beyond the first copy of each",
    "view_age_s": "how old the counts were that a router saw of the replica it chose, in s: "
    "`mean`, `p50`, `p90`, `p99`; null where it sees none but its own",
    "events_after_s": "how much later a router learns what caches store and remove, in s; null "
    "where it does not",
    "events_under_way": "messages of caches, of all replicas, that had not reached a router when "
    "it decided: `mean`, `p50`, `p90`, `p99`; null where it goes by none",
    "expected_hits": "what routers expected replicas to have cached against what was found; see "
    "`kvsim describe expected_hits`; null where none looks",
    "num_lost": "nodes that failed",
    "num_resent": "times a request was sent again because its node failed, or its KV with another",
    "num_dummy_steps": "steps of ranks that had nothing to run while others had",
    "gpu_hours": "GPUs times the time from the start of their node to its end, or the run's",
    "cost": "gpu_hours x node.cost_per_gpu_hour; null without one, as are the next two",
    "cost_per_million_prompt_tokens": "cost over prompt tokens of the requests that ran, x 1e6",
    "cost_per_million_output_tokens": "cost over tokens made, x 1e6",
    "links": "links to tiers and between pools; see `kvsim describe links`",
    "pools": "where prefill and decode are apart, see `kvsim describe handoffs`; else null",
}
"""Keys of `fleet` in a summary, each with its meaning."""


@dataclass(frozen=True)
class ReplicaFigures:
    """What one replica has counted; see `REPLICA_KEYS`."""

    replica: int
    node: int
    counters: RunCounters
    occupancy: float
    busy_s: float
    up_s: float
    pool: str | None = None
    bytes_handed_over: float | None = None


@dataclass(frozen=True)
class LinkFigures:
    """What one link has carried; see `LINK_KEYS`."""

    to: str
    node: int
    replica: int | None
    stored_bytes: float
    loaded_bytes: float
    store_bytes_per_s: float
    load_bytes_per_s: float


@dataclass(frozen=True)
class FleetFigures:
    """What a fleet has counted; see `FLEET_KEYS`.

    Attributes:
        ages_s: of the counts seen, a value a decision.
        under_way: messages of caches that had not reached a router, a value a decision.
        hit_unit_tokens: unit of prefix hits.
    """

    num_nodes: int
    router: str
    replicas: Sequence[ReplicaFigures]
    duplicate_share: float | None
    duplicate_tokens: int | None
    ages_s: Sequence[float]
    num_lost: int
    num_dummy_steps: int
    gpu_hours: float
    cost_per_gpu_hour: float | None
    events_after_s: float | None = None
    under_way: Sequence[int] = ()
    hit_unit_tokens: int = 1
    links: Sequence[LinkFigures] = ()
    pools: PoolsFigures | None = None


def fleet_summary(
    figures: FleetFigures, requests: pd.DataFrame, summary: dict[str, Any]
) -> dict[str, Any]:
    """The keys of `FLEET_KEYS`, plain Python.

    Args:
        figures: what was counted.
        requests: the frame of `RequestLog.frame` with the columns of a fleet.
        summary: of the whole run.
    """
    import pandas as pd

    times = requests.loc[requests["refused"].isna(), ["replica", "ttft_s", "tpot_s"]]
    by_replica = dict(list(times.groupby("replica")))
    if figures.pools is not None:
        by_replica |= prompts_by_replica(requests)
    rows: list[dict[str, Any]] = []
    for one in figures.replicas:
        ran = by_replica.get(one.replica, times.iloc[:0])
        counters = one.counters
        values = {
            "replica": one.replica,
            "node": one.node,
            "pool": one.pool,
            "num_requests": len(ran),
            "token_hit_rate": _ratio(counters.hit_tokens, counters.queried_tokens),
            "queried_tokens": int(counters.queried_tokens),
            "hit_tokens": int(counters.hit_tokens),
            "scheduled_tokens": int(counters.scheduled_tokens),
            "preemptions": int(counters.preemptions),
            "evicted_blocks": int(counters.evicted_blocks),
            "ttft_s": spread(ran["ttft_s"]),
            "tpot_s": spread(ran["tpot_s"]),
            "occupancy": float(one.occupancy),
            "load": _ratio(min(one.busy_s, one.up_s), one.up_s) or 0.0,
            "up_s": float(one.up_s),
            "bytes_stored": sum(sum(tier.bytes_stored) for tier in counters.tiers if tier.source),
            "bytes_loaded": sum(sum(tier.bytes_loaded) for tier in counters.tiers if tier.source),
            "bytes_handed_over": one.bytes_handed_over,
        }
        rows.append({key: values[key] for key in REPLICA_KEYS})
    routed = requests[requests["replica"].notna()]
    elsewhere = routed["cached_elsewhere_tokens"]
    misrouted = None if elsewhere.isna().any() else int(elsewhere.sum())
    cost = None
    if figures.cost_per_gpu_hour is not None:
        cost = figures.gpu_hours * figures.cost_per_gpu_hour
    ages = pd.Series(np.array(figures.ages_s, dtype=np.float64))
    found = {
        "num_nodes": figures.num_nodes,
        "router": figures.router,
        "replicas": rows,
        "imbalance": {
            key: _imbalance(rows, name)
            for key, name in (
                ("requests", "num_requests"),
                ("scheduled_tokens", "scheduled_tokens"),
                ("load", "load"),
            )
        },
        "misrouted_tokens": misrouted,
        "misrouted_share": None
        if misrouted is None
        else _ratio(misrouted, int(routed["prompt_tokens"].sum())),
        "duplicate_share": figures.duplicate_share,
        "duplicate_tokens": figures.duplicate_tokens,
        "view_age_s": spread(ages) if len(ages) else None,
        "events_after_s": figures.events_after_s,
        "events_under_way": spread(pd.Series(np.array(figures.under_way, dtype=np.float64)))
        if len(figures.under_way)
        else None,
        "expected_hits": _expected_hits(requests, figures.hit_unit_tokens),
        "num_lost": figures.num_lost,
        "num_resent": int(requests["resent"].sum()),
        "num_dummy_steps": figures.num_dummy_steps,
        "gpu_hours": float(figures.gpu_hours),
        "cost": cost,
        "cost_per_million_prompt_tokens": _per_million(cost, summary["prompt_tokens"]),
        "cost_per_million_output_tokens": _per_million(cost, summary["output_tokens"]),
        "links": [_link(link, rows) for link in figures.links],
        "pools": None if figures.pools is None else pools_summary(figures.pools, requests),
    }
    return {key: found[key] for key in FLEET_KEYS}


def _expected_hits(requests: pd.DataFrame, unit_tokens: int) -> dict[str, Any] | None:
    """The keys of `EXPECTED_KEYS`, or None."""
    looked = requests[requests["expected_hit_tokens"].notna() & requests["hit_tokens"].notna()]
    if not len(looked):
        return None
    expected = looked["expected_hit_tokens"].to_numpy(dtype=np.int64)
    found = looked["hit_tokens"].to_numpy(dtype=np.int64)
    more = expected - found
    values = {
        "num_requests": len(looked),
        "expected_tokens": int(expected.sum()),
        "found_tokens": int(found.sum()),
        "mean_error_tokens": float(np.abs(more).mean()),
        # The last token of a prompt is always computed, so that a unit is no error.
        "over_share": float((more > unit_tokens).mean()),
        "under_share": float((more < -unit_tokens).mean()),
    }
    return {key: values[key] for key in EXPECTED_KEYS}


def _link(link: LinkFigures, replicas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The keys of `LINK_KEYS`."""
    up_s = max(
        one["up_s"]
        for one in replicas
        if one["node"] == link.node and link.replica in (None, one["replica"])
    )
    shares = {
        "store_utilization": _ratio(link.stored_bytes, link.store_bytes_per_s * up_s),
        "load_utilization": _ratio(link.loaded_bytes, link.load_bytes_per_s * up_s),
    }
    # Rounding may pass the end.
    found = {name: min(1.0, share or 0.0) for name, share in shares.items()}
    return {key: found[key] if key in found else getattr(link, key) for key in LINK_KEYS}


def _imbalance(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    by_pool: dict[str | None, list[float]] = {}
    for row in rows:
        by_pool.setdefault(row["pool"], []).append(row[name])
    found = [
        max(values) * len(values) / sum(values) for values in by_pool.values() if sum(values) > 0
    ]
    return max(found, default=None)


def _per_million(cost: float | None, tokens: int) -> float | None:
    return cost / tokens * 1e6 if cost is not None and tokens > 0 else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
