"""Objectives: comparisons of a run's figures with limits, as they are written and judged."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from kvsim.errors import Problems, show, unknown_name
from kvsim.metrics.summary import SUMMARY_KEYS
from kvsim.units import parse_bytes, parse_bytes_per_s, parse_seconds

_FIGURES = (*SUMMARY_KEYS, "fleet")  # which a run of several replicas has too
_COMPARISON = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|<|>)\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class Clause:
    """One comparison of an objective.

    Attributes:
        figure: dotted name in a summary laid flat, as `ttft_s.p99`.
        is_below: whether the figure has to be below the limit, else above.
        strict: whether being at the limit is missing it.
        limit: bound of the figure, in its unit.
    """

    figure: str
    is_below: bool
    strict: bool
    limit: float

    def meets(self, value: float | None) -> bool:
        """Whether a figure meets it; one that does not exist never does."""
        if value is None or math.isnan(value):
            return False
        if value == self.limit:
            return not self.strict
        return (value < self.limit) == self.is_below

    def __str__(self) -> str:
        """As it is written."""
        sign = ("<" if self.is_below else ">") + ("" if self.strict else "=")
        return f"{self.figure} {sign} {self.limit:g}"


def parse_objective(text: str) -> tuple[Clause, ...]:
    """Read ``ttft_s.p99 < 2 and token_hit_rate >= 0.5``; limits may carry units.

    Raises:
        Problems: all parts that are no comparison of a known figure with a number.
    """
    clauses, problems = [], []
    for part in re.split(r"\s+and\s+", text.strip()):
        match = _COMPARISON.fullmatch(part)
        if match is None:
            problems.append(
                f"{show(part)} is no comparison. Write it as in 'ttft_s.p99 < 2 and "
                "token_hit_rate >= 0.5'."
            )
            continue
        figure, sign, limit = match.groups()
        if figure.split(".")[0] not in _FIGURES:
            problems.append(unknown_name("figure", figure.split(".")[0], _FIGURES))
            continue
        try:
            bound = parse_number(limit)
        except ValueError as error:
            problems.append(f"{figure}: {error}")
            continue
        clauses.append(Clause(figure, sign[0] == "<", len(sign) == 1, bound))
    if problems:
        raise Problems("objective", problems)
    return tuple(clauses)


def parse_number(value: object) -> float:
    """A number, or a size, bandwidth or time with its unit, in bytes, bytes a second or seconds.

    Raises:
        ValueError: it is none of them.
    """
    for parse in (parse_seconds, parse_bytes_per_s, parse_bytes):
        try:
            return float(parse(value))
        except ValueError:
            continue
    raise ValueError(f"{show(value)} is no number. Write one, as in 2, '15 ms' or '80 GiB'.")
