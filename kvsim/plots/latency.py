"""Time to first token: its distribution, and its quantiles as the request rate rises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from kvsim.errors import KvsimError
from kvsim.plots.style import INK, one_axes, percent_axis, policy_styles, styled, widths
from kvsim.study.frames import named_results, scenario_policy, series_of

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.study.frames import Results

_MARKED = (0.5, 0.9, 0.99)
_SPREAD_FOR_LOG = 20
_NUM_POINTS_MAX = 600
"""Steps that a distribution is drawn with; more could not be seen."""


@styled
def ttft_distribution(
    results: Results, *, objective_s: float | None = None, ax: Axes | None = None
) -> Axes:
    """Share of requests whose first token came within a time, with p50, p90 and p99 marked.

    Args:
        results: runs to draw beside each other.
        objective_s: TTFT to be met, in s, drawn as a limit.
        ax: where to draw.

    Raises:
        KvsimError: there are no results, or none has a request that ran.
    """
    ax = one_axes(ax)
    named = named_results(results)
    styles = policy_styles([scenario_policy(result.scenario) for result in named.values()])
    least, most = np.inf, 0.0
    for (name, result), style, width in zip(named.items(), styles, widths(len(named)), strict=True):
        times_s = np.sort(result.requests["ttft_s"].dropna().to_numpy(dtype=float))
        if not len(times_s):
            continue
        shares = np.arange(1, len(times_s) + 1) / len(times_s)
        thin = np.unique(np.linspace(0, len(times_s) - 1, _NUM_POINTS_MAX).astype(int))
        look: dict[str, Any] = {
            "color": style.color,
            "linestyle": style.dash,
            "linewidth": width,
            "marker": style.marker,
            "markersize": 8,
            "mec": "white",
        }
        ax.step(times_s[thin], shares[thin], where="post", **{**look, "marker": ""})
        ax.plot(
            np.quantile(times_s, _MARKED),
            _MARKED,
            **{**look, "linestyle": "none"},
        )
        ax.plot([], [], label=name, **look)
        least = min(least, max(float(times_s[0]), 1e-4))
        most = max(most, float(times_s[-1]))
    if most == 0.0:
        raise KvsimError("results: no request ran, so there is no TTFT to draw.")
    if most / least >= _SPREAD_FOR_LOG:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _limit(ax, objective_s, vertical=True)
    ax.set_yticks([0, 0.25, *_MARKED[:2], 1])
    ax.set_ylim(0, 1.02)
    percent_axis(ax.yaxis)
    ax.set_xlabel("TTFT (s); marks at p50, p90 and p99")
    ax.set_ylabel("Requests within (%)")
    ax.set_title("Time to first token")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


@styled
def ttft_by_rate(
    frame: pd.DataFrame,
    *,
    rate: str = "arrivals_per_s",
    quantiles: Sequence[str] = ("p50", "p99"),
    objective_s: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Quantiles of TTFT over the request rate: thick for the last quantile, thin for the others.

    Args:
        frame: a row a run, from `kvsim.plots.frame`, that differ in the rate.
        rate: column of the rate, by default that of arrivals (`requests_per_s`, what was served,
            stops to rise where the node is saturated).
        quantiles: of `mean`, `p50`, `p90`, `p99`.
        objective_s: TTFT to be met, in s, drawn as a limit.
        ax: where to draw.

    Raises:
        KvsimError: a column is missing, or runs differ in something else too.
    """
    ax = one_axes(ax)
    drawn: list[float] = []
    for quantile in quantiles:
        last = quantile == quantiles[-1]
        lines = series_of(frame, rate, f"ttft_s.{quantile}")
        for line, style in zip(lines, policy_styles([li.policy for li in lines]), strict=True):
            drawn += list(line.y)
            ax.plot(
                line.x,
                line.y,
                color=style.color,
                linestyle=style.dash,
                linewidth=2.2 if last else 1.1,
                marker=style.marker,
                mfc=style.color if last else "white",
                label=f"{line.label}, {quantile}",
            )
            if line.num_seeds > 1:
                ax.fill_between(line.x, line.low, line.high, color=style.color, alpha=0.15, lw=0)
    if not drawn:
        raise KvsimError("frame: no run has these figures, so there is nothing to draw.")
    if max(drawn) / max(min(drawn), 1e-4) >= _SPREAD_FOR_LOG:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        ax.set_ylim(bottom=0)
    _limit(ax, objective_s, vertical=False)
    ax.set_xlabel(_RATES.get(rate, rate))
    ax.set_ylabel("TTFT (s)")
    ax.set_title("Time to first token against request rate")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


_RATES = {
    "arrivals_per_s": "Requests arriving (1/s)",
    "requests_per_s": "Requests served (1/s)",
    "workload.time_scale": "Factor on the workload's times (2 halves its rate)",
}


def _limit(ax: Axes, objective_s: float | None, *, vertical: bool) -> None:
    if objective_s is None:
        return
    line = ax.axvline if vertical else ax.axhline
    line(
        objective_s,
        color=INK,
        linewidth=1.2,
        linestyle=(0, (8, 3)),
        label=f"objective {objective_s:g} s",
    )
