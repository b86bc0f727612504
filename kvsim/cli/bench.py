"""`kvsim bench`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli.terminal import Json, print_json
from kvsim.errors import KvsimError, unknown_name

app = typer.Typer(help="Time kvsim itself.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Time kvsim itself."""


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
