"""The block pool: reference counts, the free queue and the hash index, as rows of arrays.

The free queue is a doubly linked ring through the blocks. Block 0, the null block, is never
handed out, so its row serves as the ring's end: its successor is the head of the queue, its
predecessor the tail. The index is an open-addressing table from key to the block that was entered
first; blocks under one key form a ring of their own, in the order they were entered.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.cache.content import GROUP_BITS, Ints
from kvsim.jit import njit

Rows = npt.NDArray[np.void]  # a structured array: one row a block, sequence or group
Ids = npt.NDArray[np.int32]

BLOCK_ROW = np.dtype(
    [
        ("key", np.int64),  # 0 where the block is not cached
        ("before", np.int32),  # in the free queue
        ("after", np.int32),
        ("same_before", np.int32),  # among the blocks of one key
        ("same_after", np.int32),
        ("num_refs", np.int32),
    ],
    align=True,
)

INDEX_ROW = np.dtype([("home", np.int32), ("block", np.int32)])

# Entries of `totals`; after them, blocks with a key by group, and evictions by the group that took
# the block and, within that, the group that lost it.
FREE, CACHED, EVICTED, FREE_CACHED, CACHED_BY_GROUP = 0, 1, 2, 3, 4
NUM_GROUPS_MAX = 1 << GROUP_BITS
EVICTED_BY = CACHED_BY_GROUP + NUM_GROUPS_MAX

_CACHE_LINE_BYTES = 64
_IN_A_LINE = _CACHE_LINE_BYTES // INDEX_ROW.itemsize


class Pool(NamedTuple):
    """Arrays of the pool.

    Attributes:
        blocks: one ``BLOCK_ROW`` a block, block 0 included.
        hash_index: ``INDEX_ROW``, a power of two long: the block that was entered first under a key
            (0 where a place is empty), and the place this key would like to have.
        totals: int64: blocks in the free queue, blocks with a key, evictions so far, blocks in the
            free queue with a key; then by group, see ``CACHED_BY_GROUP`` and ``EVICTED_BY``.
    """

    blocks: Rows
    hash_index: Rows
    totals: Ints


def _aligned(num_rows: int, dtype: np.dtype[np.void]) -> Rows:
    """Zeroed rows that begin at a cache line."""
    raw = np.zeros(num_rows * dtype.itemsize + _CACHE_LINE_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE_BYTES
    return raw[start : start + num_rows * dtype.itemsize].view(dtype)


def make_pool(num_blocks: int) -> Pool:
    """A pool of ``num_blocks`` blocks (block 0 included), all free in the order of their ids."""
    blocks = _aligned(num_blocks, BLOCK_ROW)
    ids = np.arange(num_blocks, dtype=np.int32)
    blocks["before"] = np.roll(ids, 1)
    blocks["after"] = np.roll(ids, -1)
    totals = np.zeros(EVICTED_BY + NUM_GROUPS_MAX**2, dtype=np.int64)
    totals[FREE] = num_blocks - 1
    size = 1 << max(4, (2 * num_blocks - 1).bit_length())
    return Pool(blocks, _aligned(size, INDEX_ROW), totals)


# --- the hash index ---


@njit
def _home(key: int, size: int) -> int:
    """The place a key would like to have.

    Fibonacci hashing of lines; neighbouring blocks of a span share a line, as they are entered,
    found and evicted together.
    """
    number = key >> GROUP_BITS
    line = np.uint64((number // _IN_A_LINE) << GROUP_BITS | (key & ((1 << GROUP_BITS) - 1)))
    line *= np.uint64(0x9E3779B97F4A7C15)
    line ^= line >> np.uint64(32)
    place: int = np.int64(line & np.uint64(size // _IN_A_LINE - 1)) * _IN_A_LINE  # type: ignore[assignment]
    return place + number % _IN_A_LINE


@njit
def group_of(key: int) -> int:
    """The group whose block a key names."""
    return key & (NUM_GROUPS_MAX - 1)


@njit
def find_block(pool: Pool, key: int) -> int:
    """The block that was entered first under a key, or 0."""
    last = len(pool.hash_index) - 1
    home = _home(key, last + 1)
    place = home
    while True:
        block: int = pool.hash_index[place].block
        if block == 0:
            return 0
        if pool.hash_index[place].home == home and pool.blocks[block].key == key:
            return block
        place = (place + 1) & last


@njit
def enter_block(pool: Pool, block: int, key: int) -> None:
    """Enter a block in the index, behind those that have the same key."""
    blocks = pool.blocks
    row = blocks[block]
    row.key = key
    pool.totals[CACHED] += 1
    pool.totals[CACHED_BY_GROUP + group_of(key)] += 1
    last = len(pool.hash_index) - 1
    home = _home(key, last + 1)
    place = home
    while True:
        entry = pool.hash_index[place]
        first = entry.block
        if first == 0:
            entry.home = home
            entry.block = block
            row.same_before = block
            row.same_after = block
            return
        if entry.home == home and blocks[first].key == key:
            end = blocks[first].same_before
            blocks[end].same_after = block
            row.same_before = end
            row.same_after = first
            blocks[first].same_before = block
            return
        place = (place + 1) & last


@njit
def remove_block(pool: Pool, block: int) -> None:
    """Take a cached block out of the index."""
    blocks = pool.blocks
    row = blocks[block]
    last = len(pool.hash_index) - 1
    place = _home(row.key, last + 1)
    pool.totals[CACHED] -= 1
    pool.totals[CACHED_BY_GROUP + group_of(row.key)] -= 1
    row.key = 0
    if row.same_after != block:
        blocks[row.same_before].same_after = row.same_after
        blocks[row.same_after].same_before = row.same_before
        while pool.hash_index[place].block != block:
            if pool.hash_index[place].block == 0:
                return  # it was not the first under its key
            place = (place + 1) & last
        pool.hash_index[place].block = row.same_after
        return
    while pool.hash_index[place].block != block:
        place = (place + 1) & last
    # Close the gap: move up what was pushed past this place.
    gap = place
    while True:
        place = (place + 1) & last
        entry = pool.hash_index[place]
        if entry.block == 0:
            break
        if ((place - entry.home) & last) >= ((place - gap) & last):
            pool.hash_index[gap].home = entry.home
            pool.hash_index[gap].block = entry.block
            gap = place
    pool.hash_index[gap].block = 0


# --- the free queue ---


@njit
def take_head(pool: Pool, group: int) -> int:
    """Take the block at the head of the free queue for a group, evicting what it held."""
    blocks = pool.blocks
    block: int = blocks[0].after
    after = blocks[block].after
    blocks[0].after = after
    blocks[after].before = 0
    blocks[block].num_refs = 1
    pool.totals[FREE] -= 1
    key = blocks[block].key
    if key != 0:
        remove_block(pool, block)
        pool.totals[FREE_CACHED] -= 1
        pool.totals[EVICTED] += 1
        pool.totals[EVICTED_BY + group * NUM_GROUPS_MAX + group_of(key)] += 1
    return block


@njit
def touch(pool: Pool, block: int) -> None:
    """One more holder of a cached block; out of the middle of the queue if it had none."""
    row = pool.blocks[block]
    if row.num_refs == 0:
        pool.blocks[row.before].after = row.after
        pool.blocks[row.after].before = row.before
        pool.totals[FREE] -= 1
        pool.totals[FREE_CACHED] -= 1
    row.num_refs += 1


@njit
def give_back(pool: Pool, block: int, prepend_uncached: bool, cursor: int) -> int:
    """One holder less; where none is left, the block enters the free queue.

    Args:
        pool: the pool.
        block: not the null block.
        prepend_uncached: uncached blocks go to the head.
        cursor: the block prepended last in this series of blocks, 0 at its beginning; the next
            one goes behind it, so that a series keeps its order.

    Returns:
        The cursor for the next block of the series.
    """
    blocks = pool.blocks
    row = blocks[block]
    row.num_refs -= 1
    if row.num_refs > 0:
        return cursor
    pool.totals[FREE] += 1
    if row.key != 0:
        pool.totals[FREE_CACHED] += 1
    if prepend_uncached and row.key == 0:
        before, cursor = cursor, block
    else:
        before = blocks[0].before
    after = blocks[before].after
    row.before = before
    row.after = after
    blocks[before].after = block
    blocks[after].before = block
    return cursor


@njit
def forget_all(pool: Pool) -> bool:
    """Empty the index, if no block is in use."""
    if pool.totals[FREE] != len(pool.blocks) - 1:
        return False
    for place in range(len(pool.hash_index)):
        pool.hash_index[place].block = 0
    for block in range(len(pool.blocks)):
        pool.blocks[block].key = 0
    pool.totals[CACHED] = 0
    pool.totals[FREE_CACHED] = 0
    pool.totals[CACHED_BY_GROUP:EVICTED_BY] = 0
    return True
