"""Where the prompt tokens went that some earlier request had: found, or why not, a bar a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from kvsim.metrics.misses import EVICTIONS
from kvsim.plots.bars import check_number, floats
from kvsim.plots.layout import add_legend, bars_size_in, folded, one_axes, set_title
from kvsim.plots.scales import percent_axis
from kvsim.plots.style import INK, InputError, styled
from kvsim.results.tables import percent
from kvsim.study.frames import needed

if TYPE_CHECKING:
    import pandas as pd

_UNSEEN = ("never_seen", "coarse_id")
_PARTS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("evicted", EVICTIONS, "#c8553d", "///"),
    ("preempted", ("preempted",), "#8a3324", "\\\\\\"),
    ("window run not retained", ("not_retained",), "#e9b44c", ""),
    ("no state kept there", ("no_state",), "#2a9d8f", "oo"),
    ("look-ahead dropped", ("look_ahead",), "#6d597a", "xx"),
    ("last token, below a unit", ("last_token", "below_unit"), "#b8b8b8", "..."),
    ("on another replica", ("elsewhere",), "#8ecae6", "--"),
    ("not computed yet", ("not_computed",), "#4f772d", "++"),
)
"""Name, reasons, colour and hatch of what was not found."""
_FOUND = (("found on the device", "#23425f"), ("found in a tier", "#7fb2d9"))


@styled
def missed_tokens(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Share of the prompt tokens that were seen before, by whether they were found or why not.

    A whole bar is what could have been found at best; tokens that no request had before are left
    out, and their share stands behind the bar.

    Args:
        frame: a row a run, from `kvsim.plots.frame`, with `missed_tokens`.
        ax: where to draw.

    Raises:
        KvsimError: a column is missing, no run has reasons, or there are too many runs.
    """
    names = [f"missed_tokens.{reason}" for _, reasons, *_ in _PARTS for reason in reasons]
    if names[0] not in frame.columns or frame[names[0]].isna().all():
        raise InputError("frame", "no run has reasons. Run with output.reasons: true.")
    needed(frame, "label", "prompt_tokens", "hit_split.device", *names)
    frame = frame[frame[names[0]].notna()]
    check_number(frame)
    unseen = _summed(frame, _UNSEEN)
    parts = [_summed(frame, reasons) for _, reasons, *_ in _PARTS]
    total = floats(frame["prompt_tokens"])
    device = np.round(floats(frame["hit_split.device"]) * total)
    found = [device, np.round(total - device - sum(parts) - unseen)]
    labels = [str(label) for label in frame["label"]]
    width_in, height_in = bars_size_in(labels, 10.0)
    ax = one_axes(ax, (width_in, max(height_in, 1.8 + 0.5 * len(labels))))
    rows = np.arange(len(labels))
    ends = np.zeros(len(labels))
    for (name, color), tokens in zip(_FOUND, found, strict=True):
        if tokens.any():
            _stack(ax, rows, ends, tokens / total, label=name, color=color)
    for (name, _, color, hatch), tokens in zip(_PARTS, parts, strict=True):
        if tokens.any():
            _stack(ax, rows, ends, tokens / total, label=name, color=color, hatch=hatch)
    for row, end in enumerate(ends):
        share = percent(float(unseen[row] / total[row]))
        ax.text(end, row, f" never seen: {share}", va="center", size=9.5, color=INK)
    ax.set_yticks(rows, [folded(label) for label in labels])
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_xlim(0, 1.35 * float(ends.max()) or 1)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    percent_axis(ax.xaxis)
    ax.set_xlabel("Share of all prompt tokens (%)")
    set_title(ax, "Prompt tokens seen before: found, or why not")
    add_legend(ax)
    return ax


def _stack(ax: Axes, rows: Any, ends: Any, shares: Any, **look: Any) -> None:
    """Another part of each bar, behind those before it, whose ends move on."""
    ax.barh(rows, shares, 0.62, left=ends, edgecolor="white", linewidth=0, **look)
    ends += shares


def _summed(frame: pd.DataFrame, reasons: tuple[str, ...]) -> Any:
    return sum(floats(frame[f"missed_tokens.{reason}"]) for reason in reasons)
