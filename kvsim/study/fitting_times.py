"""Fits the constants of the step time to measured points.

The steps of a closed loop do not depend on how long they take, so that they are counted once
(`observe`); the mean time to the first token, and that per token, are then weighted sums over
steps. Steps that are alike are put together. A fit (`fit_constants`) minimizes the squared
logarithms of predicted over measured times, large ones counted less (pseudo-Huber), plus how far
each constant has gone from its prior in spreads: where the data do not speak, constants stay where
they were. `held_out_errors` leaves set-ups out in turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.jit import njit
from kvsim.study.measured import Point
from kvsim.study.parallel import each
from kvsim.times import closed_loop
from kvsim.times.closed_loop import NUM_COLUMNS, Loop, Steps, run_closed_loop
from kvsim.times.constants import Constants
from kvsim.times.roofline import scalars
from kvsim.times.step_time import Composition, composed_parts
from kvsim.times.work import stacked

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TPOT_NOISE, TTFT_NOISE = 0.10, 0.22
"""Spread of the logarithm of a measurement beside another of the same set-up (facts of the
data)."""


@dataclass(frozen=True)
class Observation:
    """A point, and its steps put together.

    Attributes:
        point: the measurement.
        rows: float64 [kinds of steps, NUM_COLUMNS], means of what steps of a kind hold.
        ttft_weight: float64 [kinds], how often a request waits for such a step before its first
            token, on average.
        tpot_weight: float64 [kinds], the same between two tokens.
        prompt_tokens: mean of the prompts.
        tokens_a_step: that a decode yielded where the steps were counted.
    """

    point: Point
    rows: Floats
    ttft_weight: Floats
    tpot_weight: Floats
    prompt_tokens: float
    tokens_a_step: float


def tokens_a_step(acceptance: float, draft_tokens: int) -> float:
    """Tokens a decode yields: 1 and the drafts that were accepted one after another."""
    acceptance = min(acceptance, 0.999)
    return float((1 - acceptance ** (draft_tokens + 1)) / (1 - acceptance))


def observe(point: Point, constants: Constants) -> Observation:
    """Count the steps of a point.

    Args:
        point: one that is not left out.
        constants: the acceptance of drafts is taken from them.
    """
    return observed(point, count_steps(point, constants))


@dataclass(frozen=True)
class Counted:
    """A point's loop, and what its steps hold.

    Attributes:
        loop: what was sent.
        steps: what came of it.
    """

    loop: Loop
    steps: Steps


def count_steps(point: Point, constants: Constants | None = None) -> Counted:
    """Run a point's loop.

    Args:
        point: one that is not left out.
        constants: the acceptance of drafts is taken from them; None for those of the catalog.
    """
    drafts = 0 if point.layout is None else point.layout.draft_tokens
    loop = point.loop(tokens_a_step(point.values(constants)["acceptance"], drafts))
    return Counted(loop, run_closed_loop(point.params(constants), loop))


def observed(point: Point, counted: Counted) -> Observation:
    """A point with its steps put together."""
    loop = counted.loop
    rows, ttft, tpot = _put_together(counted.steps, loop.outputs)
    mean_prompt = float(loop.prompts.mean())
    return Observation(point, rows, ttft, tpot, mean_prompt, loop.tokens_a_step)


def observe_all(
    points: Sequence[Point], constants: Constants, *, jobs: int | None = None
) -> list[Observation]:
    """Count the steps of many points, several at once.

    Args:
        points: none of which is left out.
        constants: as for ``observe``.
        jobs: processes; None for all cores.
    """
    num_parts = max(len(points) // 24, 1)
    tasks = [(points[part::num_parts], constants) for part in range(num_parts)]
    found: list[Observation | None] = [None] * len(points)
    for part, seen in each(_observe_part, tasks, jobs=jobs):
        found[part::num_parts] = seen
    return [observation for observation in found if observation is not None]


def _observe_part(task: tuple[Sequence[Point], Constants]) -> list[Observation]:
    points, constants = task
    return [observe(point, constants) for point in points]


def _put_together(steps: Steps, outputs: Ints) -> tuple[Floats, Floats, Floats]:
    """Kinds of steps that are alike to a few percent, and how often requests wait for each."""
    num, requests = len(steps.rows), len(outputs)
    ttft, tpot = np.zeros(num + 2), np.zeros(num + 2)
    np.add.at(ttft, steps.arrival, 1 / requests)
    np.add.at(ttft, steps.first + 1, -1 / requests)
    several = outputs > 1
    each = 1 / (outputs[several] - 1) / max(int(several.sum()), 1)
    np.add.at(tpot, steps.first[several] + 1, each)
    np.add.at(tpot, steps.end[several] + 1, -each)
    ttft, tpot = np.cumsum(ttft)[:num], np.cumsum(tpot)[:num]
    c = closed_loop
    rows = steps.rows
    decodes = rows[:, c.TOKENS] - rows[:, c.PROMPT_TOKENS]
    of = ((decodes, 6), (rows[:, c.PROMPT_TOKENS], 4), (rows[:, c.KV_BYTES], 4))
    parts = [np.round(np.log2(values + 1) * fine) for values, fine in of]
    parts.append(np.round(np.log2(rows[:, c.PROMPT_FLOPS] + 1) * 2))
    _, kind = np.unique(np.stack(parts, 1), axis=0, return_inverse=True)
    kind = kind.ravel()
    weight = ttft / max(ttft.sum(), 1e-12) + tpot / max(tpot.sum(), 1e-12) + 1e-12
    total = np.bincount(kind, weight)
    means = [np.bincount(kind, weight * rows[:, k]) / total for k in range(NUM_COLUMNS)]
    weights = [np.bincount(kind, times).astype(np.float64) for times in (ttft, tpot)]
    return np.stack(means, 1), weights[0], weights[1]


@njit
def _weighted(
    scalar_rows: Floats,
    start: Ints,
    rows: Floats,
    ttft_weight: Floats,
    tpot_weight: Floats,
    ttft_s: Floats,
    tpot_s: Floats,
) -> None:
    for i in range(start.size - 1):
        ttft, tpot = 0.0, 0.0
        for r in range(start[i], start[i + 1]):
            row = rows[r]
            held = Composition(
                row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8]
            )
            a, b, d, e, f, g, h, k, m = composed_parts(scalar_rows[i], held)
            seconds = a + b + d + e + f + g + h + k + m
            ttft += seconds * ttft_weight[r]
            tpot += seconds * tpot_weight[r]
        ttft_s[i], tpot_s[i] = ttft, tpot


class Fit:
    """Points to be fitted, laid out for many evaluations.

    Attributes:
        constants: where the fit begins; its priors hold it.
        observations: the points.
    """

    def __init__(self, observations: Sequence[Observation], constants: Constants) -> None:
        """Stack what does not change."""
        self.constants = constants
        self.observations = tuple(observations)
        points = [seen.point for seen in self.observations]
        sizes = [len(seen.rows) for seen in self.observations]
        self._start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._rows = np.concatenate([seen.rows for seen in self.observations])
        self._ttft_weight = np.concatenate([seen.ttft_weight for seen in self.observations])
        self._tpot_weight = np.concatenate([seen.tpot_weight for seen in self.observations])
        self._work = stacked([point.work() for point in points])
        self._counts = constants.matrix([point.conditions() for point in points])
        self._synchronous = np.array([0.0 if point.asynchronous else 1.0 for point in points])
        self._prompt_tokens = np.array([seen.prompt_tokens for seen in self.observations])
        self._yielded = np.array([seen.tokens_a_step for seen in self.observations])
        self._drafts = np.array([p.layout.draft_tokens if p.layout else 0 for p in points])
        self.ttft_s = np.array([point.ttft_s for point in points])
        self.tpot_s = np.array([point.tpot_s for point in points])
        # A set-up with many points counts more than one with few, but not as often.
        names = [f"{point.set_up}|{point.row.get('spec')}" for point in points]
        count = {name: names.count(name) for name in set(names)}
        weight = np.array([count[name] ** -0.35 for name in names])
        self._root = np.sqrt(weight / weight.mean())
        # With many requests at once the median lies below the mean that is computed here.
        skewed = np.array([p.ttft_is_median and p.concurrency > 16 for p in points])
        self._fits_ttft = np.isfinite(self.ttft_s) & ~skewed
        self._fits_tpot = np.isfinite(self.tpot_s)

    def predict(self, logs: Floats) -> tuple[Floats, Floats]:
        """Mean times of all points, with the logarithms of all entries of the constants."""
        values: dict[str, Floats] = {
            name: np.exp(count @ logs) for name, count in self._counts.items()
        }
        acceptance = np.minimum(values["acceptance"], 0.999)
        yields = (1 - acceptance ** (self._drafts + 1)) / (1 - acceptance)
        rows = scalars(self._work, {**values, "synchronous": self._synchronous})
        ttft_s, tpot_s = np.zeros(len(self.ttft_s)), np.zeros(len(self.ttft_s))
        _weighted(
            np.ascontiguousarray(rows),
            self._start,
            self._rows,
            self._ttft_weight,
            self._tpot_weight,
            ttft_s,
            tpot_s,
        )
        ttft_s += values["request_s"] + values["request_token_s"] * self._prompt_tokens
        return ttft_s, tpot_s * self._yielded / yields

    def _residuals(self, logs: Floats) -> Floats:
        ttft_s, tpot_s = self.predict(logs)
        tpot = (np.log(tpot_s / self.tpot_s) / TPOT_NOISE * self._root)[self._fits_tpot]
        ttft = (np.log(ttft_s / self.ttft_s) / TTFT_NOISE * self._root)[self._fits_ttft]
        seen = np.concatenate([tpot, ttft])
        softened = np.sign(seen) * np.sqrt(2 * (np.sqrt(1 + seen**2) - 1))
        entries = self.constants.entries
        prior = np.log([entry.prior for entry in entries])
        spread = np.array([entry.spread for entry in entries])
        return np.concatenate([softened, (logs - prior) / spread])

    def _slope(self, logs: Floats, seen: Floats) -> Floats:
        slope = np.empty((len(seen), len(logs)))
        for k in range(len(logs)):
            moved = logs.copy()
            moved[k] += 1e-4
            slope[:, k] = (self._residuals(moved) - seen) / 1e-4
        return slope

    def spreads(self) -> Floats:
        """Standard deviation that is left of each logarithm, with the points and the priors.

        Where it is that of the prior, the points say nothing of the constant. Laplace's
        approximation at the values of ``constants``.
        """
        logs = np.log([entry.value for entry in self.constants.entries])
        slope = self._slope(logs, self._residuals(logs))
        spread: Floats = np.sqrt(np.diag(np.linalg.inv(slope.T @ slope)))
        return spread

    def run(self, *, most_steps: int = 20) -> Constants:
        """The constants that fit best: Levenberg and Marquardt's method, from their values on."""
        logs = np.log([entry.value for entry in self.constants.entries])
        seen, damping = self._residuals(logs), 1e-2
        for _ in range(most_steps):
            slope = self._slope(logs, seen)
            normal, pull = slope.T @ slope, slope.T @ seen
            cost, better = float(seen @ seen), False
            for _ in range(6):
                held = normal + damping * np.diag(np.diag(normal))
                trial = logs - np.clip(np.linalg.solve(held, pull), -1.0, 1.0)
                after = self._residuals(trial)
                if float(after @ after) < cost:
                    better = True
                    break
                damping *= 5
            if not better:
                break
            gained = cost - float(after @ after)
            logs, seen, damping = trial, after, damping / 5
            if gained < 1e-4 * cost:
                break
        return self.constants.with_values(np.exp(logs))


