"""Tables of numbers as shades: a sweep over two axes, and which group evicted which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from kvsim.errors import KvsimError
from kvsim.plots.layout import axes_in, folded, one_axes, set_title, wipe_frame
from kvsim.plots.pool import group_names, run_name, whole
from kvsim.plots.scales import tick
from kvsim.plots.style import INK, SEQUENTIAL, InputError, styled, text_color
from kvsim.plots.words import (
    is_seconds,
    is_share,
    more_is_better,
    tick_words,
    value_words,
    words,
)
from kvsim.policies.names import interval_name
from kvsim.results.tables import short
from kvsim.study.frames import needed

if TYPE_CHECKING:
    from kvsim.results.store import RunResult

_LEAST_POINTS = 0.05
"""Least span of shares that the colours cover: a tenth of a point is no contrast."""
_LEAST_SPAN = 0.2
"""The same for other figures, as a share of the largest."""
_SPREAD_FOR_LOG = 20
"""Largest over smallest time from which colours follow its logarithm."""
_CELL_IN = (0.74, 0.42)
"""Least width and height of a cell that holds a number."""


@styled
def heat_map(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    figure: str = "token_hit_rate",
    ax: Axes | None = None,
) -> Axes:
    """A figure over two axes of a sweep; runs that differ only in their seed are averaged.

    Darker is better, for hits and for times alike; of figures that are neither good nor bad, darker
    is more. Colours cover 5 points of a share or a fifth of another figure at least, so that noise
    is no contrast.

    Args:
        frame: a row a run, from `kvsim.plots.frame`.
        x: column of the horizontal axis.
        y: column of the vertical axis.
        figure: column that is shown.
        ax: where to draw.

    Raises:
        KvsimError: a column is missing, or runs with the same x, y and seed differ otherwise.
    """
    needed(frame, x, y, figure)
    seeds = ["seed"] if "seed" in frame.columns else []
    across, down = ([_level(value) for value in frame[key]] for key in (x, y))
    columns, lines = _levels(x, across), _levels(y, down)
    cells = pd.DataFrame(
        {
            "row": [lines.index(value) for value in down],
            "column": [columns.index(value) for value in across],
            "value": pd.to_numeric(frame[figure], errors="coerce").to_numpy(dtype=float),
            **{key: frame[key].to_numpy() for key in seeds},
        }
    )
    if cells.duplicated(["row", "column", *seeds]).any():
        raise KvsimError(
            f"several runs have the same {x} and {y}, so something else differs too. "
            "Keep the rows of one value of it."
        )
    values = np.full((len(lines), len(columns)), np.nan)
    means = cells.groupby(["row", "column"], as_index=False)["value"].mean()
    values[means["row"], means["column"]] = means["value"]
    names = ([_name(x, value) for value in columns], [_name(y, value) for value in lines])
    ax = one_axes(ax, _size_in(*names))
    good = more_is_better(figure)
    unit = " (%)" if is_share(figure) else " (s)" if is_seconds(figure) else ""
    said = "" if good is None else ", darker is better"
    colors = colormaps[SEQUENTIAL]
    _shades(
        ax,
        values,
        value_words(figure),
        norm=_norm(values, figure),
        colors=colors.reversed() if good is False else colors,
        label=f"{words(figure)}{unit}{said}",
        shown_exactly=(lambda value: f"{value:.6g}") if is_seconds(figure) else tick_words(figure),
        top_down=good is False,
    )
    _name_cells(ax, *names)
    ax.set_xlabel(words(x))
    ax.set_ylabel(words(y))
    set_title(ax, f"{words(figure)}")
    return ax


@styled
def evictions(result: RunResult, *, name: str | None = None, ax: Axes | None = None) -> Axes:
    """Which group's cached blocks were evicted for which group, in blocks and by share.

    Args:
        result: the run.
        name: what it is called in the title; None for its variant, or its scenario.
        ax: where to draw.

    Raises:
        KvsimError: the run's summary does not say.
    """
    counts = np.array(whole(result).summary.get("evicted_by_group") or [], dtype=float)
    if not counts.size:
        raise InputError("summary", "does not say who evicted whom. Run it again.")
    groups = group_names(result)
    ax = one_axes(ax, _size_in(groups, groups))
    total = counts.sum()

    def show(count: float) -> str:
        share = count / total if total else 0.0
        return f"{short(int(count))}\n{share:.0%}" if share >= 0.005 else short(int(count))

    _shades(
        ax,
        counts,
        show,
        norm=Normalize(0, float(counts.max()) or 1.0),
        colors=colormaps[SEQUENTIAL],
        label="Cached blocks evicted",
        shown_exactly=tick,
    )
    _name_cells(ax, groups, groups)
    ax.set_xlabel("Group that lost cached blocks")
    ax.set_ylabel("Group that took them")
    set_title(ax, f"What evicted what, {short(int(total))} cached blocks", run_name(result, name))
    return ax


def _shades(
    ax: Axes,
    values: np.ndarray,
    show: Callable[[float], str],
    *,
    norm: Normalize,
    colors: Colormap,
    label: str,
    shown_exactly: Callable[[float], str],
    top_down: bool = False,
) -> None:
    """Cells with their numbers, and a bar of the colours beside them."""
    image = ax.imshow(values, cmap=colors, norm=norm, aspect="auto")
    room_in = axes_in(ax)[0] / values.shape[1]
    size = min(10.0, max(5.0, 10 * room_in / _CELL_IN[0]))
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            text, color = "no run", INK
            if np.isfinite(value):
                text, color = show(value), text_color(colors(norm(value))[:3])
            ax.text(column, row, text, ha="center", va="center", color=color, size=size)
    wipe_frame(ax)
    figure = ax.get_figure(root=True)
    if figure is None:
        return
    bar = figure.colorbar(image, ax=ax, pad=0.02, fraction=0.06, aspect=25)
    bar.outline.set_visible(False)
    bar.locator = LogLocator(subs=(1, 2, 5)) if isinstance(norm, LogNorm) else MaxNLocator(5)
    bar.formatter = FuncFormatter(lambda value, _: shown_exactly(value))
    bar.update_ticks()
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.ax.grid(visible=False)
    if top_down:
        bar.ax.invert_yaxis()  # what is good, and dark, is at the top
    bar.set_label(label)


def _norm(values: np.ndarray, figure: str) -> Normalize:
    """The range of the colours: that of the values, widened where it says nothing."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if is_seconds(figure) and low > 0 and high / low >= _SPREAD_FOR_LOG:
        return LogNorm(low, high)
    least = _LEAST_POINTS if is_share(figure) else _LEAST_SPAN * max(abs(low), abs(high)) or 1.0
    if high - low < least:
        middle = (low + high) / 2
        low = middle - least / 2
        if is_share(figure):
            low = min(max(low, 0.0), 1.0 - least)
        elif known.size and known.min() >= 0:
            low = max(low, 0.0)
        high = low + least
    return Normalize(low, high)


