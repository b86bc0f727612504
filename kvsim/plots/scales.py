"""Ticks and scales: a tick says exactly where it stands, in percent, counts, bytes or seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from kvsim.plots.layout import axes_in

_SPREAD_FOR_LOG = 8
"""Largest over smallest x from which the axis is logarithmic."""
_FEW = 8
"""Values of x up to which each has its tick."""
_STEPS = [1, 2, 2.5, 5, 10]
_CHAR_IN = 0.085
"""Width of a character of a tick's label."""
_THOUSANDS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_KIBI = ((2.0**50, "PiB"), (2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


def tick(value: float) -> str:
    """A number in thousands, millions and so on, with all digits it has, up to six."""
    for size, letter in _THOUSANDS:
        if abs(value) >= size:
            return f"{value / size:.6g}{letter}"
    return f"{value:.6g}"


def percent_tick(fraction: float) -> str:
    """A fraction as percent, with all digits it has: 2.5% is neither 2% nor 3%."""
    return f"{100 * fraction:.6g}%"


def bytes_tick(value: float) -> str:
    """A size in the largest unit that says it exactly, in powers of 1024 before those of 1000."""
    for size, unit in (*_KIBI, *((size, f"{letter.upper()}B") for size, letter in _THOUSANDS)):
        text = f"{value / size:.6g}"
        if value >= size and len(text) <= 5 and float(text) * size == value:
            return f"{text} {unit}"
    return f"{tick(value)}B"


def percent_axis(axis: Any) -> None:
    """Show fractions as percent on an axis."""
    axis.set_major_locator(MaxNLocator(6, steps=_STEPS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: percent_tick(value)))


def count_axis(axis: Any) -> None:
    """Show counts on an axis in thousands and millions, with few ticks."""
    axis.set_major_locator(MaxNLocator(5, integer=True, steps=_STEPS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))


def number_axis(axis: Any, shown: Callable[[float], str] = tick) -> None:
    """Show amounts on a linear axis, with few ticks."""
    axis.set_major_locator(MaxNLocator(6, steps=_STEPS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: shown(value)))


def log_axis(ax: Axes, which: str) -> None:
    """Make an axis logarithmic, with a few ticks at 1, 2 and 5 of a decade and plain numbers.

    Args:
        ax: with everything drawn, so that its limits are known.
        which: "x" or "y".
    """
    (ax.set_xscale if which == "x" else ax.set_yscale)("log")
    axis = ax.xaxis if which == "x" else ax.yaxis
    low, high = sorted(ax.get_xlim() if which == "x" else ax.get_ylim())
    decades = math.log10(high / low)
    if decades < 0.5:
        axis.set_major_locator(MaxNLocator(4, steps=_STEPS))
    else:
        subs = (1.0, 2.0, 5.0) if decades <= 3 else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=15))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axis.set_minor_formatter(NullFormatter())


def color_bar(ax: Axes, mesh: Any, shown: Callable[[float], str]) -> None:
    """A bar beside axes that says what the colours of a mesh stand for."""
    figure = ax.get_figure(root=True)
    if figure is None:
        return
    bar = figure.colorbar(mesh, ax=ax, pad=0.02, fraction=0.06, aspect=25)
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(5)
    bar.formatter = FuncFormatter(lambda value, _: shown(value))
    bar.update_ticks()
    bar.ax.grid(visible=False)


def scale_x(ax: Axes, values: Any, shown: Callable[[float], str] = tick) -> None:
    """A logarithmic x axis where the values span much, with a tick at each value if few.

    Args:
        ax: with everything drawn.
        values: of x; all that the lines have.
        shown: a value as the label of its tick.
    """
    known = np.unique(np.asarray(values, dtype=float))
    is_log = len(known) > 1 and known[0] > 0 and known[-1] / known[0] >= _SPREAD_FOR_LOG
    if is_log:
        log_axis(ax, "x")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value)))
    else:
        number_axis(ax.xaxis, shown)
    if len(known) <= _FEW:
        labels = _labels_with_room(ax, known, [shown(value) for value in known])
        ax.xaxis.set_major_locator(FixedLocator(list(known)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: labels.get(value, "")))
        ax.xaxis.set_minor_locator(NullLocator())


def _labels_with_room(ax: Axes, values: Any, labels: list[str]) -> dict[float, str]:
    """Labels by value without those that would run into the one to their left."""
    width_in = axes_in(ax)[0]
    points = np.column_stack([values, np.full(len(values), np.mean(ax.get_ylim()))])
    places = ax.transAxes.inverted().transform(ax.transData.transform(points))[:, 0] * width_in
    kept, end = {}, -math.inf
    for value, place, label in zip(values, places, labels, strict=True):
        half = _CHAR_IN * (len(label) + 1) / 2
        if place - half >= end:
            kept[float(value)] = label
            end = place + half
    return kept
