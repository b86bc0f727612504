"""One look for every plot: fonts, sizes, and a colour, a dash and a hatch for each policy.

Colours follow from the policy alone, so that a policy has the same one in every figure. Dashes,
markers and hatches tell policies apart where colours are lost, as in a greyscale print.
"""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
import matplotlib.colors as mcolors
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.errors import KvsimError
from kvsim.scenario.writing import replacing

INK = "#1a1a1a"
MUTED = "#6b6b6b"
GRID = "#dddddd"
IN_USE, CACHED, BLANK = "#23425f", "#7fb2d9", "#f1f1f1"
"""Blocks that a request refers to, free ones that can be found again, and the rest."""
SEQUENTIAL = "YlGnBu"
"""Colour map of heat maps: the more, the darker, so it survives greyscale and saves ink."""
DPI = 160

RC: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 11,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "figure.facecolor": "white",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.5,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "hatch.linewidth": 0.9,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 2.0,
    "lines.markersize": 6.5,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}

_P = ParamSpec("_P")
_R = TypeVar("_R")


@contextmanager
def settings(ours: Mapping[str, Any]) -> Iterator[None]:
    """Draw with settings of ours and put back what they were.

    No other setting is put back. The first plot of a notebook loads the notebook's way of showing
    figures, which turns interactive mode on; `matplotlib.rc_context` would turn it off again, and
    every later plot would stay blank.
    """
    parameters: Any = mpl.rcParams
    before = {name: parameters[name] for name in ours}
    parameters.update(ours)
    try:
        yield
    finally:
        parameters.update(before)