def fit_constants(
    observations: Sequence[Observation], constants: Constants, *, most_steps: int = 20
) -> Constants:
    """Constants that fit the points, held by their priors.

    Args:
        observations: at least one.
        constants: where to begin.
        most_steps: of the method.
    """
    return Fit(observations, constants).run(most_steps=most_steps)


@dataclass(frozen=True)
class Errors:
    """Predicted over measured less 1, an entry a point; NaN where nothing was measured.

    Attributes:
        ttft: of the time to the first token.
        tpot: of the time per token after it.
    """

    ttft: Floats
    tpot: Floats


def errors(observations: Sequence[Observation], constants: Constants) -> Errors:
    """How far constants are off, by the means of the steps put together."""
    fit = Fit(observations, constants)
    ttft_s, tpot_s = fit.predict(np.log([entry.value for entry in constants.entries]))
    return Errors(ttft_s / fit.ttft_s - 1, tpot_s / fit.tpot_s - 1)


def held_out_errors(
    observations: Sequence[Observation],
    constants: Constants,
    *,
    folds: int = 4,
    most_steps: int = 8,
) -> Errors:
    """Errors of each point under constants that were fitted to other set-ups.

    Args:
        observations: of more set-ups than ``folds``.
        constants: where to begin.
        folds: parts into which set-ups are divided at random, one of which is left out in turn.
        most_steps: of the method.
    """
    names = sorted({seen.point.set_up for seen in observations})
    np.random.default_rng(1).shuffle(names)
    part = {name: number % folds for number, name in enumerate(names)}
    parts = np.array([part[seen.point.set_up] for seen in observations])
    ttft, tpot = np.full(len(parts), math.nan), np.full(len(parts), math.nan)
    for number in range(folds):
        kept = [seen for seen, own in zip(observations, parts, strict=True) if own != number]
        left = [seen for seen, own in zip(observations, parts, strict=True) if own == number]
        if kept and left:
            off = errors(left, fit_constants(kept, constants, most_steps=most_steps))
            ttft[parts == number], tpot[parts == number] = off.ttft, off.tpot
    return Errors(ttft, tpot)
