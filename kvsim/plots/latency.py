"""Times to the first token and per token after it: distributions; TTFT as the rate rises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from kvsim.plots.fleet_style import run_styles
from kvsim.plots.layout import (
    NUMBERED_FROM,
    add_legend,
    number_at,
    number_ends,
    numbered_labels,
    one_axes,
    set_title,
)
from kvsim.plots.lines import band_handle, draw_band
from kvsim.plots.scales import log_axis, number_axis, percent_axis, scale_x
from kvsim.plots.style import INK, InputError, policy_styles, styled, widths
from kvsim.plots.words import tick_words, words
from kvsim.study.frames import named_results, series_of

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.study.frames import Results

_MARKED = (0.5, 0.9, 0.99)
_SPREAD_FOR_LOG = 20
"""Largest over smallest time from which an axis is logarithmic; with an objective it always is."""
_BEYOND = "#d55e00"
"""Tint of what misses the objective."""
_BANDS_MAX = 3
"""Runs that have a band of error each; more would hide each other."""
_NUM_POINTS_MAX = 600
"""Steps that a distribution is drawn with; more could not be seen."""


@styled
def ttft_distribution(
    results: Results, *, objective_s: float | None = None, ax: Axes | None = None
) -> Axes:
    """Share of requests whose first token came within a time, with p50, p90 and p99 marked.

    Args:
        results: runs to draw beside each other.
        objective_s: TTFT to be met, in s, drawn as a limit; times are then on a log axis.
        ax: where to draw.

    Raises:
        KvsimError: there are no results, or none has a request that ran.
    """
    return _distribution(results, _TTFT, objective_s, ax)


@styled
def tpot_distribution(
    results: Results, *, objective_s: float | None = None, ax: Axes | None = None
) -> Axes:
    """Share of requests whose tokens after the first came within a time each, as for TTFT.

    Args:
        results: runs to draw beside each other.
        objective_s: TPOT to be met, in s, drawn as a limit; times are then on a log axis.
        ax: where to draw.

    Raises:
        KvsimError: there are no results, or none has a request of several tokens.
    """
    return _distribution(results, _TPOT, objective_s, ax)


class _Time(NamedTuple):
    """What a distribution is of: its key, name, title, and what it takes to have one."""

    key: str
    name: str
    title: str
    lacking: str


_TTFT = _Time("ttft", "TTFT", "Time to first token", "no request ran")
_TPOT = _Time(
    "tpot",
    "TPOT",
    "Time per output token after the first",
    "no request has a second token",
)


def _distribution(results: Results, of: _Time, objective_s: float | None, ax: Axes | None) -> Axes:
    ax = one_axes(ax)
    named = named_results(results)
    drawn_s = {
        name: np.sort(result.requests[f"{of.key}_s"].dropna().to_numpy(dtype=float))
        for name, result in named.items()
    }
    drawn_s = {name: times_s for name, times_s in drawn_s.items() if len(times_s)}
    if not drawn_s:
        raise InputError("results", f"{of.lacking}, so there is no {of.name} to draw.")
    styles = run_styles([named[name].scenario for name in drawn_s])
    handles: list[Artist] = []
    errors: list[float] = []
    for number, ((name, times_s), style, width) in enumerate(
        zip(drawn_s.items(), styles, widths(len(drawn_s)), strict=True), 1
    ):
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
        near = (named[name].summary.get("step_times") or {}).get(of.key) or {}
        error = near.get("error")
        errors += [error] if error else []
        if error and len(drawn_s) <= _BANDS_MAX:
            # What step times were off by for measured set-ups like this one.
            low, high = times_s[thin] * max(1 - error, 0), times_s[thin] * (1 + error)
            ax.fill_betweenx(shares[thin], low, high, color=style.color, alpha=0.12, lw=0)
        ax.plot(
            np.quantile(times_s, _MARKED),
            _MARKED,
            **{**look, "linestyle": "none"},
        )
        handles += ax.plot([], [], label=name, **look)
        if len(drawn_s) >= NUMBERED_FROM:
            # Each at a height of its own, so that no two are on each other.
            share = 0.06 + 0.9 * (number - 0.5) / len(drawn_s)
            number_at(ax, number, (float(np.quantile(times_s, share)), share), style.color)
    labels = numbered_labels(list(drawn_s))
    limit = _limit(ax, objective_s, vertical=True)
    least = min(max(float(times_s[0]), 1e-4) for times_s in drawn_s.values())
    most = max(float(times_s[-1]) for times_s in drawn_s.values())
    if objective_s is not None or most / least >= _SPREAD_FOR_LOG:
        log_axis(ax, "x")
    ax.set_yticks([0, 0.25, *_MARKED[:2], 1])
    ax.set_ylim(0, 1.02)
    percent_axis(ax.yaxis)
    ax.set_yticks([0, 0.25, *_MARKED[:2], 1])
    band = ""
    if errors:
        band = "; bands: error of step times"
        if len(drawn_s) > _BANDS_MAX:
            band = f"\nstep times: {max(errors):.0%} off in the median, for set-ups like these"
    ax.set_xlabel(f"{of.name} (s); marks at p50, p90 and p99{band}")
    ax.set_ylabel("Requests within (%)")
    set_title(ax, of.title)
    add_legend(ax, [*handles, *(h for h, _ in limit)], [*labels, *(t for _, t in limit)])
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
        objective_s: TTFT to be met, in s, drawn as a limit with what is beyond it tinted; times
            are then on a log axis.
        ax: where to draw.

    Raises:
        KvsimError: a column is missing, or runs differ in something else too.
    """
    ax = one_axes(ax)
    drawn: list[float] = []
    handles: list[Artist] = []
    labels: list[str] = []
    lines, colors = [], []
    for quantile in quantiles:
        last = quantile == quantiles[-1]
        lines = series_of(frame, rate, f"ttft_s.{quantile}")
        many = len(lines) >= NUMBERED_FROM
        styles = policy_styles([line.policy for line in lines])
        colors = [style.color for style in styles]
        for line, style in zip(lines, styles, strict=True):
            drawn += list(line.y)
            (handle,) = ax.plot(
                line.x,
                line.y,
                color=style.color,
                linestyle=style.dash,
                linewidth=2.2 if last else 1.1,
                marker=style.marker,
                mfc=style.color if last else "white",
                label=f"{line.label}, {quantile}",
            )
            if not many or last:
                handles.append(handle)
                labels.append(line.label if many else f"{line.label}, {quantile}")
            draw_band(ax, line, style.color)
    if not drawn:
        raise InputError("frame", "no run has these figures, so there is nothing to draw.")
    limit = _limit(ax, objective_s, vertical=False)
    if objective_s is not None or max(drawn) / max(min(drawn), 1e-4) >= _SPREAD_FOR_LOG:
        log_axis(ax, "y")
    else:
        ax.set_ylim(bottom=0)
    if objective_s is not None:
        ax.set_ylim(ax.get_ylim())
        ax.axhspan(objective_s, max(objective_s, ax.get_ylim()[1]), color=_BEYOND, alpha=0.06, lw=0)
    ax.set_xlabel(words(rate))
    if "." in rate:  # a key that was varied: a tick at each value
        scale_x(ax, [value for line in lines for value in line.x], tick_words(rate))
    else:
        number_axis(ax.xaxis)
    ax.set_ylabel("TTFT (s)")
    set_title(ax, "Time to first token against request rate")
    entries = [*limit, *band_handle(lines)]
    if len(lines) >= NUMBERED_FROM:
        number_ends(ax, [(float(line.x[-1]), float(line.y[-1])) for line in lines], colors)
        labels = [*numbered_labels(labels)]
        ax.set_ylabel(f"TTFT (s): {', '.join(quantiles[:-1])} thin, {quantiles[-1]} thick")
    add_legend(ax, [*handles, *(h for h, _ in entries)], [*labels, *(t for _, t in entries)])
    return ax


def _limit(ax: Axes, objective_s: float | None, *, vertical: bool) -> list[tuple[Artist, str]]:
    """The objective as a line, and its entry in the legend."""
    if objective_s is None:
        return []
    line = ax.axvline if vertical else ax.axhline
    label = f"objective {objective_s:g} s"
    handle = line(objective_s, color=INK, linewidth=1.2, linestyle=(0, (8, 3)), label=label)
    return [(handle, label)]
