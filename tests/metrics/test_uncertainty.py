"""Intervals: against printed tables, against theory, and where there are none."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from kvsim.metrics.figures import column_figures, columns_of, flat_figures
from kvsim.metrics.uncertainty import (
    NUM_REQUESTS_MIN,
    half_width,
    level_half_widths,
    over_stretches,
    t_quantile,
)


@pytest.mark.parametrize(
    ("freedom", "printed"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042)],
)
def test_students_t_is_that_of_the_tables(freedom: int, printed: float) -> None:
    assert t_quantile(freedom) == pytest.approx(printed, abs=5e-4)


def test_students_t_becomes_normal() -> None:
    assert t_quantile(100_000) == pytest.approx(1.95996, abs=1e-4)


def test_half_width_of_a_mean() -> None:
    # 1, 2, 3: standard error 1 / sqrt(3), t with 2 degrees of freedom.
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.30265 / math.sqrt(3), rel=1e-4)
    assert half_width([5.0, 5.0]) == 0.0
    assert half_width([5.0]) is None


def test_an_interval_over_stretches_is_that_of_the_mean() -> None:
    values = np.random.default_rng(1).normal(10.0, 3.0, 4000)
    intervals = over_stretches(len(values), lambda rows: {"mean": float(values[rows].mean())})
    low, high = intervals["mean"]
    assert low < values.mean() < high
    # Independent values: as wide as the textbook's interval of the mean, within a third.
    assert (high - low) / 2 == pytest.approx(1.96 * 3.0 / math.sqrt(4000), rel=0.34)


def test_dependent_neighbours_make_it_wider() -> None:
    steps = np.repeat(np.random.default_rng(2).normal(0.0, 1.0, 20), 200)
    low, high = over_stretches(4000, lambda rows: {"mean": float(steps[rows].mean())})["mean"]
    assert (high - low) / 2 > 5 * 1.96 / math.sqrt(4000)


def test_few_requests_have_no_interval() -> None:
    assert over_stretches(NUM_REQUESTS_MIN - 1, lambda rows: {"n": 1.0}) == {}
    assert over_stretches(NUM_REQUESTS_MIN, lambda rows: {"n": 1.0, "no": math.nan}) == {
        "n": (1.0, 1.0)
    }


def frame(num_requests: int) -> pd.DataFrame:
    numbers = np.arange(num_requests)
    hit_tokens = pd.Series(numbers % 3 * 100, dtype="Int64")
    hit_tokens[0] = pd.NA
    return pd.DataFrame(
        {
            "prompt_tokens": np.full(num_requests, 400),
            "hit_tokens": hit_tokens,
            "ttft_s": numbers / 10.0,
            "tpot_s": np.full(num_requests, np.nan),
            "queue_s": np.zeros(num_requests),
            "external_hit_tokens": pd.array([40] * num_requests, dtype="Int64"),
        }
    )


def test_figures_of_requests() -> None:
    figures = column_figures(columns_of(frame(10)))
    # Nine were looked up: 100 and 200 tokens three times each, and nothing three times.
    assert figures["token_hit_rate"] == 900 / 3600
    assert figures["found_rate"] == (900 + 9 * 40) / 3600
    assert figures["request_hit_rate"] == 6 / 9
    assert figures["ttft_s.p50"] == pytest.approx(0.45)
    assert figures["ttft_s.mean"] == pytest.approx(0.45)
    assert math.isnan(figures["tpot_s.p99"])
    nothing = column_figures({name: column[:0] for name, column in columns_of(frame(3)).items()})
    assert all(math.isnan(value) for value in nothing.values())


def test_levels_have_half_widths_where_they_exist() -> None:
    widths = level_half_widths(frame(400))
    assert widths["queue_s.p99"] == 0.0
    assert widths["ttft_s.mean"] > 1.0
    assert "tpot_s.p50" not in widths
    assert level_half_widths(frame(50)) == {}


def test_a_summary_laid_flat() -> None:
    summary = {
        "rate": 0.5,
        "none": None,
        "ttft_s": {"p50": 1.0},
        "tiers": {"cpu": {"by_group": [{"bytes_stored": 7}, {"bytes_stored": 8}]}},
        "warnings": ["one"],
        "name": "text",
    }
    assert flat_figures(summary) == {
        "rate": 0.5,
        "none": None,
        "ttft_s.p50": 1.0,
        "tiers.cpu.by_group.0.bytes_stored": 7,
        "tiers.cpu.by_group.1.bytes_stored": 8,
    }
