"""Draws lengths, durations and popularities."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.scenario.draws import Draw, parse_duration, parse_length

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Recorded:
    """Lengths of a trace, to draw from.

    Attributes:
        prompt_tokens: one a request.
        output_tokens: one a request.
    """

    prompt_tokens: Ints
    output_tokens: Ints


class Lengths:
    """Whole numbers, as a scenario writes their draw."""

    def __init__(self, written: int | str, recorded: Recorded | None = None) -> None:
        """Prepare to draw.

        Args:
            written: as `parse_length` takes it.
            recorded: what the recorded forms draw from.
        """
        self._draw: Draw = parse_length(written, least=0)
        self._recorded = recorded

    def draw(self, rng: np.random.Generator, num: int) -> list[int]:
        """Draw `num` of them; lognormal ones are rounded to 1 or more and cut at their max."""
        if self._draw.form == "lognormal":
            return self._lognormal(rng, num)
        drawn: list[int] = self._drawn(rng, num).tolist()
        return drawn

    def _lognormal(self, rng: np.random.Generator, num: int) -> list[int]:
        given = self._draw.arguments
        most = int(given["max"])
        logs = rng.standard_normal(num)
        logs *= given["sigma"]
        # Few at a time, so the rest is quicker without arrays.
        drawn = [given["median"] * factor for factor in np.exp(logs).tolist()]
        return [min(max(round(value), 1), most) if value < most else most for value in drawn]

    def _drawn(self, rng: np.random.Generator, num: int) -> Ints:
        form, given = self._draw.form, self._draw.arguments
        if form == "fixed":
            return np.full(num, int(given["value"]))
        if form == "uniform":
            low, high = math.ceil(given["low"]), math.floor(given["high"])
            return rng.integers(low, max(low, high), num, endpoint=True)
        if form == "geometric":
            # Trials up to the first success, of which `least` are made in any case.
            more = math.ceil(given["least"]) - 1
            return more + rng.geometric(1 / max(1.0, given["mean"] - more), num)
        assert self._recorded is not None, "checked with the scenario"
        of_prompts = form == "recorded-prompt"
        lengths = self._recorded.prompt_tokens if of_prompts else self._recorded.output_tokens
        return rng.choice(lengths, num)

    def one(self, rng: np.random.Generator) -> int:
        """Draw one."""
        return self.draw(rng, 1)[0]


class Durations:
    """Seconds, as a scenario writes their draw."""

    def __init__(self, written: float | str) -> None:
        """Prepare to draw, as `parse_duration` takes it."""
        self._draw = parse_duration(written)

    def draw(self, rng: np.random.Generator, num: int) -> list[float]:
        """Draw `num` of them."""
        drawn: list[float] = self._drawn(rng, num).tolist()
        return drawn

    def _drawn(self, rng: np.random.Generator, num: int) -> Floats:
        form, given = self._draw.form, self._draw.arguments
        if form == "fixed":
            return np.full(num, given["value"])
        if form == "uniform":
            return rng.uniform(given["low_s"], given["high_s"], num)
        if form == "exponential":
            return rng.exponential(given["mean_s"], num)
        drawn = given["median_s"] * np.exp(given["sigma"] * rng.standard_normal(num))
        return np.minimum(drawn, given["max_s"])


class Zipf:
    """Ranks from 0, where rank k is drawn in proportion to ``(k + 1) ** -exponent``."""

    def __init__(self, num: int, exponent: float) -> None:
        """Prepare to draw from `num` ranks; an exponent of 0 draws all alike."""
        weights = np.arange(1, num + 1, dtype=np.float64) ** -exponent
        self._cumulative = np.cumsum(weights)
        self._cumulative /= self._cumulative[-1]
        self._listed: list[float] = self._cumulative.tolist()

    @property
    def num(self) -> int:
        """How many ranks there are."""
        return len(self._cumulative)

    def one(self, rng: np.random.Generator) -> int:
        """Draw a rank."""
        return min(bisect_right(self._listed, rng.random()), self.num - 1)

    def distinct(self, rng: np.random.Generator, num: int) -> list[int]:
        """Draw different ranks, all of them where `num` is more than there are.

        One after another, each in proportion to its weight among those not drawn yet; then they are
        put in random order, so that the place says nothing about popularity.
        """
        num = min(num, self.num)
        found: dict[int, None] = {}
        # Drawing again what was drawn before is the same as drawing from the rest.
        for _ in range(64 * num):
            if len(found) == num:
                break
            found.setdefault(self.one(rng))
        if len(found) < num:  # nearly all of the weight is drawn: take the rest at once
            weights = np.maximum(np.diff(self._cumulative, prepend=0.0), 1e-300)
            keys = rng.exponential(size=self.num) / weights
            keys[list(found)] = np.inf
            found.update(dict.fromkeys(np.argsort(keys)[: num - len(found)].tolist()))
        ranks = list(found)
        rng.shuffle(ranks)
        return ranks
