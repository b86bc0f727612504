"""Runs side by side as a table for people: the only place where fractions become percent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

NO_FIGURE = "-"
"""Shown where a figure does not exist."""
_THOUSANDS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def summary_table(summaries: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row a variant, from summaries by name; at most 120 columns wide for names up to 22.

    Refused requests get a column where there are any.
    """
    from rich import box
    from rich.table import Table

    # Folded, never cut: in a narrow terminal a figure in two lines is better than half of one.
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.add_column("variant", overflow="fold")
    rows = {name: _row(summary) for name, summary in summaries.items()}
    headers = [
        header
        for header in (next(iter(rows.values())) if rows else {})
        if header != _REFUSED or any(summary["num_refused"] for summary in summaries.values())
    ]
    for header in headers:
        table.add_column(header, justify="right", overflow="fold")
    for name, row in rows.items():
        table.add_row(name, *(row[header] for header in headers))
    return table


_REFUSED = "re-\nfused"


def _row(summary: Mapping[str, Any]) -> dict[str, str]:
    hit, queried = short(summary["hit_tokens"]), short(summary["queried_tokens"])
    ttft = [_plain_seconds(summary["ttft_s"][key]) for key in ("p50", "p90", "p99")]
    stored, loaded = short(summary["bytes_stored"]), short(summary["bytes_loaded"])
    took = [_plain_seconds(summary[key]) for key in ("simulated_s", "wall_s")]
    return {
        "token\nhits": percent(summary["token_hit_rate"]),
        "hit /\nqueried": f"{hit}/{queried}",
        "request\nhits": percent(summary["request_hit_rate"]),
        _REFUSED: short(summary["num_refused"]),
        "TTFT s\np50/p90/p99": "/".join(ttft),
        "TPOT\np50": seconds(summary["tpot_s"]["p50"]),
        "req\n/s": short(summary["requests_per_s"]),
        "output\ntok/s": short(summary["output_tokens_per_s"]),
        "pre-\nempted": short(summary["preemptions"]),
        "evicted\nblocks": short(summary["evicted_blocks"]),
        "bytes\nout/in": f"{stored}/{loaded}",
        "sim/real\ns": "/".join(took),
    }


def percent(fraction: float | None) -> str:
    """A fraction as percent with one digit."""
    return NO_FIGURE if fraction is None else f"{100 * fraction:.1f}%"


def seconds(value_s: float | None) -> str:
    """A time with three digits, in ms below a second."""
    if value_s is None:
        return NO_FIGURE
    return f"{_three_digits(1000 * value_s)} ms" if value_s < 1 else f"{_three_digits(value_s)} s"


def short(value: float | None) -> str:
    """A count or rate with three digits, in thousands, millions and so on (powers of 1000)."""
    if value is None:
        return NO_FIGURE
    for size, letter in _THOUSANDS:
        if abs(value) >= 0.9995 * size:
            return f"{_three_digits(value / size)}{letter}"
    return str(value) if isinstance(value, int) else _three_digits(value)


def _plain_seconds(value_s: float | None) -> str:
    return NO_FIGURE if value_s is None else _three_digits(value_s)


def _three_digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    if abs(value) >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"
