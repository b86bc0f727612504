"""`kvsim compare`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.cli.terminal import Json, make_console, print_json
from kvsim.tables import NO_FIGURE

if TYPE_CHECKING:
    from rich.console import Console

    from kvsim.comparison import Comparison

_MAIN = (
    "token_hit_rate",
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
_OF_CLASSES = ("token_hit_rate", "ttft_s.p50", "ttft_s.p99")


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
    from kvsim.comparison import compare as compare_runs

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
    scope = None
    for row in rows.to_dict(orient="records"):
        if not everything and not _is_main(row):
            continue
        cells = [_shown(row["figure"], row[side]) for side in ("reference", "value")]
        label = "" if row["scope"] == scope else row["scope"]
        scope = row["scope"]
        table.add_row(label, row["figure"], *cells, _difference(row))
    console.print(table)


def _is_main(row: dict[Any, Any]) -> bool:
    if row["scope"] == "all":
        something = any(_exists(row[side]) and row[side] for side in ("reference", "value"))
        return row["figure"] in _MAIN and (something or row["figure"] == "token_hit_rate")
    if row["scope"].startswith("prompt"):
        return row["figure"] in _OF_CLASSES
    return True


def _exists(value: Any) -> bool:
    return value is not None and value == value  # NaN is what a frame holds for None


def _unit(figure: str) -> tuple[float, str]:
    """What a figure is multiplied by to be shown, and the unit of its differences."""
    if figure.endswith("_rate") or figure == "goodput":
        return 100.0, " points"
    if "_s." in figure or figure.endswith("_s") and not figure.endswith("per_s"):
        return 1000.0, " ms"
    return 1.0, ""


def _shown(figure: str, value: Any) -> str:
    from kvsim.tables import percent, seconds, short

    if not _exists(value):
        return NO_FIGURE
    factor, unit = _unit(figure)
    if unit == " points":
        return percent(value)
    return seconds(value) if factor == 1000.0 else short(value)


def _difference(row: dict[Any, Any]) -> str:
    """The difference with its interval, in no finer digits than its noise."""
    from kvsim.tables import short

    if not _exists(row["difference"]):
        return NO_FIGURE
    factor, unit = _unit(row["figure"])
    difference = factor * row["difference"]
    if not _exists(row["low"]):
        if difference == 0:
            return "same"
        if abs(difference) >= 1000:
            return f"{'+' if difference > 0 else ''}{short(difference)}{unit}"
        return f"{_fixed(difference, 1 + _digits(abs(difference)))}{unit}"
    ends = [factor * row["low"], factor * row["high"]]
    digits = _digits(max(abs(end - difference) for end in ends))
    while row["beyond_noise"] and digits < 6 and any(_rounds_to_0(end, digits) for end in ends):
        digits += 1
    low, high = (_fixed(end, digits) for end in ends)
    if not row["beyond_noise"]:
        same = difference == 0 and ends == [0.0, 0.0]
        return "same" if same else f"within noise ({low} to {high}{unit})"
    return f"{_fixed(difference, digits)}{unit} ({low} to {high})"


def _digits(width: float) -> int:
    """Decimal places that show a width with one digit, or two where the first is 1."""
    if width <= 0:
        return 1
    place = math.floor(math.log10(width))
    return int(min(6, max(0, -place + (width / 10.0**place < 2))))


def _rounds_to_0(value: float, digits: int) -> bool:
    return round(value, digits) == 0


def _fixed(value: float, digits: int) -> str:
    text = f"{value:+,.{digits}f}"
    return text if float(text.replace(",", "")) else text.lstrip("+-")
