"""What crosses the links: bytes stored to and loaded from each tier, and how busy the links are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from kvsim.errors import KvsimError
from kvsim.frames import named_results, scenario_policy
from kvsim.plots.pool import thinned
from kvsim.plots.style import INK, one_axes, percent_axis, policy_styles, styled

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.frames import Results

_LINK_COLUMN = re.compile(r"^link_(.+)_utilisation$")
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
        raise KvsimError("results: no run has a tier. Set offload: in the scenario.")
    ax = one_axes(ax, (9.0, 1.4 + 0.7 * len(rows)))
    most = max(max(f["bytes_stored"], f["bytes_loaded"]) for _, _, f, _ in rows)
    for row, (_, _, figures, style) in enumerate(rows):
        for shift, key, hatch in ((-0.2, "bytes_stored", ""), (0.2, "bytes_loaded", "///")):
            gigabytes = figures[key] / 1e9
            ax.barh(row + shift, gigabytes, 0.38, color=style.color, hatch=hatch, edgecolor="white")
            word = key.removeprefix("bytes_")
            ax.text(gigabytes, row + shift, f" {word} {gigabytes:,.1f}", va="center", size=9.5)
    ax.set_yticks(range(len(rows)), [f"{name}: {tier}" for name, tier, _, _ in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, most / 1e9 * 1.3 if most else 1)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("Bytes across the link (GB)")
    ax.set_title("Bytes by tier")
    return ax


@styled
def link_utilisation(timeline: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """How busy each link and direction is over time, as a share of its bandwidth.

    Args:
        timeline: `RunResult.timeline` with columns `link_<name>_utilisation`, 0 to 1.
        ax: where to draw.

    Raises:
        KvsimError: the timeline knows no link.
    """
    links = [match for column in timeline.columns if (match := _LINK_COLUMN.match(str(column)))]
    if not links:
        raise KvsimError("timeline: knows no link. Set offload: in the scenario.")
    ax = one_axes(ax)
    times, busy, unit = thinned(timeline, [link[0] for link in links])
    for number, (link, shares) in enumerate(zip(links, busy, strict=True)):
        ax.step(
            times,
            shares,
            where="pre",
            color=_LINE_COLORS[number % len(_LINE_COLORS)],
            linestyle=_LINE_STYLES[number // len(_LINE_COLORS) % len(_LINE_STYLES)]
            if number >= len(_LINE_COLORS)
            else _LINE_STYLES[number],
            linewidth=1.5,
            label=link[1].replace("_", " "),
        )
    ax.axhline(1.0, color=INK, linewidth=1)
    ax.set_ylim(0, 1.05)
    ax.set_xlim(float(np.min(times)), float(np.max(times)) or 1.0)
    percent_axis(ax.yaxis)
    ax.set_xlabel(f"Simulated time ({unit})")
    ax.set_ylabel("Link busy (%)")
    ax.set_title("Link utilisation")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax
