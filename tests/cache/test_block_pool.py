from __future__ import annotations

import numpy as np

from kvsim.cache.block_pool import (
    CACHED_BY_GROUP,
    EVICTED,
    EVICTED_BY,
    FREE,
    NUM_GROUPS_MAX,
    Pool,
    enter_block,
    find_block,
    forget_all,
    give_back_run,
    make_pool,
    remove_block,
    take_run,
    touch,
)
from kvsim.cache.content import block_key


def queue(pool: Pool) -> list[int]:
    """Ids in the free queue, from its head; checked backwards as well."""
    ids, block = [], int(pool.blocks["after"][0])
    while block:
        ids.append(block)
        block = int(pool.blocks["after"][block])
    backwards, block = [], int(pool.blocks["before"][0])
    while block:
        backwards.append(block)
        block = int(pool.blocks["before"][block])
    assert backwards == ids[::-1]
    assert len(ids) == pool.totals[FREE]
    return ids


def num_cached(pool: Pool) -> int:
    """Blocks with a key."""
    return int(pool.totals[CACHED_BY_GROUP : CACHED_BY_GROUP + NUM_GROUPS_MAX].sum())


def take(pool: Pool, num: int) -> list[int]:
    """The ids of blocks taken, in order."""
    ring = np.zeros(16, dtype=np.int32)
    take_run(pool, ring, 15, 0, num, 1)
    return ring[:num].tolist()


def give_back(pool: Pool, ids: list[int], *, prepend: bool) -> None:
    """Give blocks back in the order listed."""
    ring = np.zeros(16, dtype=np.int32)
    ring[: len(ids)] = ids[::-1]
    give_back_run(pool, ring, -1, 0, len(ids), prepend)


def test_a_new_pool_is_free_in_the_order_of_its_ids() -> None:
    assert queue(make_pool(6)) == [1, 2, 3, 4, 5]


def test_blocks_are_taken_from_the_head_and_appended() -> None:
    pool = make_pool(6)
    assert take(pool, 3) == [1, 2, 3]
    give_back(pool, [3, 1], prepend=False)
    assert queue(pool) == [4, 5, 3, 1]


def test_uncached_blocks_are_prepended_in_their_order_and_cached_ones_appended() -> None:
    pool = make_pool(8)
    take(pool, 5)
    enter_block(pool, 2, block_key(7, 1, 0))
    enter_block(pool, 4, block_key(7, 2, 0))
    give_back(pool, [5, 4, 3, 2, 1], prepend=True)
    assert queue(pool) == [5, 3, 1, 6, 7, 4, 2]


def test_a_series_into_an_empty_queue_keeps_both_orders() -> None:
    pool = make_pool(5)
    take(pool, 4)
    enter_block(pool, 3, block_key(1, 1, 0))
    give_back(pool, [4, 3, 2, 1], prepend=True)
    assert queue(pool) == [4, 2, 1, 3]


def test_a_touch_takes_a_block_out_of_the_middle() -> None:
    pool = make_pool(6)
    touch(pool, 3)
    assert queue(pool) == [1, 2, 4, 5]
    touch(pool, 3)
    give_back(pool, [3], prepend=False)
    assert queue(pool) == [1, 2, 4, 5], "somebody else still holds it"
    give_back(pool, [3], prepend=False)
    assert queue(pool) == [1, 2, 4, 5, 3]


def test_taking_a_cached_block_evicts_it() -> None:
    pool = make_pool(4)
    (block,) = take(pool, 1)
    enter_block(pool, block, block_key(9, 1, 2))
    give_back(pool, [block], prepend=True)
    assert find_block(pool, block_key(9, 1, 2)) == block
    assert take(pool, 3) == [2, 3, 1]
    assert find_block(pool, block_key(9, 1, 2)) == 0
    assert (num_cached(pool), pool.totals[EVICTED]) == (0, 1)
    assert pool.totals[EVICTED_BY + 1 * NUM_GROUPS_MAX + 2] == 1, "group 1 took group 2's"


def test_of_equal_prefixes_the_first_entered_is_found() -> None:
    pool = make_pool(8)
    key = block_key(1, 1, 0)
    for block in (5, 2, 7):
        enter_block(pool, block, key)
    assert find_block(pool, key) == 5
    remove_block(pool, 2)
    assert find_block(pool, key) == 5
    remove_block(pool, 5)
    assert find_block(pool, key) == 7
    enter_block(pool, 3, key)
    remove_block(pool, 7)
    assert find_block(pool, key) == 3
    remove_block(pool, 3)
    assert find_block(pool, key) == 0
    assert num_cached(pool) == 0


def test_the_index_agrees_with_a_dictionary() -> None:
    rng = np.random.default_rng(1)
    pool = make_pool(300)
    entered: dict[int, int] = {}
    keys = [block_key(int(uid), index, group) for uid in range(4) for index in range(1, 60)
            for group in range(2)]  # fmt: skip
    for _ in range(5000):
        key = keys[rng.integers(len(keys))]
        if key in entered:
            remove_block(pool, entered.pop(key))
        else:
            idle = set(range(1, 300)) - set(entered.values())
            if not idle:
                continue
            entered[key] = min(idle)
            enter_block(pool, entered[key], key)
        probe = keys[rng.integers(len(keys))]
        assert find_block(pool, probe) == entered.get(probe, 0)
    assert all(find_block(pool, key) == entered.get(key, 0) for key in keys)
    assert num_cached(pool) == len(entered)


def test_the_cache_is_forgotten_only_when_nobody_holds_a_block() -> None:
    pool = make_pool(4)
    (block,) = take(pool, 1)
    enter_block(pool, block, block_key(1, 1, 0))
    assert not forget_all(pool)
    assert find_block(pool, block_key(1, 1, 0)) == block
    give_back(pool, [block], prepend=False)
    assert forget_all(pool)
    assert find_block(pool, block_key(1, 1, 0)) == 0
    assert queue(pool) == [2, 3, 1]
