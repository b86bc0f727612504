"""The chunks a host tier knows, as rows of arrays: found by key, kept in lists, held by transfers.

A row is a chunk that is in the tier, or one that was and is remembered for what its absence
teaches (a ghost). Rows below ``FIRST_ROW`` are the ends of the lists: a list is a ring through its
end, oldest first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.jit import njit

Ints = npt.NDArray[np.int64]
RowIds = npt.NDArray[np.int64]
Uses = npt.NDArray[np.int8]
Rows = npt.NDArray[np.void]

# Lists, and the rows that are their ends. Ghosts stand in the last two.
NO_LIST, RECENT, FREQUENT, RECENT_GHOSTS, FREQUENT_GHOSTS = 0, 1, 2, 3, 4
FIRST_ROW = 5

# What a finished request did with a chunk: saw it, brought it, found it there.
SAW, BROUGHT, FOUND = 0, 1, 2

BEING_WRITTEN = -1
"""In place of a number of loads: what the chunk holds is not there yet."""

# Entries of `totals`: rows ever used; of those idle again; chunks that could leave the tier now;
# and from LISTED on the length of each list, by its number.
USED, IDLE, EVICTABLE, LISTED = 0, 1, 2, 2

CHUNK_ROW = np.dtype(
    [
        ("key", np.int64),
        ("order", np.int64),  # who leaves first, where the policy says it so
        ("offer", np.int64),  # the last offer that named it
        ("before", np.int32),  # in its list
        ("after", np.int32),
        ("num_loads", np.int32),  # transfers that read it; BEING_WRITTEN
        ("place", np.int32),  # the list it is in
        ("loaded", np.int32),  # 1 where it was read since it was written
    ],
    align=True,
)


class Chunks(NamedTuple):
    """Arrays of a tier.

    Attributes:
        rows: one ``CHUNK_ROW`` a chunk.
        places: int32, an open-addressing table from key to row; 0 where empty; a power of two long.
        idle: int32, a stack of rows that are idle again; as long as ``rows``.
        totals: int64, see above.
    """

    rows: Rows
    places: npt.NDArray[np.int32]
    idle: npt.NDArray[np.int32]
    totals: Ints


def make_chunks(num_rows: int = 64) -> Chunks:
    """No chunks, and room for some."""
    rows = np.zeros(num_rows, dtype=CHUNK_ROW)
    rows["before"][:FIRST_ROW] = rows["after"][:FIRST_ROW] = np.arange(FIRST_ROW)
    totals = np.zeros(LISTED + FIRST_ROW, dtype=np.int64)
    totals[USED] = FIRST_ROW
    places = np.zeros(4 * num_rows, dtype=np.int32)
    return Chunks(rows, places, np.zeros(num_rows, dtype=np.int32), totals)


def with_room(chunks: Chunks, num_more: int) -> Chunks:
    """The same chunks, in arrays that have room for more rows."""
    have = len(chunks.rows)
    needed = int(chunks.totals[USED] - chunks.totals[IDLE]) + num_more
    if needed <= have:
        return chunks
    num_rows = max(2 * have, 1 << (needed - 1).bit_length())
    rows = np.zeros(num_rows, dtype=CHUNK_ROW)
    rows[:have] = chunks.rows
    idle = np.zeros(num_rows, dtype=np.int32)
    idle[:have] = chunks.idle
    larger = Chunks(rows, np.zeros(4 * num_rows, dtype=np.int32), idle, chunks.totals)
    _enter_all(larger)
    return larger


@njit
def _home(key: int, size: int) -> int:
    """The place a key would like to have: Fibonacci hashing."""
    number = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    number ^= number >> np.uint64(32)
    return np.int64(number & np.uint64(size - 1))  # type: ignore[return-value]


@njit
def find_row(chunks: Chunks, key: int) -> int:
    """The row of a key, ghosts included, or 0."""
    last = len(chunks.places) - 1
    place = _home(key, last + 1)
    while True:
        row: int = chunks.places[place]
        if row == 0 or chunks.rows[row].key == key:
            return row
        place = (place + 1) & last


@njit
def find_resident(chunks: Chunks, key: int) -> int:
    """The row of a key that is in the tier, be it being written, or 0."""
    row = find_row(chunks, key)
    return 0 if chunks.rows[row].place >= RECENT_GHOSTS else row


@njit
def find_residents(chunks: Chunks, keys: Ints, found: RowIds) -> None:
    """Write the rows of keys that are in the tier, 0 for the others."""
    for i in range(len(keys)):
        found[i] = find_resident(chunks, keys[i])


@njit
def _enter_place(chunks: Chunks, row: int) -> None:
    last = len(chunks.places) - 1
    place = _home(chunks.rows[row].key, last + 1)
    while chunks.places[place] != 0:
        place = (place + 1) & last
    chunks.places[place] = row


@njit
def _enter_all(chunks: Chunks) -> None:
    for row in range(FIRST_ROW, chunks.totals[USED]):
        if chunks.rows[row].place != NO_LIST:
            _enter_place(chunks, row)


@njit
def new_row(chunks: Chunks, key: int) -> int:
    """A row for a key that has none; it is in no list yet."""
    totals = chunks.totals
    if totals[IDLE] > 0:
        totals[IDLE] -= 1
        row: int = chunks.idle[totals[IDLE]]
    else:
        row = totals[USED]
        totals[USED] += 1
    chunks.rows[row].key = key
    chunks.rows[row].place = NO_LIST
    _enter_place(chunks, row)
    return row


@njit
def drop_row(chunks: Chunks, row: int) -> None:
    """Forget a row that is in no list."""
    last = len(chunks.places) - 1
    place = _home(chunks.rows[row].key, last + 1)
    while chunks.places[place] != row:
        place = (place + 1) & last
    gap = place
    while True:  # close the gap: move up what was pushed past it
        place = (place + 1) & last
        other = chunks.places[place]
        if other == 0:
            break
        home = _home(chunks.rows[other].key, last + 1)
        if ((place - home) & last) >= ((place - gap) & last):
            chunks.places[gap] = other
            gap = place
    chunks.places[gap] = 0
    chunks.rows[row].key = 0
    chunks.idle[chunks.totals[IDLE]] = row
    chunks.totals[IDLE] += 1


@njit
def leave_list(chunks: Chunks, row: int) -> None:
    """Take a row out of the list it is in, if any."""
    rows = chunks.rows
    one = rows[row]
    if one.place != NO_LIST:
        rows[one.before].after = one.after
        rows[one.after].before = one.before
        chunks.totals[LISTED + one.place] -= 1
        one.place = NO_LIST


@njit
def join_list(chunks: Chunks, row: int, place: int) -> None:
    """Move a row to the newest end of a list."""
    leave_list(chunks, row)
    rows = chunks.rows
    before = rows[place].before
    rows[row].before = before
    rows[row].after = place
    rows[before].after = row
    rows[place].before = row
    rows[row].place = place
    chunks.totals[LISTED + place] += 1
