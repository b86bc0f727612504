"""Host tier eviction `lru`: the chunk leaves whose request used it longest ago, tails first."""

from __future__ import annotations

import numpy as np

from kvsim.jit import njit
from kvsim.policies.contract import host_eviction
from kvsim.policies.host_chunks import (
    EVICTABLE,
    FIRST_ROW,
    NO_LIST,
    RECENT,
    USED,
    Chunks,
    Ints,
    RowIds,
    Uses,
    drop_row,
    find_resident,
    new_row,
)

_POSITION_BITS = 24
_GROUP_BITS = 6
_LAST_POSITION = (1 << _POSITION_BITS) - 1


class Lru:
    """Least recently used, where a request is one use of all it saw.

    While a request is in the system, what it saw first stands at the request's own number, later
    positions before earlier ones. When it is finished, all it saw moves to the newest end, its tail
    first, so that tails are evicted before the heads they need.

    Every chunk has an order; those that can leave wait in a heap by it, where an entry that no
    longer agrees with its chunk is passed over.
    """

    name = "lru"

    def __init__(self, num_chunks: int) -> None:
        """An order over at most ``num_chunks`` chunks.

        Args:
            num_chunks: the tier's capacity; a use has the same meaning under any.
        """
        self._last_number = 0
        self._heap = np.zeros((2, 64), dtype=np.int64)
        self._size = np.zeros(1, dtype=np.int64)

    def next_number(self) -> int:
        """A number for a request that sees its first key."""
        self._last_number += 1
        return self._last_number

    def missed(self, chunks: Chunks, keys: Ints) -> None:
        """A request misses keys; what was there before teaches nothing here."""

    def seen(
        self, chunks: Chunks, rows: RowIds, positions: Ints, groups: Ints, number: int
    ) -> None:
        """A request sees chunks for the first time; rows 0 are not in the tier."""
        self._make_room(chunks, len(rows))
        _seen(chunks, self._heap, self._size, rows, _orders(number, positions, groups))

    def inserted(
        self, chunks: Chunks, keys: Ints, positions: Ints, groups: Ints, number: int, rows: RowIds
    ) -> None:
        """Chunks enter the tier, still being written; their rows are written to ``rows``."""
        _inserted(chunks, keys, _orders(number, positions, groups), rows)

    def evictable(self, chunks: Chunks, rows: RowIds) -> None:
        """Chunks that no transfer holds any more."""
        self._make_room(chunks, len(rows))
        _push_all(chunks, self._heap, self._size, rows)

    def evict(self, chunks: Chunks, offer: int, keys: Ints) -> None:
        """Let as many leave as there are places in ``keys``, which gets theirs in that order.

        Args:
            chunks: the tier's, of which enough can leave.
            offer: the number of the offer in hand; what it names stays.
            keys: int64, written.
        """
        _evict(chunks, self._heap, self._size, offer, keys)

    def finished(self, chunks: Chunks, keys: Ints, uses: Uses) -> None:
        """A request is finished: all keys it saw, tail first, higher groups first."""
        self._make_room(chunks, len(keys))
        _finished(chunks, self._heap, self._size, keys, self._last_number)
        self._last_number += len(keys)

    def _make_room(self, chunks: Chunks, num_more: int) -> None:
        """Room for entries; outdated ones are thrown out before the heap grows for long."""
        size = int(self._size[0])
        if size + num_more <= self._heap.shape[1]:
            return
        if size > 2 * int(chunks.totals[EVICTABLE]):
            _rebuild(chunks, self._heap, self._size)
            size = int(self._size[0])
        while size + num_more > self._heap.shape[1]:
            self._heap = np.concatenate([self._heap, np.zeros_like(self._heap)], axis=1)


