"""Which run is best: figure by figure, beyond the noise; equal ones are equal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvsim.study.ranking import Noise, rank


def runs(**figures: dict[str, Any]) -> pd.DataFrame:
    """A row a label; lists are seeds."""
    rows = []
    for label, own in figures.items():
        lists = [value for value in own.values() if isinstance(value, list)]
        for seed in range(len(lists[0]) if lists else 1):
            row = {name: v[seed] if isinstance(v, list) else v for name, v in own.items()}
            defaults = {"token_hit_rate": 0.4, "ttft_s.p50": 0.2, "goodput": None}
            moved = {"bytes_stored": 0, "bytes_loaded": 0}
            rows.append({"label": label, "seed": seed, **defaults, **moved, **row})
    return pd.DataFrame(rows)


def requests(hits: list[int], ttft_s: float = 0.2) -> pd.DataFrame:
    """Requests of 100 tokens, so many of them found."""
    count = len(hits)
    return pd.DataFrame(
        {
            "prompt_tokens": [100] * count,
            "hit_tokens": hits,
            "external_hit_tokens": [0] * count,
            "ttft_s": [ttft_s] * count,
            "tpot_s": [0.01] * count,
            "queue_s": [0.0] * count,
        }
    )


def test_a_tie_in_goodput_falls_to_the_tokens_found() -> None:
    frame = runs(
        dense={"goodput": 1.0, "token_hit_rate": 0.064},
        boundary={"goodput": 1.0, "token_hit_rate": 0.402},
    )
    ranking = rank(frame)
    assert ranking.best == ("boundary",)
    assert ranking.decided_by is not None
    assert ranking.decided_by.column == "token_hit_rate"
    assert ranking.behind["dense"].column == "token_hit_rate"
    assert not ranking.noise_known


@pytest.mark.parametrize(
    ("figures", "column"),
    [
        ({"goodput": (0.9, 0.95)}, "goodput"),
        ({"goodput": (0.0, 0.0), "token_hit_rate": (0.2, 0.3)}, "token_hit_rate"),
        ({"token_hit_rate": (0.3, 0.3005), "ttft_s.p50": (0.3, 0.2)}, "ttft_s.p50"),
        (
            {"ttft_s.p50": (0.2, 0.2015), "bytes_stored": (5e9, 1e9), "bytes_loaded": (1e9, 1e9)},
            "bytes_moved",
        ),
    ],
)
def test_each_figure_decides_where_those_before_tie(
    figures: dict[str, tuple[float, float]], column: str
) -> None:
    frame = runs(
        worse={name: pair[0] for name, pair in figures.items()},
        better={name: pair[1] for name, pair in figures.items()},
    )
    ranking = rank(frame)
    assert ranking.best == ("better",)
    assert ranking.decided_by is not None
    assert ranking.decided_by.column == column


def test_more_found_beats_a_quicker_first_token() -> None:
    frame = runs(
        quick={"token_hit_rate": 0.3, "ttft_s.p50": 0.1},
        full={"token_hit_rate": 0.5, "ttft_s.p50": 0.2},
    )
    assert rank(frame).best == ("full",)


def test_thirty_equal_ones_have_no_winner() -> None:
    ranking = rank(runs(**{f"v{n}": {"goodput": 1.0} for n in range(30)}))
    assert len(ranking.best) == 30
    assert not ranking.has_winner
    assert ranking.equal
    assert ranking.behind == {}


def test_equal_ones_share_the_first_place() -> None:
    ranking = rank(
        runs(a={"token_hit_rate": 0.1}, b={"token_hit_rate": 0.4}, c={"token_hit_rate": 0.4})
    )
    assert ranking.best == ("b", "c")
    assert ranking.equal
    assert list(ranking.behind) == ["a"]


def test_seeds_tell_noise_from_a_difference() -> None:
    noisy = runs(a={"token_hit_rate": [0.2, 0.4, 0.3]}, b={"token_hit_rate": [0.39, 0.25, 0.29]})
    assert not rank(noisy).has_winner
    assert not rank(noisy).equal
    paired = runs(a={"token_hit_rate": [0.2, 0.4, 0.3]}, b={"token_hit_rate": [0.22, 0.42, 0.321]})
    ranking = rank(paired)
    assert ranking.best == ("b",)
    assert ranking.noise_known


def test_stretches_tell_noise_from_a_difference_for_one_seed() -> None:
    draws = np.random.default_rng(1)
    base = draws.integers(0, 100, size=400)
    shifted = np.clip(base + draws.integers(-30, 31, size=400), 0, 100)
    more = np.clip(base + 20, 0, 100)
    reads = {"a": base, "b": shifted, "c": more}
    rates = {label: {"token_hit_rate": hits.mean() / 100} for label, hits in reads.items()}

    def read(label: str) -> pd.DataFrame:
        return requests(list(reads[label]))

    two = runs(a=rates["a"], b={"token_hit_rate": rates["a"]["token_hit_rate"] + 0.002})
    assert not rank(two, Noise(read)).has_winner
    ranking = rank(runs(**rates), Noise(read))
    assert ranking.best == ("c",)
    assert ranking.noise_known


def test_a_figure_that_is_missing_comes_last() -> None:
    frame = runs(none={"token_hit_rate": math.nan}, some={"token_hit_rate": 0.1})
    assert rank(frame).best == ("some",)
