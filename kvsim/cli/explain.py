"""`kvsim explain`."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli.terminal import Json, make_console, print_json

_MOST_COLUMNS = 100


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a result.")],
    request: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST", help="Its name in requests.parquet, or its number from 1 on."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Tell why one request missed what it missed, and which setting would have kept it.

    What it shared with whom, what was still there, what had gone, when and because of what.
    """
    from kvsim.results.store import load_result
    from kvsim.study.misses import explain as tell

    story = tell(load_result(run), request)
    if as_json:
        print_json({"request_id": story.request_id, "says": story.lines, **story.figures})
        return
    columns = min(make_console().width, _MOST_COLUMNS)
    for line in story.lines:
        folded = textwrap.fill(
            line,
            columns,
            subsequent_indent="    " if line.startswith(" ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        sys.stdout.write(f"{folded}\n")
