"""Where things stand on a page: axes, sizes, titles, names and legends, so that nothing runs off.

A figure that a plot makes for itself is a `Page`: its size is ours, so it grows with the number of
series and the length of their names. On axes that a caller gave, legends shrink to what is there.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from kvsim.errors import KvsimError
from kvsim.plots.style import INK, MUTED, RC, settings

NAME_CHARS = 34
"""Characters of a name in a line; longer names are folded, not cut."""
NUMBERED_FROM = 9
"""Series from which lines carry numbers: dashes and markers no longer tell them apart."""
_PANEL_IN = 5.0
"""Width that is left to a plot beside its legend, in inches, with its ticks and labels."""
_LEGEND_HEIGHT_MAX_IN = 6.5
_ROW_IN, _LINE_IN, _CHAR_IN = 0.5, 0.19, 0.085
"""Of bars: least height of a row, height of a line of its name, width of a character."""


class Page(Figure):
    """A figure that a plot made for itself and may size as it needs."""


def one_axes(ax: Axes | None, size_in: tuple[float, float] = (8.0, 4.5)) -> Axes:
    """The axes to draw on: those given, or new ones of a size in inches (16:9 for a slide)."""
    return many_axes(None if ax is None else [ax], 1, size_in)[0]


def many_axes(
    axes: Iterable[Axes] | None, count: int, size_in: tuple[float, float], *, share_y: bool = False
) -> list[Axes]:
    """Axes side by side: those given, or new ones; a `Page` they are on gets the size.

    Raises:
        KvsimError: another number of axes was given.
    """
    if axes is None:
        import matplotlib.pyplot as plt

        figure = plt.figure(figsize=size_in, layout="constrained", FigureClass=Page)
        return list(figure.subplots(1, count, sharey=share_y, squeeze=False)[0])
    given = list(axes)
    if len(given) != count:
        raise KvsimError(f"axes: {len(given)} were given, and this plot needs {count}.")
    page = _page(given[0])
    if page is not None:
        page.set_size_inches(size_in)
    return given


def figure_of(draw: Callable[..., object], num_axes: int = 1) -> Figure:
    """A figure of its own with what a function draws, for files: no screen knows of it.

    Args:
        draw: takes the axes, or a list of them where there are several, side by side.
        num_axes: how many axes.
    """
    with settings(RC):
        figure = Page(layout="constrained")
        if num_axes == 1:
            draw(figure.subplots())
        else:
            draw(list(figure.subplots(1, num_axes, sharey=True)))
    return figure


def folded(name: str, width: int = NAME_CHARS) -> str:
    """A name in lines of a width; words longer than a line are broken."""
    return "\n".join(textwrap.wrap(name, width)) or name


def bars_size_in(names: Sequence[str], width_in: float = 12.0) -> tuple[float, float]:
    """Inches of a figure of horizontal bars, a row a name: long names widen it, folded heighten."""
    lines = [folded(name).split("\n") for name in names]
    longest = max((len(line) for rows in lines for line in rows), default=0)
    least = _ROW_IN if len(lines) <= 14 else 0.34
    height = sum(max(least, 0.1 + _LINE_IN * len(rows)) for rows in lines)
    return width_in + _CHAR_IN * max(0, longest - 20), 1.6 + max(3 * _ROW_IN, height)


def set_title(ax: Axes, text: str, name: str | None = None) -> None:
    """The title of a plot, with the run it shows where it shows one; folded to the page."""
    width_in = axes_in(ax)[0]
    page = _page(ax)
    if page is not None and sum(other.get_label() != "<colorbar>" for other in page.axes) == 1:
        width_in = float(page.get_size_inches()[0]) - 1.2
    chars = max(24, int(width_in / 0.118))
    whole = text if not name else f"{text}: {name}"
    if name and len(name) <= chars < len(whole):  # better a line of its own than a name in two
        ax.set_title(f"{folded(text, chars)}:\n{name}")
    else:
        ax.set_title(folded(whole, chars))


def add_legend(
    ax: Axes,
    handles: Sequence[Artist] | None = None,
    labels: Sequence[str] | None = None,
) -> None:
    """A legend beside the plot, all of it on the page.

    A `Page` grows to hold it, in columns where it is long. Elsewhere letters shrink, and names are
    cut in the middle, until it fits; it stands inside where the figure makes no room beside.
    """
    if handles is None or labels is None:
        handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    page = _page(ax)
    if page is not None:
        _beside_on(page, ax, handles, labels)
    else:
        _within_what_is_there(ax, handles, labels)


def _beside_on(page: Page, ax: Axes, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    size = 10 if len(labels) < NUMBERED_FROM else 9 if len(labels) <= 16 else 8
    names = [folded(label) for label in labels]
    width_in, height_in = _legend_in(ax, handles, names, size, 1, "beside")
    num_columns = int(np.ceil(height_in / _LEGEND_HEIGHT_MAX_IN))
    if num_columns > 1:
        width_in, height_in = _legend_in(ax, handles, names, size, num_columns, "beside")
    own_width_in, own_height_in = page.get_size_inches()
    page.set_size_inches(
        max(own_width_in, _PANEL_IN + 0.9 + width_in), max(own_height_in, height_in + 0.9)
    )


def _within_what_is_there(ax: Axes, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    figure = ax.get_figure(root=True)
    place = "beside" if figure is not None and figure.get_layout_engine() is not None else "best"
    own_in = axes_in(ax)
    room_in = (0.5 * own_in[0], 0.95 * own_in[1])
    for chars, size, num_columns in (
        (NAME_CHARS, 10, 1),
        (NAME_CHARS, 8, 1),
        (NAME_CHARS, 6.5, 1),
        (NAME_CHARS, 5, 1),
        (24, 6.5, 1),
        (24, 5, 1),
        (16, 4, 1),
        (12, 4, 2),
    ):
        names = [folded(label) if chars == NAME_CHARS else _cut(label, chars) for label in labels]
        width_in, height_in = _legend_in(ax, handles, names, size, num_columns, place)
        if width_in <= room_in[0] and height_in <= room_in[1]:
            return


def _cut(name: str, chars: int) -> str:
    """A name without its middle: beginnings and ends are what tells names apart."""
    if len(name) <= chars:
        return name
    begin = (chars - 1) // 2
    return f"{name[:begin]}…{name[len(name) - (chars - 1 - begin) :]}"


def _legend_in(
    ax: Axes,
    handles: Sequence[Artist],
    labels: Sequence[str],
    size: float,
    num_columns: int,
    place: str,
) -> tuple[float, float]:
    """Make the legend; its width and height in inches."""
    look: dict[str, Any] = {"loc": "best", "frameon": True, "framealpha": 0.85}
    if place == "beside":
        numbered = any(child.get_gid() == _NUMBER for child in ax.texts)
        look = {"loc": "center left", "bbox_to_anchor": (1.05 if numbered else 1.01, 0.5)}
    legend: Legend = ax.legend(
        handles, labels, fontsize=size, ncols=num_columns, columnspacing=1.2, **look
    )
    return _in_inches(ax, legend)


def axes_in(ax: Axes) -> tuple[float, float]:
    """Width and height of axes in inches, before a layout makes room for what is around them."""
    return _in_inches(ax, ax)


def _in_inches(ax: Axes, artist: Artist) -> tuple[float, float]:
    figure = ax.get_figure(root=True)
    dpi = 100.0 if figure is None else float(figure.dpi)
    extent = artist.get_window_extent()
    return extent.width / dpi, extent.height / dpi


_NUMBER = "number of a series"


def numbered_labels(labels: Sequence[str]) -> list[str]:
    """Labels for a legend: with the numbers that lines carry, where they are many."""
    if len(labels) < NUMBERED_FROM:
        return list(labels)
    return [f"{number}  {label}" for number, label in enumerate(labels, 1)]


def number_ends(
    ax: Axes, ends: Sequence[tuple[float, float]], colors: Sequence[str], side: str = "right"
) -> None:
    """Numbers beside many lines, each tied to its line's end; none where lines are few.

    Limits and scales of the axes have to be final.

    Args:
        ax: where the lines are.
        ends: last x and y of each line, in data; the first where the side is the left.
        colors: of the lines.
        side: "right", where room is made beside the axes, or "left", inside of them.
    """
    if len(ends) < NUMBERED_FROM:
        return
    places = ax.transAxes.inverted().transform(ax.transData.transform(np.array(ends, dtype=float)))
    heights = spread(places[:, 1], 0.97 / max(30, len(ends)))
    x = 1.012 if side == "right" else 0.01
    edge = x if side == "right" else 0.035
    ties = [[tuple(place), (edge, height)] for place, height in zip(places, heights, strict=True)]
    ax.add_collection(
        LineCollection(ties, colors=list(colors), lw=0.7, transform=ax.transAxes, clip_on=False),
        autolim=False,
    )
    gid = _NUMBER if side == "right" else None
    for number, height in enumerate(heights, 1):
        ax.text(x, height, str(number), va="center", fontsize=7.5, gid=gid, transform=ax.transAxes)


def number_at(ax: Axes, number: int, place: tuple[float, float], color: str) -> None:
    """The number of a series on its line."""
    ax.text(
        *place,
        str(number),
        ha="center",
        va="center",
        fontsize=7.5,
        color=INK,
        gid=_NUMBER,
        zorder=6,
        bbox={"boxstyle": "circle,pad=0.15", "fc": "white", "ec": color, "lw": 0.8},
    )


def spread(places: np.ndarray, least: float) -> np.ndarray:
    """Places from 0 to 1 moved apart as little as a least distance asks for, order kept.

    The least squares of the moves, by pooling neighbours that want to pass each other.
    """
    order = np.argsort(places, kind="stable")
    steps = least * np.arange(len(places))
    pools: list[tuple[float, int]] = []
    for wanted in (places[order] - steps).tolist():
        pools.append((wanted, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (one, size), (other, more) = pools[-2:]
            pools[-2:] = [((one * size + other * more) / (size + more), size + more)]
    begins = np.repeat([place for place, _ in pools], [size for _, size in pools])
    apart = np.clip(begins, 0.0, max(0.0, 1.0 - float(steps[-1]))) + steps
    spread_out: np.ndarray = apart[np.argsort(order, kind="stable")]
    return spread_out


def wipe_frame(ax: Axes) -> None:
    """No grid, no ticks' strokes, no spines: cells speak for themselves."""
    ax.grid(visible=False)
    ax.tick_params(length=0, colors=INK)
    for side in ax.spines.values():
        side.set_visible(False)
        side.set_color(MUTED)


def _page(ax: Axes) -> Page | None:
    figure = ax.get_figure(root=True)
    return figure if isinstance(figure, Page) else None
