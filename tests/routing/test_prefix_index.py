"""The indexes against plain sets of blocks."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.routing import BlockRuns, prefix_key
from kvsim.routing.lru_index import LruIndex, SharedLruIndex
from kvsim.routing.prefix_index import ActiveBlocks, DecisionIndex, EventIndex
from tests.routing.fleets import BLOCK, request
from tests.slow_model import slow_indexes as slow

REPLICAS = 4


def prompts(rng: random.Random, count: int) -> list[tuple[tuple[int, int], ...]]:
    """Prompts that share beginnings; a span is only ever used after the same spans."""
    uids = itertools.count(1)
    known: list[tuple[tuple[int, int], ...]] = [()]
    for _ in range(count):
        before = rng.choice(known)
        if before and rng.random() < 0.3:  # one that ends within its last span
            uid, length = before[-1]
            known.append((*before[:-1], (uid, rng.randint(1, length))))
        else:
            known.append((*before, (next(uids), rng.randint(1, 90))))
    return [prompt for prompt in known if prompt]


def leading(held: set[int], keys: tuple[int, ...]) -> int:
    return next((index for index, key in enumerate(keys) if key not in held), len(keys))


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_events_give_the_blocks_before_the_first_that_is_missing(seed: int) -> None:
    rng = random.Random(seed)
    index = EventIndex(BLOCK)
    held: list[set[int]] = [set() for _ in range(REPLICAS)]
    requests = [request(f"r{n}", *spans) for n, spans in enumerate(prompts(rng, 12))]
    for _ in range(40):
        who = rng.randrange(REPLICAS)
        keys = list(rng.choice(requests).keys(BLOCK))
        what = rng.random()
        if what < 0.45:
            start = rng.randrange(len(keys) + 1) if rng.random() < 0.3 else 0
            index.store(who, keys[start:])
            held[who].update(keys[start:])
        elif what < 0.95:
            gone = rng.choice(
                [
                    keys[rng.randrange(len(keys) + 1) :],
                    keys[::-1],
                    keys[::2],
                    rng.sample(keys, len(keys) // 2),
                ]
            )
            index.remove(who, gone)
            held[who].difference_update(gone)
        else:
            index.drop(who)
            held[who].clear()
        for probe in requests:
            expected = [leading(held[n], probe.keys(BLOCK)) * BLOCK for n in range(REPLICAS)]
            assert index.overlap(probe.content, REPLICAS).tolist() == expected


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_own_decisions_last_for_their_time(seed: int) -> None:
    rng = random.Random(seed)
    index = DecisionIndex(BLOCK, 5.0)
    until: dict[tuple[int, int], float] = {}
    requests = [request(f"r{n}", *spans) for n, spans in enumerate(prompts(rng, 10))]
    now_s = 0.0
    for _ in range(40):
        now_s += rng.choice((0.0, 0.5, 2.0))
        sent, who = rng.choice(requests), rng.randrange(REPLICAS)
        index.store(who, sent.content, now_s)
        until.update({(who, key): now_s + 5.0 for key in sent.keys(BLOCK)})
        now_s += rng.choice((0.0, 1.0, 3.0))
        probe = rng.choice(requests)
        expected = []
        for n in range(REPLICAS):
            kept = {key for (whose, key), end in until.items() if whose == n and end > now_s}
            expected.append(leading(kept, probe.keys(BLOCK)) * BLOCK)
        assert index.overlap(probe.content, REPLICAS, now_s).tolist() == expected


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_active_blocks_are_counted_once_for_each_replica(seed: int) -> None:
    rng = random.Random(seed)
    blocks = ActiveBlocks(BLOCK)
    active: list[list[tuple[int, ...]]] = [[] for _ in range(REPLICAS)]
    on_the_way = []
    requests = [request(f"r{n}", *spans) for n, spans in enumerate(prompts(rng, 10))]
    for _ in range(50):
        if rng.random() < 0.6 or not on_the_way:
            sent, who = rng.choice(requests), rng.randrange(REPLICAS)
            before = set().union(*active[who])
            shared = blocks.shared(sent.content, REPLICAS)
            assert shared[who] == len(before.intersection(sent.keys(BLOCK)))
            active[who].append(sent.keys(BLOCK))
            on_the_way.append((sent, who))
            new = blocks.add(who, sent.content)
            assert new == len(set().union(*active[who])) - len(before)
        else:
            sent, who = on_the_way.pop(rng.randrange(len(on_the_way)))
            before = set().union(*active[who])
            active[who].remove(sent.keys(BLOCK))
            gone = blocks.remove(who, sent.content)
            assert gone == len(before) - len(set().union(*active[who]))


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_arrays_are_the_dictionaries_of_the_slow_model(seed: int) -> None:
    """Longer histories, more replicas than fit a word, tables that grow; and none is left over."""
    rng = random.Random(seed)
    num = rng.choice((2, 70))
    events, kept, active = EventIndex(BLOCK), DecisionIndex(BLOCK, 3.0), ActiveBlocks(BLOCK)
    slow_events, slow_kept = slow.EventIndex(BLOCK), slow.DecisionIndex(BLOCK, 3.0)
    slow_active = slow.ActiveBlocks(BLOCK)
    requests = [request(f"r{n}", *spans) for n, spans in enumerate(prompts(rng, 30))]
    on_the_way = []
    now_s = 0.0
    for _ in range(rng.choice((60, 400))):
        now_s += rng.choice((0.0, 0.0, 0.25, 1.0))
        sent, who = rng.choice(requests), rng.randrange(num)
        keys = list(sent.keys(BLOCK))
        cut = sorted(rng.randrange(len(keys) + 1) for _ in range(2))
        what = rng.random()
        if what < 0.4:
            told = keys[cut[0] if what < 0.1 else 0 :]
            events.store(who, told)
            slow_events.store(who, told)
        elif what < 0.6:
            gone = rng.choice([keys[cut[0] :], keys[cut[0] : cut[1]][::-1], keys[::2]])
            events.remove(who, gone)
            slow_events.remove(who, gone)
        elif what < 0.8:
            kept.store(who, sent.content, now_s)
            slow_kept.store(who, sent.runs(BLOCK), now_s)
            new = active.add(who, sent.content)
            assert new == slow_active.add(who, sent.runs(BLOCK))
            on_the_way.append((sent, who))
        elif what < 0.97 and on_the_way:
            done, whose = on_the_way.pop(rng.randrange(len(on_the_way)))
            gone_blocks = active.remove(whose, done.content)
            assert gone_blocks == slow_active.remove(whose, done.runs(BLOCK))
        elif what > 0.98:
            for index in (events, kept, slow_events, slow_kept):
                index.drop(who)
        probe = rng.choice(requests)
        found = [
            (events.overlap(probe.content, num), slow_events.overlap(probe.runs(BLOCK))),
            (kept.overlap(probe.content, num, now_s), slow_kept.overlap(probe.runs(BLOCK), now_s)),
            (active.shared(probe.content, num), slow_active.shared(probe.runs(BLOCK))),
        ]
        for fast, slowly in found:
            assert fast.tolist() == [slowly.get(n, 0) for n in range(num)]
    for done, whose in on_the_way:
        active.remove(whose, done.content)
    for who in range(num):
        for sent in requests:
            events.remove(who, sent.keys(BLOCK))
    kept.overlap(requests[0].content, num, now_s + 3.0)
    assert [index.table.num_cells for index in (events, kept, active)] == [0, 0, 0]


def test_a_replica_keeps_the_blocks_sent_last_and_counts_those_behind_a_gap() -> None:
    index = LruIndex(4)
    index.store(0, (1, 2, 3))
    index.store(1, (1, 2))
    index.store(0, (7, 8))  # the first block of the first prompt leaves
    assert index.matched((1, 2, 3), contiguous=False) == {0: 2, 1: 2}
    assert index.matched((1, 2, 3), contiguous=True) == {1: 2}
    index.drop(1)
    assert index.matched((1, 2), contiguous=False) == {0: 1}


def test_one_table_for_all_forgets_what_was_used_longest_ago() -> None:
    index = SharedLruIndex(10, num_blocks=5, keep_s=100.0)
    one, two = request("a", (1, 30)), request("b", (2, 30))
    index.store(0, one.runs(10), 0.0)
    index.store(1, one.runs(10), 1.0)
    assert index.overlap(one.runs(10), 1.0) == {0: 30, 1: 30}
    index.store(0, two.runs(10), 2.0)  # six blocks: the first one of the first prompt leaves
    assert index.overlap(one.runs(10), 2.0) == {}
    assert index.overlap(two.runs(10), 2.0) == {0: 30}
    assert index.overlap(two.runs(10), 102.0) == {}  # by age


@pytest.mark.parametrize("keys", [list(range(16, 400, 16)), list(range(384, 0, -16))])
def test_long_lists_of_neighbours_are_one_run_either_way(keys: list[int]) -> None:
    index = EventIndex(16)
    prompt = request("a", (0, 390)).content
    index.store(2, keys)
    assert index.overlap(prompt, 3).tolist() == [0, 0, 384]
    index.remove(2, keys[: len(keys) // 2])
    assert index.overlap(prompt, 3).tolist() == [0, 0, 0 if keys[0] == 16 else 192]


def test_runs_of_blocks_are_the_sequence_of_their_keys() -> None:
    ends = [(prefix_key(3, 16), prefix_key(3, 48)), (prefix_key(2, 80), prefix_key(2, 64))]
    told = BlockRuns(ends, 16)
    keys = [prefix_key(*key) for key in ((3, 16), (3, 32), (3, 48), (2, 80), (2, 64))]
    assert told == keys
    assert (len(told), told[3], told[:2]) == (5, keys[3], keys[:2])
    assert not BlockRuns([], 16)
    by_runs, by_keys = EventIndex(16), EventIndex(16)
    by_runs.store(0, told)
    by_keys.store(0, keys)
    prompt = request("a", (3, 50)).content
    assert by_runs.overlap(prompt, 1) == by_keys.overlap(prompt, 1) == 48
    by_runs.remove(0, BlockRuns([(keys[2], keys[1])], 16))
    assert by_runs.overlap(prompt, 1) == 16
