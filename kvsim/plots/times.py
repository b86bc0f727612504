"""Predicted against measured times, a point a benchmark."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from kvsim.plots.style import INK, MUTED, styled
from kvsim.study.bench_times import Prediction, errors_of

_ENGINES = {"vllm": ("#23425f", "o"), "sglang": ("#c2571a", "s"), "tensorrt-llm": ("#4b8b3b", "^")}
_BAND = 0.25


@styled
def predicted_against_measured(predictions: Sequence[Prediction]) -> Figure:
    """Two panels: time to the first token, and time per token after it.

    Args:
        predictions: points that were left out are not drawn.
    """
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    ttft, tpot = errors_of(predictions)
    for axes, name, error in zip(
        figure.subplots(1, 2), ("ttft", "tpot"), (ttft, tpot), strict=True
    ):
        long = {"ttft": "Time to first token", "tpot": "Time per output token"}[name]
        for engine, (colour, marker) in _ENGINES.items():
            pairs = np.array(
                [
                    (getattr(p.point, f"{name}_s"), getattr(p, f"{name}_s"))
                    for p in predictions
                    if p.point.engine == engine and p.point.left_out is None
                ]
            ).reshape(-1, 2)
            pairs = pairs[np.isfinite(pairs).all(axis=1)]
            if len(pairs):
                axes.plot(
                    pairs[:, 0], pairs[:, 1], marker, color=colour, ms=4, alpha=0.5, mew=0,
                    label=f"{engine} ({len(pairs):,})",
                )  # fmt: skip
        _frame(axes)
        off = "" if error.n == 0 else f": off by {error.median:.0%} in the median"
        axes.set_title(f"{long}{off}")
        axes.set_xlabel("measured")
        axes.set_ylabel("predicted")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper left", markerscale=1.6)
    return figure


def _frame(axes: Axes) -> None:
    """Both axes alike and logarithmic, the line of no error, and a band beside it."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    low = min(axes.get_xlim()[0], axes.get_ylim()[0])
    high = max(axes.get_xlim()[1], axes.get_ylim()[1])
    ends = np.array([low, high])
    axes.plot(ends, ends, color=INK, lw=1.2, zorder=1)
    axes.fill_between(
        ends, ends * (1 - _BAND), ends * (1 + _BAND), color=MUTED, alpha=0.18, lw=0, zorder=0
    )
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator())
        axis.set_major_formatter(FuncFormatter(_time))


def _time(value: float, _: object) -> str:
    return f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"
