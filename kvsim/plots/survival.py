"""Survival of a prefix: how much of it is still found after it has been idle for a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from kvsim.errors import KvsimError
from kvsim.plots.style import one_axes, percent_axis, policy_styles, styled
from kvsim.study.frames import named_results, needed, scenario_policy

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.study.frames import Results

_IDLE_S_MIN = 1.0
_NUM_BINS = 12
_NUM_REQUESTS_MIN = 10
"""Requests in a bin below which its share says nothing."""


@styled
def prefix_survival(
    results: Results,
    reuse: pd.DataFrame | Mapping[str, pd.DataFrame],
    *,
    ax: Axes | None = None,
) -> Axes:
    """Share of the reusable prompt tokens that were found, by how long the prefix was idle.

    A point is over the tokens of all requests in a bin of idle times (equally wide in log time;
    idle under 1 s counts as 1 s; bins of fewer than 10 requests are left out).

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
    frames = reuse if isinstance(reuse, Mapping) else dict.fromkeys(named, reuse)
    offered = {}
    for name in named:
        needed(frames[name], "request_id", "reusable_tokens", "idle_s")
        shared = frames[name][frames[name]["reusable_tokens"] > 0]
        offered[name] = shared.assign(idle_s=shared["idle_s"].clip(lower=_IDLE_S_MIN))
    if all(shared.empty for shared in offered.values()):
        raise KvsimError("reuse: no prompt shares a prefix with an earlier one.")
    longest_s = max(float(shared["idle_s"].max()) for shared in offered.values() if len(shared))
    edges = np.geomspace(_IDLE_S_MIN, max(longest_s, 10 * _IDLE_S_MIN), _NUM_BINS + 1)
    styles = policy_styles([scenario_policy(result.scenario) for result in named.values()])
    for (name, result), style in zip(named.items(), styles, strict=True):
        ran = result.requests[result.requests["hit_tokens"].notna()]
        joined = offered[name].merge(ran[["request_id", "hit_tokens"]], on="request_id")
        if joined.empty:
            raise KvsimError(f"{name}: has none of the workload's requests. Give its own reuse.")
        bins = np.clip(np.digitize(joined["idle_s"], edges) - 1, 0, _NUM_BINS - 1)
        # A hit may reach into a prompt that arrived meanwhile: no more than all of it is found.
        found = np.minimum(joined["hit_tokens"].to_numpy(float), joined["reusable_tokens"])
        num = np.bincount(bins, minlength=_NUM_BINS)
        reusable = np.bincount(bins, joined["reusable_tokens"], _NUM_BINS)
        kept = np.bincount(bins, found, _NUM_BINS)
        enough = num >= min(_NUM_REQUESTS_MIN, int(num.max()))
        middles = np.sqrt(edges[:-1] * edges[1:])
        ax.plot(
            middles[enough],
            (kept / np.maximum(reusable, 1))[enough],
            color=style.color,
            linestyle=style.dash,
            marker=style.marker,
            label=name,
        )
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_ylim(0, 1.03)
    percent_axis(ax.yaxis)
    ax.set_xlabel("Idle time of the prefix (s)")
    ax.set_ylabel("Reusable tokens found (%)")
    ax.set_title("Survival of a prefix")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax
