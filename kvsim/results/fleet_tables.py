"""A fleet's figures as tables and sentences for people, in 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kvsim.results.pool_lines import pool_lines
from kvsim.results.tables import NO_FIGURE, percent, seconds, short

if TYPE_CHECKING:
    from rich.table import Table

_MOST_ROWS = 16  # replicas shown one by one; of more the first and the last few by load
_IMBALANCE = {"requests": "requests", "scheduled_tokens": "computed tokens", "load": "load"}


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
        yield f"{replicas}, router {fleet['router']}, {fleet['gpu_hours']:.3g} GPU-hours"
        unequal = fleet["imbalance"]
        told = ", ".join(
            f"{name} {unequal[key]:.2f}"
            for key, name in _IMBALANCE.items()
            if unequal[key] is not None
        )
        yield f"largest replica over the mean: {told}"
        if fleet["misrouted_tokens"] is not None:
            yield (
                f"misrouted (cached on another replica): {percent(fleet['misrouted_share'])} of "
                "prompt tokens"
            )
        if fleet["duplicate_share"] is not None:
            yield (
                f"copies of what another replica holds too: {percent(fleet['duplicate_share'])} of "
                "cached tokens"
            )
    if fleet["view_age_s"] is not None:
        age = fleet["view_age_s"]
        yield f"age of the counts routers saw: p50 {seconds(age['p50'])}, p99 {seconds(age['p99'])}"
    if fleet["events_after_s"] is not None:
        told = f"routers learn {seconds(fleet['events_after_s'])} later what caches hold"
        if fleet.get("events_under_way") is not None:
            told += f"; messages under way: {fleet['events_under_way']['mean']:.2g}"
        yield told
    yield from further_lines(fleet)
    if fleet["cost"] is not None:
        yield (
            f"cost {fleet['cost']:.4g}: {_cost(fleet, 'prompt')} for a million prompt tokens, or "
            f"{_cost(fleet, 'output')} for a million output tokens"
        )


def further_lines(fleet: Mapping[str, Any]) -> Iterator[str]:
    """What is in no table of fleets: hits expected, nodes lost, prefill and decode apart."""
    expected = fleet.get("expected_hits")
    if expected is not None:
        yield (
            f"hits expected by the router: {expected['mean_error_tokens']:,.0f} tokens off, too "
            f"many in {percent(expected['over_share'])}, too few in "
            f"{percent(expected['under_share'])}"
        )
    if fleet["num_lost"]:
        nodes = f"{fleet['num_lost']} node{'s' * (fleet['num_lost'] != 1)}"
        yield f"{nodes} lost, {fleet['num_resent']:,} requests sent again"
    if fleet["pools"] is not None:
        yield from pool_lines(fleet["pools"])


def fleet_table(fleets: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row a fleet: who chose, what that cost in hits, and how unequal the replicas were.

    Args:
        fleets: by name, the keys of `kvsim.metrics.fleet.FLEET_KEYS`.
    """
    from rich import box
    from rich.table import Table

    several = {name: len(fleet["replicas"]) > 1 for name, fleet in fleets.items()}
    routers = {
        name: str(fleet["router"]) if several[name] else "" for name, fleet in fleets.items()
    }
    columns: dict[str, dict[str, str]] = {"fleet": {name: name for name in fleets}}
    if any(router not in ("", name) for name, router in routers.items()):
        columns["router"] = routers
    columns["repli-\ncas"] = {name: str(len(one["replicas"])) for name, one in fleets.items()}
    figures: dict[str, tuple[str, Callable[[Any], str]]] = {
        "mis-\nrouted": ("misrouted_share", percent),
        "copies": ("duplicate_share", percent),
        "requests\nmax/mean": ("imbalance.requests", _two_digits),
        "tokens\nmax/mean": ("imbalance.scheduled_tokens", _two_digits),
        "load\nmax/mean": ("imbalance.load", _two_digits),
        "counts'\nage p99": ("view_age_s.p99", seconds),
        "GPU-\nhours": ("gpu_hours", _three_digits),
        "cost / M\noutput": ("cost_per_million_output_tokens", _three_digits),
    }
    for header, (figure, shown) in figures.items():
        known = {name: _at(fleet, figure) for name, fleet in fleets.items()}
        if not header.startswith("GPU"):
            known = {name: value if several[name] else None for name, value in known.items()}
        if any(value is not None for value in known.values()):
            columns[header] = {
                name: NO_FIGURE if value is None else shown(value) for name, value in known.items()
            }
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    for header in columns:
        is_name = header in ("fleet", "router")
        table.add_column(header, justify="left" if is_name else "right", no_wrap=True)
    for name in fleets:
        table.add_row(*(texts[name] for texts in columns.values()))
    table.caption = (
        "misrouted: prompt tokens that another replica had cached instead\n"
        "copies: cached tokens that another replica holds too\n"
        "max/mean: the replica with most over the mean"
    )
    table.caption_justify = "left"
    return table


def _at(fleet: Mapping[str, Any], figure: str) -> Any:
    """The figure of a dotted name; None where there is none."""
    value: Any = fleet
    for key in figure.split("."):
        value = None if value is None else value[key]
    return value


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


def _three_digits(value: float) -> str:
    return f"{value:.3g}"


def _cost(fleet: Mapping[str, Any], kind: str) -> str:
    value = fleet[f"cost_per_million_{kind}_tokens"]
    return NO_FIGURE if value is None else f"{value:.4g}"


def replica_table(fleet: Mapping[str, Any], title: str = "") -> Table:
    """A row a replica; of many those with the largest and the least load.

    Args:
        fleet: as for `fleet_lines`.
        title: above it.
    """
    from rich import box
    from rich.table import Table

    table = Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
        show_edge=False,
    )
    is_ranked = max(Counter(row["node"] for row in fleet["replicas"]).values()) > 1
    for number, header in enumerate(
        (
            "node.rank" if is_ranked else "node",
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
    firsts: dict[int, int] = {}
    for row in rows:
        firsts[row["node"]] = min(firsts.get(row["node"], row["replica"]), row["replica"])
    left_out = 0
    if len(rows) > _MOST_ROWS:
        by_load = sorted(rows, key=lambda row: -row["load"])
        left_out = len(rows) - _MOST_ROWS
        rows = [*by_load[: _MOST_ROWS // 2], *by_load[-_MOST_ROWS // 2 :]]
    for row in rows:
        rank = row["replica"] - firsts[row["node"]]
        name = f"{row['node']}.{rank}" if is_ranked else str(row["node"])
        table.add_row(
            f"{row['pool']} {name}" if row["pool"] else name,
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
