"""What the pool holds over time: by state, and by KV cache group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes

from kvsim.plots.layout import add_legend, one_axes, set_title
from kvsim.plots.scales import count_axis
from kvsim.plots.style import BLANK, CACHED, IN_USE, MUTED, InputError, styled
from kvsim.study.fleets import is_fleet, pool_timeline
from kvsim.study.frames import needed

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.results.store import RunResult

_GROUP_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "++", "oo")


@styled
def pool_by_state(result: RunResult, *, name: str | None = None, ax: Axes | None = None) -> Axes:
    """Blocks in use, free but cached, and blank (free, nothing to find), stacked over time.

    Args:
        result: the run.
        name: what it is called in the title; None for its variant, or its scenario.
        ax: where to draw.

    Raises:
        KvsimError: a column of the timeline is missing, or there is no row.
    """
    timeline = pool_timeline(whole(result))
    needed(timeline, "time_s", "used_blocks", "free_blocks", "free_cached_blocks")
    ax = one_axes(ax)
    columns = ("used_blocks", "free_cached_blocks", "free_blocks")
    times, (used, cached, free), unit = thinned(timeline, columns)
    layers = ax.stackplot(
        times,
        used,
        cached,
        free - cached,
        colors=[IN_USE, CACHED, BLANK],
        labels=["in use", "free, cached", "blank"],
        lw=0,
    )
    layers[1].set_hatch("//")
    layers[1].set_edgecolor("white")
    set_title(ax, f"Blocks of the {_pool(result)} by state", run_name(result, name))
    _finish(ax, times, unit, int((timeline["used_blocks"] + timeline["free_blocks"]).max()))
    return ax


@styled
def pool_by_group(result: RunResult, *, name: str | None = None, ax: Axes | None = None) -> Axes:
    """Cached blocks of each KV cache group, in use or free, stacked over time.

    Args:
        result: the run.
        name: what it is called in the title; None for its variant, or its scenario.
        ax: where to draw.

    Raises:
        KvsimError: the timeline is empty.
    """
    timeline = pool_timeline(whole(result))
    needed(timeline, "time_s", "group_cached_blocks")
    ax = one_axes(ax)
    times, by_group, unit = thinned(timeline, ["group_cached_blocks"])
    places = np.linspace(0.05, 0.8, len(by_group)) if len(by_group) > 1 else np.array([0.4])
    layers = ax.stackplot(
        times,
        by_group,
        colors=[colormaps["YlGnBu_r"](place) for place in places],
        labels=group_names(result),
        lw=0,
    )
    for number, layer in enumerate(layers):
        layer.set_hatch(_GROUP_HATCHES[number % len(_GROUP_HATCHES)])
        layer.set_edgecolor("white")
    set_title(ax, "Cached blocks by KV cache group", run_name(result, name))
    replicas = len((result.summary.get("fleet") or {}).get("replicas", ())) or 1
    _finish(ax, times, unit, int(result.summary["num_blocks"]) - replicas)
    return ax


def _pool(result: RunResult) -> str:
    return (
        f"pools of {len(result.summary['fleet']['replicas'])} replicas"
        if is_fleet(result)
        else "pool"
    )


def whole(result: RunResult) -> RunResult:
    """A result, as plots of one run take it.

    Raises:
        KvsimError: something else was given, as the timeline alone, which does not know its run.
    """
    if not hasattr(result, "timeline"):
        kind = type(result).__name__
        raise InputError("result", f"is a {kind}, not the result of a run. Give the result whole.")
    return result


def run_name(result: RunResult, name: str | None) -> str:
    """What a run is called: as given, else by its variant, or its scenario where it has none."""
    if name is not None:
        return name
    return result.scenario.name if result.variant == "default" else result.variant


def group_names(result: RunResult) -> list[str]:
    """The groups of a run's model, each by number and name or kind."""
    return [
        f"{number} {group.name or group.kind.replace('_', ' ')}"
        for number, group in enumerate(result.scenario.model_spec.groups)
    ]


def thinned(
    timeline: pd.DataFrame, columns: Sequence[str], num_points_max: int = 500
) -> tuple[np.ndarray, np.ndarray, str]:
    """Moments, the columns at them, and the unit of time; over many rows, means of neighbours.

    Returns:
        Times [points], values [columns, points], and "s", "min" or "h".
    """
    times, unit = _times(timeline)
    values = np.array([np.array([*timeline[column]], dtype=float).T for column in columns])
    values = values.reshape(-1, len(times))
    starts = np.unique(np.linspace(0, len(times), num_points_max + 1).astype(int))[:-1]
    sizes = np.diff(starts, append=len(times))
    means = np.add.reduceat(values, starts, axis=1) / sizes
    return times[starts], means, unit


def _times(timeline: pd.DataFrame) -> tuple[np.ndarray, str]:
    """The moments, in s, min or h."""
    if timeline.empty:
        raise InputError("timeline", "has no row, so there is nothing to draw.")
    times_s = timeline["time_s"].to_numpy(dtype=float)
    scale, unit = time_unit(float(times_s[-1]))
    return times_s / scale, unit


def time_unit(end_s: float) -> tuple[float, str]:
    """What times up to an end are shown in: its length in s, and its name."""
    for size_s, scale, unit in ((7200.0, 3600.0, "h"), (300.0, 60.0, "min")):
        if end_s >= size_s:
            return scale, unit
    return 1.0, "s"


def _finish(ax: Axes, times: np.ndarray, unit: str, num_blocks: int) -> None:
    ax.set_xlim(float(times[0]), max(float(times[-1]), float(times[0]) + 1e-9))
    ax.set_ylim(0, num_blocks)
    ax.axhline(num_blocks, color=MUTED, linewidth=1, clip_on=False)
    count_axis(ax.yaxis)
    ax.set_xlabel(f"Simulated time ({unit})")
    ax.set_ylabel("Blocks")
    ax.grid(visible=False)
    handles, labels = ax.get_legend_handles_labels()
    add_legend(ax, handles[::-1], labels[::-1])
