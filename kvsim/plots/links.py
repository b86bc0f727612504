"""Bytes by link of a fleet, and how busy each link was over time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes

from kvsim.plots.fleet_style import COLORS
from kvsim.plots.fleets import mark_events
from kvsim.plots.layout import bars_size_in, folded, many_axes
from kvsim.plots.pool import run_name, time_unit, whole
from kvsim.plots.scales import color_bar, number_axis, percent_tick
from kvsim.plots.style import SEQUENTIAL, InputError, styled
from kvsim.results.tables import percent
from kvsim.study.fleets import fleet_events
from kvsim.study.links import link_series

if TYPE_CHECKING:
    from kvsim.results.store import RunResult

MOST_LINKS = 64
"""Links that a figure can show; of more those that carried most."""
_MOST_NOTED = 24  # links whose bars have their numbers behind them
_ROW_IN, _SMALL_ROW_IN = 0.5, 0.2
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_WAYS = (("stored", -0.2, ""), ("loaded", 0.2, "////"))


@styled
def links_by_bytes(
    result: RunResult, *, name: str | None = None, axes: Iterable[Axes] | None = None
) -> list[Axes]:
    """Bytes that each link of a fleet carried, and the share of time it was busy, over time.

    A row a link: above what it stored (away from the GPUs), below, hatched, what it loaded, with
    the share of what it could have carried in that time. Darker is busier.

    Args:
        result: a run of a fleet.
        name: what it is called in the title; None for its variant, or its scenario.
        axes: two axes.

    Raises:
        KvsimError: there is no link.
    """
    series = link_series(whole(result), MOST_LINKS)
    if series is None:
        raise InputError("result", "has no link. Set offload: or fleet.pools in the scenario.")
    num = len(series.names)
    is_noted = num <= _MOST_NOTED
    width_in, _ = bars_size_in(series.names, 13.0)
    row_in = _ROW_IN if is_noted else _SMALL_ROW_IN
    panels = many_axes(axes, 2, (width_in, 2.0 + max(1.2, num * row_in)), share_y=True)
    ax, over_time = panels
    most_bytes = max(series.stored_bytes.max(), series.loaded_bytes.max())
    size, unit = next((one for one in _UNITS if most_bytes >= one[0]), _UNITS[-1])
    for way, (word, shift, hatch) in enumerate(_WAYS):
        amounts = (series.stored_bytes, series.loaded_bytes)[way] / size
        ax.barh(
            np.arange(num) + shift,
            amounts,
            0.38,
            color=COLORS[way],
            hatch=hatch,
            edgecolor="white",
            linewidth=0,
            label=word,
        )
        for row, (amount, share) in enumerate(
            zip(amounts, series.utilization[:, way], strict=True) if is_noted else ()
        ):
            told = "" if np.isnan(share) else f" ({percent(float(share))})"
            text = f" {word} {amount:,.1f}{told}" if amount >= 10 else f" {word} {amount:.3g}{told}"
            ax.text(amount, row + shift, text, va="center", size=8.5)
    ax.set_yticks(range(num), [folded(text) for text in series.names])
    if not is_noted:
        ax.tick_params(axis="y", labelsize=7.5)
        ax.legend(loc="lower right", fontsize=8.5, framealpha=0.9)
    for each in panels:  # axes that a caller gave may have rows of their own
        each.set_ylim(num - 0.5, -0.5)
    ax.set_xlim(0, most_bytes / size * (1.8 if is_noted else 1.3) or 1.0)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    number_axis(ax.xaxis, lambda value: f"{value:,.6g}")
    ax.set_xlabel(f"Stored and loaded ({unit}" + (", share of capacity)" if is_noted else ")"))
    num_all = len(result.summary["fleet"]["links"])
    ax.set_title("Bytes by link" if num_all == num else f"Bytes by link: {num} of {num_all} links")
    of = run_name(result, name)
    ax.set_ylabel(f"Link of {of}" if len(of) <= 24 else "Link")
    _busy(over_time, series.edges_s, series.busy)
    mark_events(over_time, fleet_events(result.scenario), time_unit(float(series.edges_s[-1]))[0])
    return panels


def _busy(ax: Axes, edges_s: np.ndarray, busy: np.ndarray) -> None:
    """Shares of time, two rows a link; white where nothing is known."""
    num = len(busy)
    known = busy[~np.isnan(busy)]
    top = float(known.max()) if len(known) else 0.0
    scale, unit = time_unit(float(edges_s[-1]))
    mesh = ax.pcolormesh(
        edges_s / scale,
        np.arange(2 * num + 1) / 2 - 0.5,
        np.ma.masked_invalid(busy.reshape(2 * num, -1)),
        cmap=colormaps[SEQUENTIAL],
        vmin=0,
        vmax=1.0 if top > 0.5 or top <= 0 else top,
        rasterized=num > 16,
    )
    color_bar(ax, mesh, percent_tick)
    ax.hlines(np.arange(1, num) - 0.5, *edges_s[[0, -1]] / scale, color="white", linewidth=1.2)
    ax.set_xlim(0, float(edges_s[-1]) / scale)
    ax.grid(visible=False)
    ax.set_title("Busy (%), stores above loads")
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(f"Simulated time ({unit})")
