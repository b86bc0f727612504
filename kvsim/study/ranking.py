"""Which of several runs is best, and which are equal: figure by figure, beyond the noise.

Runs are told apart by goodput; those that tie fall to the tokens found, then to TTFT, then to the
bytes moved to and from tiers. A tie is a difference within its noise, or one too small for anybody
to see in a table. Where nothing tells runs apart there is no winner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvsim.metrics.figures import FOUND_RATE, Columns, column_figures, columns_of
from kvsim.metrics.uncertainty import drawn_stretches, half_width, interval_of
from kvsim.study.frames import LINK_COLUMN

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from kvsim.scenario import Objective

POINTS_MIN = 0.001
"""Least difference of a share that counts: 0.1 points, the last digit that tables show."""
RELATIVE_MIN = 0.01
"""Least difference of times and bytes that counts, relative to the larger."""
_EQUAL = 1e-9  # relative; machines round alike to about 1e-15

_COUNTED = ("prompt_tokens", "hit_tokens", "external_hit_tokens", "within")


@dataclass(frozen=True, slots=True)
class Criterion:
    """A figure that runs are told apart by.

    Attributes:
        column: of the frame.
        words: what it is called.
        more_is_better: else less is.
    """

    column: str
    words: str
    more_is_better: bool

    @property
    def superlative(self) -> str:
        """What the best of it has."""
        if self.more_is_better:
            return f"the highest {self.words}"
        return f"the {'fewest' if self.words.startswith('bytes') else 'shortest'} {self.words}"

    def least(self, one: float, other: float) -> float:
        """The least difference that counts."""
        if self.more_is_better:
            return POINTS_MIN
        return RELATIVE_MIN * max(abs(one), abs(other))


@dataclass(frozen=True, slots=True)
class Ranking:
    """What came out.

    Attributes:
        best: labels that nothing tells from the first; in order of appearance from the leader on.
        criteria: figures that were looked at, in order.
        decided_by: the last figure that told some apart; None where none did.
        behind: by label, the figure by which it fell behind.
        equal: whether all of `best` have the same figures, and are not only within the noise.
        noise_known: whether every difference that mattered had an interval.
    """

    best: tuple[str, ...]
    criteria: tuple[Criterion, ...]
    decided_by: Criterion | None
    behind: Mapping[str, Criterion] = field(default_factory=dict)
    equal: bool = False
    noise_known: bool = True

    @property
    def leader(self) -> str:
        """One of the best, for what needs one: to compare with, to draw."""
        return self.best[0]

    @property
    def has_winner(self) -> bool:
        """Whether any run is told from another at all."""
        return self.decided_by is not None


class Noise:
    """Intervals of differences between runs of one frame.

    Over seeds, paired, where there are several; else over stretches of the workload, the same in
    both runs, where requests can be read.
    """

    def __init__(
        self,
        requests_of: Callable[[str], pd.DataFrame | None] | None = None,
        objective: Objective | None = None,
    ) -> None:
        """Take what reads the requests of the only run of a label; None where none can be read."""
        self._requests_of = requests_of
        self._objective = objective
        self._columns: dict[str, Columns | None] = {}
        self._drawn: dict[tuple[str, str], npt.NDArray[np.float64] | None] = {}

    def interval(
        self, rows: Mapping[str, pd.DataFrame], label: str, other: str, column: str
    ) -> tuple[float, float] | None:
        """The 95% interval of `label`'s figure less `other`'s; None where there is none."""
        one, two = (_by_seed(rows[name], column) for name in (label, other))
        seeds = one.keys() & two.keys()
        if len(seeds) > 1:
            gaps = [one[seed] - two[seed] for seed in sorted(seeds)]
            width = half_width(gaps)
            mean = math.fsum(gaps) / len(gaps)
            return None if width is None else (mean - width, mean + width)
        ours, theirs = (self._of(name, column) for name in (label, other))
        if ours is None or theirs is None or self._num(label) != self._num(other):
            return None
        return interval_of(ours - theirs)

    def _of(self, label: str, column: str) -> npt.NDArray[np.float64] | None:
        """The figure over every draw of the run's stretches."""
        if (label, column) not in self._drawn:
            self._drawn[label, column] = self._draw(label, column)
        return self._drawn[label, column]

    def _draw(self, label: str, column: str) -> npt.NDArray[np.float64] | None:
        columns = self._columns_of(label)
        if columns is None:
            return None
        # Quantiles take most of the time, so only those that are asked for are made.
        wanted = [*_COUNTED, column.partition(".")[0]]
        some = {name: columns[name] for name in wanted if name in columns}
        drawn = [
            column_figures({name: values[rows] for name, values in some.items()}).get(column)
            for rows in drawn_stretches(self._num(label))
        ]
        return np.array(drawn) if drawn and drawn[0] is not None else None

    def _num(self, label: str) -> int:
        columns = self._columns_of(label)
        return 0 if columns is None else len(columns["prompt_tokens"])

    def _columns_of(self, label: str) -> Columns | None:
        if label not in self._columns:
            requests = self._requests_of(label) if self._requests_of else None
            self._columns[label] = (
                None if requests is None else columns_of(requests, self._objective)
            )
        return self._columns[label]


