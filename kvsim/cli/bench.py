"""`kvsim bench`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.terminal import Json, make_console, print_json, print_table, progress_bars
from kvsim.errors import KvsimError, unknown_name

if TYPE_CHECKING:
    from kvsim.study.bench_times import Off, Prediction

app = typer.Typer(
    help="Time kvsim itself, and hold its step times against measurements.", no_args_is_help=True
)


@app.callback()
def _root() -> None:
    """Time kvsim itself, and hold its step times against measurements."""


@app.command("core")
def bench_core(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace in Mooncake's format.")],
    groups: Annotated[
        str, typer.Option(metavar="dsv4|full", help="The model's KV cache groups.")
    ] = "dsv4",
    retention: Annotated[
        str, typer.Option(metavar="null|0|N", help="Retention interval in tokens; null is dense.")
    ] = "0",
    num_blocks: Annotated[
        int | None,
        typer.Option(min=2, help="Blocks of the pool. Default: 103254 (dsv4), 200000 (full)."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="First requests of the trace.")] = None,
    as_json: Json = False,
) -> None:
    """Time the cache core alone on the prompts of a trace, one request after another."""
    from kvsim.study.bench import DEFAULT_NUM_BLOCKS, time_core

    if groups not in DEFAULT_NUM_BLOCKS:
        raise KvsimError(f"--groups: {unknown_name('groups', groups, DEFAULT_NUM_BLOCKS)}")
    try:
        interval = None if retention == "null" else int(retention)
    except ValueError:
        raise KvsimError(
            f"--retention: {retention!r} is no interval. Use null, 0 or a number of tokens."
        ) from None
    timing = time_core(
        trace, groups=groups, retention_interval=interval, num_blocks=num_blocks, limit=limit
    ).as_json()
    if as_json:
        print_json(timing)
        return
    for name, value in timing.items():
        sys.stdout.write(f"{name:15} {value:,.4g}\n" if isinstance(value, float) else "")
        sys.stdout.write(f"{name:15} {value:,}\n" if isinstance(value, int) else "")


@app.command("times")
def bench_times(
    measured: Annotated[
        Path,
        typer.Argument(metavar="MEASURED", help="Measurements: CSV, plain or gzip."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where points, tables and a plot are written."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: all cores.")] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Put errors into this page, fitted set-ups and others apart; slower.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate every measured point, and say how far step times are off.

    By model, GPU, engine and load; points that cannot be expressed are listed with the reason.
    """
    from kvsim.study import bench_times as bench
    from kvsim.study.measured import read_measured

    points = read_measured(measured)
    with progress_bars(["points"]) as bar:
        predictions = bench.predict_all(points, jobs=jobs, on_progress=bar("points"))
    if validation is not None:
        from kvsim.study.fitting_times import held_out_errors, observe_all
        from kvsim.study.refit import fitted_points
        from kvsim.study.validation import put_in, validation_part
        from kvsim.times.constants import catalog_constants

        constants = catalog_constants()
        seen = observe_all(fitted_points(points), constants, jobs=jobs)
        part = validation_part(
            predictions,
            seen,
            held_out_errors(seen, constants),
            constants,
            f"kvsim bench times {measured.name} --validation {validation.as_posix()}",
        )
        page = validation.read_text(encoding="utf-8") if validation.exists() else ""
        _write(validation, put_in(page, part))
    found = bench.as_json(predictions)
    if out is not None:
        from kvsim.plots.style import save
        from kvsim.plots.times import predicted_against_measured

        out.mkdir(parents=True, exist_ok=True)
        _write(out / "times.json", json.dumps(found, indent=2) + "\n")
        save(predicted_against_measured(predictions), out / "times.png")
    if as_json:
        print_json(found)
        return
    _print_errors(predictions)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise KvsimError(f"{path}: cannot be written: {error.strerror}.") from None


def _print_errors(predictions: Sequence[Prediction]) -> None:
    from rich import box
    from rich.table import Table

    from kvsim.study import bench_times as bench

    console = make_console()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for header in ("", "TPOT: n", "median", "p90", "bias", "TTFT: n", "median", "p90", "bias"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    ttft, tpot = bench.errors_of(predictions)
    table.add_row("all", *_cells(tpot), *_cells(ttft))
    for by in bench.GROUPS:
        table.add_section()
        for name, ttft, tpot in bench.grouped(predictions, by):
            label = f"concurrency {name}" if by == "load" else name
            table.add_row(label, *_cells(tpot), *_cells(ttft))
    print_table(console, table)
    reasons = bench.left_out(predictions)
    for reason, ids in sorted(reasons.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")
        console.print(f"Left out ({len(ids)}): {reason} [{shown}]", highlight=False, markup=False)


def _cells(error: Off) -> tuple[str, ...]:
    if error.n == 0:
        return ("0", "", "", "")
    return (f"{error.n:,}", f"{error.median:.1%}", f"{error.p90:.1%}", f"{error.bias:+.0%}")
