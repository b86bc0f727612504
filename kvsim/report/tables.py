"""The report's tables: a row a run, and what differs from the best with its interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.metrics.figures import FOUND_RATE
from kvsim.report.markup import key_heading, safe
from kvsim.results.tables import (
    NO_FIGURE,
    difference_text,
    exists,
    percent,
    seconds,
    short,
    size,
)
from kvsim.study import findings
from kvsim.study.frames import axis_text
from kvsim.study.ranking import found_column
from kvsim.study.runs import Runs

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.study.comparison import Comparison

_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("Token hit rate", "token_hit_rate", percent),
    ("Of the ceiling", "ceiling.share_of_infinite", percent),
    ("Of the optimum", "ceiling.share_of_optimum", percent),
    ("With tiers", FOUND_RATE, percent),
    ("Request hit rate", "request_hit_rate", percent),
    ("TTFT p50", "ttft_s.p50", seconds),
    ("TTFT p90", "ttft_s.p90", seconds),
    ("TTFT p99", "ttft_s.p99", seconds),
    ("TPOT p50", "tpot_s.p50", seconds),
    ("Requests/s", "requests_per_s", short),
    ("Output tokens/s", "output_tokens_per_s", short),
    ("Goodput", "goodput", percent),
    ("Preempted", "preemptions", short),
    ("Evicted blocks", "evicted_blocks", short),
    ("Stored to tiers", "bytes_stored", size),
    ("Loaded back", "bytes_loaded", size),
    ("Refused", "num_refused", short),
)
_ONLY_IF_ANY = {
    "ceiling.share_of_infinite",
    "ceiling.share_of_optimum",
    "goodput",
    "preemptions",
    "bytes_stored",
    "bytes_loaded",
    "num_refused",
}


def results_table(runs: Runs, best: Sequence[str]) -> str:
    """A row a run; seeds are averaged, and the best rows stand out."""
    others = findings.other_axes(runs.axes)
    frame = runs.frame
    keys = ["label", *others]
    columns = [
        column
        for column in _COLUMNS
        if column[1] in frame
        and (column[1] != FOUND_RATE or found_column(frame) == FOUND_RATE)
        and (column[1] not in _ONLY_IF_ANY or frame[column[1]].fillna(0).astype(float).any())
    ]
    head = "".join(f"<th>{key_heading(name)}</th>" for name in ("Run", *others))
    head += "".join(f"<th>{safe(name)}</th>" for name, _, _ in columns)
    body = []
    for point, rows in frame.groupby(keys, sort=False, dropna=False):
        label, *values = point if isinstance(point, tuple) else (point,)
        at = (axis_text(axis, value) for axis, value in zip(others, values, strict=True))
        cells = [safe(str(label)), *(safe(text) for text in at)]
        over = bool(findings.overloaded(rows).any())
        for _, column, shown in columns:
            known = rows[column].astype(float).dropna()
            mean = float(known.mean()) if len(known) else None
            whole = mean is not None and mean.is_integer()
            mark = "*" if over and column.startswith("ttft_s") else ""
            cells.append(safe(shown(int(mean) if mean is not None and whole else mean) + mark))
        style = ' class="best"' if label in best else ""
        body.append(f"<tr{style}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    note = _averaged(frame, keys)
    rows_text = "".join(body)
    table = f"<thead><tr>{head}</tr></thead><tbody>{rows_text}</tbody>"
    return f'<div class="wide"><table class="numbers">{table}</table></div>{note}'


def _averaged(frame: pd.DataFrame, keys: Sequence[str]) -> str:
    most = int(frame.groupby(list(keys), dropna=False).size().max())
    return f"<p>Each row is the mean over {most} seeds.</p>" if most > 1 else ""


_COMPARED = {
    "token_hit_rate": "Token hit rate",
    FOUND_RATE: "With tiers",
    "ttft_s.p50": "TTFT p50",
    "ttft_s.p99": "TTFT p99",
    "tpot_s.p50": "TPOT p50",
    "goodput": "Goodput",
}


def differences_table(comparison: Comparison | None) -> str:
    """A row a run: how it differs from the reference, with intervals; nothing without any."""
    if comparison is None:
        return ""
    table = comparison.table[comparison.table["scope"] == "all"]
    known = set(table[table["difference"].notna()]["figure"])
    if not comparison.table["scope"].str.startswith("tier ").any():
        known.discard(FOUND_RATE)  # it is the token hit rate
    figures = [name for name in _COMPARED if name in known]
    names = ("Run", *(_COMPARED[name] for name in figures))
    head = "".join(f"<th>{safe(name)}</th>" for name in names)
    body = []
    for case in comparison.cases:
        rows = {row["figure"]: row for row in table[table["case"] == case].to_dict("records")}
        cells = "".join(f"<td>{safe(_cell(rows.get(name)))}</td>" for name in figures)
        body.append(f"<tr><td>{safe(case)}</td>{cells}</tr>")
    notes = "".join(f"<p>{safe(note)}</p>" for note in comparison.notes)
    basis = _basis(table)
    over = f", with 95% intervals over {basis}" if basis else ""
    return (
        f"<p>Differences from {safe(comparison.reference)}{safe(over)}:</p>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody>'
        f"</table></div>{notes}"
    )


def _basis(table: pd.DataFrame) -> str:
    known = set(table["basis"].dropna())
    if not known:
        return ""
    if known == {"seeds"}:
        return "seeds, paired"
    return "stretches of the workload, the same in both runs"


def _cell(row: Mapping[Any, Any] | None) -> str:
    if row is None or not exists(row["difference"]):
        return NO_FIGURE
    return difference_text(row)
