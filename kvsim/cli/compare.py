"""`kvsim compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.cli.terminal import Json, make_console, print_json
from kvsim.metrics.figures import FOUND_RATE
from kvsim.results.tables import (
    NO_FIGURE,
    difference_text,
    difference_unit,
    exists,
    percent,
    seconds,
    short,
)

if TYPE_CHECKING:
    from rich.console import Console

    from kvsim.study.comparison import Comparison

_MAIN = (
    "token_hit_rate",
    FOUND_RATE,
    "request_hit_rate",
    "ttft_s.p50",
    "ttft_s.p90",
    "ttft_s.p99",
    "tpot_s.p50",
    "queue_s.p99",
    "requests_per_s",
    "output_tokens_per_s",
    "preemptions",
    "evicted_blocks",
    "bytes_stored",
    "bytes_loaded",
    "goodput",
)
_OF_CLASSES = ("token_hit_rate", FOUND_RATE, "ttft_s.p50", "ttft_s.p99")
_OF_TIER_GROUPS = ("bytes_stored", "bytes_loaded")


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Results, directories of results, or sweeps. The first is the reference.",
        ),
    ],
    everything: Annotated[
        bool, typer.Option("--all", help="Show every figure, not the main ones alone.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare runs with the first: what changed in the scenario, and what that changed.

    Runs that differ in their seed alone are one case; differences are paired by seed. Intervals
    hold 95%. A difference whose interval holds 0 is not told from noise.
    """
    from kvsim.study.comparison import compare as compare_runs

    comparison = compare_runs(*runs)
    if as_json:
        print_json(comparison.as_json())
        return
    console = make_console()
    for case in comparison.cases:
        _print_case(console, comparison, case, everything=everything)
    for note in comparison.notes:
        console.print(f"Note: {note}", style="yellow", highlight=False, markup=False)


def _print_case(console: Console, comparison: Comparison, case: str, *, everything: bool) -> None:
    from rich import box
    from rich.table import Table

    title = f"{case} against {comparison.reference}"
    console.print(title, style="bold", highlight=False, markup=False)
    changes = comparison.scenario_changes
    for change in changes[changes["case"] == case].to_dict(orient="records"):
        text = f"  {change['key']}: {change['reference']} -> {change['value']}"
        console.print(text, highlight=False, markup=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for header in ("", "figure"):
        table.add_column(header, no_wrap=True)
    for header in (comparison.reference, case):
        table.add_column(header, justify="right", overflow="fold", max_width=22)
    table.add_column("difference (95%)", justify="right", no_wrap=True)
    rows = comparison.table[comparison.table["case"] == case]
    has_tiers = bool(rows["scope"].str.startswith("tier ").any())
    scope = None
    for row in rows.to_dict(orient="records"):
        if not everything and not _is_main(row, has_tiers=has_tiers):
            continue
        cells = [_shown(row["figure"], row[side]) for side in ("reference", "value")]
        label = "" if row["scope"] == scope else row["scope"]
        scope = row["scope"]
        table.add_row(label, row["figure"], *cells, difference_text(row))
    console.print(table)


def _is_main(row: dict[Any, Any], *, has_tiers: bool) -> bool:
    if row["figure"] == FOUND_RATE and not has_tiers:
        return False  # it is the token hit rate
    if row["scope"] == "all":
        something = any(exists(row[side]) and row[side] for side in ("reference", "value"))
        return row["figure"] in _MAIN and (something or row["figure"] == "token_hit_rate")
    if row["scope"].startswith("prompt"):
        return row["figure"] in _OF_CLASSES
    if row["scope"].startswith("tier ") and ", group " in row["scope"]:
        return row["figure"] in _OF_TIER_GROUPS
    return True


def _shown(figure: str, value: Any) -> str:
    if not exists(value):
        return NO_FIGURE
    factor, unit = difference_unit(figure)
    if unit == " points":
        return percent(value)
    return seconds(value) if factor == 1000.0 else short(value)
