"""The part of ``results/validation.md`` on step times: errors on what was fitted, and what not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from kvsim.study.bench_times import GROUPS, LOADS, Off, Prediction, left_out, off
from kvsim.study.fitting_times import Errors, Observation
from kvsim.study.measured import Point
from kvsim.times.constants import Constants

BEGIN, END = "<!-- step times -->", "<!-- end of step times -->"
_HEADING = "## Step times against public measurements"
_NONE = "-"
_TABLES: list[tuple[str, Callable[[Point], str]]] = [("all", lambda _: "all"), *GROUPS.items()]


def validation_part(
    predictions: Sequence[Prediction],
    observations: Sequence[Observation],
    held_out: Errors,
    constants: Constants,
    command: str,
) -> str:
    """The part, in Markdown, between its marks.

    Args:
        predictions: of all points under the constants, fitted to all of them.
        observations: the points that were fitted.
        held_out: errors of these, each under constants that were fitted to other set-ups.
        constants: those of the catalog.
        command: that makes it again.
    """
    fit = constants.fit
    fitted = {seen.point.row["id"]: number for number, seen in enumerate(observations)}
    known = [p for p in predictions if p.point.row["id"] in fitted]
    lines = [
        BEGIN,
        f"Made by `{command}`.",
        "",
        f"{len(known):,} points of {len({p.point.set_up for p in known})} set-ups (model, GPU,"
        " engine, precision, TP, EP), each simulated as the benchmark ran it. An error is",
        "|predicted / measured - 1|, median / p90 in percent; in brackets the median of the signed",
        "one. *Fitted*: the catalog's constants, which saw every set-up here. *Not fitted*:",
        "each set-up under constants that were fitted to the others (four parts, by set-up).",
        "TTFT above concurrency 256 and of DeepSeek R1 on SGLang (it polls) is left out.",
        "",
    ]
    if fit:
        lines += [f"Fit: {fit.get('source', '')}", ""]
    for name, group_of in _TABLES:
        groups: dict[str, list[Prediction]] = {}
        for prediction in known:
            groups.setdefault(group_of(prediction.point), []).append(prediction)
        names = [n for _, n in LOADS if n in groups] if name == "load" else sorted(groups)
        lines += [
            f"| {name} | points | TPOT fitted | TPOT not fitted | TTFT fitted | TTFT not fitted |",
            "|---|---|---|---|---|---|",
        ]
        for group in names:
            members = groups[group]
            numbers = np.array([fitted[p.point.row["id"]] for p in members])
            cells = [
                _cell(off((p.tpot_s for p in members), (p.point.tpot_s for p in members))),
                _cell(_of(held_out.tpot[numbers])),
                _cell(off((p.ttft_s for p in members), (p.point.ttft_s for p in members))),
                _cell(_of(held_out.ttft[numbers])),
            ]
            lines.append(f"| {group} | {len(members):,} | {' | '.join(cells)} |")
        lines.append("")
    reasons = left_out(predictions)
    lines += [f"Left out: {sum(len(ids) for ids in reasons.values())} points."]
    short = {reason: len(ids) for reason, ids in reasons.items()}
    lines += [""] + [f"- {count:,}: {reason}" for reason, count in sorted(short.items())]
    lines.append(END)
    return "\n".join(lines) + "\n"


def put_in(page: str, part: str) -> str:
    """A page with this part in place of the one between its marks; at its end where it has none."""
    before, begin, rest = page.partition(BEGIN)
    if not begin:
        return f"{page.rstrip()}\n\n{_HEADING}\n\n{part}".lstrip()
    _, end, after = rest.partition(END)
    return before + part.rstrip() + (after if end else "\n")


def _of(signed: npt.NDArray[np.float64]) -> Off:
    return off(1 + signed, np.ones(len(signed)))


def _cell(error: Off) -> str:
    if error.n == 0:
        return _NONE
    return f"{100 * error.median:.1f} / {100 * error.p90:.0f} ({100 * error.bias:+.0f})"
