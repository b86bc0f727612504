"""`kvsim report`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli.terminal import RunOrSweep


def report(
    path: RunOrSweep,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The HTML file. Default: RUN_OR_SWEEP/report.html."),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="The question it answers. Default: from what was varied."
        ),
    ] = None,
) -> None:
    """Write a report: one HTML file with the question, the answer, its numbers and plots.

    It needs no network and no other file, and prints to PDF from any browser.
    """
    from kvsim.report.page import default_report, write_report

    written = write_report(path, out if out is not None else default_report(path), question)
    sys.stdout.write(f"Report: {written}\n")
