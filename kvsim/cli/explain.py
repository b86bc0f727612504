"""`kvsim explain`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli.terminal import Json, print_json


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
    sys.stdout.write("\n".join(story.lines) + "\n")
