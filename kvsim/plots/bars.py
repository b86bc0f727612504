"""Horizontal bars, each with its value behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from kvsim.plots.layout import folded
from kvsim.plots.style import PolicyStyle


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
