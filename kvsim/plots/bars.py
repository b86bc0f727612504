"""Horizontal bars, a row a run, each with its value behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from kvsim.plots.layout import folded
from kvsim.plots.scales import number_axis
from kvsim.plots.style import INK, InputError, PolicyStyle
from kvsim.results.tables import seconds

MOST_BARS = 40
"""Runs that a figure can show side by side."""


def check_number(frame: pd.DataFrame) -> None:
    """Refuse more runs than a figure can show.

    Raises:
        KvsimError: there are too many.
    """
    if len(frame) > MOST_BARS:
        raise InputError(
            "frame",
            f"{len(frame)} runs are too many side by side. Keep {MOST_BARS} rows or fewer.",
        )


def bars(
    ax: Axes,
    labels: Sequence[str],
    values: Any,
    styles: Sequence[PolicyStyle],
    texts: Sequence[str],
) -> None:
    """Horizontal bars from top to bottom, each with its value behind it."""
    for row, (value, style, text) in enumerate(zip(values, styles, texts, strict=True)):
        ax.barh(
            row,
            0 if np.isnan(value) else value,
            height=0.62,
            color=style.color,
            edgecolor="white",
            hatch=style.hatch,
            linewidth=0,
        )
        if text:
            note(ax, 0 if np.isnan(value) else value, row, f" {text}")
    ax.set_yticks(range(len(labels)), [folded(label) for label in labels])
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    room(ax, values, 1.3)


def note(ax: Axes, value: float, row: int, text: str) -> None:
    """A text behind the end of a bar."""
    ax.text(0 if np.isnan(value) else value, row, text, va="center", ha="left", fontsize=10)


def room(ax: Axes, values: Any, factor: float) -> None:
    """Room for the numbers behind the bars."""
    top = float(np.nanmax(values)) if np.isfinite(values).any() else 0.0
    ax.set_xlim(0, top * factor if top > 0 else 1)


def floats(column: Any) -> Any:
    """A column of a frame as numbers, NaN where there is none."""
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=float)


def known(value: float) -> float | None:
    """A number, or None for NaN."""
    return None if np.isnan(value) else float(value)


def ttft_bars(
    ax: Axes,
    labels: Sequence[str],
    frame: pd.DataFrame,
    styles: Sequence[PolicyStyle],
    *,
    with_p90: bool = False,
) -> None:
    """TTFT: a bar to the median, a line to the 99th percentile, ticks there and at the 90th."""
    p50, p99 = floats(frame["ttft_s.p50"]), floats(frame["ttft_s.p99"])
    bars(ax, labels, p50, styles, [""] * len(labels))
    rows = np.arange(len(labels))
    tick: dict[str, Any] = {"linestyle": "none", "marker": "|", "color": INK, "mew": 1.6}
    ax.hlines(rows, p50, p99, color=INK, linewidth=1.1)
    if with_p90:
        ax.plot(floats(frame["ttft_s.p90"]), rows, markersize=11, **tick)
    ax.plot(p99, rows, markersize=17, **tick)
    for row, (middle, worst) in enumerate(zip(p50, p99, strict=True)):
        note(ax, worst, row, f" {seconds(known(middle))} / {seconds(known(worst))}")
    room(ax, p99, 1.75 if with_p90 else 1.9)
    ax.set_title("Time to first token, p50 / p99")
    ax.set_xlabel("TTFT (s): bar p50, " + ("ticks p90 and p99" if with_p90 else "tick p99"))
    number_axis(ax.xaxis)
