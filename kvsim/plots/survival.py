"""Survival of a prefix: how much of it is still found after it has been idle for a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from kvsim.plots.layout import (
    NUMBERED_FROM,
    add_legend,
    number_ends,
    numbered_labels,
    one_axes,
    set_title,
)
from kvsim.plots.scales import log_axis, percent_axis
from kvsim.plots.style import INK, MUTED, InputError, policy_styles, styled
from kvsim.results.tables import short
from kvsim.study.frames import named_results, needed, scenario_policy

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.results.store import RunResult
    from kvsim.study.frames import Results

_IDLE_S_MIN = 1.0
_NUM_BINS = 12
_NUM_REQUESTS_MIN = 10
"""Requests in a bin below which its share says nothing."""
_DEVICE_ALONE = "thin: on the device alone"


@styled
def prefix_survival(
    results: Results,
    reuse: pd.DataFrame | Mapping[str, pd.DataFrame],
    *,
    ax: Axes | None = None,
) -> Axes:
    """Share of the reusable prompt tokens that were found, by how long the prefix was idle.

    A point is over the tokens of all requests in a bin of idle times (equally wide in log time;
    idle under 1 s counts as 1 s; bins of fewer than 10 requests are left out). The number of
    requests in each bin stands at the top. Where runs have a tier, what was found there counts too,
    and a thin line says what was on the device.

    Args:
        results: runs of one workload.
        reuse: `kvsim.study.reuse.reuse` of its scenario; by name where arrivals depend on the run
            (`kvsim.study.reuse.reuse_by_run`).
        ax: where to draw.

    Raises:
        KvsimError: a run has requests that the workload does not have, or nothing is reusable.
    """
    ax = one_axes(ax)
    named = named_results(results)
    offered = _offered(named, reuse)
    longest_s = max(float(shared["idle_s"].max()) for shared in offered.values() if len(shared))
    edges = np.geomspace(_IDLE_S_MIN, max(longest_s, 10 * _IDLE_S_MIN), _NUM_BINS + 1)
    middles = np.sqrt(edges[:-1] * edges[1:])
    tiered = {name: _has_tier(result) for name, result in named.items()}
    styles = policy_styles([scenario_policy(result.scenario) for result in named.values()])
    handles: list[Artist] = []
    begins: list[tuple[float, float]] = []
    ends: list[tuple[float, float]] = []
    counts = []
    for (name, result), style in zip(named.items(), styles, strict=True):
        num, on_device, anywhere = _binned(name, result, offered[name], edges)
        enough = num >= min(_NUM_REQUESTS_MIN, int(num.max()))
        counts.append(np.where(enough, num, 0))
        look: dict[str, Any] = {"color": style.color, "linestyle": style.dash}
        (handle,) = ax.plot(
            middles[enough], anywhere[enough], marker=style.marker, label=name, **look
        )
        if tiered[name]:
            ax.plot(middles[enough], on_device[enough], linewidth=0.9, **look)
        handles.append(handle)
        begins.append((float(middles[enough][0]), float(anywhere[enough][0])))
        ends.append((float(middles[enough][-1]), float(anywhere[enough][-1])))
    # Numbers stand where the lines are further apart.
    by_begin = np.std([y for _, y in begins]) > np.std([y for _, y in ends])
    from_left = bool(by_begin) and len(named) >= NUMBERED_FROM
    ax.set_xlim(edges[0] / (2 if from_left else 1), edges[-1])
    log_axis(ax, "x")
    ax.set_ylim(0, 1.1)
    percent_axis(ax.yaxis)
    ax.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    _write_counts(ax, middles, np.array(counts))
    ax.set_xlabel("Idle time of the prefix (s); at the top: requests behind a point")
    ax.set_ylabel(f"Reusable tokens found{_where(list(tiered.values()))} (%)")
    set_title(ax, "Survival of a prefix")
    side = "left" if from_left else "right"
    number_ends(ax, begins if from_left else ends, [style.color for style in styles], side)
    labels = numbered_labels(list(named))
    if any(tiered.values()):
        handles.append(Line2D([], [], color=MUTED, linewidth=0.9))
        labels.append(_DEVICE_ALONE)
    add_legend(ax, handles, labels)
    return ax


def _offered(
    named: Mapping[str, RunResult], reuse: pd.DataFrame | Mapping[str, pd.DataFrame]
) -> dict[str, pd.DataFrame]:
    """The requests of each run that could reuse something.

    Raises:
        InputError: there are none in any.
    """
    frames = reuse if isinstance(reuse, Mapping) else dict.fromkeys(named, reuse)
    offered = {}
    for name in named:
        needed(frames[name], "request_id", "reusable_tokens", "idle_s")
        shared = frames[name][frames[name]["reusable_tokens"] > 0]
        offered[name] = shared.assign(idle_s=shared["idle_s"].clip(lower=_IDLE_S_MIN))
    if all(shared.empty for shared in offered.values()):
        raise InputError("reuse", "no prompt shares a prefix with an earlier one.")
    return offered


def _binned(
    name: str, result: RunResult, offered: pd.DataFrame, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Requests, and the shares found on the device and anywhere, of each bin [bins].

    Raises:
        InputError: the run has none of the requests.
    """
    columns = ["request_id", "hit_tokens", "external_hit_tokens"]
    ran = result.requests.loc[result.requests["hit_tokens"].notna(), columns]
    joined = offered.merge(ran, on="request_id")
    if joined.empty:
        raise InputError(
            "reuse", f"{name} ran another workload. Draw runs of one workload, with its own reuse."
        )
    num_bins = len(edges) - 1
    bins = np.clip(np.digitize(joined["idle_s"], edges) - 1, 0, num_bins - 1)
    num = np.bincount(bins, minlength=num_bins)
    reusable = joined["reusable_tokens"].to_numpy(float)
    on_device = joined["hit_tokens"].to_numpy(float)
    loaded = joined["external_hit_tokens"].to_numpy(float, na_value=0.0)
    in_all = np.maximum(np.bincount(bins, reusable, num_bins), 1)
    # A hit may reach into a prompt that arrived meanwhile: no more than all of it is found.
    device, anywhere = (
        np.bincount(bins, np.minimum(found, reusable), num_bins) / in_all
        for found in (on_device, on_device + loaded)
    )
    return num, device, anywhere


def _has_tier(result: RunResult) -> bool:
    return bool(result.summary.get("tiers"))


def _where(tiered: list[bool]) -> str:
    """Where tokens were found, in words."""
    if not any(tiered):
        return " on the device"
    return " on\ndevice and tier" if all(tiered) else " on\ndevice and, where there is one, tier"


def _write_counts(ax: Axes, middles: np.ndarray, counts: np.ndarray) -> None:
    """The number of requests in each bin, along the top; a range where runs differ.

    Args:
        ax: with its scale set.
        middles: of the bins [bins], in s.
        counts: requests [runs, bins], 0 where too few to show.
    """
    for middle, column in zip(middles, counts.T, strict=True):
        known = column[column > 0]
        if len(known):
            low, high = int(known.min()), int(known.max())
            text = short(high) if low == high else f"{short(low)}–{short(high)}"
            ax.text(middle, 1.05, text, ha="center", va="center", fontsize=8, color=INK)
