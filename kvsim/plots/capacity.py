"""Hit rate against capacity: how much a larger pool or tier brings, and where it stops to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from kvsim.plots.layout import one_axes, set_title
from kvsim.plots.lines import draw_lines, finish_lines
from kvsim.plots.scales import percent_axis, scale_x
from kvsim.plots.style import INK, styled
from kvsim.plots.words import tick_words, words
from kvsim.study.findings import KNEE_SHARE, knee
from kvsim.study.frames import series_of
from kvsim.study.ranking import found_column

if TYPE_CHECKING:
    import pandas as pd


@styled
def hit_rate_by_capacity(
    frame: pd.DataFrame,
    *,
    capacity: str = "num_blocks",
    ceiling: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Token hit rate over a capacity, a line a policy, with the knee of each.

    Where runs have a tier, what was found there counts too. Nine lines or more carry the numbers
    that the legend names.

    Args:
        frame: a row a run, from `kvsim.plots.frame`, that differ in the capacity.
        capacity: its column.
        ceiling: token hit rate of an infinite cache, from `kvsim.study.reuse.ceiling`, drawn as
            a limit.
        ax: where to draw.

    Raises:
        KvsimError: a column is missing, or runs differ in something else too.
    """
    ax = one_axes(ax)
    found = found_column(frame)
    lines = series_of(frame, capacity, found)
    handles = draw_lines(ax, lines)
    rings: list[tuple[Artist, str]] = []
    for line in lines:
        place = knee(line.x, line.y)
        if place is not None:
            (ring,) = ax.plot(
                line.x[place],
                line.y[place],
                marker="o",
                markersize=15,
                mfc="none",
                mec=INK,
                mew=1.4,
                linestyle="none",
                label=f"knee: {KNEE_SHARE:.0%} of the line's best",
                zorder=4,
            )
            rings = [(ring, str(ring.get_label()))]
    top = max(float(line.high.max()) for line in lines)
    if ceiling is not None:
        ax.axhline(ceiling, color=INK, linewidth=1.2, linestyle=(0, (8, 3)))
        ax.annotate(
            f"infinite cache {ceiling:.1%}",
            (1, ceiling),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 4),
            textcoords="offset points",
            ha="right",
            color=INK,
            fontsize=10,
        )
        top = max(top, ceiling)
    ax.set_ylim(0, top * 1.14 if top > 0 else 1)
    percent_axis(ax.yaxis)
    scale_x(ax, [value for line in lines for value in line.x], tick_words(capacity))
    ax.set_xlabel(words(capacity))
    tier = "" if found == "token_hit_rate" else ", device and tier"
    ax.set_ylabel(f"Token hit rate{tier} (%)")
    set_title(ax, "Hit rate against capacity")
    finish_lines(ax, lines, handles, rings)
    return ax