def styled(plot: Callable[_P, _R]) -> Callable[_P, _R]:
    """Draw in this style, whatever the caller's own settings are, and leave those alone."""

    @functools.wraps(plot)
    def drawn(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with settings(RC):
            return plot(*args, **kwargs)

    return drawn


@dataclass(frozen=True)
class PolicyStyle:
    """How a policy is drawn.

    Attributes:
        color: of its line or bar.
        dash: line style.
        marker: of its points.
        hatch: of its bars.
    """

    color: str
    dash: str | tuple[int, tuple[int, ...]]
    marker: str
    hatch: str


_DENSE, _BOUNDARY, _NONE = "#d55e00", "#00795c", "#9a9a9a"
_INTERVALS = mcolors.LinearSegmentedColormap.from_list(
    "intervals", ["#8fc1e8", "#2f6fb0", "#0b2545"]
)
_LOG2_INTERVALS = (8, 18)  # 256 to 262,144 tokens
_SOLID, _DASHED, _DOTTED, _DASH_DOT = "-", (0, (6, 2)), (0, (1, 1)), (0, (6, 1, 1, 1))
_EVERY = re.compile(r"every ([\d,]+)$")


def policy_style(policy: str) -> PolicyStyle:
    """The style of a policy by its name, as `kvsim.policies.names.policy_name` gives it.

    The interval gives the hue (dense orange, boundary green, every N blue, the darker the longer),
    the free-queue order the saturation and dash (append greyed and dotted).
    """
    if policy == "no caching":
        return PolicyStyle(_NONE, _DOTTED, "x", "")
    every = _EVERY.search(policy)
    if every:
        log2 = math.log2(max(1, int(every[1].replace(",", ""))))
        low, high = _LOG2_INTERVALS
        place = min(1.0, max(0.0, (log2 - low) / (high - low)))
        even = round(log2) % 2 == 0
        style = PolicyStyle(
            mcolors.to_hex(_INTERVALS(place)),
            _DASH_DOT if even else (0, (3, 1)),
            "^" if even else "v",
            "\\\\\\" if even else "xxx",
        )
    elif policy.endswith("dense"):
        style = PolicyStyle(_DENSE, _DASHED, "s", "///")
    else:
        style = PolicyStyle(_BOUNDARY, _SOLID, "o", "")
    if policy.startswith("append"):
        return replace(
            style, color=_mixed(style.color, "#808080", 0.65), dash=_DOTTED, marker="D", hatch="..."
        )
    if policy.startswith("prepend window"):
        return replace(
            style,
            color=_mixed(style.color, "#ffffff", 0.4),
            dash=_DASH_DOT,
            marker="P",
            hatch="---",
        )
    return style


_SPARE_DASHES = (_SOLID, _DASHED, _DASH_DOT, _DOTTED)
_SPARE_MARKERS = "oP*Xhd"
_SPARE_HATCHES = ("", "++", "oo", "**", "OO", "||")


def policy_styles(policies: Iterable[str]) -> list[PolicyStyle]:
    """A style for each entry of a plot; entries of one policy share its colour alone."""
    seen: dict[str, int] = {}
    styles = []
    for policy in policies:
        style, again = policy_style(policy), seen.get(policy, 0)
        seen[policy] = again + 1
        if again:
            style = replace(
                style,
                dash=_spare(_SPARE_DASHES, style.dash, again),
                marker=_spare(_SPARE_MARKERS, style.marker, again),
                hatch=_spare(_SPARE_HATCHES, style.hatch, again),
            )
        styles.append(style)
    return styles


def _spare(spares: Sequence[Any], own: Any, again: int) -> Any:
    """One of the spares other than the policy's own, a further one each time."""
    others = [spare for spare in spares if spare != own]
    return others[(again - 1) % len(others)]


def _mixed(color: str, other: str, share: float) -> str:
    """A colour with a share of another."""
    one, two = np.array(mcolors.to_rgb(color)), np.array(mcolors.to_rgb(other))
    red, green, blue = (1 - share) * one + share * two
    return mcolors.to_hex((float(red), float(green), float(blue)))


def widths(count: int) -> list[float]:
    """Line widths that fall, so that a line is seen where a later one lies on it."""
    return [1.6 + 2.0 * (count - 1 - number) / max(1, count - 1) for number in range(count)]


class InputError(KvsimError):
    """What a plot was given cannot be drawn.

    Attributes:
        problem: what is wrong and what to do, without the argument's name, for those who gave no
            argument of that name, as on the command line.
    """

    def __init__(self, argument: str, problem: str) -> None:
        """Say which argument of the plot it is about, and what is wrong."""
        self.problem = problem
        super().__init__(f"{argument}: {problem}")


def text_color(background: Any) -> str:
    """Black or white, whichever is read better on a colour."""
    red, green, blue = mcolors.to_rgb(background)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK


PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


def check_picture(path: Path) -> None:
    """Refuse the name of a picture before anything is drawn for it.

    Raises:
        KvsimError: its ending is none of `PICTURE_SUFFIXES`.
    """
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        endings = ", ".join(PICTURE_SUFFIXES)
        raise KvsimError(f"{path}: ending {path.suffix!r} is none of {endings}. Use one of them.")


def save(plot: Axes | Figure | Iterable[Axes], path: Path | str) -> Path:
    """Write a plot to a PNG, SVG or PDF file; the same plot gives the same bytes.

    Raises:
        KvsimError: the file's ending is another one, or it cannot be written.
    """
    path = Path(path)
    check_picture(path)
    kind = path.suffix.lower().removeprefix(".")
    figure = _figure_of(plot)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with settings({**RC, **_SVG}), replacing(path) as new:
            figure.savefig(new, format=kind, dpi=DPI, metadata=_METADATA[kind])
    except OSError as error:
        raise KvsimError(f"{path}: cannot be written: {error.strerror}.") from None
    return path


def svg_text(figure: Figure) -> str:
    """A figure as the text of an SVG; the same figure gives the same text."""
    text = io.StringIO()
    with settings({**RC, **_SVG}):
        figure.savefig(text, format="svg", metadata=_METADATA["svg"])
    return text.getvalue()


_SVG: Any = {"svg.hashsalt": "kvsim", "svg.fonttype": "path"}
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": "kvsim"},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": "kvsim", "Producer": "kvsim"},
}


def _figure_of(plot: Axes | Figure | Iterable[Axes]) -> Figure:
    if isinstance(plot, Figure):
        return plot
    ax = plot if isinstance(plot, Axes) else next(iter(plot))
    figure = ax.get_figure(root=True)
    if figure is None:
        raise KvsimError("plot: these axes are on no figure. Draw on axes of a figure.")
    return figure