def criteria(frame: pd.DataFrame) -> tuple[Criterion, ...]:
    """The figures that runs of a frame are told apart by, in order; those that none has left out.

    Args:
        frame: a row a run, from `kvsim.study.frames`.
    """
    found = found_column(frame)
    words = "token hit rate" if found == "token_hit_rate" else "hit rate of device and tier"
    candidates = (
        Criterion("goodput", "goodput", True),
        # Those that are refused are in no other figure, and are often the long ones.
        Criterion("served_share", "share of requests served", True),
        Criterion(found, words, True),
        Criterion("ttft_s.p50", "TTFT p50", False),
        Criterion("bytes_moved", "bytes to and from tiers", False),
    )
    known = with_totals(frame)
    return tuple(
        one for one in candidates if one.column in known and bool(known[one.column].notna().any())
    )


def found_column(frame: pd.DataFrame) -> str:
    """Column of what was found: on the device alone, or in its tier too where a run has one."""
    return (
        FOUND_RATE if FOUND_RATE in frame and frame[LINK_COLUMN].notna().any() else "token_hit_rate"
    )


def with_totals(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with `served_share`, where any request was refused, and `bytes_moved`.

    The latter is what went to tiers and came back, where any did.
    """
    if "num_refused" in frame and (frame["num_refused"].fillna(0) > 0).any():
        served = frame["num_requests"].astype(float)
        frame = frame.assign(served_share=served / (served + frame["num_refused"].astype(float)))
    if not {"bytes_stored", "bytes_loaded"} <= set(frame.columns):
        return frame
    total = frame["bytes_stored"].astype(float) + frame["bytes_loaded"].astype(float)
    return frame.assign(bytes_moved=total) if total.fillna(0).any() else frame


def rank(
    frame: pd.DataFrame, noise: Noise | None = None, judged: Sequence[Criterion] | None = None
) -> Ranking:
    """Rank the labels of a frame.

    Args:
        frame: a row a run, from `kvsim.study.frames`, that differ in policy or seed alone.
        noise: intervals of their differences; None where none are known.
        judged: figures to tell them apart by, in order; None for those of `criteria`.
    """
    import pandas as pd

    judged, noise = judged or criteria(frame), noise or Noise()
    frame = with_totals(frame)
    frame = frame.assign(
        **{one.column: pd.to_numeric(frame[one.column], errors="coerce") for one in judged}
    )
    rows = {str(label): group for label, group in frame.groupby("label", sort=False)}
    left, behind = list(rows), {}
    decided_by, noise_known = None, True
    leader = left[0]
    for one in judged:
        means = {label: _mean(rows[label], one.column) for label in left}
        leader = _leading(means, one)
        kept = []
        for label in left:
            told, known = _told_apart(rows, leader, label, one, means, noise)
            noise_known &= known
            if told:
                behind[label] = one
            else:
                kept.append(label)
        if len(kept) < len(left):
            decided_by, left = one, kept
        if len(left) == 1:
            break
    best = [leader, *(label for label in left if label != leader)]
    return Ranking(
        tuple(best), tuple(judged), decided_by, behind, _all_equal(rows, best, judged), noise_known
    )


def _leading(means: Mapping[str, float], criterion: Criterion) -> str:
    """The label with the best mean, the first of equal ones; one without the figure comes last."""
    sign = 1 if criterion.more_is_better else -1
    worst = -math.inf
    return max(means, key=lambda label: worst if math.isnan(means[label]) else sign * means[label])


def _told_apart(
    rows: Mapping[str, pd.DataFrame],
    leader: str,
    label: str,
    criterion: Criterion,
    means: Mapping[str, float],
    noise: Noise,
) -> tuple[bool, bool]:
    """Whether a label is behind the leader, and whether the noise of that is known."""
    best, own = means[leader], means[label]
    if label == leader or math.isnan(best):
        return False, True
    if math.isnan(own):
        return True, True
    # The slack keeps 0.1 points, which are not exactly that in binary, on their side.
    if abs(best - own) < criterion.least(best, own) * (1 - _EQUAL):
        return False, True
    interval = noise.interval(rows, leader, label, criterion.column)
    if interval is None:
        return True, False
    return not interval[0] <= 0 <= interval[1], True


def _all_equal(
    rows: Mapping[str, pd.DataFrame], labels: Sequence[str], judged: Sequence[Criterion]
) -> bool:
    first = labels[0]
    return all(
        _same(_mean(rows[first], one.column), _mean(rows[label], one.column))
        for label in labels[1:]
        for one in judged
    )


def _same(one: float, other: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=_EQUAL)


def _mean(rows: pd.DataFrame, column: str) -> float:
    return float(rows[column].mean())


def _by_seed(rows: pd.DataFrame, column: str) -> dict[int, float]:
    """The figure by seed; nothing where a seed has several runs, so that something else differs."""
    if "seed" not in rows.columns or rows["seed"].duplicated().any():
        return {}
    known = rows[rows[column].notna()]
    return {
        int(seed): float(value) for seed, value in zip(known["seed"], known[column], strict=True)
    }
