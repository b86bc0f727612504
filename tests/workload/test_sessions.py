"""When sessions start: against the theory of each process; sessions as a stream of requests."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from kvsim.cache.content import Content
from kvsim.errors import Problems
from kvsim.scenario.draws import parse_starts
from kvsim.workload.request import After, Request, Session, Turn
from kvsim.workload.sessions import in_open_loop, start_times_s, with_starts
from kvsim.workload.streams import stream

NUM = 20_000


def times(text: str, num: int = NUM, seed: int = 0) -> np.ndarray:
    return np.array(list(start_times_s(parse_starts(text), stream(seed, "starts"), num)))


def session(name: str, start_s: float | None, *at_s: float) -> Session:
    content = Content.from_spans([(0, 10)])
    turns = [Turn(Request(f"{name}{at:g}", at, content, 10, 1, 1)) for at in at_s]
    return Session(name, start_s, turns)


@pytest.mark.parametrize(
    "text",
    [
        "together",
        "uniform(span_s=1 h)",
        "constant(per_s=2)",
        "poisson(per_s=2)",
        "gamma(per_s=2, cv=3)",
        "ramp(from_per_s=1, to_per_s=5, over_s=10 min)",
        "diurnal(mean_per_s=2, swing=0.5, period_s=1 h)",
    ],
)
def test_times_ascend_come_again_and_follow_the_seed(text: str) -> None:
    drawn = times(text, 2000)
    assert len(drawn) == 2000
    assert (np.diff(drawn) >= 0).all() and drawn[0] >= 0
    assert (times(text, 2000) == drawn).all()
    if text not in {"together", "constant(per_s=2)"}:
        assert (times(text, 2000, seed=1) != drawn).all()


def test_constant_and_together() -> None:
    assert times("constant(per_s=4)", 4).tolist() == [0.0, 0.25, 0.5, 0.75]
    assert times("together", 3).tolist() == [0.0, 0.0, 0.0]


def test_poisson_has_its_rate_and_variance() -> None:
    drawn = times("poisson(per_s=5)")
    gaps = np.diff(drawn, prepend=0)
    # The standard error of the mean gap is 1 / sqrt(NUM), 0.7 %.
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.03)
    counts = np.bincount(drawn.astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_gamma_has_its_rate_and_burstiness(cv: float) -> None:
    gaps = np.diff(times(f"gamma(per_s=2, cv={cv})"), prepend=0)
    assert gaps.mean() == pytest.approx(1 / 2, rel=4 * cv / math.sqrt(NUM) + 0.01)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_uniform_is_uniform() -> None:
    drawn = times("uniform(span_s=100)")
    expected = (np.arange(NUM) + 0.5) / NUM * 100
    # Kolmogorov's bound at one in a million.
    assert np.abs(drawn - expected).max() / 100 < 2.7 / math.sqrt(NUM)


@pytest.mark.parametrize(("begin", "end"), [(1, 5), (5, 1), (0, 4), (3, 3)])
def test_ramp_has_its_rate_at_every_time(begin: float, end: float) -> None:
    over_s = 2000.0
    drawn = times(f"ramp(from_per_s={begin}, to_per_s={end}, over_s={over_s})")
    edges = np.linspace(0, over_s, 11)
    counts = np.histogram(drawn, edges)[0]
    middle = (edges[:-1] + edges[1:]) / 2
    expected = (begin + (end - begin) * middle / over_s) * over_s / 10
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 1).all()
    if drawn[-1] > over_s + 100:
        rest = drawn[drawn > over_s]
        assert len(rest) / (rest[-1] - over_s) == pytest.approx(end, rel=0.05)


def test_diurnal_swings() -> None:
    drawn = times("diurnal(mean_per_s=2, swing=0.8, period_s=1000)")
    counts = np.histogram(drawn % 1000, 10, (0, 1000))[0]
    edges = np.linspace(0, 2 * np.pi, 11)
    shape = np.diff(edges - 0.8 * np.cos(edges)) / (2 * np.pi)
    expected = shape * NUM
    assert (np.abs(counts - expected) < 6 * np.sqrt(expected)).all()
    assert NUM / drawn[-1] == pytest.approx(2, rel=0.05)


def test_recorded_starts_have_to_be_there() -> None:
    recorded = [session("a", 3.0, 0), session("b", 4.0, 0)]
    assert [s.start_s for s in with_starts(recorded, None, 0, "t.jsonl")] == [3.0, 4.0]
    with pytest.raises(Problems) as caught:
        list(with_starts([session("a", None, 0)], None, 0, "t.jsonl"))
    assert caught.value.problems == [
        "when sessions start is not recorded. Say it with workload.sessions.starts (on the command "
        "line --starts), as in 'uniform(span_s=12 h)'."
    ]


def test_uniform_starts_are_drawn_in_the_order_of_the_file() -> None:
    sessions = [session(str(n), None, 0) for n in range(50)]
    drawn = random.Random(0)
    expected = sorted((drawn.uniform(0, 3600), str(n)) for n in range(50))
    placed = list(with_starts(sessions, "uniform(span_s=1 h)", 0, "t"))
    assert [(s.start_s, s.session_id) for s in placed] == expected


def test_other_starts_keep_the_order_of_the_file() -> None:
    sessions = (session(str(n), None, 0) for n in itertools.count())
    placed = list(itertools.islice(with_starts(sessions, "poisson(per_s=2)", 3, "t"), 100))
    assert [s.session_id for s in placed] == [str(n) for n in range(100)]
    assert [s.start_s for s in placed] == times("poisson(per_s=2)", 100, seed=3).tolist()


def test_an_open_loop_is_sorted_by_arrival() -> None:
    sessions = [
        session("a", 0.0, 0, 10, 20),
        session("b", 5.0, 0, 5, 1),
        session("c", 10.0, 0),
        session("d", 100.0, 0),
    ]
    stream_of = list(in_open_loop(sessions))
    assert [(r.request_id, r.arrival_s) for r in stream_of] == [
        ("a0", 0.0),
        ("b0", 5.0),
        ("b1", 6.0),
        ("a10", 10.0),
        ("b5", 10.0),
        ("c0", 10.0),
        ("a20", 20.0),
        ("d0", 100.0),
    ]


def test_an_open_loop_counts_delays_from_arrival_to_arrival() -> None:
    untimed = session("a", 5.0, 0, 0, 0)
    untimed.timed = False
    untimed.turns[1].after = (After(0, 2.0),)
    untimed.turns[2].after = (After(0, 0.5), After(1, 1.0))
    assert [request.arrival_s for request in in_open_loop([untimed])] == [5.0, 7.0, 8.0]


def test_an_open_loop_reads_no_further_than_it_has_to() -> None:
    num_read = 0

    def endless():
        nonlocal num_read
        for number in itertools.count():
            num_read += 1
            yield session(str(number), float(number), 0.0, 2.5)

    requests = in_open_loop(endless())
    for _ in range(2000):
        next(requests)
    assert num_read < 1010
