"""`kvsim new`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvsim.errors import KvsimError


def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Scenario file to write (.yaml).")],
) -> None:
    """Write a commented scenario to start from, which runs as it is. Nothing is overwritten."""
    from importlib.resources import files

    if file.suffix not in {".yaml", ".yml"}:
        raise KvsimError(f"{file}: is no YAML file. End its name in .yaml.")
    text = files("kvsim.scenario").joinpath("starter.yaml").read_text(encoding="utf-8")
    try:
        with file.open("x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        raise KvsimError(f"{file}: is there already. Give another name.") from None
    except OSError as error:
        raise KvsimError(f"{file}: cannot be written: {error.strerror}.") from None
    sys.stdout.write(f"Written: {file}\nRun it:  kvsim run {file}\n")
