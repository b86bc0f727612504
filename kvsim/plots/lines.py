"""Lines of policies over a figure that is varied, with the range over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from kvsim.errors import KvsimError
from kvsim.plots.style import policy_styles, tick
from kvsim.study.frames import Series

_SPREAD_FOR_LOG = 8
"""Largest over smallest x from which the axis is logarithmic."""


def draw_lines(ax: Axes, lines: Sequence[Series]) -> None:
    """One line a policy; a band from least to most where there are several seeds.

    Raises:
        KvsimError: there is nothing to draw.
    """
    if not lines:
        raise KvsimError("frame: no run has these figures, so there is nothing to draw.")
    for line, style in zip(lines, policy_styles([line.policy for line in lines]), strict=True):
        ax.plot(
            line.x,
            line.y,
            color=style.color,
            linestyle=style.dash,
            marker=style.marker,
            label=line.label,
        )
        if line.num_seeds > 1:
            ax.fill_between(line.x, line.low, line.high, color=style.color, alpha=0.18, lw=0)


def scale_x(ax: Axes, values: Any) -> None:
    """A logarithmic x axis where the values span much, with a tick at each value if few."""
    known = np.unique(np.asarray(values, dtype=float))
    if len(known) > 1 and known[0] > 0 and known[-1] / known[0] >= _SPREAD_FOR_LOG:
        ax.set_xscale("log")
    if len(known) <= 8:
        ax.set_xticks(known, [tick(value) for value in known])
        ax.xaxis.set_minor_locator(NullLocator())
