"""`kvsim verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli.terminal import Json, complain, print_json


def verify(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Recorded transcripts (.jsonl.gz).")
    ],
    as_json: Json = False,
) -> None:
    """Follow recorded transcripts of the engine or of routers, and compare every answer.

    Exit code 0: all the same; 1: some differ; 2: a file is broken.
    """
    from kvsim.verify import verify_files

    reports, errors = verify_files(files)
    if as_json:
        print_json([report.as_json() for report in reports])
    else:
        for report in reports:
            sys.stdout.write(f"{report.sentence}\n")
    sys.stdout.flush()
    for error in errors:
        complain(error)
    if errors:
        raise typer.Exit(2)
    if any(report.identical is False for report in reports):
        raise typer.Exit(1)
