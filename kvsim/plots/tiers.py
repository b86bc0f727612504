"""What crosses the links: bytes stored to and loaded from each tier, and how busy the links are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from kvsim.plots.layout import add_legend, bars_size_in, folded, one_axes, set_title
from kvsim.plots.pool import run_name, thinned, whole
from kvsim.plots.scales import number_axis, percent_axis
from kvsim.plots.style import INK, InputError, policy_styles, styled
from kvsim.study.frames import named_results, scenario_policy

if TYPE_CHECKING:
    from kvsim.results.store import RunResult
    from kvsim.study.frames import Results

_LINKS = {
    "store_utilization": "device to tier",
    "load_utilization": "tier to device",
    "disk_store_utilization": "tier to disk",
    "disk_load_utilization": "disk to tier",
}
"""Columns of a timeline, each with the way it is about."""
_NUM_POINTS_MAX = 60
"""Points of a line: transfers come in bursts, and their means say more than every peak."""
_LINE_STYLES = ("-", (0, (6, 2)), (0, (1, 1)), (0, (6, 1, 1, 1)))
_LINE_COLORS = ("#0b2545", "#2f6fb0", "#d55e00", "#00795c")


@styled
def bytes_by_tier(results: Results, *, ax: Axes | None = None) -> Axes:
    """Bytes stored to (upper bar) and loaded from (lower bar, hatched) each tier of each run.

    Raises:
        KvsimError: no run has a tier.
    """
    named = named_results(results)
    rows = [
        (name, tier, figures, style)
        for (name, result), style in zip(
            named.items(),
            policy_styles([scenario_policy(result.scenario) for result in named.values()]),
            strict=True,
        )
        for tier, figures in (result.summary.get("tiers") or {}).items()
    ]
    if not rows:
        raise InputError("results", "no run has a tier. Set offload: in the scenario.")
    names = [f"{name}: {tier}" for name, tier, _, _ in rows]
    width_in, height_in = bars_size_in(names, 9.0)
    ax = one_axes(
        ax, (width_in, max(height_in, 1.4 + (0.7 if len(rows) <= 14 else 0.5) * len(rows)))
    )
    most = max(max(f["bytes_stored"], f["bytes_loaded"]) for _, _, f, _ in rows)
    for row, (_, _, figures, style) in enumerate(rows):
        for shift, key, hatch in ((-0.2, "bytes_stored", ""), (0.2, "bytes_loaded", "///")):
            gigabytes = figures[key] / 1e9
            ax.barh(row + shift, gigabytes, 0.38, color=style.color, hatch=hatch, edgecolor="white")
            word = key.removeprefix("bytes_")
            amount = f"{gigabytes:,.1f}" if gigabytes >= 10 else f"{gigabytes:.3g}"
            ax.text(gigabytes, row + shift, f" {word} {amount}", va="center", size=9.5)
    ax.set_yticks(range(len(rows)), [folded(name) for name in names])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, most / 1e9 * 1.3 if most else 1)
    ax.grid(visible=False, axis="y")
    number_axis(ax.xaxis, lambda value: f"{value:,.6g}")
    ax.set_xlabel("Stored and loaded (GB)")
    set_title(ax, "Bytes by tier")
    return ax


@styled
def link_utilization(result: RunResult, *, name: str | None = None, ax: Axes | None = None) -> Axes:
    """How busy each link and direction is over time, as a share of its bandwidth.

    A point is the mean over a sixtieth of the time, or over the timeline's own interval if longer.

    Args:
        result: the run; its timeline's columns of utilization, 0 to 1.
        name: what it is called in the title; None for its variant, or its scenario.
        ax: where to draw.

    Raises:
        KvsimError: the timeline knows no link.
    """
    timeline = whole(result).timeline
    links = [name for name in _LINKS if name in timeline and timeline[name].notna().any()]
    if not links:
        raise InputError("timeline", "there is no link. Set offload: in the scenario.")
    ax = one_axes(ax)
    known = timeline[timeline[links].notna().all(axis="columns")]  # some time passed before
    times, busy, unit = thinned(known, links, _NUM_POINTS_MAX)
    for number, (link, shares) in enumerate(zip(links, busy, strict=True)):
        ax.step(
            times,
            shares,
            where="post",
            color=_LINE_COLORS[number],
            linestyle=_LINE_STYLES[number],
            linewidth=1.5,
            label=_LINKS[link],
        )
    most = float(np.max(busy))
    if most > 0.5:
        ax.axhline(1.0, color=INK, linewidth=1)
    # A link that is hardly busy is drawn larger, or there would be nothing to see.
    ax.set_ylim(0, 1.05 if most > 0.5 or most <= 0 else 1.2 * most)
    ax.set_xlim(float(np.min(times)), float(np.max(times)) or 1.0)
    percent_axis(ax.yaxis)
    ax.set_xlabel(f"Simulated time ({unit})")
    ax.set_ylabel("Link busy (%)")
    set_title(ax, "Link utilization", run_name(result, name))
    add_legend(ax)
    return ax
