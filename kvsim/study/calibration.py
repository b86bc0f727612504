"""Fits the constants of the step time to a user's own points.

A handful of points of one node cannot tell all constants apart. So each is held where it is (the
catalog's value is the prior), and the points move those they speak of. A factor that all set-ups
share is no other number than the constant it multiplies, and stays; one that some have and others
have not is fitted. What the points say beyond the fit is asked of points that it did not see: a
third of the set-ups at a time, of the load points where there is one set-up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.errors import Problems
from kvsim.study.bench_times import Prediction, errors_of, predict
from kvsim.study.fitting_times import Counted, Fit, Observation, count_steps, observed
from kvsim.study.measured import Point
from kvsim.times.closed_loop import SEQUENCES, TOKENS
from kvsim.times.constants import Constant, Constants, catalog_constants, fingerprint

FOLDS = 3
"""Parts of the points, each held back once."""
PRIOR_PART = 0.5
"""Of the spreads with which the catalog was fitted: how far servers of a kind are expected to lie
from what thousands of points say of them."""
_LEAST_MOVE = 0.02  # of the logarithm, below which a constant has not moved
_LEAST_SAID = 0.1  # part of the prior's variance that points must take away to speak of a constant
_UNITS_OFF = 100.0  # measured over simulated, or the other way round: no server, but another unit
_MOST_STEPS = 15


@dataclass(frozen=True)
class Move:
    """A constant before and after.

    Attributes:
        name: of the constant.
        condition: of which set-ups it is a factor; "" for the constant itself.
        before: its value.
        after: its value; the same where it did not move.
        spread: standard deviation of its logarithm that is left.
        said: 0 to 1, the part of the prior's variance that the points took away.
    """

    name: str
    condition: str
    before: float
    after: float
    spread: float
    said: float

    @property
    def label(self) -> str:
        """``name``, or ``name (condition)``."""
        return f"{self.name} ({self.condition})" if self.condition else self.name

    @property
    def moved(self) -> bool:
        """Whether it has another value."""
        return self.after != self.before


@dataclass(frozen=True)
class Calibration:
    """What a fit to a user's points came to.

    Attributes:
        constants: all of them, with what is said of the fit.
        moves: of all constants that were free.
        before: predictions of the points before the fit.
        after: after it.
        held_back: of each point with constants that were fitted without its part.
        held_back_by: ``set-up`` or ``load point``.
        parts: how many parts were held back in turn.
        left_out: points that cannot be expressed.
    """

    constants: Constants
    moves: tuple[Move, ...]
    before: tuple[Prediction, ...]
    after: tuple[Prediction, ...]
    held_back: tuple[Prediction, ...]
    held_back_by: str
    parts: int
    left_out: tuple[Point, ...]

    @property
    def moved(self) -> list[Move]:
        """Constants with another value, the furthest first."""
        moved = [move for move in self.moves if move.moved]
        return sorted(moved, key=lambda move: -abs(math.log(move.after / move.before)))

    @property
    def not_identified(self) -> list[str]:
        """Constants of which the points say nothing, or nothing apart from others."""
        return [move.label for move in self.moves if move.said < _LEAST_SAID]

    @property
    def helps(self) -> bool:
        """Whether points that were held back came out nearer than before."""
        return sum(_total(self.held_back)) < sum(_total(self.before))

    def fragment(self) -> Constants:
        """What differs from the catalog, to be written down."""
        catalog = {(e.name, e.condition): e for e in catalog_constants().entries}
        differ = [
            e for e in self.constants.entries if e.value != catalog[e.name, e.condition].value
        ]
        names = {entry.name for entry in differ}
        kept = [
            e
            for e in self.constants.entries
            if e in differ or (e.name in names and not e.condition)
        ]
        return Constants(kept, self.constants.fit)

    def as_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        rows = zip(self.before, self.after, self.held_back, strict=True)
        return {
            "points": [
                {
                    "id": before.point.row["id"],
                    "set_up": before.point.set_up,
                    "concurrency": before.point.concurrency,
                    "measured": _times(before.point.ttft_s, before.point.tpot_s),
                    "before": _times(before.ttft_s, before.tpot_s),
                    "after": _times(after.ttft_s, after.tpot_s),
                    "held_back": _times(held.ttft_s, held.tpot_s),
                }
                for before, after, held in rows
            ],
            "left_out": [
                {"id": point.row["id"], "reason": point.left_out} for point in self.left_out
            ],
            "held_back_by": self.held_back_by,
            "parts": self.parts,
            "helps": self.helps,
            "constants": [
                {
                    "name": move.name,
                    "condition": move.condition or None,
                    "before": move.before,
                    "after": move.after,
                    "spread": move.spread,
                    "said": move.said,
                }
                for move in self.moves
            ],
            "not_identified": self.not_identified,
            "fit": dict(self.constants.fit),
        }


def calibrate(
    points: Sequence[Point],
    where: str,
    constants: Constants | None = None,
    *,
    prior_part: float = PRIOR_PART,
) -> Calibration:
    """Fit constants to points.

    Args:
        points: measured ones, left out or not.
        where: what problems are reported under.
        constants: where to begin; None for those of the catalog.
        prior_part: of each spread of the catalog, how far constants may go.

    Raises:
        Problems: too few points, or times that can only be in another unit.
    """
    start = constants or catalog_constants()
    fitted = [point for point in points if point.left_out is None]
    left_out = tuple(point for point in points if point.left_out is not None)
    parts, held_back_by = _parts(fitted, left_out, where)
    counted = [count_steps(point, start) for point in fitted]
    before = [predict(point, start, seen) for point, seen in zip(fitted, counted, strict=True)]
    _check_units(before, where)
    observations = [observed(point, seen) for point, seen in zip(fitted, counted, strict=True)]
    full, moves = _fitted(observations, start, prior_part)
    held_back: list[Prediction | None] = [None] * len(fitted)
    for part in range(max(parts) + 1):
        kept = [seen for seen, own in zip(observations, parts, strict=True) if own != part]
        without, _ = _fitted(kept, start, prior_part)
        for number in (number for number, own in enumerate(parts) if own == part):
            held_back[number] = _again(fitted[number], without, counted[number])
    after = [_again(point, full, seen) for point, seen in zip(fitted, counted, strict=True)]
    held = [prediction for prediction in held_back if prediction is not None]
    fit = {
        "source": f"kvsim calibrate {where}",
        "points": len(fitted),
        "held_back": f"{max(parts) + 1} parts in turn, by {held_back_by}",
        **_said("before", before),
        **_said("fitted", after),
        **_said("held_out", held),
        "set_ups": _by_set_up(held),
        "range": _range(counted),
        "catalog": fingerprint(catalog_constants()),
    }
    return Calibration(
        Constants(full.entries, fit),
        tuple(moves),
        tuple(before),
        tuple(after),
        tuple(held),
        held_back_by,
        max(parts) + 1,
        left_out,
    )


def _parts(points: Sequence[Point], left_out: Sequence[Point], where: str) -> tuple[list[int], str]:
    """In which part each point is held back, and by what they were put into parts."""
    names = sorted({point.set_up for point in points})
    own = {name: [p for p in points if p.set_up == name] for name in names}
    if not points:
        reasons = sorted({f"{point.row['id']}: {point.left_out}" for point in left_out})
        raise Problems(where, ["no point can be simulated.", *reasons[:20]])
    single = [name for name in names if len(own[name]) == 1]
    if len(names) < FOLDS and single:
        raise Problems(
            where,
            [
                f"set-up {name} has one point, which cannot tell launches from reading or "
                "computing. Measure it at other concurrencies or lengths, or leave it out."
                for name in single
            ],
        )
    random = np.random.default_rng(1)
    if len(names) > 1:
        order = list(random.permutation(names))
        return [order.index(point.set_up) % min(FOLDS, len(names)) for point in points], "set-up"
    # Neighbours in load go to different parts, so that each part has light and heavy load.
    by_load = sorted(range(len(points)), key=lambda n: (points[n].concurrency, n))
    parts = [0] * len(points)
    for place, number in enumerate(by_load):
        parts[number] = place % min(FOLDS, len(points))
    return parts, "load point"


def _fitted(
    observations: Sequence[Observation], start: Constants, prior_part: float
) -> tuple[Constants, list[Move]]:
    """Constants fitted to points, and how they moved."""
    met = [seen.point.conditions() for seen in observations]
    free, places = _free(start, met)
    held = free.held_here(prior_part)
    fit = Fit(observations, Constants(held.entries, {})).run(most_steps=_MOST_STEPS)
    spreads = Fit(observations, fit).spreads()
    entries, moves = list(start.entries), []
    for place, prior, found, spread in zip(places, held.entries, fit.entries, spreads, strict=True):
        entry = start.entries[place]
        log = math.log(found.value / prior.value)
        after = entry.value * math.exp(log) if abs(log) >= _LEAST_MOVE else entry.value
        after = float(f"{after:.4g}") if after != entry.value else after  # as it is written
        said = max(0.0, 1 - (float(spread) / prior.spread) ** 2)
        moves.append(Move(entry.name, entry.condition, entry.value, after, float(spread), said))
        if after != entry.value:
            entries[place] = Constant(
                entry.name,
                entry.condition,
                after,
                entry.value,
                float(f"{float(spread):.3g}"),
                entry.reason,
            )
    return Constants(entries, start.fit), moves


def _free(start: Constants, met: Sequence[frozenset[str]]) -> tuple[Constants, list[int]]:
    """What is to be fitted, and its places: constants, and factors that tell set-ups apart.

    Factors that all set-ups share are put into the constants; those that none has are left out.
    """
    shared = frozenset.intersection(*met)
    some = frozenset.union(*met) - shared
    entries, places = [], []
    for place, entry in enumerate(start.entries):
        if entry.condition and entry.condition not in some:
            continue
        value = entry.value
        if not entry.condition:
            for factor in start.entries:
                if factor.name == entry.name and factor.condition in shared:
                    value *= factor.value
        entries.append(
            Constant(entry.name, entry.condition, value, value, entry.spread, entry.reason)
        )
        places.append(place)
    return Constants(entries, start.fit), places


def _again(point: Point, constants: Constants, counted: Counted) -> Prediction:
    """A prediction with the steps that were counted, unless another acceptance changes them."""
    drafts = point.layout is not None and point.layout.draft_tokens > 0
    return predict(point, constants, None if drafts else counted)


def _check_units(predictions: Sequence[Prediction], where: str) -> None:
    problems = []
    for prediction in predictions:
        point = prediction.point
        for name in ("ttft", "tpot"):
            measured, simulated = getattr(point, f"{name}_s"), getattr(prediction, f"{name}_s")
            ratio = measured / simulated
            if math.isfinite(ratio) and not 1 / _UNITS_OFF < ratio < _UNITS_OFF:
                problems.append(
                    f"point {point.row['id']}, {name}: measured {measured:.4g} s, simulated "
                    f"{simulated:.4g} s. Is it in another unit? Times are in seconds."
                )
    if problems:
        raise Problems(where, problems)


def _said(name: str, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Median and ninth decile of errors, as the catalog says them."""
    ttft, tpot = errors_of(predictions)
    return {
        f"tpot_{name}": [_rounded(tpot.median), _rounded(tpot.p90)],
        f"ttft_{name}": [_rounded(ttft.median), _rounded(ttft.p90)],
    }


