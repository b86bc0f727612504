"""`kvsim times`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvsim.errors import KvsimError, unknown_name

app = typer.Typer(help="Tables of step times.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Tables of step times."""


@app.command("export")
def export(
    source: Annotated[
        str, typer.Option("--from", metavar="aisimulate", help="Package that computes them.")
    ],
    model: Annotated[str, typer.Option(help="Model, as the package names it.")],
    system: Annotated[str, typer.Option(help="GPU, as the package names it, as in b200_sxm.")],
    engine: Annotated[str, typer.Option(help="vllm, sglang or tensorrt-llm.")] = "vllm",
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Ranks that split attention.")] = 1,
    data_parallel: Annotated[int, typer.Option(min=1, help="Ranks with own requests.")] = 1,
    expert_parallel: Annotated[int, typer.Option(min=1, help="Ranks with whole experts.")] = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where it is written. Default: shown.")
    ] = None,
) -> None:
    """Write a table of step times for `step_time: {kind: table, path: FILE}`.

    Its head says the version it is from and what it was corrected by.
    """
    from kvsim.study.export_times import export_aisimulate
    from kvsim.times.work import ENGINES

    if source != "aisimulate":
        raise KvsimError(f"--from: {unknown_name('package', source, ('aisimulate',))}")
    if engine not in ENGINES:
        raise KvsimError(f"--engine: {unknown_name('engine', engine, ENGINES)}")
    if tensor_parallel * data_parallel % expert_parallel:
        raise KvsimError(
            f"--expert-parallel: {expert_parallel} does not divide the "
            f"{tensor_parallel * data_parallel} ranks. Use a divisor."
        )
    text = export_aisimulate(
        model=model,
        system=system,
        engine=engine,
        tensor_parallel=tensor_parallel,
        data_parallel=data_parallel,
        expert_parallel=expert_parallel,
    )
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise KvsimError(f"{out}: cannot be written: {error.strerror}.") from None
