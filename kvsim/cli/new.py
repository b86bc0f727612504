"""`kvsim new`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvsim.errors import KvsimError


def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Scenario file to write (.yaml).")],
    retention_probe: Annotated[
        bool,
        typer.Option(
            "--retention-probe",
            help="Write the probe that asks what each retention interval keeps, for "
            "kvsim plot retention.",
        ),
    ] = False,
    sessions: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Sessions of the probe; more than fit. Default: 260.", min=3
        ),
    ] = None,
    session_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens of each. Default: 128,000.", min=2),
    ] = None,
) -> None:
    """Write a commented scenario to start from, which runs as it is. Nothing is overwritten."""
    if file.suffix not in {".yaml", ".yml"}:
        raise KvsimError(f"{file}: is no YAML file. End its name in .yaml.")
    if retention_probe:
        from kvsim.study.probe import probe_text

        text = probe_text(sessions or 260, session_tokens or 128_000)
    elif sessions is not None or session_tokens is not None:
        option = "--sessions" if sessions is not None else "--session-tokens"
        raise KvsimError(f"{option}: is for the retention probe alone. Add --retention-probe.")
    else:
        from importlib.resources import files

        text = files("kvsim.scenario").joinpath("starter.yaml").read_text(encoding="utf-8")
    try:
        with file.open("x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        raise KvsimError(f"{file}: is there already. Give another name.") from None
    except OSError as error:
        raise KvsimError(f"{file}: cannot be written: {error.strerror}.") from None
    sys.stdout.write(f"Written: {file}\nRun it:  kvsim run {file}\n")
