"""Holds step times against measured points: simulates each, and says how far off it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.study.fitting_times import Counted, count_steps
from kvsim.study.measured import Point
from kvsim.study.parallel import each
from kvsim.times.closed_loop import loop_seconds
from kvsim.times.constants import Constants

LOADS = ((1, "1"), (4, "2-4"), (16, "5-16"), (64, "17-64"), (256, "65-256"), (1 << 62, "above 256"))
"""Concurrencies that belong together, and how they are named."""
_AT_ONCE = 24


@dataclass(frozen=True)
class Prediction:
    """A point and what was predicted for it; NaN where it was left out.

    Attributes:
        point: the measurement.
        ttft_s: the mean, or the median where that was measured.
        tpot_s: the same of the time per token after the first.
    """

    point: Point
    ttft_s: float
    tpot_s: float

    @property
    def ttft_error(self) -> float:
        """``|predicted / measured - 1|``; NaN where it is not compared."""
        return abs(self.ttft_s / self.point.ttft_s - 1)

    @property
    def tpot_error(self) -> float:
        """``|predicted / measured - 1|``; NaN where it was not measured."""
        return abs(self.tpot_s / self.point.tpot_s - 1)

    def as_json(self) -> dict[str, Any]:
        """The entry of ``points``."""
        return {
            "id": self.point.row["id"],
            "ttft_s": _or_null(self.ttft_s),
            "tpot_s": _or_null(self.tpot_s),
            "ttft_error": _or_null(self.ttft_error),
            "tpot_error": _or_null(self.tpot_error),
            "left_out": self.point.left_out,
        }


def predict(
    point: Point, constants: Constants | None = None, counted: Counted | None = None
) -> Prediction:
    """Simulate a point.

    Args:
        point: left out or not.
        constants: None for those of the catalog.
        counted: its steps, where they have been counted with the same acceptance of drafts.
    """
    if point.left_out is not None or point.layout is None:
        return Prediction(point, math.nan, math.nan)
    params, values = point.params(constants), point.values(constants)
    counted = counted or count_steps(point, constants)
    loop = counted.loop
    ttft_s, tpot_s = loop_seconds(params, counted.steps, loop.outputs)
    ttft_s = ttft_s + values["request_s"] + values["request_token_s"] * loop.prompts
    tpot_s = tpot_s[np.isfinite(tpot_s)]
    return Prediction(
        point,
        _middle(ttft_s, point.ttft_is_median),
        _middle(tpot_s, point.tpot_is_median) if len(tpot_s) else math.nan,
    )


def predict_all(
    points: Sequence[Point],
    constants: Constants | None = None,
    *,
    jobs: int | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> list[Prediction]:
    """Simulate many points, several at once.

    Args:
        points: left out or not.
        constants: None for those of the catalog.
        jobs: processes; None for all cores.
        on_progress: told the share that is done, 0 to 1.
    """
    # The longest loops are spread over the parts, so that no process is left with all of them.
    order = sorted(range(len(points)), key=lambda number: -points[number].concurrency)
    num_parts = max(len(points) // _AT_ONCE, 1)
    parts = [order[part::num_parts] for part in range(num_parts)]
    tasks = [([points[number] for number in part], constants) for part in parts]
    found: dict[int, Prediction] = {}
    for done, (part, predictions) in enumerate(each(_predict_part, tasks, jobs=jobs), start=1):
        found |= dict(zip(parts[part], predictions, strict=True))
        if on_progress is not None:
            on_progress(done / len(tasks))
    return [found[number] for number in range(len(points))]


def _predict_part(task: tuple[list[Point], Constants | None]) -> list[Prediction]:
    points, constants = task
    return [predict(point, constants) for point in points]


@dataclass(frozen=True)
class Off:
    """How far predictions are off.

    Attributes:
        n: points compared.
        median: of ``|predicted / measured - 1|``; NaN without points.
        p90: its ninth decile.
        bias: median of predicted over measured, less 1.
    """

    n: int
    median: float
    p90: float
    bias: float


def off(predicted: Iterable[float], measured: Iterable[float]) -> Off:
    """How far predictions are off; pairs with NaN are left out."""
    ratios = np.array(list(predicted)) / np.array(list(measured)) - 1
    ratios = ratios[np.isfinite(ratios)]
    if not len(ratios):
        return Off(0, math.nan, math.nan, math.nan)
    sizes = np.abs(ratios)
    median, p90 = np.quantile(sizes, (0.5, 0.9))
    return Off(len(ratios), float(median), float(p90), float(np.median(ratios)))


def errors_of(predictions: Sequence[Prediction]) -> tuple[Off, Off]:
    """How far times to the first token are off, and times per token after it."""
    ttft = off((p.ttft_s for p in predictions), (p.point.ttft_s for p in predictions))
    tpot = off((p.tpot_s for p in predictions), (p.point.tpot_s for p in predictions))
    return ttft, tpot


def load_of(point: Point) -> str:
    """The name of the point's concurrency among ``LOADS``."""
    return next(name for most, name in LOADS if point.concurrency <= most)


GROUPS: dict[str, Callable[[Point], str]] = {
    "model": lambda point: point.row["model"],
    "GPU": lambda point: point.row["gpu"],
    "engine": lambda point: point.engine,
    "load": load_of,
}
"""What errors are reported by."""


def grouped(predictions: Sequence[Prediction], by: str) -> list[tuple[str, Off, Off]]:
    """Errors of each group: its name, TTFT, TPOT; those that were left out are in none."""
    name_of = GROUPS[by]
    groups: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        if prediction.point.left_out is None:
            groups.setdefault(name_of(prediction.point), []).append(prediction)
    names = sorted(groups)
    if by == "load":
        names = [name for _, name in LOADS if name in groups]
    return [(name, *errors_of(groups[name])) for name in names]


def left_out(predictions: Sequence[Prediction]) -> dict[str, list[str]]:
    """Why points were left out, and which, by their ids."""
    reasons: dict[str, list[str]] = {}
    for prediction in predictions:
        if prediction.point.left_out is not None:
            ids = reasons.setdefault(prediction.point.left_out, [])
            ids.append(prediction.point.row["id"])
    return reasons


def as_json(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """All points, and the errors together."""
    ttft, tpot = errors_of(predictions)
    return {
        "points": [prediction.as_json() for prediction in predictions],
        "ttft": {"n": ttft.n, "median": _or_null(ttft.median), "p90": _or_null(ttft.p90)},
        "tpot": {"n": tpot.n, "median": _or_null(tpot.median), "p90": _or_null(tpot.p90)},
    }


def _middle(values: npt.NDArray[np.float64], median: bool) -> float:
    return float(np.median(values) if median else np.mean(values))


def _or_null(value: float) -> float | None:
    return None if math.isnan(value) else value