def _orders(number: int, positions: Ints, groups: Ints) -> Ints:
    """One integer each that sorts by number, then later positions first, then lower groups."""
    orders: Ints = (
        number << (_POSITION_BITS + _GROUP_BITS)
        | (_LAST_POSITION - positions) << _GROUP_BITS
        | groups
    )
    return orders


@njit
def _push(chunks: Chunks, heap: Ints, size: Ints, row: int) -> None:
    """Enter a row in the heap by its order."""
    order = chunks.rows[row].order
    place = size[0]
    size[0] += 1
    while place > 0:
        parent = (place - 1) >> 1
        if heap[0, parent] <= order:
            break
        heap[0, place] = heap[0, parent]
        heap[1, place] = heap[1, parent]
        place = parent
    heap[0, place] = order
    heap[1, place] = row


@njit
def _pop(heap: Ints, size: Ints) -> None:
    """Take the first entry out of the heap."""
    size[0] -= 1
    num = size[0]
    order, row = heap[0, num], heap[1, num]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= num:
            break
        if child + 1 < num and heap[0, child + 1] < heap[0, child]:
            child += 1
        if heap[0, child] >= order:
            break
        heap[0, place] = heap[0, child]
        heap[1, place] = heap[1, child]
        place = child
    heap[0, place] = order
    heap[1, place] = row


@njit
def _rebuild(chunks: Chunks, heap: Ints, size: Ints) -> None:
    """Keep only the entries of chunks that can leave, each once."""
    size[0] = 0
    for row in range(FIRST_ROW, chunks.totals[USED]):
        if chunks.rows[row].place != NO_LIST and chunks.rows[row].num_loads == 0:
            _push(chunks, heap, size, row)


@njit
def _seen(chunks: Chunks, heap: Ints, size: Ints, rows: RowIds, orders: Ints) -> None:
    for i in range(len(rows)):
        row = chunks.rows[rows[i]]
        if rows[i] == 0 or row.order >= orders[i]:
            continue
        row.order = orders[i]
        if row.num_loads == 0:
            _push(chunks, heap, size, rows[i])


@njit
def _push_all(chunks: Chunks, heap: Ints, size: Ints, rows: RowIds) -> None:
    for row in rows:
        _push(chunks, heap, size, row)


@njit
def _inserted(chunks: Chunks, keys: Ints, orders: Ints, rows: RowIds) -> None:
    for i in range(len(keys)):
        row = new_row(chunks, keys[i])
        chunks.rows[row].order = orders[i]
        chunks.rows[row].place = RECENT  # the heap is the order: the list itself is not kept
        rows[i] = row


@njit
def _evict(chunks: Chunks, heap: Ints, size: Ints, offer: int, keys: Ints) -> None:
    num = 0
    kept = 0  # what this offer names is taken out in a chain, and goes back at the end
    while num < len(keys):
        order, number = heap[0, 0], heap[1, 0]
        _pop(heap, size)
        row = chunks.rows[number]
        if row.place == NO_LIST or row.num_loads != 0 or row.order != order:
            continue
        if row.offer == offer:
            if row.before == 0:  # not in the chain yet
                row.before = 1
                row.after = kept
                kept = number
            continue
        keys[num] = row.key
        num += 1
        row.place = NO_LIST
        drop_row(chunks, number)
    while kept != 0:
        chunks.rows[kept].before = 0
        _push(chunks, heap, size, kept)
        kept = chunks.rows[kept].after


@njit
def _finished(chunks: Chunks, heap: Ints, size: Ints, keys: Ints, number: int) -> None:
    for i in range(len(keys)):
        row = find_resident(chunks, keys[i])
        if row == 0:
            continue
        number += 1
        chunks.rows[row].order = number << (_POSITION_BITS + _GROUP_BITS)
        if chunks.rows[row].num_loads == 0:
            _push(chunks, heap, size, row)


LRU = host_eviction(
    "the chunk leaves whose request used it longest ago, tails first",
    source="vLLM 0.33.0, OffloadingConnector, lru",
)(Lru)
