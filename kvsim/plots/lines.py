"""Lines of policies over a figure that is varied, with the range over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from kvsim.plots.layout import add_legend, number_ends, numbered_labels
from kvsim.plots.style import MUTED, InputError, policy_styles
from kvsim.study.frames import Series

BAND_ALPHA = 0.18


def draw_lines(ax: Axes, lines: Sequence[Series]) -> list[Artist]:
    """One line a policy; a band from least to most where there are several seeds.

    Returns:
        The lines' handles, for `finish_lines`.

    Raises:
        InputError: there is nothing to draw.
    """
    if not lines:
        raise InputError("frame", "no run has these figures, so there is nothing to draw.")
    handles: list[Artist] = []
    for line, style in zip(lines, policy_styles([line.policy for line in lines]), strict=True):
        handles += ax.plot(
            line.x,
            line.y,
            color=style.color,
            linestyle=style.dash,
            marker=style.marker,
            label=line.label,
        )
        draw_band(ax, line, style.color)
    return handles


def draw_band(ax: Axes, line: Series, color: str) -> None:
    """The range over the seeds of a line, where there are several."""
    if line.num_seeds > 1:
        ax.fill_between(line.x, line.low, line.high, color=color, alpha=BAND_ALPHA, lw=0)


def band_handle(lines: Sequence[Series]) -> list[tuple[Artist, str]]:
    """The legend's entry of the bands; none where there is no band."""
    counts = sorted({line.num_seeds for line in lines if line.num_seeds > 1})
    if not counts:
        return []
    seeds = f"{counts[-1]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    patch = Patch(facecolor=MUTED, alpha=2 * BAND_ALPHA, edgecolor="none")
    return [(patch, f"band: least to most of {seeds} seeds; line: their mean")]


def finish_lines(
    ax: Axes,
    lines: Sequence[Series],
    handles: Sequence[Any],
    others: Sequence[tuple[Artist, str]] = (),
) -> None:
    """Numbers at lines that are many, and the legend; limits and scales have to be final.

    Args:
        ax: where the lines are.
        lines: those drawn.
        handles: of them, in the same order.
        others: further entries of the legend, with their labels.
    """
    ends = [(float(line.x[-1]), float(line.y[-1])) for line in lines]
    number_ends(ax, ends, [str(handle.get_color()) for handle in handles])
    entries = [*others, *band_handle(lines)]
    add_legend(
        ax,
        [*handles, *(handle for handle, _ in entries)],
        [*numbered_labels([line.label for line in lines]), *(label for _, label in entries)],
    )
