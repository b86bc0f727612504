"""`kvsim find`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.tables import Wide
from kvsim.cli.terminal import (
    Json,
    Only,
    ScenarioFile,
    Settings,
    Trust,
    make_console,
    print_json,
    print_table,
)
from kvsim.errors import KvsimError, Problems

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rich.console import Console

    from kvsim.cli.tables import Column
    from kvsim.scenario import Scenario
    from kvsim.study.search import FindResult
    from kvsim.study.trials import Trial


def find(
    scenario: ScenarioFile,
    objective: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="What has to be met: 'ttft_s.p99 < 2 and tpot_s.p50 < 0.05', of any figure of "
            "summary.json.",
        ),
    ],
    largest: Annotated[
        str | None,
        typer.Option(
            metavar="QUANTITY",
            help="Find the largest request_rate, concurrency (sessions at once) or number at a "
            "dotted key. KEY=TEXT with {} puts the number into a text, as in "
            "step_time.step_s={}ms.",
        ),
    ] = None,
    smallest: Annotated[
        str | None,
        typer.Option(
            metavar="QUANTITY",
            help="Find the smallest number at a dotted key: fleet.nodes, node.num_blocks, "
            "offload.capacity, offload.num_chunks, offload.link.bandwidth.",
        ),
    ] = None,
    settings: Settings = [],  # noqa: B006 - typer copies it
    only: Only = [],  # noqa: B006
    low: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="Begin of the bracket. Default: found by halving."),
    ] = None,
    high: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="End of the bracket. Default: found by doubling."),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(metavar="N", help="Try each value with N seeds, the same for all values."),
    ] = 1,
    tolerance: Annotated[
        float, typer.Option(metavar="FRACTION", help="End when the bracket is this narrow.")
    ] = 0.02,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Simulations at once. Default: all cores.")
    ] = None,
    wide: Wide = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Find the largest load that meets an objective, or the smallest cache, variant by variant.

    Exit code 0: found; 1: for some variant no value that was tried meets the objective.
    """
    from kvsim.api import find as search
    from kvsim.cli.terminal import chosen_variants
    from kvsim.scenario.reading import load_scenario

    if (largest is None) == (smallest is None):
        raise KvsimError("find: give either --largest or --smallest, and what it is of.")
    loaded = load_scenario(scenario, settings)
    found: dict[str, FindResult] = {}
    console = make_console()
    variants = chosen_variants(loaded, only, scenario)
    _check(variants, largest or smallest or "", scenario)
    for name, variant in variants.items():
        found[name] = search(
            variant,
            objective=objective,
            largest=largest,
            smallest=smallest,
            low=low,
            high=high,
            seeds=seeds,
            tolerance=tolerance,
            jobs=jobs,
            on_trial=_told(name),
        )
        if not as_json:
            _print(console, name, found[name], wide=wide)
    if as_json:
        print_json({"variants": {name: result.as_json() for name, result in found.items()}})
    if any(result.value is None for result in found.values()):
        raise typer.Exit(1)


def _check(variants: Mapping[str, Scenario], quantity: str, path: Path) -> None:
    """Refuse a quantity that some variant has not, before the first is searched for minutes."""
    from kvsim.study.quantities import REQUEST_RATE
    from kvsim.study.quantities import quantity as quantity_of

    if quantity == REQUEST_RATE:
        return  # it reads the whole workload to count
    problems: dict[str, list[str]] = {}
    for name, variant in variants.items():
        try:
            quantity_of(variant, quantity)
        except Problems:
            raise
        except KvsimError as error:
            problems.setdefault(str(error), []).append(name)
    if problems:
        whole = list(problems.values()) == [list(variants)]
        raise Problems(
            str(path),
            [f"{'' if whole else ', '.join(who) + ': '}{text}" for text, who in problems.items()],
        )


def _told(name: str) -> Callable[[Trial], None]:
    """Says on a terminal's standard error what was tried, since a search may take minutes."""
    from kvsim.study.quantities import value_text

    def tell(trial: Trial) -> None:
        if sys.stderr.isatty():
            word = "met" if trial.met else "missed"
            sys.stderr.write(f"{name}: {value_text(trial.value)} {word}\n")

    return tell


def _print(console: Console, name: str, result: FindResult, *, wide: bool) -> None:
    from kvsim.cli.tables import fitted

    console.print(f"{name}: {_answer(result)}", style="bold", highlight=False, markup=False)
    print_table(console, fitted(_columns(result), None if wide else console.width))
    for trial in result.tried:
        if trial.message:
            text = f"{_value(result, trial.value)}: {trial.message}"
            console.print(text, highlight=False, markup=False)
    for note in result.notes:
        console.print(f"Note: {note}", style="yellow", highlight=False, markup=False)


def _columns(result: FindResult) -> list[Column]:
    from kvsim.cli.tables import Column, figure_heading, heading

    quantity = result.quantity.partition("=")[0]
    columns = [
        Column(heading(quantity, [quantity]), [_value(result, t.value) for t in result.tried])
    ]
    tried = result.tried
    for number, figure in enumerate(tried[0].figures):
        cells = [_with_width(figure, t.figures[figure], t.half_widths[figure]) for t in tried]
        # The first stays; of a long objective the last figure makes room first.
        columns.append(Column(figure_heading(figure), cells, 10 - number if number else None))
    if max(trial.num_seeds for trial in result.tried) > 1:
        met = [f"{trial.num_seeds_met}/{trial.num_seeds}" for trial in result.tried]
        columns.append(Column("seeds\nmet", met))
    columns.append(Column("objective", [_verdict(trial) for trial in result.tried], is_name=True))
    return columns


def _value(result: FindResult, value: float) -> str:
    """A value of the quantity: sizes and bandwidths in their unit, other numbers in full."""
    from kvsim.study.frames import axis_text
    from kvsim.study.quantities import value_text

    shown = axis_text(result.quantity, value)
    return shown if shown[-1].isalpha() else value_text(value)


def _with_width(figure: str, value: float | None, width: float | None) -> str:
    from kvsim.results.tables import NO_FIGURE, figure_text

    if value is None:
        return NO_FIGURE
    shown = figure_text(figure, value)
    return shown if width is None else f"{shown} ± {figure_text(figure, width)}"


def _verdict(trial: Trial) -> str:
    word = "met" if trial.met else "missed"
    return word if _sure(trial) else f"{word}, within noise"


def _sure(trial: Trial) -> bool:
    return trial.clear is not False


def _answer(result: FindResult) -> str:
    word = "largest" if result.largest else "smallest"
    if result.value is None:
        return f"no {result.quantity} tried meets {result.objective}"
    missed = result.bracket[1]
    end = "none that was tried" if missed is None else _value(result, missed)
    end += " misses it"
    noise = ""
    if result.noise is not None:
        low, high = (_value(result, end) for end in result.noise)
        noise = f"; within noise from {low} to {high}"
    found = _value(result, result.value)
    text = f"{word} {result.quantity} that meets {result.objective}: {found}"
    return f"{text} ({end}{noise})"
