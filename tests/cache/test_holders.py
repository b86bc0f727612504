"""Which caches hold which blocks, against sets; and the log that says so."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvsim.cache.block_pool import (
    ENTERED,
    ENTERED_AGAIN,
    LOG,
    LOG_LENGTH,
    LOG_ROWS,
    LOG_STAMPED,
    REMOVED,
    REMOVED_ONE,
    stamp,
)
from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content, Ints, block_key
from kvsim.cache.holders import Holders
from kvsim.cache.manager import KVCache, Sequence
from kvsim.cache.spec import FULL, GroupSpec


def cache(num_blocks: int, log_entries: int) -> KVCache:
    return KVCache(
        CacheConfig(num_blocks, (GroupSpec(FULL, 16),), 4096, 4096, log_entries=log_entries)
    )


def run(kv: KVCache, *spans: tuple[int, int]) -> int:
    """One prompt computed alone; its hit."""
    content = Content.from_spans(spans)
    sequence = Sequence(content, content.num_tokens)
    hit = kv.lookup(sequence)
    assert kv.allocate(sequence, content.num_tokens - hit.tokens, hit=hit)
    kv.free(sequence)
    return hit.tokens


def take_log(kv: KVCache) -> Ints | None:
    """Keys, what was done and when, since the last call; None where the log was too short."""
    totals = kv.core.pool.totals
    size = (len(totals) - LOG) // LOG_ROWS
    number = int(totals[LOG_LENGTH])
    totals[LOG_LENGTH] = totals[LOG_STAMPED] = 0
    if number > size:
        return None
    log: Ints = totals[LOG:].reshape(LOG_ROWS, size)[:, :number].copy()
    return log


def test_the_log_says_what_is_entered_and_removed_and_when() -> None:
    kv = cache(5, 8)
    run(kv, (1, 48))
    stamp(kv.core.pool.totals, 5)
    run(kv, (2, 32))
    stamp(kv.core.pool.totals, 9)
    log = take_log(kv)
    assert log is not None
    keys = [block_key(1, n, 0) for n in (1, 2, 3)]
    assert log[:, :3].tolist() == [keys, [ENTERED] * 3, [5] * 3]
    # One block was free; the other is the last of the first prompt, which went first.
    assert log[:, 3:].tolist() == [
        [block_key(1, 3, 0), block_key(2, 1, 0), block_key(2, 2, 0)],
        [REMOVED, ENTERED, ENTERED],
        [9] * 3,
    ]
    empty = take_log(kv)
    assert empty is not None
    assert empty.shape == (3, 0)


def test_a_log_that_is_too_short_says_so_and_goes_on() -> None:
    kv = cache(50, 2)
    run(kv, (1, 48))
    assert take_log(kv) is None
    run(kv, (2, 32))
    log = take_log(kv)
    assert log is not None
    assert log.shape == (3, 2)
    assert len(cache(50, 0).core.pool.totals) == LOG_LENGTH  # keeps none


def take(holders: Holders, cache: int, keys: Ints, whats: Ints) -> None:
    """Let it read a log with these entries."""
    room = len(keys) + 1
    totals = np.zeros(LOG + LOG_ROWS * room, np.int64)
    totals[LOG : LOG + len(keys)] = keys
    totals[LOG + room : LOG + room + len(keys)] = whats
    totals[LOG_LENGTH] = len(keys)
    holders.read(cache, totals)


@pytest.mark.parametrize("num_caches", [3, 70])
def test_reach_and_counts_are_those_of_sets(num_caches: int) -> None:
    drawn = random.Random(1)
    holders = Holders(num_caches, 0, 16)
    sets: list[set[int]] = [set() for _ in range(num_caches)]
    contents = [
        Content.from_spans([(uid, 40), (100 + uid, 100), (200 + uid % 3, 50)]) for uid in range(30)
    ]
    for turn in range(600):
        content = drawn.choice(contents)
        keys = [
            block_key(int(content.uids[np.searchsorted(content.ends, 16 * n)]), n, 0)
            for n in range(1, 190 // 16 + 1)
        ]
        one = drawn.randrange(num_caches)
        if turn % 97 == 96:
            holders.forget(one)
            sets[one].clear()
            continue
        chosen = keys[: drawn.randint(1, len(keys))] if drawn.random() < 0.8 else keys[3:5]
        what = ENTERED if drawn.random() < 0.7 else REMOVED
        others = np.array([block_key(1, 1, 1), keys[0], keys[1]], np.int64)
        take(holders, one, others, np.array([ENTERED, ENTERED_AGAIN, REMOVED_ONE]))
        take(holders, one, np.array(chosen, np.int64), np.full(len(chosen), what))
        sets[one] = sets[one] | set(chosen) if what == ENTERED else sets[one] - set(chosen)
        most = drawn.choice([190, 100, 15])
        expected = []
        for held in sets:
            n = 0
            while n < len(keys) and 16 * (n + 1) <= most and keys[n] in held:
                n += 1
            expected.append(16 * n)
        assert holders.reach(content, most).tolist() == expected
        assert holders.num_keys == len(set().union(*sets))
        assert holders.num_held == sum(len(held) for held in sets)


def test_the_table_grows_and_forgets_what_nobody_holds() -> None:
    holders = Holders(2, 0, 16)
    keys = np.array([block_key(uid, 1, 0) for uid in range(1, 40_001)], np.int64)
    take(holders, 0, keys, np.full(len(keys), ENTERED))
    take(holders, 0, keys[10:], np.full(len(keys) - 10, REMOVED))
    take(holders, 1, keys[5:20_000], np.full(20_000 - 5, ENTERED))
    assert (holders.num_keys, holders.num_held) == (20_000, 20_005)
    assert holders.reach(Content.from_spans([(8, 20)]), 20).tolist() == [16, 16]
    assert holders.reach(Content.from_spans([(20, 20)]), 20).tolist() == [0, 16]
