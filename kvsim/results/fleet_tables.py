"""A fleet's replicas as a table for people, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kvsim.results.pool_lines import pool_lines
from kvsim.results.tables import NO_FIGURE, percent, seconds, short

if TYPE_CHECKING:
    from rich.table import Table

_MOST_ROWS = 16  # replicas shown one by one; of more the first and the last few by load


def fleet_lines(fleet: Mapping[str, Any]) -> Iterator[str]:
    """What there is to say of a fleet together, a sentence a line.

    Args:
        fleet: the keys of `kvsim.metrics.fleet.FLEET_KEYS`.
    """
    num = len(fleet["replicas"])
    replicas = f"{num} replica{'s' * (num != 1)}"
    if num == 1:
        yield f"{replicas}, {fleet['gpu_hours']:.3g} GPU-hours"
    else:
        unequal = fleet["imbalance"]
        told = ", ".join(
            f"{name} {unequal[key]:.2f}"
            for key, name in (
                ("requests", "requests"),
                ("scheduled_tokens", "computed tokens"),
                ("load", "load"),
            )
            if unequal[key] is not None
        )
        yield (
            f"{replicas}, router {fleet['router']}, {fleet['gpu_hours']:.3g} GPU-hours; largest "
            f"over mean: {told}"
        )
        if fleet["misrouted_tokens"] is not None:
            yield (
                f"cached on another replica when routed: {percent(fleet['misrouted_share'])} of "
                f"prompt tokens; of the tokens cached {percent(fleet['duplicate_share'])} are "
                "there more than once"
            )
    if fleet["view_age_s"] is not None:
        age = fleet["view_age_s"]
        yield f"age of the counts routers saw: p50 {seconds(age['p50'])}, p99 {seconds(age['p99'])}"
    if fleet["num_lost"]:
        nodes = f"{fleet['num_lost']} node{'s' * (fleet['num_lost'] != 1)}"
        yield f"{nodes} lost, {fleet['num_resent']:,} requests sent again"
    if fleet["pools"] is not None:
        yield from pool_lines(fleet["pools"])
    if fleet["cost"] is not None:
        per = [fleet[f"cost_per_million_{kind}_tokens"] for kind in ("prompt", "output")]
        shown = [NO_FIGURE if value is None else f"{value:.4g}" for value in per]
        yield (
            f"cost {fleet['cost']:.4g}: {shown[0]} for a million prompt tokens, or {shown[1]} for "
            "a million output tokens"
        )


def replica_table(fleet: Mapping[str, Any], title: str = "") -> Table:
    """A row a replica; of many those with the largest and the least load.

    Args:
        fleet: as for `fleet_lines`.
        title: above it.
    """
    from rich import box
    from rich.table import Table

    table = Table(
        title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False
    )
    for number, header in enumerate(
        (
            "node.rank",
            "requests",
            "token\nhits",
            "TTFT p50",
            "p99",
            "TPOT\np50",
            "blocks\nused",
            "load",
            "computed\ntokens",
        )
    ):
        table.add_column(header, justify="left" if number == 0 else "right")
    rows = list(fleet["replicas"])
    ranks: dict[int, int] = {}
    firsts: dict[int, int] = {}
    for row in rows:
        ranks[row["node"]] = ranks.get(row["node"], 0) + 1
        firsts[row["node"]] = min(firsts.get(row["node"], row["replica"]), row["replica"])
    left_out = 0
    if len(rows) > _MOST_ROWS:
        by_load = sorted(rows, key=lambda row: -row["load"])
        left_out = len(rows) - _MOST_ROWS
        rows = [*by_load[: _MOST_ROWS // 2], *by_load[-_MOST_ROWS // 2 :]]
    for row in rows:
        rank = row["replica"] - firsts[row["node"]]
        table.add_row(
            f"{row['node']}.{rank}" if max(ranks.values()) > 1 else str(row["node"]),
            short(row["num_requests"]),
            percent(row["token_hit_rate"]),
            seconds(row["ttft_s"]["p50"]),
            seconds(row["ttft_s"]["p99"]),
            seconds(row["tpot_s"]["p50"]),
            percent(row["occupancy"]),
            percent(row["load"]),
            short(row["scheduled_tokens"]),
        )
    if left_out:
        table.caption = f"the 8 with most and the 8 with least load; {left_out} others left out"
        table.caption_justify = "left"
    return table
