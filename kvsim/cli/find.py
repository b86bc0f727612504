"""`kvsim find`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.terminal import Json, Only, ScenarioFile, Settings, make_console, print_json
from kvsim.errors import KvsimError, Problems

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rich.console import Console

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
            "dotted key. KEY=TEXT with {} puts the number into a text: "
            "workload.sessions.starts=poisson(per_s={}).",
        ),
    ] = None,
    smallest: Annotated[
        str | None,
        typer.Option(
            metavar="QUANTITY",
            help="Find the smallest number at a dotted key: node.num_blocks, offload.capacity, "
            "offload.num_chunks, offload.link.bandwidth.",
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
            _print(console, name, found[name])
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


def _print(console: Console, name: str, result: FindResult) -> None:
    from rich import box
    from rich.table import Table

    from kvsim.study.quantities import value_text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column(result.quantity, justify="right", no_wrap=True)
    figures = list(result.tried[0].figures)
    for figure in figures:
        table.add_column(figure, justify="right", no_wrap=True)
    with_seeds = max(trial.num_seeds for trial in result.tried) > 1
    if with_seeds:
        table.add_column("seeds\nmet", justify="right")
    table.add_column("objective")
    for trial in result.tried:
        cells = [value_text(trial.value)]
        for figure in figures:
            value, width = trial.figures[figure], trial.half_widths[figure]
            around = "" if width is None else f" ± {width:.2g}"
            cells.append("-" if value is None else f"{value:.4g}{around}")
        if with_seeds:
            cells.append(f"{trial.num_seeds_met}/{trial.num_seeds}")
        word = ("met" if trial.met else "missed") + (", within noise" if not _sure(trial) else "")
        table.add_row(*cells, word + (f" ({trial.message})" if trial.message else ""))
    console.print(f"{name}: {_answer(result)}", style="bold", highlight=False, markup=False)
    console.print(table)
    for note in result.notes:
        console.print(f"Note: {note}", style="yellow", highlight=False, markup=False)


def _sure(trial: Trial) -> bool:
    return trial.clear is not False


def _answer(result: FindResult) -> str:
    from kvsim.study.quantities import value_text

    word = "largest" if result.largest else "smallest"
    if result.value is None:
        return f"no {result.quantity} tried meets {result.objective}"
    missed = result.bracket[1]
    end = "none that was tried misses it" if missed is None else f"{value_text(missed)} misses it"
    noise = ""
    if result.noise is not None:
        low, high = (value_text(end) for end in result.noise)
        noise = f"; within noise from {low} to {high}"
    found = value_text(result.value)
    text = f"{word} {result.quantity} that meets {result.objective}: {found}"
    return f"{text} ({end}{noise})"