def _by_set_up(predictions: Sequence[Prediction]) -> dict[str, list[float | None]]:
    """Of each set-up its points, and median errors of TTFT and TPOT."""
    found = {}
    for name in sorted({p.point.set_up for p in predictions}):
        own = [p for p in predictions if p.point.set_up == name]
        ttft, tpot = errors_of(own)
        found[name] = [len(own), _rounded(ttft.median), _rounded(tpot.median)]
    return found


def _range(counted: Sequence[Counted]) -> dict[str, int]:
    """The most that a rank's steps held."""
    return {
        "sequences": max(int(seen.steps.rows[:, SEQUENCES].max()) for seen in counted),
        "context_tokens": max(
            int((seen.loop.prompts + seen.loop.outputs).max()) for seen in counted
        ),
        "step_tokens": max(int(seen.steps.rows[:, TOKENS].max()) for seen in counted),
    }


def _total(predictions: Sequence[Prediction]) -> tuple[float, float]:
    """Mean of the logarithms of the errors, of TTFT and TPOT; 0 where nothing was measured."""
    totals = []
    for name in ("ttft_s", "tpot_s"):
        ratios = np.array([getattr(p, name) / getattr(p.point, name) for p in predictions])
        sizes = np.abs(np.log(ratios[np.isfinite(ratios)]))
        totals.append(float(sizes.mean()) if len(sizes) else 0.0)
    return totals[0], totals[1]


def _times(ttft_s: float, tpot_s: float) -> dict[str, float | None]:
    return {
        "ttft_s": None if math.isnan(ttft_s) else ttft_s,
        "tpot_s": None if math.isnan(tpot_s) else tpot_s,
    }


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
