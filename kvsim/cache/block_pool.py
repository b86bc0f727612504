"""The block pool: reference counts, the free queue and the hash index, as rows of arrays.

The free queue is a doubly linked ring through the blocks. Block 0, the null block, is never
handed out, so its row serves as the ring's end: its successor is the head of the queue, its
predecessor the tail. The index is an open-addressing table from key to the block that was entered
first; blocks under one key form a ring of their own, in the order they were entered.
One file because the queue, the index and the counts change together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.cache import ordered
from kvsim.cache.content import GROUP_BITS, Ints
from kvsim.cache.ledger import note_evicted, note_use, tell_clock
from kvsim.cache.ordered_rows import IN_USE, NEXT_OUT, order_at
from kvsim.cache.retained import tell_retention
from kvsim.jit import njit, njit_apart

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
        ("place", np.int32),  # in the index, where it is the first under its key; else -1
    ],
    align=True,
)

INDEX_ROW = np.dtype([("home", np.int32), ("block", np.int32)])

# Entries of `totals`, see `Pool`: those that are read all the time share a cache line. The last
# three are addresses: of the order of the free queue and of the retention, 0 where they are the
# engine's, and of the ledger, 0 where nobody asks why.
FREE, EVICTED, FREE_CACHED, NUM_BLOCKS, WATCHED, ORDERED, RETAINED, NOTED = range(8)
# Behind them blocks with a key by group, and evictions by the group that took the block and, within
# that, the group that lost it.
CACHED_BY_GROUP = NOTED + 1
NUM_GROUPS_MAX = 1 << GROUP_BITS
EVICTED_BY = CACHED_BY_GROUP + NUM_GROUPS_MAX
# In a pool that keeps a log of what is entered and removed, behind these: how many entries there
# are, how many of them have a time; then a row for each of keys, of what was done, and of times.
LOG_LENGTH = EVICTED_BY + NUM_GROUPS_MAX**2
LOG_STAMPED, LOG = LOG_LENGTH + 1, LOG_LENGTH + 2
LOG_ROWS = 3
# What was done: entered as the first under its key or not; removed as the last one or not.
ENTERED, ENTERED_AGAIN, REMOVED, REMOVED_ONE = range(4)

_CACHE_LINE_BYTES = 64
_LINE_BITS = 4  # sixteen places of the index, two neighbouring cache lines
_LINE_MASK = (1 << _LINE_BITS) - 1
_GROUP_MASK = (1 << GROUP_BITS) - 1


class Pool(NamedTuple):
    """Arrays of the pool.

    Attributes:
        blocks: one ``BLOCK_ROW`` a block, block 0 included; behind them, in caches whose hits can
            end inside a block, rows for further keys of blocks.
        hash_index: ``INDEX_ROW``, a power of two long: the block that was entered first under a key
            (0 where a place is empty), and the place this key would like to have.
        totals: int64: blocks in the free queue, evictions so far, blocks in the free queue with a
            key, all blocks, 1 where somebody is told what is taken and given back, ``ORDERED``,
            ``RETAINED`` and ``NOTED``; then by group, see ``CACHED_BY_GROUP`` and ``EVICTED_BY``;
            and a log, see ``LOG``.
    """

    blocks: Rows
    hash_index: Rows
    totals: Ints


def aligned_rows(num_rows: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Zeroed rows that begin at a cache line."""
    raw = np.zeros(num_rows * dtype.itemsize + _CACHE_LINE_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE_BYTES
    return raw[start : start + num_rows * dtype.itemsize].view(dtype)


def make_pool(num_blocks: int, log_entries: int = 0) -> Pool:
    """A pool of ``num_blocks`` blocks (block 0 included), all free in the order of their ids.

    Args:
        num_blocks: blocks.
        log_entries: what is entered and removed is logged, up to so many at a time; 0 for no log.
    """
    blocks = aligned_rows(num_blocks, BLOCK_ROW)
    ids = np.arange(num_blocks, dtype=np.int32)
    blocks["before"] = np.roll(ids, 1)
    blocks["after"] = np.roll(ids, -1)
    log = LOG + LOG_ROWS * log_entries if log_entries else LOG_LENGTH
    totals = aligned_rows(log, np.dtype(np.int64))
    totals[FREE] = num_blocks - 1
    totals[NUM_BLOCKS] = num_blocks
    size = 1 << max(_LINE_BITS, (4 * num_blocks - 1).bit_length())
    return Pool(blocks, aligned_rows(size, INDEX_ROW), totals)


# --- the log ---


@njit
def _note(totals: Ints, key: int, what: int) -> None:
    """Log an entry, where there is a log."""
    if len(totals) != LOG_LENGTH:
        _log(totals, key, what)


@njit_apart
def _log(totals: Ints, key: int, what: int) -> None:
    """Log an entry; only counted where the log is full."""
    number = totals[LOG_LENGTH]
    size = (len(totals) - LOG) // LOG_ROWS
    if number < size:
        totals[LOG + number] = key
        totals[LOG + size + number] = what
    totals[LOG_LENGTH] = number + 1


@njit
def stamp(totals: Ints, time_ns: int) -> None:
    """Say when what was logged last becomes known, where there is a log."""
    if len(totals) == LOG_LENGTH:
        return
    size = (len(totals) - LOG) // LOG_ROWS
    for number in range(totals[LOG_STAMPED], min(size, totals[LOG_LENGTH])):
        totals[LOG + 2 * size + number] = time_ns
    totals[LOG_STAMPED] = min(size, totals[LOG_LENGTH])


@njit
def log_fills(totals: Ints) -> bool:
    """Whether a quarter of the log is used; one without entries does not fill."""
    return len(totals) > LOG_LENGTH and 4 * LOG_ROWS * totals[LOG_LENGTH] > len(totals) - LOG


# --- the hash index ---


@njit
def _home(key: int, size: int) -> int:
    """The place a key would like to have.

    Fibonacci hashing of lines; neighbouring blocks of a span share a line, as they are entered,
    found and evicted together.
    """
    number = key >> GROUP_BITS
    line = np.uint64((number >> _LINE_BITS) << GROUP_BITS | (key & _GROUP_MASK))
    line *= np.uint64(0x9E3779B97F4A7C15)
    line ^= line >> np.uint64(32)
    place: int = np.int64(line & np.uint64((size >> _LINE_BITS) - 1))  # type: ignore[assignment]
    return place << _LINE_BITS | (number & _LINE_MASK)


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
    blocks, index = pool.blocks, pool.hash_index
    row = blocks[block]
    row.key = key
    pool.totals[CACHED_BY_GROUP + group_of(key)] += 1
    last = len(index) - 1
    home = _home(key, last + 1)
    place = home
    while True:
        first: int = index[place].block
        if first == 0:
            index[place].home = home
            index[place].block = block
            row.place = place
            row.same_before = block
            row.same_after = block
            _note(pool.totals, key, ENTERED)
            return
        if index[place].home == home and blocks[first].key == key:
            end = blocks[first].same_before
            blocks[end].same_after = block
            row.place = -1
            row.same_before = end
            row.same_after = first
            blocks[first].same_before = block
            _note(pool.totals, key, ENTERED_AGAIN)
            return
        place = (place + 1) & last


@njit
def remove_block(pool: Pool, block: int) -> None:
    """Take a cached block out of the index."""
    blocks, index = pool.blocks, pool.hash_index
    row = blocks[block]
    pool.totals[CACHED_BY_GROUP + group_of(row.key)] -= 1
    gap: int = row.place
    heir: int = row.same_after
    _note(pool.totals, row.key, REMOVED if heir == block else REMOVED_ONE)
    row.key = 0
    if heir != block:
        blocks[row.same_before].same_after = heir
        blocks[heir].same_before = row.same_before
        if gap >= 0:
            index[gap].block = heir
            blocks[heir].place = gap
        return
    # Close the gap: move up what was pushed past it.
    last = len(index) - 1
    place = gap
    while True:
        place = (place + 1) & last
        moved: int = index[place].block
        if moved == 0:
            break
        if ((place - index[place].home) & last) >= ((place - gap) & last):
            index[gap].home = index[place].home
            index[gap].block = moved
            blocks[moved].place = gap
            gap = place
    index[gap].block = 0


# --- the free queue ---


@njit
def take_run(pool: Pool, ring: Ids, ring_mask: int, start: int, end: int, group: int) -> None:
    """Take blocks from the head of the free queue, evicting what they held.

    Args:
        pool: the pool, with at least ``end - start`` free blocks.
        ring: int32; position ``i`` is written at ``i & ring_mask``.
        ring_mask: the ring's length less one, that being a power of two; -1 for a plain list.
        start: first position.
        end: position after the last one.
        group: the group that takes them.
    """
    if pool.totals[WATCHED] != 0:
        _take_watched(pool, ring, ring_mask, start, end, group)
    else:
        _take_linked(pool, ring, ring_mask, start, end, group)


@njit
def _take_linked(pool: Pool, ring: Ids, ring_mask: int, start: int, end: int, group: int) -> None:
    """`take_run` by an order of the engine's."""
    blocks = pool.blocks
    num_evicted = 0
    block: int = blocks[0].after
    for position in range(start, end):
        row = blocks[block]
        ring[position & ring_mask] = block
        row.num_refs = 1
        if row.key != 0:
            pool.totals[EVICTED_BY + group * NUM_GROUPS_MAX + group_of(row.key)] += 1
            remove_block(pool, block)
            num_evicted += 1
        block = row.after
    blocks[0].after = block
    blocks[block].before = 0
    pool.totals[FREE] -= end - start
    pool.totals[FREE_CACHED] -= num_evicted
    pool.totals[EVICTED] += num_evicted


@njit
def touch(pool: Pool, block: int) -> None:
    """One more holder of a cached block; out of the middle of the queue if it had none."""
    if pool.totals[ORDERED] != 0:
        _touch_ordered(pool, block)
    else:
        _touch_linked(pool, block)


@njit
def touch_run(pool: Pool, ring: Ids, ring_mask: int, start: int, end: int) -> None:
    """One more holder of each of a run of cached blocks, from the first position to the last."""
    if pool.totals[ORDERED] != 0:
        for position in range(start, end):
            _touch_ordered(pool, ring[position & ring_mask])
        return
    for position in range(start, end):
        _touch_linked(pool, ring[position & ring_mask])


@njit
def _touch_linked(pool: Pool, block: int) -> None:
    """`touch` by an order of the engine's."""
    row = pool.blocks[block]
    if row.num_refs == 0:
        pool.blocks[row.before].after = row.after
        pool.blocks[row.after].before = row.before
        pool.totals[FREE] -= 1
        pool.totals[FREE_CACHED] -= 1
    row.num_refs += 1


@njit
def give_back_run(
    pool: Pool,
    ring: Ids,
    ring_mask: int,
    start: int,
    end: int,
    prepend_uncached: bool,
    prepended: int = 0,
) -> int:
    """One holder less of each of a run of blocks, from the last position to the first.

    Those nobody holds any more enter the free queue, where both the prepended and the appended
    ones keep the order in which they are given back.

    Args:
        pool: the pool.
        ring: as for ``take_run``; no null block among the positions.
        ring_mask: as for ``take_run``.
        start: first position.
        end: position after the last one.
        prepend_uncached: uncached blocks go to the head.
        prepended: the block prepended last, where this run continues others; the next goes
            behind it.

    Returns:
        The block prepended last; 0 for none.
    """
    if pool.totals[WATCHED] != 0:
        return _give_back_watched(pool, ring, ring_mask, start, end, prepend_uncached, prepended)
    return _give_back_linked(pool, ring, ring_mask, start, end, prepend_uncached, prepended)


@njit
def _give_back_linked(
    pool: Pool,
    ring: Ids,
    ring_mask: int,
    start: int,
    end: int,
    prepend_uncached: bool,
    prepended: int,
) -> int:
    """`give_back_run` by an order of the engine's."""
    blocks = pool.blocks
    num_freed = 0
    num_cached = 0
    tail: int = blocks[0].before
    for position in range(end - 1, start - 1, -1):
        block: int = ring[position & ring_mask]
        row = blocks[block]
        row.num_refs -= 1
        if row.num_refs > 0:
            continue
        num_freed += 1
        if row.key != 0:
            num_cached += 1
        if prepend_uncached and row.key == 0:
            after: int = blocks[prepended].after
            row.before = prepended
            row.after = after
            blocks[prepended].after = block
            blocks[after].before = block
            prepended = block
            if after == 0:
                tail = block
        else:
            row.before = tail
            row.after = 0
            blocks[tail].after = block
            tail = block
    blocks[0].before = tail
    pool.totals[FREE] += num_freed
    pool.totals[FREE_CACHED] += num_cached
    return prepended


@njit
def forget_all(pool: Pool) -> bool:
    """Empty the index, if no block is in use."""
    if pool.totals[FREE] != pool.totals[NUM_BLOCKS] - 1:
        return False
    for place in range(len(pool.hash_index)):
        pool.hash_index[place].block = 0
    for block in range(len(pool.blocks)):
        pool.blocks[block].key = 0
    pool.totals[FREE_CACHED] = 0
    pool.totals[CACHED_BY_GROUP:EVICTED_BY] = 0
    return True


# --- the free queue with somebody who is told of it: a ledger, another order, or both ---


@njit_apart
def _take_watched(pool: Pool, ring: Ids, ring_mask: int, start: int, end: int, group: int) -> None:
    """As `take_run`."""
    if pool.totals[ORDERED] != 0:
        _take_ordered(pool, ring, ring_mask, start, end, group)
        return
    number = pool.totals[EVICTED]
    block: int = pool.blocks[0].after
    for _ in range(start, end):
        row = pool.blocks[block]
        if row.key != 0:
            note_evicted(pool.totals[NOTED], block, row.key, number)
            number += 1
        block = row.after
    _take_linked(pool, ring, ring_mask, start, end, group)


@njit_apart
def _give_back_watched(
    pool: Pool,
    ring: Ids,
    ring_mask: int,
    start: int,
    end: int,
    prepend_uncached: bool,
    prepended: int,
) -> int:
    """As `give_back_run`."""
    if pool.totals[ORDERED] != 0:
        prepended = _give_back_ordered(pool, ring, ring_mask, start, end, prepended)
    else:
        prepended = _give_back_linked(
            pool, ring, ring_mask, start, end, prepend_uncached, prepended
        )
    if pool.totals[NOTED] != 0:
        for position in range(start, end):
            block: int = ring[position & ring_mask]
            if pool.blocks[block].num_refs == 0 and pool.blocks[block].key != 0:
                note_use(pool.totals[NOTED], block)
    return prepended


# --- the free queue in another order, see `ordered` ---


@njit
def now_s(pool: Pool) -> float:
    """The time, where an order of the free queue is told it; else 0."""
    address = pool.totals[ORDERED]
    if address == 0:
        return 0.0
    return order_at(address, 1)[0].now_s  # type: ignore[no-any-return]


@njit
def tell_time(pool: Pool, time_s: float) -> None:
    """It is later, for policies and the ledger."""
    if pool.totals[ORDERED] != 0:
        ordered.set_now(pool.totals[ORDERED], time_s)
    if pool.totals[RETAINED] != 0:
        tell_retention(pool.totals[RETAINED], time_s)
    if pool.totals[NOTED] != 0:
        tell_clock(pool.totals[NOTED], time_s)


@njit
def _unlink(pool: Pool, block: int) -> None:
    row = pool.blocks[block]
    pool.blocks[row.before].after = row.after
    pool.blocks[row.after].before = row.before


@njit
def _link_behind(pool: Pool, block: int, before: int) -> None:
    after = pool.blocks[before].after
    pool.blocks[block].before = before
    pool.blocks[block].after = after
    pool.blocks[before].after = block
    pool.blocks[after].before = block


@njit
def _hand_out(pool: Pool, address: int, block: int, group: int) -> None:
    """A free block that is out of the queue is taken; what it held is evicted."""
    row = pool.blocks[block]
    row.num_refs = 1
    if row.key != 0:
        if pool.totals[NOTED] != 0:
            note_evicted(pool.totals[NOTED], block, row.key, pool.totals[EVICTED])
        ordered.evicted(address, block, row.key)
        pool.totals[EVICTED_BY + group * NUM_GROUPS_MAX + group_of(row.key)] += 1
        remove_block(pool, block)
        pool.totals[FREE_CACHED] -= 1
        pool.totals[EVICTED] += 1


@njit
def _picked(pool: Pool, address: int) -> int:
    """Take the block out of the queue that the policy picks; its head where that makes no sense."""
    head: int = pool.blocks[0].after
    block = ordered.picked(address)
    if block != 0 and pool.blocks[block].num_refs != 0:
        ordered.note_wrong(address, IN_USE, NEXT_OUT, block)
    elif block != 0:
        head = block
    _unlink(pool, head)
    return head


@njit_apart
def _take_ordered(pool: Pool, ring: Ids, ring_mask: int, start: int, end: int, group: int) -> None:
    """As `take_run`."""
    address = pool.totals[ORDERED]
    order = order_at(address, 1)[0]
    blocks = pool.blocks
    front = 0
    while order.num_to_ask > 0:
        due = ordered.due_again(address, blocks)
        if due == 0:
            break
        if ordered.wants_front_now(address, blocks, due):
            _link_behind(pool, due, front)
            front = due
    position = start
    block: int = blocks[0].after
    while position < end and block != 0 and (order.is_full == 0 or blocks[block].key == 0):
        ring[position & ring_mask] = block
        _hand_out(pool, address, block, group)
        block = blocks[block].after
        position += 1
    blocks[0].after = block
    blocks[block].before = 0
    while position < end:
        block = ordered.lowest(address, blocks) if order.is_full == 0 else _picked(pool, address)
        ring[position & ring_mask] = block
        _hand_out(pool, address, block, group)
        position += 1
    pool.totals[FREE] -= end - start


@njit_apart
def _touch_ordered(pool: Pool, block: int) -> None:
    """As `touch`."""
    address = pool.totals[ORDERED]
    row = pool.blocks[block]
    if row.num_refs == 0:
        if ordered.waits_in_heap(address, block):
            ordered.leave_heaps(address, pool.blocks, block)
        else:
            _unlink(pool, block)
        pool.totals[FREE] -= 1
        pool.totals[FREE_CACHED] -= 1
    row.num_refs += 1
    ordered.found_again(address, block, row.key)


@njit_apart
def _give_back_ordered(
    pool: Pool, ring: Ids, ring_mask: int, start: int, end: int, prepended: int
) -> int:
    """As `give_back_run`."""
    address = pool.totals[ORDERED]
    order = order_at(address, 1)[0]
    for position in range(end - 1, start - 1, -1):
        block: int = ring[position & ring_mask]
        row = pool.blocks[block]
        row.num_refs -= 1
        if row.num_refs > 0:
            continue
        pool.totals[FREE] += 1
        if row.key != 0:
            pool.totals[FREE_CACHED] += 1
        elif order.asks_uncached == 0:
            _link_behind(pool, block, prepended)
            prepended = block
            continue
        if ordered.wants_front(address, pool.blocks, position, block, row.key):
            _link_behind(pool, block, prepended)
            prepended = block
        elif order.is_full != 0:
            _link_behind(pool, block, pool.blocks[0].before)
    return prepended
