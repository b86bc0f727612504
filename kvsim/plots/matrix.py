"""Tables of numbers as shades: a sweep over two axes, and which group evicted which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes

from kvsim.errors import KvsimError
from kvsim.plots.pool import group_names
from kvsim.plots.style import INK, SEQUENTIAL, one_axes, styled, text_color, tick
from kvsim.policies.names import interval_name
from kvsim.results.tables import percent, seconds, short
from kvsim.study.frames import needed

if TYPE_CHECKING:
    from kvsim.results.store import RunResult


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
    ax = one_axes(ax, (8.0, 5.0))
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
    _shades(ax, values, _shown_as(figure))
    ax.set_xticks(range(len(columns)), [_name(x, value) for value in columns])
    ax.set_yticks(range(len(lines)), [_name(y, value) for value in lines])
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.set_title(figure.replace("_s.", " ").replace("_", " ").capitalize())
    return ax


@styled
def evictions(result: RunResult, *, ax: Axes | None = None) -> Axes:
    """Which group's cached blocks were evicted for which group, in blocks and by share.

    Raises:
        KvsimError: the run's summary does not say.
    """
    counts = np.array(result.summary.get("evicted_by_group") or [], dtype=float)
    if not counts.size:
        raise KvsimError("summary: does not say who evicted whom. Run it again.")
    ax = one_axes(ax, (8.0, 5.0))
    total = counts.sum()

    def show(count: float) -> str:
        share = count / total if total else 0.0
        return f"{short(int(count))}\n{share:.0%}" if share >= 0.005 else short(int(count))

    _shades(ax, counts, show)
    names = group_names(result)
    ax.set_xticks(range(len(names)), names, rotation=20, ha="right")
    ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("Group that lost cached blocks")
    ax.set_ylabel("Group that took them")
    ax.set_title(f"What evicted what: {short(int(total))} cached blocks")
    return ax


def _shades(ax: Axes, values: np.ndarray, show: Callable[[float], str]) -> None:
    """Cells with their numbers, light for little."""
    colors = colormaps[SEQUENTIAL]
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    span = high - low or 1.0
    ax.imshow(values, cmap=colors, vmin=low, vmax=low + span, aspect="auto")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if np.isfinite(value):
                color = text_color(colors((value - low) / span)[:3])
                ax.text(column, row, show(value), ha="center", va="center", color=color, size=10)
            else:
                ax.text(column, row, "no run", ha="center", va="center", color=INK, size=9)
    ax.grid(visible=False)
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)


def _shown_as(figure: str) -> Callable[[float], str]:
    if figure.endswith(("_rate", "goodput", "utilization")):
        return percent
    last = figure.split(".")[0]
    return seconds if last.endswith("_s") and not last.endswith("per_s") else short


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
        return "null"
    return tick(value) if isinstance(value, int | float) and abs(value) >= 1 else str(value)
