"""Policies side by side: the figure for a slide, and what each retention interval keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from kvsim.plots.bars import bars, check_number, floats, known, room, ttft_bars
from kvsim.plots.layout import bars_size_in, many_axes
from kvsim.plots.scales import count_axis, number_axis, percent_axis
from kvsim.plots.style import INK, policy_styles, styled
from kvsim.results.tables import percent, short
from kvsim.study.frames import needed
from kvsim.study.ranking import found_column

if TYPE_CHECKING:
    import pandas as pd

_TTFT = ("ttft_s.p50", "ttft_s.p90", "ttft_s.p99")


@styled
def policies_side_by_side(frame: pd.DataFrame, *, axes: Iterable[Axes] | None = None) -> list[Axes]:
    """Token hit rate, TTFT, and bytes stored of each run, in three panels with shared rows.

    Where runs have a tier, what was found there is added to the hit rate as a paler part.
    Where nothing is stored (no tier), the third panel shows the cached blocks that were evicted.

    Args:
        frame: a row a run, from `kvsim.plots.frame`.
        axes: three axes.

    Raises:
        KvsimError: a column is missing, or there are more runs than a figure can show.
    """
    needed(frame, "label", "policy", "token_hit_rate", *_TTFT, "bytes_stored", "evicted_blocks")
    check_number(frame)
    labels = [str(label) for label in frame["label"]]
    panels = many_axes(axes, 3, bars_size_in(labels), share_y=True)
    styles = policy_styles(frame["policy"])
    hits = floats(frame["token_hit_rate"])
    found = floats(frame[found_column(frame)])
    bars(panels[0], labels, found, styles, [percent(known(value)) for value in found])
    if found_column(frame) == "token_hit_rate":
        panels[0].set_xlabel("Token hit rate (%)")
    else:
        _paler(panels[0], hits, found)
        panels[0].set_xlabel("Hit rate (%), paler: in the tier")
    panels[0].set_title(_with_ceilings(panels[0], frame) or "Prompt tokens found")
    percent_axis(panels[0].xaxis)

    ttft_bars(panels[1], labels, frame, styles, with_p90=True)
    stored = floats(frame["bytes_stored"])
    if np.nansum(stored) > 0:
        gigabytes = stored / 1e9
        bars(panels[2], labels, gigabytes, styles, [_gigabytes(value) for value in gigabytes])
        panels[2].set_xlabel("Bytes stored (GB)")
        panels[2].set_title("Stored to the next tier")
        number_axis(panels[2].xaxis)
    else:
        evicted = floats(frame["evicted_blocks"])
        bars(panels[2], labels, evicted, styles, [short(_count(value)) for value in evicted])
        panels[2].set_xlabel("Cached blocks evicted")
        panels[2].set_title("Evicted (nothing is offloaded)")
        count_axis(panels[2].xaxis)
    return panels


RETENTION_COLUMNS: dict[str, tuple[str, str]] = {
    "sessions_kept": ("Sessions kept", "Sessions found whole"),
    "resend": ("Resend", "Of the same prompt, found (%)"),
    "next_turn": ("Next turn", "Of prompt and answer, found (%)"),
    "branch": ("Branch in the middle", "Of the shared half, found (%)"),
}
"""Columns of the retention trade-off: title and axis of each."""


@styled
def retention_tradeoff(frame: pd.DataFrame, *, axes: Iterable[Axes] | None = None) -> list[Axes]:
    """What each retention interval keeps: number of sessions, resend, next turn and branch.

    Args:
        frame: a row a policy with `label`, `policy` and the columns of `RETENTION_COLUMNS`, from
            `kvsim.study.probe.read_probe`; `sessions_kept` a count, the others fractions.
        axes: four axes.

    Raises:
        KvsimError: a column is missing.
    """
    needed(frame, "label", "policy", *RETENTION_COLUMNS)
    labels = [str(label) for label in frame["label"]]
    panels = many_axes(axes, 4, bars_size_in(labels, 13.0), share_y=True)
    styles = policy_styles(frame["policy"])
    for ax, (column, (title, axis)) in zip(panels, RETENTION_COLUMNS.items(), strict=True):
        values = floats(frame[column])
        if column == "sessions_kept":
            bars(ax, labels, values, styles, [f"{value:,.0f}" for value in values])
            count_axis(ax.xaxis)
        else:
            bars(ax, labels, values, styles, [percent(known(value)) for value in values])
            ax.set_xlim(0, 1.3)
            percent_axis(ax.xaxis)
            ax.set_xticks([0, 0.5, 1])
        ax.set_title(title)
        ax.set_xlabel(axis)
    return panels


def _with_ceilings(ax: Axes, frame: pd.DataFrame) -> str:
    """A mark where the ceiling of each run is; the title with its meaning, "" where none is known.

    That is the lower of nothing evicted and of the offline optimum.
    """
    columns = [name for name in ("ceiling.infinite", "ceiling.optimum") if name in frame]
    if not columns or frame[columns].isna().all(axis=None):
        return ""
    most = np.fmin.reduce([floats(frame[column]) for column in columns])
    for row, value in enumerate(most):
        if not np.isnan(value):
            ax.plot([value], [row], marker="|", markersize=20, color=INK, mew=2.2)
    room(ax, most, 1.3)
    return "Prompt tokens found (mark: the ceiling)"


def _paler(ax: Axes, starts: Any, ends: Any) -> None:
    """Fade the bars between two values, where there is something between."""
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if end > start:
            ax.barh(row, end - start, left=start, height=0.62, color="white", alpha=0.55)
            ax.vlines(start, row - 0.31, row + 0.31, color=INK, linewidth=1.1)


def _gigabytes(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.3g}"


def _count(value: float) -> int | None:
    return None if np.isnan(value) else int(value)
