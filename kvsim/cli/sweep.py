"""`kvsim sweep`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.cli.tables import Column, Wide, fitted, heading
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

if TYPE_CHECKING:
    from kvsim.study.sweep_table import SweepResult
    from kvsim.study.sweeps import Progress


def sweep(
    scenario: ScenarioFile,
    settings: Settings = [],  # noqa: B006 - typer copies it
    only: Only = [],  # noqa: B006
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=[VALUES]",
            help="One more axis of the grid: node.num_blocks=[50000,100000]. May be given again.",
        ),
    ] = [],  # noqa: B006
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Run each with N seeds, from the scenario's own up."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Runs and sweep.parquet go to DIR. Default: results/<scenario name>/sweep/.",
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Simulations at once. Default: all cores.")
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            metavar="loky|ray|dask", help="Where they run: this machine, a Ray or a Dask cluster."
        ),
    ] = "loky",
    wide: Wide = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Run what a scenario's `sweep:` describes, in parallel; what is there already is kept.

    Exit code 0: all runs are done; 1: some failed, their rows say why; 2: the sweep is wrong.
    """
    from kvsim.api import sweep_destination, with_axes, with_variants
    from kvsim.scenario.reading import load_scenario, parse_axes
    from kvsim.study.sweeps import sweep as run_sweep

    chosen = with_variants(load_scenario(scenario, settings), only, f"{scenario}: --only")
    loaded = with_axes(chosen, parse_axes(vary, scenario), seeds)
    with _bar() as told:
        result = run_sweep(
            loaded,
            out if out is not None else sweep_destination(loaded),
            jobs=jobs,
            backend=backend,
            on_progress=told,
            arguments=tuple(sys.argv[1:]),
        )
    failed = result.table[result.table["status"] == "failed"]
    if as_json:
        print_json({"runs": _records(result), "notes": list(result.notes)})
    else:
        console = make_console()
        print_table(console, fitted(_columns(result), None if wide else console.width))
        notes = list(result.notes)
        if any(row.get("overload.since_s") is not None for row in _records(result)):
            notes.append(
                "* overloaded: requests arrived faster than they were served to the end, so TTFT "
                "grows with the length of the workload."
            )
        for note in notes:
            console.print(f"Note: {note}", style="yellow", highlight=False, markup=False)
        for message in dict.fromkeys(failed["message"]):
            count = int((failed["message"] == message).sum())
            runs = "1 run failed" if count == 1 else f"{count} runs failed"
            console.print(f"{runs}: {message}", style="red", highlight=False, markup=False)
        console.print(f"Results: {result.path}", highlight=False, markup=False, soft_wrap=True)
    if len(failed):
        raise typer.Exit(1)


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    """A bar over the runs, with the time left, on a terminal's standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    ) as bar:
        task = bar.add_task("runs", total=None, left="")

        def told(progress: Progress) -> None:
            failed = f" ({progress.num_failed} failed)" if progress.num_failed else ""
            bar.update(
                task,
                completed=progress.num_done,
                total=progress.num_to_do,
                description=f"runs{failed}",
                left=_left(progress, bar.tasks[task].elapsed or 0.0),
            )

        yield told


def _left(progress: Progress, elapsed_s: float) -> str:
    """The time left in words, from how long the runs took so far."""
    if not progress.num_done:
        return ""
    left_s = elapsed_s / progress.num_done * (progress.num_to_do - progress.num_done)
    minutes, seconds = divmod(round(left_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min left"
    return f"{minutes} min {seconds:02d} s left" if minutes else f"{seconds} s left"


def _records(result: SweepResult) -> list[dict[str, Any]]:
    import pandas as pd

    def plain(value: Any) -> Any:
        if pd.isna(value):
            return None
        return value.item() if hasattr(value, "item") else value

    return [
        {str(name): plain(value) for name, value in row.items()}
        for row in result.table.to_dict(orient="records")
    ]


def _columns(result: SweepResult) -> list[Column]:
    """The table for people; columns that say the same in every row are left out."""
    from kvsim.metrics.figures import FOUND_RATE
    from kvsim.results.tables import NO_FIGURE, percent, seconds, short, size
    from kvsim.study.frames import axis_text
    from kvsim.study.sweep_table import DONE

    rows = _records(result)
    for row in rows:
        row[FOUND_RATE] = _tier_share(row)

    def differs(name: str) -> bool:
        return len({str(row.get(name)) for row in rows}) > 1

    def any_of(name: str) -> bool:
        return any(row.get(name) for row in rows)

    labels = [name for name in ("variant", *result.axes, "seed") if differs(name)] or ["variant"]
    columns = [
        Column(
            heading(name, labels),
            [axis_text(name, row.get(name)) for row in rows],
            is_name=name == "variant" or any(isinstance(row.get(name), str) for row in rows),
        )
        for name in labels
    ]
    # Refused requests make the others look better than they are, so they are never left out.
    figures: Sequence[tuple[str, str, Callable[[Any], str], int | None, bool]] = (
        ("token\nhits", "token_hit_rate", percent, None, True),
        ("tier\nhits", FOUND_RATE, percent, None, any_of(FOUND_RATE)),
        ("good-\nput", "goodput", percent, None, any(r.get("goodput") is not None for r in rows)),
        ("TTFT\np50", "ttft_s.p50", seconds, 8, True),
        ("TTFT\np99", "ttft_s.p99", seconds, None, True),
        ("re-\nfused", "num_refused", short, None, any_of("num_refused")),
        ("pre-\nempted", "preemptions", short, 7, any_of("preemptions")),
        ("TPOT\np50", "tpot_s.p50", seconds, 1, True),
        ("output\ntok/s", "output_tokens_per_s", short, 2, True),
        ("evicted\nblocks", "evicted_blocks", short, 5, True),
        ("stored\nto tiers", "bytes_stored", size, 3, any_of("bytes_stored")),
        ("loaded\nback", "bytes_loaded", size, 4, any_of("bytes_loaded")),
    )
    for header, name, words, leaves, shown in figures:
        if shown:
            cells = [NO_FIGURE if row.get(name) is None else words(row[name]) for row in rows]
            if name.startswith("ttft_s"):  # of an overloaded run: the longer it is, the longer
                over = [row.get("overload.since_s") is not None for row in rows]
                cells = [f"{c}*" if o else c for c, o in zip(cells, over, strict=True)]
            columns.append(Column(header, cells, leaves))
    runs = [NO_FIGURE if row["run"] is None else str(row["run"]) for row in rows]
    columns.append(Column("run", runs, 6, is_name=True))
    if any(row["status"] != DONE for row in rows):
        columns.append(Column("status", [row["status"] for row in rows], is_name=True))
    return columns


def _tier_share(row: Mapping[str, Any]) -> float | None:
    """Share of the prompt tokens that came from a tier; None where none did."""
    shares = [row.get(f"hit_split.{source}") for source in ("cpu", "remote")]
    known = [share for share in shares if share]
    return sum(known) if known else None
