"""Hit rate against capacity: how much a larger pool or tier brings, and where it stops to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from kvsim.plots.lines import draw_lines, scale_x
from kvsim.plots.style import INK, one_axes, percent_axis, short_axis, styled
from kvsim.study.findings import KNEE_SHARE, knee
from kvsim.study.frames import series_of
from kvsim.study.ranking import found_column

if TYPE_CHECKING:
    import pandas as pd

LABELS = {
    "num_blocks": "Blocks in the pool",
    "node.num_blocks": "Blocks in the pool",
    "offload.capacity": "Capacity of the tier (bytes)",
    "offload.num_chunks": "Chunks in the tier",
}


@styled
def hit_rate_by_capacity(
    frame: pd.DataFrame,
    *,
    capacity: str = "num_blocks",
    ceiling: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Token hit rate over a capacity, a line a policy, with the knee of each.

    Where runs have a tier, what was found there counts too.

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
    draw_lines(ax, lines)
    scale_x(ax, [value for line in lines for value in line.x])
    top = max(float(line.high.max()) for line in lines)
    named = False
    for line in lines:
        place = knee(line.x, line.y)
        if place is not None:
            ax.plot(
                line.x[place],
                line.y[place],
                marker="o",
                markersize=15,
                mfc="none",
                mec=INK,
                mew=1.4,
                linestyle="none",
                label=None if named else f"knee: {KNEE_SHARE:.0%} of the line's best",
                zorder=4,
            )
            named = True
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
    if ax.get_xscale() == "linear" and len({float(v) for line in lines for v in line.x}) > 8:
        short_axis(ax.xaxis)
    ax.set_xlabel(LABELS.get(capacity, capacity))
    tier = "" if found == "token_hit_rate" else ", device and tier"
    ax.set_ylabel(f"Token hit rate{tier} (%)")
    ax.set_title("Hit rate against capacity")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax
