"""Host tier eviction `arc`: chunks seen once and seen again, and what the evicted ones teach.

Adaptive Replacement Cache (Megiddo and Modha, FAST 2003), as the engine's CPU tier keeps it: with
whole requests as accesses, and chunks chosen for a whole offer at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvsim.jit import njit
from kvsim.policies.contract import host_eviction
from kvsim.policies.host_chunks import (
    BROUGHT,
    FOUND,
    FREQUENT,
    FREQUENT_GHOSTS,
    LISTED,
    RECENT,
    RECENT_GHOSTS,
    Chunks,
    Ints,
    RowIds,
    Uses,
    drop_row,
    find_resident,
    find_row,
    join_list,
    leave_list,
    new_row,
)


class Arc:
    """Two lists of what is there, two of what was, and a target for the first.

    Attributes:
        target: chunks that the list of those seen once should hold.
    """

    name = "arc"

    def __init__(self, num_chunks: int) -> None:
        """Empty lists.

        Args:
            num_chunks: the tier's capacity; each list of ghosts is cut to it.
        """
        self._num_chunks = num_chunks
        self._target = np.zeros(1)

    @property
    def target(self) -> float:
        """Chunks that the list of those seen once should hold."""
        return float(self._target[0])

    def next_number(self) -> int:
        """Requests have no number here."""
        return 0

    def missed(self, chunks: Chunks, keys: Ints) -> None:
        """A request misses keys for the first time, in the order of the prompt."""
        _missed(chunks, self._target, self._num_chunks, keys)

    def seen(
        self, chunks: Chunks, rows: RowIds, positions: Ints, groups: Ints, number: int
    ) -> None:
        """A request sees chunks; only its end counts."""

    def inserted(
        self, chunks: Chunks, keys: Ints, positions: Ints, groups: Ints, number: int, rows: RowIds
    ) -> None:
        """Chunks enter the tier, still being written; their rows are written to ``rows``."""
        _inserted(chunks, keys, rows)

    def evictable(self, chunks: Chunks, rows: RowIds) -> None:
        """Chunks that no transfer holds any more; the lists hold them all along."""

    def evict(self, chunks: Chunks, offer: int, keys: Ints) -> None:
        """Let as many leave as there are places in ``keys``, which gets theirs in that order.

        Args:
            chunks: the tier's, of which enough can leave.
            offer: the number of the offer in hand; what it names stays.
            keys: int64, written.
        """
        _evict(chunks, int(self._target[0]), offer, keys)
        _cut_ghosts(chunks, self._num_chunks)

    def finished(self, chunks: Chunks, keys: Ints, uses: Uses) -> None:
        """A request is finished: all keys it saw, tail first, higher groups first."""
        _finished(chunks, keys, uses)


@njit
def _missed(chunks: Chunks, target: npt.NDArray[np.float64], num_chunks: int, keys: Ints) -> None:
    totals = chunks.totals
    for i in range(len(keys) - 1, -1, -1):
        row = find_row(chunks, keys[i])
        place = chunks.rows[row].place
        num_recent, num_frequent = totals[LISTED + RECENT_GHOSTS], totals[LISTED + FREQUENT_GHOSTS]
        if place == RECENT_GHOSTS:
            target[0] = min(target[0] + max(1.0, num_frequent / num_recent), float(num_chunks))
        elif place == FREQUENT_GHOSTS:
            target[0] = max(target[0] - max(1.0, num_recent / num_frequent), 0.0)
        else:
            continue
        join_list(chunks, row, place)


@njit
def _inserted(chunks: Chunks, keys: Ints, rows: RowIds) -> None:
    for i in range(len(keys)):
        row = find_row(chunks, keys[i])  # a ghost returns to life
        if row == 0:
            row = new_row(chunks, keys[i])
        join_list(chunks, row, RECENT)
        rows[i] = row


@njit
def _next_to_leave(chunks: Chunks, row: int, offer: int) -> int:
    """The first chunk from ``row`` on, along its list, that can leave; the list's end if none."""
    rows = chunks.rows
    while row > FREQUENT_GHOSTS and (rows[row].num_loads != 0 or rows[row].offer == offer):
        row = rows[row].after
    return row


@njit
def _evict(chunks: Chunks, target: int, offer: int, keys: Ints) -> None:
    rows = chunks.rows
    recent, frequent = rows[RECENT].after, rows[FREQUENT].after
    num_recent = chunks.totals[LISTED + RECENT]
    for i in range(len(keys)):
        recent = _next_to_leave(chunks, recent, offer)
        if num_recent < target or recent == RECENT:
            frequent = _next_to_leave(chunks, frequent, offer)
            from_recent = frequent == FREQUENT
        else:
            from_recent = True
        if from_recent:
            row, recent = recent, rows[recent].after
            num_recent -= 1
        else:
            row, frequent = frequent, rows[frequent].after
        keys[i] = rows[row].key
        join_list(chunks, row, RECENT_GHOSTS if from_recent else FREQUENT_GHOSTS)


@njit
def _cut_ghosts(chunks: Chunks, num_chunks: int) -> None:
    for place in (RECENT_GHOSTS, FREQUENT_GHOSTS):
        while chunks.totals[LISTED + place] > num_chunks:
            row = chunks.rows[place].after
            leave_list(chunks, row)
            drop_row(chunks, row)


@njit
def _finished(chunks: Chunks, keys: Ints, uses: Uses) -> None:
    for i in range(len(keys)):
        row = find_resident(chunks, keys[i])
        if row == 0:
            continue
        if uses[i] == FOUND:
            join_list(chunks, row, FREQUENT)
        elif uses[i] == BROUGHT:
            join_list(chunks, row, chunks.rows[row].place)


ARC = host_eviction(
    "chunks seen once and seen again, the balance learnt from those that left too early",
    source="Megiddo and Modha, FAST 2003, as in vLLM 0.33.0's OffloadingConnector, arc",
)(Arc)
