"""A tier of whole chunks: what it holds, what it takes in, and who leaves for that.

It has no clock: a chunk that is being written is no hit and cannot leave until the writing is
reported done; a chunk that is being read cannot leave either. Loads leave it where it is.
The engine's rules: vLLM 0.33.0, ``CPUOffloadingManager``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.jit import njit
from kvsim.policies.contract import HOST_EVICTION
from kvsim.policies.finding import Chosen, find_policy
from kvsim.policies.host_chunks import (
    BEING_WRITTEN,
    BROUGHT,
    EVICTABLE,
    FOUND,
    SAW,
    Chunks,
    Ints,
    RowIds,
    find_resident,
    find_residents,
    make_chunks,
    with_room,
)
from kvsim.policies.host_eviction import HostEviction

# What a request has done with a chunk, bit by bit.
_SEEN, _INSERTED, _REUSED, _MISSED = 1, 2, 4, 8


class ChunkUse:
    """The chunks of one request, and what it has done with each so far.

    Attributes:
        keys: int64, the key of every chunk the request can ever have.
        positions: int64, where each ends, in tokens.
        groups: int64, the KV cache group of each.
        done: uint8, bit by bit what the request did with each.
        number: the request's among those of an eviction order; 0 before it saw a key.
    """

    __slots__ = ("done", "groups", "keys", "number", "positions")

    def __init__(self, keys: Ints, positions: Ints, groups: Ints) -> None:
        """A request that has done nothing yet; the arrays are equally long."""
        self.keys = keys
        self.positions = positions
        self.groups = groups
        self.done: npt.NDArray[np.uint8] = np.zeros(len(keys), dtype=np.uint8)
        self.number = 0

    def add(self, keys: Ints, positions: Ints, groups: Ints) -> None:
        """More chunks, behind the others."""
        self.keys = np.concatenate([self.keys, keys])
        self.positions = np.concatenate([self.positions, positions])
        self.groups = np.concatenate([self.groups, groups])
        self.done = np.concatenate([self.done, np.zeros(len(keys), dtype=np.uint8)])


@dataclass(frozen=True, slots=True)
class Stored:
    """What came of an offer.

    Attributes:
        chunks: int64, which of the request's chunks are new, in the order offered.
        rows: int64, their rows in the tier.
        evicted: int64, the keys that left for them, in that order.
    """

    chunks: Ints
    rows: RowIds
    evicted: Ints


_NONE: Ints = np.zeros(0, dtype=np.int64)


class ChunkTier:
    """Chunks of equal size, as many as it has room for.

    Attributes:
        num_chunks: its capacity.
        chunks: the arrays behind it, for compiled lookups.
        num_used: chunks in it, those being written included.
        num_used_max: the most there ever were.
        num_stored: chunks taken in so far.
        num_loaded: chunks read so far.
        num_evicted: chunks that had to leave so far.
        num_refused: offers there was no room for.
    """

    def __init__(self, num_chunks: int, eviction: str | Chosen = "lru") -> None:
        """An empty tier.

        Args:
            num_chunks: its capacity, at least 1.
            eviction: who leaves, by name or as a policy.

        Raises:
            ValueError: no room for a single chunk, or an unknown eviction order.
        """
        if num_chunks < 1:
            raise ValueError(f"num_chunks {num_chunks} is below 1: the tier holds nothing")
        if isinstance(eviction, str):
            eviction = find_policy(HOST_EVICTION, eviction)
        self.num_chunks = num_chunks
        self.chunks: Chunks = make_chunks()
        self.num_used = 0
        self.num_used_max = 0
        self.num_stored = 0
        self.num_loaded = 0
        self.num_evicted = 0
        self.num_refused = 0
        self._eviction: HostEviction = eviction.policy.function(num_chunks, **dict(eviction.values))
        self._num_offers = 0

    def holds(self, keys: Ints) -> npt.NDArray[np.bool_]:
        """For each key, whether it is in the tier and can be read."""
        rows = self._find(keys)
        return (rows > 0) & (self.chunks.rows["num_loads"][rows] >= 0)

    def loads_of(self, keys: Ints) -> list[int | None]:
        """For each key, how many transfers read it, ``BEING_WRITTEN``, or None: it is not there."""
        rows = self._find(keys)
        loads = self.chunks.rows["num_loads"][rows].tolist()
        return [load if row else None for row, load in zip(rows, loads, strict=True)]

    def store(self, use: ChunkUse, offered: Ints) -> Stored | None:
        """Take in those of the offered chunks that it lacks: all of them, or none.

        Args:
            use: the request.
            offered: int64, which of its chunks.

        Returns:
            What is now being written; None where there is no room for it.
        """
        self._num_offers += 1
        keys = use.keys[offered]
        rows = self._find(keys)
        new = rows == 0
        ready = ~new
        ready[ready] = self.chunks.rows["num_loads"][rows[ready]] >= 0
        lacking = offered[new]
        missed = lacking[use.done[lacking] & _MISSED == 0]
        if len(missed):
            self._eviction.missed(self.chunks, use.keys[missed])
            use.done[missed] |= _MISSED
        known = new | ready
        self._see(use, offered[known], rows[known])
        self._reuse(use, offered[ready])
        if not len(lacking):
            return Stored(_NONE, _NONE, _NONE)
        num_to_evict = len(lacking) - (self.num_chunks - self.num_used)
        evicted = _NONE
        if num_to_evict > 0:
            mine = rows[ready]
            num_mine = int(np.count_nonzero(self.chunks.rows["num_loads"][mine] == 0))
            if num_to_evict > int(self.chunks.totals[EVICTABLE]) - num_mine:
                self.num_refused += 1
                return None
            self.chunks.rows["offer"][rows[~new]] = self._num_offers
            evicted = np.zeros(num_to_evict, dtype=np.int64)
            self._eviction.evict(self.chunks, self._num_offers, evicted)
            self.chunks.totals[EVICTABLE] -= num_to_evict
            self.num_used -= num_to_evict
            self.num_evicted += num_to_evict
        taken = np.zeros(len(lacking), dtype=np.int64)
        self.chunks = with_room(self.chunks, len(lacking))
        self._eviction.inserted(
            self.chunks,
            use.keys[lacking],
            use.positions[lacking],
            use.groups[lacking],
            use.number,
            taken,
        )
        self.chunks.rows["num_loads"][taken] = BEING_WRITTEN
        self.chunks.rows["loaded"][taken] = 0
        use.done[lacking] |= _INSERTED
        self.num_used += len(lacking)
        self.num_used_max = max(self.num_used_max, self.num_used)
        self.num_stored += len(lacking)
        return Stored(lacking, taken, evicted)

    def written(self, rows: RowIds) -> None:
        """The writing of chunks is done: they can be read, and can leave."""
        self.chunks.rows["num_loads"][rows] = 0
        self.chunks.totals[EVICTABLE] += len(rows)
        self._eviction.evictable(self.chunks, rows)

    def load(self, use: ChunkUse, wanted: Ints) -> tuple[RowIds, Ints]:
        """Read chunks that are there; until that is done they cannot leave.

        Args:
            use: the request.
            wanted: int64, which of its chunks; each of them can be read.

        Returns:
            Their rows; and those of ``wanted`` that nobody had read since they were written.
        """
        rows = self._find(use.keys[wanted])
        held = self.chunks.rows["num_loads"]
        self.chunks.totals[EVICTABLE] -= int(np.count_nonzero(held[rows] == 0))
        held[rows] += 1
        first = self.chunks.rows["loaded"][rows] == 0
        self.chunks.rows["loaded"][rows] = 1
        self.num_loaded += len(wanted)
        self._see(use, wanted, rows)
        self._reuse(use, wanted)
        return rows, wanted[first]

    def read(self, rows: RowIds) -> None:
        """The reading of chunks is done."""
        held = self.chunks.rows["num_loads"]
        held[rows] -= 1
        free = rows[held[rows] == 0]
        self.chunks.totals[EVICTABLE] += len(free)
        self._eviction.evictable(self.chunks, free)

    def finish(self, use: ChunkUse) -> None:
        """A request is finished: all it saw counts as used now, its tail first."""
        seen = np.flatnonzero(use.done & _SEEN)
        if not len(seen):
            return
        order = np.lexsort((use.groups[seen], use.positions[seen]))[::-1]
        seen = seen[order]
        done = use.done[seen]
        uses = np.full(len(seen), SAW, dtype=np.int8)
        uses[done & _INSERTED != 0] = BROUGHT
        uses[done & _REUSED != 0] = FOUND
        self._eviction.finished(self.chunks, use.keys[seen], uses)

    def _find(self, keys: Ints) -> RowIds:
        rows = np.zeros(len(keys), dtype=np.int64)
        find_residents(self.chunks, keys, rows)
        return rows

    def _see(self, use: ChunkUse, which: Ints, rows: RowIds) -> None:
        first = use.done[which] & _SEEN == 0
        if not first.any():
            return
        if use.number == 0:
            use.number = self._eviction.next_number()
        which = which[first]
        use.done[which] |= _SEEN
        self._eviction.seen(
            self.chunks, rows[first], use.positions[which], use.groups[which], use.number
        )

    def _reuse(self, use: ChunkUse, which: Ints) -> None:
        # To read what one brought oneself is no second use.
        use.done[which[use.done[which] & _INSERTED == 0]] |= _REUSED


# Answers of `prefix_hit` and `window_hit`: some chunk is not readable yet.
ASK_AGAIN = -1


@njit
def prefix_hit(chunks: Chunks, keys: Ints, start: int, end: int) -> int:
    """How many of the keys from ``start`` on are there, to the first missing one.

    Args:
        chunks: the tier's.
        keys: int64.
        start: the first one asked for.
        end: the one after the last.

    Returns:
        The number, or ``ASK_AGAIN`` where one of them is still being written.
    """
    pending = False
    found = 0
    for i in range(start, end):
        row = find_resident(chunks, keys[i])
        if row == 0:
            break
        pending = pending or chunks.rows[row].num_loads == BEING_WRITTEN
        found += 1
    return ASK_AGAIN if pending else found


@njit
def window_hit(
    chunks: Chunks, keys: Ints, start: int, end: int, num_needed: int, num_needed_last: int
) -> int:
    """Where the rightmost run of keys ends that a window can resume from.

    Args:
        chunks: the tier's.
        keys: int64.
        start: the first one asked for.
        end: the one after the last.
        num_needed: keys of a run.
        num_needed_last: keys of the run that ends with the last key.

    Returns:
        Keys from ``start`` to the end of the run; where no run is whole, those that are there from
        ``start`` on; ``ASK_AGAIN`` where a key of it is still being written.
    """
    pending = False
    found = 0
    needed = num_needed_last
    for i in range(end - 1, start - 1, -1):
        row = find_resident(chunks, keys[i])
        if row == 0:
            found = 0
            pending = False
            needed = num_needed
        else:
            pending = pending or chunks.rows[row].num_loads == BEING_WRITTEN
            found += 1
        if found == needed:
            return ASK_AGAIN if pending else i - start + needed
    return ASK_AGAIN if pending else found


@njit
def any_being_read(chunks: Chunks, keys: Ints, start: int, end: int) -> bool:
    """Whether a transfer reads one of the keys now."""
    for i in range(start, end):
        row = find_resident(chunks, keys[i])
        if row != 0 and chunks.rows[row].num_loads > 0:
            return True
    return False
