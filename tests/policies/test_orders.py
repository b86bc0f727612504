"""Orders and retention against what they stand for, and policies that do what none may do."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvsim.cache.content import Content
from kvsim.cache.manager import KVCache, Sequence
from kvsim.policies.contract import Policy, PolicyError, count, free_queue, retention
from kvsim.policies.facts import (
    BACK,
    FRONT,
    FULL_ATTENTION,
    INTERVAL,
    JUNCTION,
    NO_BOUNDARY,
    REPLAY,
    SLIDING_WINDOW,
    STATE,
)
from kvsim.policies.finding import Chosen, find_policy
from tests.policies.suite import PLAIN, History, make_cache, order


def chosen(policy: Policy, *values: tuple[str, float]) -> Chosen:
    return Chosen("mine", policy, values)


def as_order(function: Callable[..., Any], **options: Any) -> Chosen:
    return chosen(free_queue("a test's own", source="here", **options)(function))


def run(cache: KVCache, uid: int, num_blocks: int = 1, **keep: float) -> tuple[int, list[int]]:
    """A prompt of whole blocks and one token comes and goes: its hit, and the blocks it took."""
    num_tokens = 4 * num_blocks + 1
    sequence = Sequence(Content.from_spans([(uid, num_tokens)]), num_tokens)
    hit = cache.lookup(sequence)
    assert cache.allocate(sequence, num_tokens - hit.tokens, hit=hit)
    if keep:
        cache.tell_request(sequence, 0, int(keep["priority"]), 1000, keep.get("keep_s", math.inf))
    taken = cache.taken(sequence)[0].tolist()
    cache.free(sequence)
    return hit.tokens, taken


def found(cache: KVCache, uid: int) -> bool:
    return cache.lookup(Sequence(Content.from_spans([(uid, 5)]), 5)).tokens > 0


@pytest.mark.parametrize(
    ("engine", "function"),
    [
        ("append", lambda block: BACK),
        ("prepend-uncached", lambda block: BACK if block.cached else FRONT),
        (
            "prepend-uncached-window",
            lambda block: BACK if block.cached or not block.kind else FRONT,
        ),
    ],
)
def test_the_engines_orders_can_be_written(engine: str, function: Callable[..., float]) -> None:
    theirs = History(make_cache(engine), 7)
    ours = History(make_cache(as_order(function, asks_uncached=True)), 7)
    for _ in range(300):
        theirs.step()
        ours.step()
        assert ours.cache.free_queue().tolist() == theirs.cache.free_queue().tolist()
    assert ours.log == theirs.log


@pytest.mark.parametrize(
    ("name", "interval"),
    [("dense", None), ("boundary", 0), ({"name": "interval", "tokens": 12}, 12)],
)
def test_the_engines_retention_can_be_written(name: Any, interval: int | None) -> None:
    theirs = History(make_cache(retention_interval=interval), 8)
    ours = History(make_cache(retention=find_policy("retention", name)), 8)
    for _ in range(300):
        theirs.step()
        ours.step()
        assert ours.cache.cached_blocks().tolist() == theirs.cache.cached_blocks().tolist()
    assert ours.log == theirs.log


def test_what_other_retention_keeps() -> None:
    def kept(name: Any, num_tokens: int = 64) -> list[int]:
        """Boundaries in tokens whose window runs of two blocks are cached."""
        cache = make_cache(retention=find_policy("retention", name), num_blocks=90)
        sequence = Sequence(Content.from_spans([(1, num_tokens)]), 41)
        assert cache.allocate(sequence, num_tokens, hit=cache.lookup(sequence))
        table = cache.block_table(sequence, 1)
        is_cached = cache.core.pool.blocks["key"][table] != 0
        ends = [2 * (i + 1) for i in range(1, len(table)) if is_cached[i] and is_cached[i - 1]]
        return [end for end in ends if end % 4 == 0]

    assert kept("boundary") == [40]
    assert kept("junction") == []
    assert kept({"name": "exponential", "tokens": 6}) == [8, 12, 24, 40, 48]
    assert kept({"name": "next-turn", "tokens": 12}) == [40, 48, 60]
    assert kept({"name": "budget", "share": 0.0}) == [40]
    assert kept({"name": "budget", "share": 1.0, "tokens": 16}) == [16, 32, 40, 48, 64]
    assert kept("hit-driven") == [40]


def test_hit_driven_keeps_where_hits_have_landed() -> None:
    cache = make_cache(retention=find_policy("retention", "hit-driven"), num_blocks=60)

    def request(num_tokens: int, own: int) -> int:
        spans = [(1, num_tokens), (own, 1)]
        sequence = Sequence(Content.from_spans(spans), num_tokens + 1)
        hit = cache.lookup(sequence)
        assert cache.allocate(sequence, num_tokens + 1 - hit.tokens, hit=hit)
        cache.free(sequence)
        return hit.tokens

    assert [request(8, 2), request(8, 3)] == [0, 8]
    for uid in range(10, 30):  # push all of it out
        assert request_of(cache, uid) == 0
    assert [request(20, 4), request(12, 5)] == [0, 8]


def request_of(cache: KVCache, uid: int) -> int:
    sequence = Sequence(Content.from_spans([(uid, 21)]), 21)
    hit = cache.lookup(sequence)
    assert cache.allocate(sequence, 21 - hit.tokens, hit=hit)
    cache.free(sequence)
    return hit.tokens


class TestPriority:
    def cache(self) -> KVCache:
        return make_cache(order("priority"), num_blocks=5, groups=PLAIN)

    def test_the_lowest_leaves_first(self) -> None:
        cache = self.cache()
        run(cache, 1, priority=80)
        run(cache, 2)
        run(cache, 3, priority=10)
        run(cache, 4)
        assert [found(cache, uid) for uid in (1, 2, 3, 4)] == [True, True, False, True]
        run(cache, 5)
        assert [found(cache, uid) for uid in (1, 2, 4, 5)] == [True, False, True, True]

    def test_for_a_while_only(self) -> None:
        cache = self.cache()
        cache.at(0.0)
        run(cache, 1, priority=80, keep_s=10.0)
        run(cache, 2)
        cache.at(11.0)
        run(cache, 3)
        run(cache, 4)
        assert [found(cache, uid) for uid in (1, 2, 3, 4)] == [True, False, True, True]
        run(cache, 5)
        assert not found(cache, 1)


def test_time_to_live() -> None:
    cache = make_cache(order("ttl", ttl=10.0), num_blocks=5, groups=PLAIN)
    run(cache, 1)
    cache.at(1.0)
    run(cache, 1)
    run(cache, 2)
    run(cache, 3)
    cache.at(2.0)
    run(cache, 4)
    assert [found(cache, uid) for uid in (1, 2, 3, 4)] == [True, False, True, True]
    cache.at(11.5)  # by now all but the last have expired
    run(cache, 5)
    assert not found(cache, 1)
    assert found(cache, 4)


def test_pinned_prefixes_leave_last() -> None:
    cache = make_cache(order("pinned", tokens=4, hits=1), num_blocks=6, groups=PLAIN)
    run(cache, 1, 2)
    run(cache, 1, 2)
    for uid in (2, 3, 4, 5):
        run(cache, uid, 2)
    hit, _ = run(cache, 1, 2)
    assert hit == 4


def test_costs_of_depth() -> None:
    facts: list[tuple[float, float, float]] = []

    def note(block: Any) -> float:
        facts.append((float(block.end_tokens), float(block.prefix_s), float(block.own_s)))
        return 0.0

    cache = make_cache(as_order(note), num_blocks=5, groups=PLAIN)
    assert cache.order is not None
    assert "plain Python" in cache.notes[0]
    cache.order.computes_in(2.0, 0.5)
    run(cache, 1, 2)
    assert facts == [(8.0, 8 * 2 + 0.5 * 64, 4 * 2 + 0.5 * (64 - 16)), (4.0, 16.0, 16.0)]


def _raises(block: Any) -> float:
    if block.end_tokens > 4:
        raise ValueError("too deep")
    return 0.0


def _raises_slowly(block: Any) -> float:
    if {"a": block.end_tokens}["a"] > 4:
        raise ValueError("too deep")
    return 0.0


def _nan(block: Any) -> float:
    return math.nan


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (_raises, r"given_back of block \d+ raised ValueError: too deep\."),
        (_raises_slowly, r"given_back of block \d+ raised ValueError: too deep\."),
        (_nan, r"given_back of block \d+ returned NaN\. Return a number, FRONT or BACK\."),
    ],
)
def test_bad_answers_are_stopped(function: Callable[..., float], text: str) -> None:
    cache = make_cache(as_order(function), groups=PLAIN)
    with pytest.raises(PolicyError, match=f"^free-queue order 'mine': {text}$"):
        run(cache, 1, 3)
    assert cache.num_free == 39


class NoIdea:
    @staticmethod
    def given_back(block: Any, rows: Any) -> None:
        rows[0].last = block.block

    @staticmethod
    def found_again(block: Any, rows: Any) -> None:
        rows[0].last = block.block

    @staticmethod
    def next_out(rows: Any) -> int:
        return 0


class Stubborn(NoIdea):
    @staticmethod
    def next_out(rows: Any) -> int:
        return rows[0].last  # type: ignore[no-any-return]


def test_picks_that_make_no_sense_are_stopped() -> None:
    policy = free_queue("none", source="here", rows=("last",))
    cache = make_cache(chosen(policy(NoIdea)), num_blocks=4, groups=PLAIN)
    run(cache, 1)
    run(cache, 2)
    with pytest.raises(PolicyError, match=r"next_out returned 0, which is no block of 1 \.\. 3, "):
        run(cache, 3)
    cache = make_cache(chosen(policy(Stubborn)), num_blocks=4, groups=PLAIN)
    run(cache, 1)
    run(cache, 2)
    kept = Sequence(Content.from_spans([(1, 5)]), 5)
    hit = cache.lookup(kept)
    assert cache.allocate(kept, 1, hit=hit)  # holds what the order would give out
    with pytest.raises(PolicyError, match=r"next_out gave out block \d, which is in use\."):
        cache.append(kept, 9, 4)
        cache.allocate(kept, 4)
    with pytest.raises(PolicyError, match=r"has no function found_again, next_out\."):
        make_cache(chosen(free_queue("x", source="y")(type("Half", (), {"given_back": _nan}))))


def test_bad_retention_is_stopped() -> None:
    def keeps(run: Any, divisor: int) -> bool:
        if run.boundary_tokens == 8:
            raise ValueError("not there")
        return True

    policy = retention("bad", source="here", divisor=count(0, "zero"))(keeps)
    cache = make_cache(retention=chosen(policy, ("divisor", 0)))
    with pytest.raises(
        PolicyError,
        match="^retention 'mine': asked about the boundary at 8 tokens it raised ValueError: not",
    ):
        History(cache, 1)._took  # noqa: B018 - made for its cache
        sequence = Sequence(Content.from_spans([(1, 13)]), 13)
        cache.allocate(sequence, 13, hit=cache.lookup(sequence))


def test_what_was_evicted_is_remembered() -> None:
    ages: list[tuple[int, int]] = []

    def note(block: Any) -> float:
        ages.append((int(block.ghost_tag), int(block.ghost_age)))
        return float({"now": block.now_s}["now"])

    cache = make_cache(as_order(note, remembers=True), num_blocks=4, groups=PLAIN)
    for number, uid in enumerate((1, 2, 3, 1)):
        cache.at(float(number))
        run(cache, uid)
    assert ages == [(-1, 0), (-1, 0), (-1, 0), (0, 1)]
    assert np.all(cache.core.pool.blocks["num_refs"] == 0)


@pytest.mark.parametrize(
    ("kind", "boundary", "num_hits", "score"),
    [
        (FULL_ATTENTION, NO_BOUNDARY, 0, 100.0),
        (FULL_ATTENTION, NO_BOUNDARY, 1, 140.0),  # found again: a stay more
        (SLIDING_WINDOW, REPLAY, 0, 100.0),
        (SLIDING_WINDOW, INTERVAL, 0, 60.0),  # passed: a stay less
        (SLIDING_WINDOW, INTERVAL, 1, 80.0),  # the turn that resumed there has passed it
        (SLIDING_WINDOW, INTERVAL, 2, 140.0),  # prompts branch here
        (STATE, JUNCTION, 1, 140.0),
    ],
)
def test_earned(kind: int, boundary: int, num_hits: int, score: float) -> None:
    block = SimpleNamespace(
        kind=kind, boundary=boundary, num_hits=num_hits, now_s=100.0, floor=60.0, end_tokens=4096
    )
    found = find_policy("free_queue", {"name": "earned", "credit": 1})
    assert found.policy.function(block, *found.parameters) == score
    nothing = find_policy("free_queue", {"name": "earned", "discount": 0})
    assert nothing.policy.function(block, *nothing.parameters) == 100.0
