"""Fleets: load and hit rate by replica, routers and layouts side by side, what a loss cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes

from kvsim.plots.bars import bars, check_number, floats, known, ttft_bars
from kvsim.plots.fleet_style import COLORS, DASHES, router_styles
from kvsim.plots.layout import add_legend, bars_size_in, many_axes, one_axes, set_title
from kvsim.plots.lines import draw_band
from kvsim.plots.pool import run_name, time_unit
from kvsim.plots.scales import color_bar, number_axis, percent_axis, percent_tick, scale_x
from kvsim.plots.style import (
    GRID,
    INK,
    SEQUENTIAL,
    InputError,
    styled,
)
from kvsim.plots.words import tick_words, words
from kvsim.results.tables import percent, seconds
from kvsim.study.fleets import (
    NUM_WIDE,
    ReplicaSeries,
    fleet_events,
    is_fleet,
    recoveries,
    replica_series,
)
from kvsim.study.frames import named_results, needed, series_of

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.results.store import RunResult
    from kvsim.scenario import FleetEvent
    from kvsim.study.frames import Results

_LEAST_ROW_IN = 0.28
MOST_LINES = 6
"""Runs whose recovery a figure can show."""


@styled
def replicas_over_time(
    result: RunResult, *, name: str | None = None, axes: Iterable[Axes] | None = None
) -> list[Axes]:
    """Requests on each replica, and token hit rate of those it admitted, over time.

    A row a replica, darker is more; white where a replica was not there, or admitted too few to
    say. Lines mark nodes that come and go.

    Args:
        result: a run of a fleet.
        name: what it is called in the title; None for its variant, or its scenario.
        axes: two axes.

    Raises:
        KvsimError: it is a run of one replica.
    """
    series = _series(result)
    num = len(series.replicas)
    height_in = 1.9 + max(2.0, num * _LEAST_ROW_IN if num <= 40 else 11.2)
    panels = many_axes(axes, 2, (12.5, height_in), share_y=True)
    scale, unit = time_unit(float(series.edges_s[-1]))
    for ax, values, label, shown, most in (
        (panels[0], series.queue, "Requests running and waiting", _plain, None),
        (panels[1], series.hit_rate, "Token hit rate (%)", percent_tick, 1.0),
    ):
        top = most or float(np.nanmax(values)) or 1.0
        mesh = ax.pcolormesh(
            series.edges_s / scale,
            np.arange(num + 1) - 0.5,
            np.ma.masked_invalid(values),
            cmap=colormaps[SEQUENTIAL],
            vmin=0,
            vmax=top,
            rasterized=num > 16,
        )
        color_bar(ax, mesh, shown)
        ax.set_title(label)
        ax.set_xlabel(f"Simulated time ({unit})")
        ax.grid(visible=False)
        ax.set_xlim(0, float(series.edges_s[-1]) / scale)
        mark_events(ax, fleet_events(result.scenario), scale)
    step = max(1, -(-num // 32))
    shown_rows = range(0, num, step)
    panels[0].set_yticks(list(shown_rows), [series.names[row] for row in shown_rows])
    panels[0].set_ylim(num - 0.5, -0.5)
    of = run_name(result, name)
    panels[0].set_ylabel(f"Replica of {of}" if len(of) <= 24 else "Replica")
    return panels


@styled
def routers_side_by_side(frame: pd.DataFrame, *, axes: Iterable[Axes] | None = None) -> list[Axes]:
    """Hits, hits lost to routing, TTFT and imbalance of each run, in four panels.

    Args:
        frame: a row a run, from `kvsim.plots.frame`; several of them of fleets.
        axes: four axes.

    Raises:
        KvsimError: a column is missing, no run is of a fleet, or there are too many.
    """
    figures = ("token_hit_rate", "ttft_s.p50", "ttft_s.p99")
    needed(frame, "label", "router", *figures)
    _check(frame)
    labels = [str(label) for label in frame["label"]]
    panels = many_axes(axes, 4, bars_size_in(labels, 14.0), share_y=True)
    styles = router_styles([str(name) for name in frame["router"]])
    hits, lost = floats(frame["token_hit_rate"]), floats(frame["fleet.misrouted_share"])
    bars(panels[0], labels, hits, styles, [percent(known(value)) for value in hits])
    panels[0].set_title("Prompt tokens found")
    panels[0].set_xlabel("Token hit rate (%)")
    bars(panels[1], labels, lost, styles, [percent(known(value)) for value in lost])
    panels[1].set_title("Cached elsewhere")
    panels[1].set_xlabel("Misrouted (%)")
    for ax in panels[:2]:
        percent_axis(ax.xaxis)
    ttft_bars(panels[2], labels, frame, styles)
    load = floats(frame["fleet.imbalance.load"])
    texts = ["" if np.isnan(value) else f"{value:.2f}" for value in load]
    bars(panels[3], labels, load, styles, texts)
    panels[3].axvline(1.0, color=INK, linewidth=1)
    panels[3].set_title("Imbalance of load")
    panels[3].set_xlabel("Largest over mean")
    return panels


@styled
def layouts_side_by_side(frame: pd.DataFrame, *, axes: Iterable[Axes] | None = None) -> list[Axes]:
    """Hits, TTFT and TPOT of the same GPUs put together in several ways, in three panels.

    Args:
        frame: a row a run, from `kvsim.plots.frame`.
        axes: three axes.

    Raises:
        KvsimError: a column is missing, or there are too many runs.
    """
    needed(frame, "label", "layout", "token_hit_rate", "ttft_s.p50", "ttft_s.p99", "tpot_s.p50")
    check_number(frame)
    labels = [
        str(label) if str(label) == str(layout) else f"{label} ({layout})"
        for label, layout in zip(frame["label"], frame["layout"], strict=True)
    ]
    panels = many_axes(axes, 3, bars_size_in(labels), share_y=True)
    styles = router_styles([str(layout) for layout in frame["layout"]])
    hits, tpot_s = floats(frame["token_hit_rate"]), floats(frame["tpot_s.p50"])
    bars(panels[0], labels, hits, styles, [percent(known(value)) for value in hits])
    panels[0].set_title("Prompt tokens found")
    panels[0].set_xlabel("Token hit rate (%)")
    percent_axis(panels[0].xaxis)
    ttft_bars(panels[1], labels, frame, styles)
    bars(panels[2], labels, tpot_s, styles, [seconds(known(value)) for value in tpot_s])
    panels[2].set_title("Time a token after the first")
    panels[2].set_xlabel("TPOT p50 (s)")
    number_axis(panels[2].xaxis)
    return panels


@styled
def layouts_by_load(
    frame: pd.DataFrame, *, load: str = "arrivals_per_s", axes: Iterable[Axes] | None = None
) -> list[Axes]:
    """Hit rate, TTFT and TPOT of several layouts as the load rises, a line each, in three panels.

    Args:
        frame: a row a run, from `kvsim.plots.frame`, that differ in their label and the load.
        load: column of the load.
        axes: three axes.

    Raises:
        KvsimError: a column is missing, or runs differ in something else too.
    """
    panels = many_axes(axes, 3, (14.5, 4.5))
    for ax, (figure, title) in zip(panels, _BY_LOAD.items(), strict=True):
        lines = series_of(frame, load, figure)
        if not lines:
            raise InputError("frame", f"no run has {load} and {figure}.")
        styles = router_styles([line.label for line in lines])
        for line, style in zip(lines, styles, strict=True):
            ax.plot(
                line.x,
                line.y,
                color=style.color,
                marker=style.marker,
                linestyle=style.dash,
                label=line.label,
            )
            draw_band(ax, line, style.color)
        ax.set_ylim(0, 1.1 * max(float(line.high.max()) for line in lines) or 1.0)
        if figure == "token_hit_rate":
            percent_axis(ax.yaxis)
        else:
            number_axis(ax.yaxis)
        ax.set_title(title)
        ax.set_ylabel(words(figure) + (" (%)" if figure == "token_hit_rate" else " (s)"))
        scale_x(ax, [value for line in lines for value in line.x], tick_words(load))
        ax.set_xlabel(words(load))
    add_legend(panels[-1])
    return panels


_BY_LOAD = {
    "token_hit_rate": "Prompt tokens found",
    "ttft_s.p50": "Time to first token",
    "tpot_s.p50": "Time a token after the first",
}


@styled
def recovery(results: Results, *, ax: Axes | None = None) -> Axes:
    """Hit rate of whole fleets over time, with marks where nodes come and go.

    Where no run is without events to compare with, a dotted line is the hit rate of the stretches
    before a loss, and a ring the end of the first one that is as good again after it fell.

    Args:
        results: runs of fleets; one that lost a node beside one that did not says most.
        ax: where to draw.

    Raises:
        KvsimError: none is of a fleet with events, or there are too many.
    """
    named = {name: one for name, one in named_results(results).items() if is_fleet(one)}
    eventful = [one for one in named.values() if fleet_events(one.scenario)]
    if not eventful:
        raise InputError("results", "no run has nodes that come and go. Set fleet.events.")
    if len(named) > MOST_LINES:
        raise InputError("results", f"{len(named)} runs are too many. Keep {MOST_LINES} or fewer.")
    ax = one_axes(ax, (9.0, 4.5))
    series = {name: replica_series(one, NUM_WIDE) for name, one in named.items()}
    end_s = max(float(one.edges_s[-1]) for one in series.values())
    scale, unit = time_unit(end_s)
    for number, (name, one) in enumerate(named.items()):
        color, dash = COLORS[number], DASHES[number % len(DASHES)]
        middle = (series[name].edges_s[:-1] + series[name].edges_s[1:]) / 2 / scale
        ax.plot(middle, series[name].fleet_hit_rate, color=color, linestyle=dash, label=name)
        for found in recoveries(one) if len(eventful) == len(named) else ():
            upto_s = end_s if found.back_s is None else found.back_s
            ax.hlines(found.before, found.lost_s / scale, upto_s / scale, color=color, ls=":")
            if found.is_dip and found.back_s is not None:
                ax.plot(found.back_s / scale, found.before, "o", ms=11, mfc="none", mec=INK)
    ax.set_ylim(0, 1.08)
    ax.set_xlim(0, end_s / scale)
    percent_axis(ax.yaxis)
    ax.set_ylabel("Token hit rate of the fleet (%)")
    ax.set_xlabel(f"Simulated time ({unit})")
    mark_events(ax, fleet_events(eventful[0].scenario), scale)
    set_title(ax, "Recovery of the hit rate", None if len(named) > 1 else next(iter(named)))
    if len(named) > 1:
        add_legend(ax)
    return ax


def _series(result: RunResult) -> ReplicaSeries:
    if not hasattr(result, "timeline"):
        kind = type(result).__name__
        raise InputError("result", f"is a {kind}, not the result of a run. Give the result whole.")
    if not is_fleet(result):
        raise InputError(
            "result", "has one replica. Use fleet.nodes or node.data_parallel of 2 or more."
        )
    return replica_series(result)


def _check(frame: pd.DataFrame) -> None:
    if "fleet.misrouted_share" not in frame.columns:
        raise InputError("frame", "no run is of several replicas. Set fleet: in the scenario.")
    check_number(frame)


def mark_events(ax: Axes, events: Sequence[FleetEvent], scale: float) -> None:
    """Lines where nodes come and go, named at the top."""
    moments = []
    for event in events:
        node = f"{event.pool or ''} {event.node}".strip()
        if event.lose is not None:
            moments.append((event.at, f"{node} lost"))
        elif event.drain is not None:
            moments.append((event.at, f"{node} drained"))
        else:
            moments.append((event.at + event.ready_after, f"{node} ready"))
    limit = float(ax.get_xlim()[1])
    for at_s, text in moments:
        if at_s / scale > limit:
            continue
        ax.axvline(at_s / scale, color="#d55e00", linewidth=1.4, linestyle=(0, (4, 2)))
        ax.annotate(
            text,
            (at_s / scale, 0.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, 4),
            textcoords="offset points",
            rotation=90,
            va="bottom",
            fontsize=8.5,
            color=INK,
            bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": GRID, "alpha": 0.85},
        )


def _plain(value: float) -> str:
    return f"{value:,.4g}"
