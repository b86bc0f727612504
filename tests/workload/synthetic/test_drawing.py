"""Lengths, durations and popularities against their distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvsim.workload.streams import stream
from kvsim.workload.synthetic.drawing import Durations, Lengths, Recorded, Zipf

NUM = 20_000


def lengths(written: int | str, recorded: Recorded | None = None) -> np.ndarray:
    return np.array(Lengths(written, recorded).draw(stream(0, "lengths"), NUM))


def test_fixed_and_uniform_lengths() -> None:
    assert set(lengths(200).tolist()) == {200}
    drawn = lengths("uniform(low=3, high=6)")
    assert np.unique(drawn, return_counts=True)[0].tolist() == [3, 4, 5, 6]
    assert drawn.mean() == pytest.approx(4.5, rel=0.02)


def test_lognormal_lengths() -> None:
    drawn = lengths("lognormal(median=1000, sigma=0.8)")
    assert np.median(drawn) == pytest.approx(1000, rel=0.03)
    assert np.log(drawn).std() == pytest.approx(0.8, rel=0.03)
    assert drawn.mean() == pytest.approx(1000 * math.exp(0.8**2 / 2), rel=0.05)


def test_lognormal_lengths_are_cut_at_their_max_and_at_1() -> None:
    drawn = lengths("lognormal(median=3, sigma=3, max=50)")
    assert (drawn.min(), drawn.max()) == (1, 50)


def test_geometric_lengths_have_their_mean() -> None:
    drawn = lengths("geometric(mean=4)")
    assert drawn.min() == 1
    assert drawn.mean() == pytest.approx(4, rel=0.04)
    assert (drawn == 1).mean() == pytest.approx(1 / 4, abs=0.015)


def test_recorded_lengths_come_from_the_trace() -> None:
    recorded = Recorded(np.array([5, 5, 5, 9]), np.array([1, 2, 2, 2]))
    prompts = lengths("recorded-prompt", recorded)
    assert set(prompts.tolist()) == {5, 9}
    assert (prompts == 5).mean() == pytest.approx(0.75, abs=0.015)
    assert (lengths("recorded-output", recorded) == 1).mean() == pytest.approx(0.25, abs=0.015)


def test_durations() -> None:
    def drawn(written: float | str) -> np.ndarray:
        return np.array(Durations(written).draw(stream(0, "durations"), NUM))

    assert set(drawn("2 min").tolist()) == {120.0}
    assert set(drawn(0.5).tolist()) == {0.5}
    assert drawn("exponential(mean_s=30 s)").mean() == pytest.approx(30, rel=0.04)
    uniform = drawn("uniform(low_s=1, high_s=3)")
    assert (
        uniform.min() >= 1 and uniform.max() <= 3 and uniform.mean() == pytest.approx(2, rel=0.02)
    )
    lognormal = drawn("lognormal(median_s=2, sigma=1, max_s=1 min)")
    assert np.median(lognormal) == pytest.approx(2, rel=0.04)
    assert lognormal.max() == 60


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.0, 2.0])
def test_zipf_has_its_shares(exponent: float) -> None:
    zipf, rng = Zipf(50, exponent), stream(0, "zipf")
    counts = np.bincount([zipf.one(rng) for _ in range(NUM)], minlength=50)
    weights = np.arange(1, 51) ** -exponent
    expected = weights / weights.sum() * NUM
    # Five standard deviations of a count.
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 2).all()


def test_distinct_ranks_are_distinct_and_in_random_order() -> None:
    zipf, rng = Zipf(20, 1.0), stream(0, "zipf")
    drawn = [zipf.distinct(rng, 5) for _ in range(4000)]
    assert all(len(set(ranks)) == 5 for ranks in drawn)
    places = [ranks.index(0) for ranks in drawn if 0 in ranks]
    counts = np.bincount(places, minlength=5) / len(places)
    assert counts == pytest.approx(0.2, abs=0.03)
    # The first of a draw without replacement is drawn by weight; popular ones are in more often.
    assert sum(0 in ranks for ranks in drawn) > 2 * sum(9 in ranks for ranks in drawn)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 20.0])
def test_all_ranks_can_be_drawn_however_rare(exponent: float) -> None:
    zipf, rng = Zipf(30, exponent), stream(0, "zipf")
    assert sorted(zipf.distinct(rng, 30)) == list(range(30))
    assert sorted(zipf.distinct(rng, 99)) == list(range(30))
    assert len(set(zipf.distinct(rng, 12))) == 12


def test_drawing_without_replacement_is_exact() -> None:
    # Two of three: the chance that the least popular one is left out.
    zipf, rng = Zipf(3, 1.0), stream(0, "zipf")
    weights = np.array([1, 1 / 2, 1 / 3])
    share = weights / weights.sum()
    left_out = share[0] * share[1] / (1 - share[0]) + share[1] * share[0] / (1 - share[1])
    drawn = sum(2 not in zipf.distinct(rng, 2) for _ in range(NUM))
    assert drawn / NUM == pytest.approx(left_out, abs=0.015)
