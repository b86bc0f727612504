"""Makes the catalog's constants anew: a fit to all points, and errors of set-ups left out in turn.

Points of ``vllm-issue`` are in no fit: figures of the project's list that step times are held
against (`published figures`) come from there. To renew the catalog::

    from kvsim.study.refit import refit, write_catalog
    constants, observations, held_out = refit(read_measured(path))
    write_catalog(constants)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvsim import catalog
from kvsim.study.fitting_times import (
    Errors,
    Observation,
    errors,
    fit_constants,
    held_out_errors,
    observe_all,
)
from kvsim.study.measured import Point
from kvsim.times.constants import Constants, catalog_constants, constants_yaml

_NO_FIT = ("vllm-issue",)
SOURCE = (
    "public measurements of July 2025 to July 2026: InferenceX (SemiAnalysis), NVIDIA's sweep in "
    "aisimulate, SGLang's cookbook, NVIDIA NIM's documentation"
)


def fitted_points(points: Sequence[Point]) -> list[Point]:
    """Points that constants are fitted to: expressed, and of no published figure to be met."""
    return [
        point
        for point in points
        if point.left_out is None and point.row.get("source") not in _NO_FIT
    ]


def refit(
    points: Sequence[Point], *, jobs: int | None = None, most_steps: int = 12
) -> tuple[Constants, list[Observation], Errors]:
    """Fit all constants of the catalog, from their present values on.

    Args:
        points: measurements, left out or not.
        jobs: processes; None for all cores.
        most_steps: of the method, for the whole; folds take half of it.

    Returns:
        The constants with what is said of their fit; the points; and errors of each point under
        constants that were fitted to other set-ups.
    """
    observations = observe_all(fitted_points(points), catalog_constants(), jobs=jobs)
    constants = fit_constants(observations, catalog_constants(), most_steps=most_steps)
    held_out = held_out_errors(observations, constants, most_steps=max(most_steps // 2, 1))
    return describe_fit(constants, observations, held_out), observations, held_out


def describe_fit(
    constants: Constants, observations: Sequence[Observation], held_out: Errors
) -> Constants:
    """The constants with counts and errors of their fit, set-up by set-up."""
    own = errors(observations, constants)
    by_set_up: dict[str, list[int]] = {}
    for number, seen in enumerate(observations):
        by_set_up.setdefault(seen.point.set_up, []).append(number)
    fit = {
        "source": SOURCE,
        "points": len(observations),
        "tpot_fitted": _pair(own.tpot),
        "tpot_held_out": _pair(held_out.tpot),
        "ttft_fitted": _pair(own.ttft),
        "ttft_held_out": _pair(held_out.ttft),
        "set_ups": {
            name: [len(numbers), _median(held_out.ttft[numbers]), _median(held_out.tpot[numbers])]
            for name, numbers in sorted(by_set_up.items())
        },
    }
    return Constants(constants.entries, fit)


def write_catalog(constants: Constants) -> Path:
    """Write the catalog's file of constants; the path of it."""
    path = Path(catalog.__file__).parent / "step_times.yaml"
    path.write_text(constants_yaml(constants), encoding="utf-8")
    return path


def _pair(signed: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[float | None]:
    sizes = np.abs(signed[np.isfinite(signed)])
    if not len(sizes):
        return [None, None]
    return [round(float(value), 3) for value in np.quantile(sizes, (0.5, 0.9))]


def _median(signed: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float | None:
    median = _pair(signed)[0]
    return None if median is None or math.isnan(median) else median
