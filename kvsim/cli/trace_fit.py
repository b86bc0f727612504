"""`kvsim trace fit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.cli.terminal import Json, make_console, print_json
from kvsim.errors import KvsimError, unknown_name

if TYPE_CHECKING:
    from kvsim.workload.fitting import Fit

_DEFAULT_BLOCK_TOKENS = 16


def fit(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="Trace file.")],
    trace_format: Annotated[
        str, typer.Option("--format", metavar="NAME", help="Format; auto recognises it.")
    ] = "auto",
    block_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=2**20, metavar="N", help="Tokens an id stands for, if unsaid."),
    ] = None,
    starts: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="When sessions start, if not recorded: 'uniform(span_s=12 h)', together, ...",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the synthetic trace, and of starts.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the workload to a YAML file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the synthetic workload most like a trace, and say how well it stands for it.

    Lengths, turns, pauses, starts and shared prefixes are matched; hit rates are not, so that their
    difference by LRU capacity tells what the synthetic workload does not have.
    """
    from kvsim.scenario.reading import as_yaml
    from kvsim.scenario.writing import write_text
    from kvsim.workload.fitting import fit_trace

    config = _config(trace, trace_format, block_tokens, starts)
    requests, tokens, shown = _opened(config, seed)
    fitted = fit_trace(requests, tokens or block_tokens or _DEFAULT_BLOCK_TOKENS, shown, seed)
    text = as_yaml({"workload": fitted.workload})
    if out is not None:
        try:
            write_text(out, text)
        except OSError as error:
            raise KvsimError(f"{out}: cannot be written: {error.strerror}.") from None
    if as_json:
        print_json(_as_json(fitted))
        return
    sys.stdout.write(text)
    _show_curve(fitted)


def _config(
    trace: Path, trace_format: str, block_tokens: int | None, starts: str | None
) -> dict[str, Any]:
    from kvsim.scenario.draws import parse_starts
    from kvsim.workload.traces import FORMATS

    known = ["auto", *FORMATS]
    if trace_format not in known:
        raise KvsimError(f"--format: {unknown_name('format', trace_format, known)}")
    if starts is not None:
        try:
            parse_starts(starts)
        except ValueError as error:
            raise KvsimError(f"--starts: {error}") from None
    return {
        "kind": "trace",
        "path": str(trace),
        "format": trace_format,
        "block_tokens": block_tokens,
        "sessions": None if starts is None else {"loop": "open", "starts": starts},
    }


def _opened(config: dict[str, Any], seed: int) -> tuple[Any, int | None, str]:
    from kvsim.scenario import TraceWorkload
    from kvsim.workload import open_workload

    # No model is involved, so no block of a scheduler is finer than an id.
    workload = open_workload(TraceWorkload.model_validate(config), 2**24, seed)
    return workload.requests, workload.block_tokens, str(config["path"])


def _as_json(fitted: Fit) -> dict[str, Any]:
    return {
        "workload": fitted.workload,
        "block_tokens": fitted.block_tokens,
        "requests": fitted.num_requests,
        "synthetic_requests": fitted.num_synthetic,
        "sessions": fitted.num_sessions,
        "largest_difference": fitted.largest_difference,
        "capacities": [
            {
                "blocks": point.blocks,
                "token_hit_rate": point.recorded,
                "synthetic_token_hit_rate": point.synthetic,
            }
            for point in fitted.curve
        ],
    }


def _show_curve(fitted: Fit) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("LRU blocks", "trace", "synthetic", "difference"):
        table.add_column(name, justify="right")
    for point in fitted.curve:
        table.add_row(
            f"{point.blocks:,}",
            f"{100 * point.recorded:.1f}%",
            f"{100 * point.synthetic:.1f}%",
            f"{100 * (point.synthetic - point.recorded):+.1f}",
        )
    console = make_console()
    console.print(
        f"\n{fitted.num_requests:,} requests in {fitted.num_sessions:,} sessions; "
        f"{fitted.num_synthetic:,} synthetic ones. Token hit rates by LRU capacity in blocks of "
        f"{fitted.block_tokens} tokens, which were not fitted:",
        highlight=False,
    )
    console.print(table)
    console.print(
        f"Largest difference: {100 * fitted.largest_difference:.1f} points", highlight=False
    )
