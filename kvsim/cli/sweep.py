"""`kvsim sweep`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.cli.terminal import Json, ScenarioFile, Settings, make_console, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from kvsim.study.sweep_table import SweepResult
    from kvsim.study.sweeps import Progress


def sweep(
    scenario: ScenarioFile,
    settings: Settings = [],  # noqa: B006 - typer copies it
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
    as_json: Json = False,
) -> None:
    """Run what a scenario's `sweep:` describes, in parallel; what is there already is kept.

    Exit code 0: all runs are done; 1: some failed, their rows say why; 2: the sweep is wrong.
    """
    from kvsim.api import sweep_destination, with_axes
    from kvsim.scenario.reading import load_scenario, parse_axes
    from kvsim.study.sweeps import sweep as run_sweep

    loaded = with_axes(load_scenario(scenario, settings), parse_axes(vary, scenario), seeds)
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
        print_json({"runs": _records(result)})
    else:
        console = make_console()
        console.print(_shown(result))
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


def _shown(result: SweepResult) -> Table:
    """The runs as a table for people; columns that say the same in every row are left out."""
    from rich import box
    from rich.table import Table

    from kvsim.results.tables import NO_FIGURE, percent, seconds, short

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    rows = _records(result)

    def differs(name: str) -> bool:
        return len({str(row.get(name)) for row in rows}) > 1

    labels = [name for name in ("variant", *result.axes, "seed") if differs(name)] or ["variant"]
    for name in labels:
        table.add_column(_header(name, labels), no_wrap=len(labels) <= 4, overflow="fold")
    figures: Sequence[tuple[str, str, Callable[[Any], str]]] = (
        ("token\nhits", "token_hit_rate", percent),
        ("TTFT\np50", "ttft_s.p50", seconds),
        ("TTFT\np99", "ttft_s.p99", seconds),
        ("TPOT\np50", "tpot_s.p50", seconds),
        ("output\ntok/s", "output_tokens_per_s", short),
        ("evicted\nblocks", "evicted_blocks", short),
        ("bytes\nstored", "bytes_stored", short),
        ("re-\nfused", "num_refused", short),
    )
    # Refused requests make the others look better than they are, so they are never left out.
    figures = [
        figure
        for figure in figures
        if figure[1] not in {"bytes_stored", "num_refused"}
        or any(row.get(figure[1]) for row in rows)
    ]
    for header, _, _ in figures:
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("status")
    for row in rows:
        cells = ["null" if row[name] is None else str(row[name]) for name in labels]
        cells += [NO_FIGURE if row.get(n) is None else words(row[n]) for _, n, words in figures]
        table.add_row(*cells, row["status"])
    return table


def _header(key: str, others: Sequence[str]) -> str:
    """The last part of a dotted key on lines of its own, with the section where it is needed."""
    section, dot, last = key.rpartition(".")
    alone = sum(other.rpartition(".")[2] == last for other in others) == 1
    return "\n".join(([] if alone or not dot else [f"{section}."]) + _halves(last))


def _halves(name: str) -> list[str]:
    """A long name in two lines, cut at the underscore nearest to its middle."""
    cuts = [at for at, letter in enumerate(name) if letter == "_"]
    if len(name) <= 10 or not cuts:
        return [name]
    cut = min(cuts, key=lambda at: abs(at - len(name) / 2)) + 1
    return [name[:cut], name[cut:]]
