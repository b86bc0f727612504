"""Tables of reference results inside documents, so that a figure in prose is one that was measured.

A document has lines of the form ``<!-- table NAME -->`` (the table that ``kvsim run`` shows) or
``<!-- figures NAME: token_hit_rate, ttft_s.p50 -->`` (a row a variant, those figures), each
followed by its table and closed by ``<!-- end -->``; NAME is a reference result's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.errors import Problems
from kvsim.metrics.figures import flat_figures
from kvsim.results.reference import read_reference
from kvsim.results.tables import figure_text, summary_table

_TABLE_CHARACTERS = 120
_MARKED = re.compile(
    r"^<!-- (?P<kind>table|figures) (?P<name>[\w.-]+)(?:: (?P<figures>[^>]*?))? -->\n"
    r"(?P<body>.*?)^<!-- end -->$",
    re.MULTILINE | re.DOTALL,
)


def with_tables(document: Path, references: Path) -> str:
    """The text of a document, its marked tables made again from reference results.

    Args:
        document: a Markdown file.
        references: directory of the reference results.

    Raises:
        KvsimError: a reference is missing or damaged, or lacks a figure that is asked for.
    """
    problems: list[str] = []

    def made(match: re.Match[str]) -> str:
        summaries = read_reference(references / match["name"])["variants"]
        if match["kind"] == "table":
            body = f"```\n{_run_table(summaries)}```\n"
        else:
            names = [name.strip() for name in (match["figures"] or "").split(",")]
            body = _figures_table(summaries, names, match["name"], problems)
        start, end = (place - match.start() for place in match.span("body"))
        return match[0][:start] + body + match[0][end:]

    text = _MARKED.sub(made, document.read_text(encoding="utf-8"))
    if problems:
        raise Problems(str(document), problems)
    return text


def _run_table(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    from rich.console import Console

    # Real time is no part of a reference: it differs from machine to machine.
    rows = {name: {**summary, "wall_s": None} for name, summary in summaries.items()}
    console = Console(width=_TABLE_CHARACTERS, no_color=True)
    with console.capture() as capture:
        console.print(summary_table(rows, _TABLE_CHARACTERS))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _figures_table(
    summaries: Mapping[str, Mapping[str, Any]], names: list[str], place: str, problems: list[str]
) -> str:
    lines = [f"| variant | {' | '.join(f'`{name}`' for name in names)} |"]
    lines.append("|---" * (len(names) + 1) + "|")
    for variant, summary in summaries.items():
        flat = flat_figures(summary)
        if missing := [name for name in names if name not in flat]:
            problems.append(f"figures {place}: {variant} has no {', '.join(missing)}.")
            continue
        lines.append(f"| {variant} | {' | '.join(_figure(name, flat[name]) for name in names)} |")
    return "\n".join(lines) + "\n"


def _figure(name: str, value: float | None) -> str:
    return "" if value is None else figure_text(name, value)