def _size_in(columns: Sequence[str], lines: Sequence[str]) -> tuple[float, float]:
    """Inches of a figure in which every cell holds its number."""
    names_in = 0.085 * max((len(name) for name in lines), default=0)
    names_in = min(names_in, 2.9)
    return (
        max(8.0, 2.2 + names_in + _CELL_IN[0] * len(columns)),
        max(5.0, 1.6 + _CELL_IN[1] * len(lines)),
    )


def _name_cells(ax: Axes, columns: Sequence[str], lines: Sequence[str]) -> None:
    """Names below and at the left, turned where they would run into each other."""
    room_in = 0.8 * axes_in(ax)[0] / max(1, len(columns))
    names = [folded(name) for name in columns]
    longest = max((len(line) for name in names for line in name.split("\n")), default=0)
    turned: dict[str, Any] = {}
    if 0.09 * longest > room_in:
        turned = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(columns)), names, **turned)
    ax.set_yticks(range(len(lines)), [folded(name) for name in lines])


def _level(value: Any) -> Any:
    """A value of an axis; null is one of them."""
    if pd.isna(value):
        return None
    if hasattr(value, "item"):
        value = value.item()
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _levels(axis: str, values: Sequence[Any]) -> list[Any]:
    """The different values: numbers rising, then others as they come; intervals from dense on."""
    different = list(dict.fromkeys(values))
    numbers = sorted(value for value in different if isinstance(value, int | float))
    if axis.endswith("retention_interval"):
        numbers = [value for value in numbers if value != 0] + [0] * (0 in numbers)
    nothing = [value for value in different if value is None]
    others = [value for value in different if not isinstance(value, int | float | None)]
    return nothing + numbers + others


def _name(axis: str, value: Any) -> str:
    if axis.endswith("retention_interval") and (value is None or isinstance(value, int)):
        return interval_name(value)
    if value is None:
        return "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return tick_words(axis)(value)
