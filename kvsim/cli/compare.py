"""`kvsim compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.cli.tables import Column, fitted
from kvsim.cli.terminal import Json, make_console, print_json, print_table
from kvsim.metrics.figures import FOUND_RATE
from kvsim.results.tables import NO_FIGURE, difference_text, exists, figure_text
from kvsim.study.frames import axis_text

if TYPE_CHECKING:
    from rich.console import Console

    from kvsim.study.comparison import Comparison

_MAIN = (
    "token_hit_rate",
    "ceiling.share_of_infinite",
    "ceiling.share_of_optimum",
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
_SIDE_CHARACTERS = 14
_OF_CLASSES = ("token_hit_rate", FOUND_RATE, "ttft_s.p50", "ttft_s.p99")
_OF_FLEET = (
    "misrouted_share",
    "duplicate_share",
    "imbalance.load",
    "gpu_hours",
    "cost_per_million_output_tokens",
)
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
    title = f"{case} against {comparison.reference}"
    console.print(title, style="bold", highlight=False, markup=False)
    changes = comparison.scenario_changes
    for change in changes[changes["case"] == case].to_dict(orient="records"):
        before, after = (_setting(change["key"], change[side]) for side in ("reference", "value"))
        text = f"  {change['key']}: {before} -> {after}"
        console.print(text, highlight=False, markup=False)
    rows = comparison.table[comparison.table["case"] == case]
    has_tiers = bool(rows["scope"].str.startswith("tier ").any())
    records = rows.to_dict(orient="records")
    kept = [row for row in records if everything or _is_main(row, has_tiers=has_tiers)]
    # A scope is a line of its own, so that the figures keep their width.
    lines: list[tuple[str, ...]] = []
    scope = "all"
    scopes = list(dict.fromkeys(["all", *(row["scope"] for row in kept)]))
    for row in sorted(kept, key=lambda row: scopes.index(row["scope"])):
        figure = row["figure"]
        if row["scope"] != scope:
            scope = row["scope"]
            lines.append((scope, "", "", ""))
        name = figure if scope == "all" else f"  {figure}"
        sides = (_shown(figure, row[side]) for side in ("reference", "value"))
        lines.append((name, *sides, difference_text(row)))
    one, other = comparison.reference, case
    if max(len(one), len(other)) > _SIDE_CHARACTERS:
        one, other = "reference", "this"
    columns = [
        Column(header, [line[place] for line in lines], is_name=place == 0)
        for place, header in enumerate(("figure", one, other, "difference (95%)"))
    ]
    print_table(console, fitted(columns, None))


def _setting(key: str, text: str) -> str:
    """A value of a scenario from its JSON: sizes in their unit, all else as it is."""
    value = json.loads(text)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return axis_text(key, value) if is_number else text


def _is_main(row: dict[Any, Any], *, has_tiers: bool) -> bool:
    if row["figure"] == FOUND_RATE and not has_tiers:
        return False  # it is the token hit rate
    if row["scope"] == "all":
        something = any(exists(row[side]) and row[side] for side in ("reference", "value"))
        return row["figure"] in _MAIN and (something or row["figure"] == "token_hit_rate")
    if row["scope"] == "fleet":
        return row["figure"] in _OF_FLEET and any(
            exists(row[side]) for side in ("reference", "value")
        )
    if row["scope"].startswith("replica "):
        return False
    if row["scope"].startswith("prompt"):
        return row["figure"] in _OF_CLASSES
    if row["scope"].startswith("tier ") and ", group " in row["scope"]:
        return row["figure"] in _OF_TIER_GROUPS
    return True


def _shown(figure: str, value: Any) -> str:
    return figure_text(figure, value) if exists(value) else NO_FIGURE
