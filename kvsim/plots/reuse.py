"""What a trace offers a cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from kvsim.plots.layout import many_axes, set_title
from kvsim.plots.scales import count_axis, log_axis, number_axis, percent_axis, tick
from kvsim.plots.style import CACHED, IN_USE, INK, styled

if TYPE_CHECKING:
    from kvsim.workload.inspection import Inspection

_LEAST_S = 1e-3
"""Where a reuse at once is drawn on the log axis."""


@styled
def trace_reuse(
    inspection: Inspection, name: str | None = None, *, axes: Iterable[Axes] | None = None
) -> list[Axes]:
    """What a trace offers a cache: hit rate by LRU capacity, reuse times, the working set.

    Args:
        inspection: of the trace.
        name: of the trace, in the title of the first panel.
        axes: three axes.

    Raises:
        KvsimError: another number of axes was given.
    """
    panels = many_axes(axes, 3, (14.0, 4.2))
    by_size, by_time, working = panels
    figures = inspection.figures

    rates, ideal = inspection.curve.token_hit_rates, figures["ideal_token_hit_rate"]
    sizes = list(range(1, len(rates)))
    by_size.step(sizes or [1], rates[1:] if sizes else [0.0], where="post", color=IN_USE)
    by_size.axhline(ideal, color=INK, linewidth=1.2, linestyle=(0, (8, 3)))
    by_size.annotate(
        f"nothing evicted {ideal:.1%}",
        (0.02, ideal),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        color=INK,
        fontsize=10,
    )
    by_size.set_ylim(0, 1.14 * ideal if ideal > 0 else 1)
    percent_axis(by_size.yaxis)
    log_axis(by_size, "x")
    by_size.xaxis.set_major_formatter(lambda value, _: tick(value))
    by_size.set_xlabel(f"LRU blocks of {figures['block_tokens']} tokens")
    by_size.set_ylabel("Token hit rate (%)")
    set_title(by_size, "Hit rate by capacity", name)

    shares = [number / 200 for number in range(1, 200)]
    times_s = inspection.blocks.reuse_time_quantiles_s(shares)
    by_time.set_ylim(0, 1.02)
    percent_axis(by_time.yaxis)
    if times_s is not None:
        by_time.plot([max(time_s, _LEAST_S) for time_s in times_s], shares, color=IN_USE)
        log_axis(by_time, "x")
    by_time.set_xlabel(f"Time since the last use (s; at once is drawn at {_LEAST_S:g})")
    by_time.set_ylabel("Reuses of blocks no later (%)")
    set_title(by_time, "Time to reuse")

    ends_s = [window["until_s"] for window in figures["working_set"]]
    counts = [window["blocks"] for window in figures["working_set"]]
    if len(ends_s) > 1:
        width_s = ends_s[1] - ends_s[0]
        begins_min = [(end_s - width_s) / 60 for end_s in ends_s]
        working.bar(
            begins_min, counts, width=0.9 * width_s / 60, align="edge", color=CACHED, edgecolor=INK,
            linewidth=0.4,
        )  # fmt: skip
    count_axis(working.yaxis)
    number_axis(working.xaxis)
    working.set_xlabel("Time in the trace (min)")
    working.set_ylabel("Different blocks used")
    set_title(working, "Working set")
    return panels
