"""How far figures can be trusted: intervals over seeds, and over the stretches of one workload.

All intervals hold 95%. Over seeds they are Student's t for the mean. For one run, requests in
order of arrival are cut into `NUM_STRETCHES` stretches, and the figure is computed again of as many
stretches drawn with replacement (a block bootstrap: neighbours depend on each other, stretches
hardly). That tells how much a figure rests on a part of the workload; it cannot tell what another
day's traffic would have given. References: Student (1908); Kuensch, "The jackknife and the
bootstrap for general stationary observations", Annals of Statistics 17 (1989).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvsim.metrics.figures import column_figures, columns_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from kvsim.scenario import Objective

NUM_STRETCHES = 20
"""Stretches of equally many requests that a run is cut into."""
NUM_DRAWS = 400
"""Times that stretches are drawn."""
NUM_REQUESTS_MIN = 10 * NUM_STRETCHES
"""Fewest requests that stretches are made of; with fewer there is no interval."""
_INSIDE = 0.95


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95% interval of the mean of independent values; None for one value."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return t_quantile(count - 1) * math.sqrt(variance / count)


def t_quantile(freedom: int) -> float:
    """The t that 95% of Student's distribution lie within, for 1 or more degrees of freedom."""
    low, high = 0.0, 1.0
    while _share_within(high, freedom) < _INSIDE:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_within(middle, freedom) < _INSIDE else (low, middle)
    return high


def _share_within(t: float, freedom: int) -> float:
    """The share of Student's distribution within -t to t: Abramowitz and Stegun 26.7.3, 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    return (angle + math.sin(angle) * total) * 2 / math.pi if odd else math.sin(angle) * total


def over_stretches(
    num_requests: int, figures: Callable[[npt.NDArray[np.int64]], Mapping[str, float]]
) -> dict[str, tuple[float, float]]:
    """The 95% interval of each figure over the stretches of a run.

    Args:
        num_requests: requests of the run, in order of arrival.
        figures: from numbers of requests, counted from 0 and some of them several times, to
            figures.

    Returns:
        Low and high end by name; empty for fewer than `NUM_REQUESTS_MIN` requests. Without a
        figure that does not exist in one of the draws, as of a class of requests that some
        stretches have none of.
    """
    drawn = [figures(rows) for rows in drawn_stretches(num_requests)]
    names = [name for name in drawn[0] if all(name in one for one in drawn)] if drawn else []
    return {
        name: interval
        for name in names
        if (interval := interval_of(np.array([one[name] for one in drawn]))) is not None
    }


def drawn_stretches(num_requests: int) -> Iterator[npt.NDArray[np.int64]]:
    """The stretches of a run, drawn with replacement: numbers of requests, `NUM_DRAWS` times.

    The draws are no part of the simulation's: the same for every run of as many requests, so that
    figures of two runs over one draw are of the same requests. None for too few requests.
    """
    if num_requests < NUM_REQUESTS_MIN:
        return
    stretches = np.array_split(np.arange(num_requests), NUM_STRETCHES)
    draws = np.random.default_rng(0).integers(NUM_STRETCHES, size=(NUM_DRAWS, NUM_STRETCHES))
    for draw in draws:
        yield np.concatenate([stretches[number] for number in draw])


def interval_of(values: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """The 95% interval of a figure by its values over the draws; None where one is missing."""
    if not values.size or np.isnan(values).any():
        return None
    tail = (1 - _INSIDE) / 2
    low, high = np.quantile(values, (tail, 1 - tail))
    return float(low), float(high)


def level_half_widths(
    requests: pd.DataFrame, objective: Objective | None = None
) -> dict[str, float]:
    """Half the width of the interval over stretches, by figure of `column_figures`."""
    columns = columns_of(requests, objective)
    intervals = over_stretches(
        len(requests),
        lambda rows: column_figures({name: column[rows] for name, column in columns.items()}),
    )
    return {name: (high - low) / 2 for name, (low, high) in intervals.items()}
