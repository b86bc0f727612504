"""`kvsim run`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.cli.tables import Column, fitted
from kvsim.cli.terminal import (
    Json,
    Only,
    ScenarioFile,
    Settings,
    Trust,
    chosen_variants,
    complain,
    make_console,
    print_json,
    print_table,
    progress_bars,
)
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from rich.console import Console

    from kvsim.scenario import Scenario

_MOST_TABLES = 4  # of replicas, one a variant


def run(
    scenario: ScenarioFile,
    settings: Settings = [],  # noqa: B006 - typer copies it
    only: Only = [],  # noqa: B006
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Variants simulated at once, or parts of a fleet whose router needs no state of "
            "replicas. Default: all cores.",
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            metavar="loky|ray|dask", help="Where they run: this machine, a Ray or a Dask cluster."
        ),
    ] = "loky",
    wide: Annotated[
        bool, typer.Option("--wide", help="All columns, however wide the terminal is.")
    ] = False,
    why: Annotated[
        bool,
        typer.Option("--why", help="Note why prompt tokens were missed, and show a table."),
    ] = False,
    ceiling: Annotated[
        bool,
        typer.Option(
            "--ceiling", help="Also what an infinite pool and the offline optimum would hit."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Results go to DIR/<variant>/. Default: results/<scenario name>/."
        ),
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Run a scenario, every variant on the same arrivals, and show a table of the results."""
    from kvsim.results.store import check_destination
    from kvsim.results.variants import write_variant
    from kvsim.scenario.reading import load_scenario
    from kvsim.study.ceilings import with_ceiling
    from kvsim.study.side_by_side import run_side_by_side

    noted = ["output.reasons=true"] if why else []
    loaded = load_scenario(scenario, [*settings, *noted])
    variants = chosen_variants(loaded, only, scenario)
    out_dir = out if out is not None else Path("results") / loaded.name
    check_destination(out_dir, variants)
    done: dict[str, dict[str, Any]] = {}
    failures: dict[str, list[str]] = {}  # what went wrong -> the variants
    with progress_bars(variants) as told:
        outcomes = run_side_by_side(
            variants,
            jobs=jobs,
            backend=backend,
            arguments=tuple(sys.argv[1:]),
            on_progress=lambda name, share: told(name)(share),
        )
        for name, outcome in outcomes:
            if isinstance(outcome, KvsimError):  # the others may well run
                failures.setdefault(str(outcome), []).append(name)
                continue
            told(name)(1.0)
            if ceiling:
                outcome = with_ceiling(outcome)
            write_variant(out_dir, outcome)
            done[name] = outcome.summary
    summaries = {name: done[name] for name in variants if name in done}
    if as_json and summaries:
        print_json({"variants": summaries})
    elif summaries:
        _show(summaries, out_dir, wide, why=why, note=_whole_note(variants, jobs))
    for text, names in failures.items():
        where = "" if len(names) == len(variants) else f"variants.{', '.join(names)}: "
        complain(KvsimError(f"{where}{text}"))
    if failures:
        raise typer.Exit(2)


def _whole_note(variants: Mapping[str, Scenario], jobs: int | None) -> str | None:
    """Why a fleet alone on several cores ran on one of them; None where it did not."""
    from kvsim.fleet.parts import whole_note
    from kvsim.study.parallel import num_cores

    if len(variants) > 1 or (jobs or num_cores()) < 2:
        return None
    return whole_note(next(iter(variants.values())))


def _show(
    summaries: Mapping[str, Mapping[str, Any]],
    out_dir: Path,
    wide: bool,
    *,
    why: bool,
    note: str | None,
) -> None:
    from kvsim.results.tables import notes_by_name, summary_table

    console = make_console()
    print_table(console, summary_table(summaries, None if wide else console.width))
    if why:
        _show_reasons(console, summaries, wide)
    _show_fleets(
        console, {name: s["fleet"] for name, s in summaries.items() if s.get("fleet") is not None}
    )
    told = [(summary.get("step_times") or {}).get("says") for summary in summaries.values()]
    for says in dict.fromkeys(text for text in told if text):
        console.print(says, style="dim", highlight=False, markup=False)
    warnings = {name: summary["warnings"] for name, summary in summaries.items()}
    for warning in notes_by_name(warnings):
        console.print(f"Note: {warning}", style="yellow", highlight=False, markup=False)
    if note is not None:
        console.print(note, style="dim", highlight=False, markup=False)
    console.print(f"Results: {out_dir}", highlight=False, markup=False, soft_wrap=True)


def _show_reasons(console: Console, summaries: Mapping[str, Mapping[str, Any]], wide: bool) -> None:
    """Why prompt tokens were missed, as shares of all prompt tokens."""
    from kvsim.study.misses import miss_rows

    console.print("Prompt tokens found, or why not (kvsim describe reasons):", highlight=False)
    columns = [Column("variant", list(summaries), is_name=True)]
    columns += [Column(header, cells) for header, cells in miss_rows(summaries).items()]
    print_table(console, fitted(columns, None if wide else console.width))


def _show_fleets(console: Console, fleets: Mapping[str, Mapping[str, Any]]) -> None:
    """What there is to say of fleets: one in sentences, several in a table, then each replica."""
    from kvsim.results.fleet_tables import (
        fleet_lines,
        fleet_table,
        further_lines,
        replica_table,
    )

    if len(fleets) > 1:
        console.print()
        print_table(console, fleet_table(fleets))
    elif fleets:
        console.print()
    for name, fleet in fleets.items():
        for line in further_lines(fleet) if len(fleets) > 1 else fleet_lines(fleet):
            said = f"{name}: {line}" if len(fleets) > 1 else line
            console.print(said, highlight=False, markup=False)
    for name, fleet in fleets.items() if len(fleets) <= _MOST_TABLES else ():
        if len(fleet["replicas"]) > 1:
            console.print()
            print_table(console, replica_table(fleet, name if len(fleets) > 1 else ""))
