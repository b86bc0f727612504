"""Which holders have which blocks: runs of blocks by span, in arrays that compiled loops work on.

A table is chained: `heads` holds for each bucket of spans the number of its first cell, and a cell
the number of the next one. Cells that are not in use form a chain as well. Whoever calls a loop
that takes cells sees to it before that there are enough (`NUM_FREE`, `SpanTable.grow`): compiled
code makes no arrays.
"""

from __future__ import annotations

import numpy as np

from kvsim.cache.content import POSITION_BITS, Ints
from kvsim.jit import njit

# Columns of a cell that all tables have; prefixes are keys, uid and tokens as in `POSITION_BITS`.
KEY, NEXT, HOLDER, LAST = range(4)
# Row 0 is no cell: the first free cell, how many are free, and two entries of a table's own.
FREE_HEAD, NUM_FREE, OWN, OWN_TOO = range(4)

MOST_TOKENS = 1 << POSITION_BITS
"""No prompt is longer."""
_FEWEST_CELLS = 1 << 10


class SpanTable:
    """A table, and how it grows.

    Attributes:
        heads: int64 [a power of two], the first cell of each bucket, or 0.
        cells: int64 [1 + cells, columns].
    """

    def __init__(self, num_columns: int = LAST + 1) -> None:
        """Empty, with cells of so many columns."""
        self.heads: Ints = np.zeros(1, np.int64)
        self.cells: Ints = np.zeros((1, num_columns), np.int64)
        self.grow(1)

    def grow(self, num_cells: int) -> None:
        """See to it that so many cells are free."""
        before = len(self.cells)
        size = max(before, _FEWEST_CELLS)
        while size - before + int(self.cells[0, NUM_FREE]) < num_cells:
            size *= 2
        if size == before:
            return
        cells = np.zeros((size, self.cells.shape[1]), np.int64)
        cells[:before] = self.cells
        heads = np.zeros(2 * size, np.int64)
        _spread(self.heads, heads, cells, before)
        self.heads, self.cells = heads, cells

    @property
    def num_cells(self) -> int:
        """Cells in use."""
        return len(self.cells) - 1 - int(self.cells[0, NUM_FREE])


@njit
def bucket_of(heads: Ints, uid: int) -> int:
    """The bucket of a span."""
    word = np.uint64(uid) * np.uint64(0x9E3779B97F4A7C15)
    word ^= word >> np.uint64(32)
    bucket: int = np.int64(word & np.uint64(len(heads) - 1))  # type: ignore[assignment]
    return bucket


@njit
def take_cell(heads: Ints, cells: Ints, bucket: int) -> int:
    """A cell that was free, the first of a bucket now; there is one."""
    cell: int = cells[0, FREE_HEAD]
    cells[0, FREE_HEAD] = cells[cell, NEXT]
    cells[0, NUM_FREE] -= 1
    cells[cell, NEXT] = heads[bucket]
    heads[bucket] = cell
    return cell


@njit
def free_cell(heads: Ints, cells: Ints, bucket: int, before: int, cell: int) -> None:
    """Take a cell out of its bucket, where it follows another, or none (0)."""
    if before == 0:
        heads[bucket] = cells[cell, NEXT]
    else:
        cells[before, NEXT] = cells[cell, NEXT]
    cells[cell, NEXT] = cells[0, FREE_HEAD]
    cells[0, FREE_HEAD] = cell
    cells[0, NUM_FREE] += 1


@njit
def first_block(start: int, unit: int, ahead: int) -> int:
    """Tokens up to the end of the first block that ends behind `start`.

    A key covers `ahead` tokens behind its block as well.
    """
    return max(unit, ((start - ahead) // unit + 1) * unit)


@njit
def last_block(end: int, unit: int, ahead: int) -> int:
    """Tokens up to the end of the last block that ends at `end` or before."""
    return (end - ahead) // unit * unit


@njit
def _spread(old_heads: Ints, heads: Ints, cells: Ints, before: int) -> None:
    """Put cells in the buckets of a longer table; those from `before` on are free."""
    for old in range(len(old_heads)):
        cell = old_heads[old]
        while cell != 0:
            following = cells[cell, NEXT]
            bucket = bucket_of(heads, cells[cell, KEY] >> POSITION_BITS)
            cells[cell, NEXT] = heads[bucket]
            heads[bucket] = cell
            cell = following
    for cell in range(len(cells) - 1, before - 1, -1):
        cells[cell, NEXT] = cells[0, FREE_HEAD]
        cells[0, FREE_HEAD] = cell
    cells[0, NUM_FREE] += len(cells) - before


# --- what is held, each cell an interval: keys of its first and its last block ---
#
# The intervals of a holder neither overlap nor touch. Nearly always it has one of a span, since
# caches give up the ends of prefixes first.


@njit
def store_run(heads: Ints, cells: Ints, holder: int, first: int, last: int, unit: int) -> int:
    """A holder has the blocks from key `first` to `last` from now on; one cell is free.

    Returns:
        How many of them it did not have.
    """
    new = (last - first) // unit + 1
    bucket = bucket_of(heads, first >> POSITION_BITS)
    kept, before = 0, 0
    cell = heads[bucket]
    while cell != 0:
        following = cells[cell, NEXT]
        low, high = cells[cell, KEY], cells[cell, LAST]
        if cells[cell, HOLDER] == holder and first <= high + unit and last >= low - unit:
            if low <= first and high >= last:
                return 0
            shared = min(high, last) - max(low, first)
            if shared >= 0:
                new -= shared // unit + 1
            if kept == 0:
                kept, before = cell, cell
                cells[cell, KEY], cells[cell, LAST] = min(low, first), max(high, last)
            else:
                cells[kept, KEY] = min(cells[kept, KEY], low)
                cells[kept, LAST] = max(cells[kept, LAST], high)
                free_cell(heads, cells, bucket, before, cell)
        else:
            before = cell
        cell = following
    if kept == 0:
        cell = take_cell(heads, cells, bucket)
        cells[cell, KEY], cells[cell, LAST], cells[cell, HOLDER] = first, last, holder
    return new


@njit
def remove_run(heads: Ints, cells: Ints, holder: int, first: int, last: int, unit: int) -> int:
    """A holder has the blocks from key `first` to `last` no more; one cell is free.

    Returns:
        How many of them it had.
    """
    gone: int = 0
    bucket = bucket_of(heads, first >> POSITION_BITS)
    before = 0
    cell = heads[bucket]
    while cell != 0:
        following = cells[cell, NEXT]
        low, high = cells[cell, KEY], cells[cell, LAST]
        if cells[cell, HOLDER] != holder or high < first or low > last:
            before = cell
        elif low >= first and high <= last:
            gone += (high - low) // unit + 1
            free_cell(heads, cells, bucket, before, cell)
        else:
            gone += (min(high, last) - max(low, first)) // unit + 1
            before = cell
            if low >= first:
                cells[cell, KEY] = last + unit
            else:
                cells[cell, LAST] = first - unit
                if high > last:
                    rest = take_cell(heads, cells, bucket)
                    cells[rest, KEY], cells[rest, LAST] = last + unit, high
                    cells[rest, HOLDER] = holder
                    break
        cell = following
    return gone


@njit
def num_unheld(heads: Ints, cells: Ints, first: int, last: int, unit: int) -> int:
    """How many of the blocks from key `first` to `last` nobody holds."""
    bucket = bucket_of(heads, first >> POSITION_BITS)
    number: int = 0
    at: int = first
    while at <= last:
        reached: int = at
        nearest: int = last + unit
        cell = heads[bucket]
        while cell != 0:
            low, high = cells[cell, KEY], cells[cell, LAST]
            if low > at:
                nearest = min(nearest, low)
            elif high >= reached:
                reached = high + unit
            cell = cells[cell, NEXT]
        if reached == at:
            number += (nearest - at) // unit
            reached = nearest
        at = reached
    return number


@njit
def drop_holder(heads: Ints, cells: Ints, holder: int) -> None:
    """A holder is gone, and all it held."""
    for bucket in range(len(heads)):
        before, cell = 0, heads[bucket]
        while cell != 0:
            following = cells[cell, NEXT]
            if cells[cell, HOLDER] == holder:
                free_cell(heads, cells, bucket, before, cell)
            else:
                before = cell
            cell = following


@njit
def overlap_runs(
    heads: Ints,
    cells: Ints,
    uids: Ints,
    ends: Ints,
    unit: int,
    ahead: int,
    max_tokens: int,
    found: Ints,
) -> None:
    """Write the tokens of each holder's leading blocks of a prompt, at most so many.

    Args:
        heads: of the table.
        cells: of the table.
        uids: of the prompt's spans.
        ends: of the prompt's spans.
        unit: tokens of a block.
        ahead: tokens behind a block that its key covers as well.
        max_tokens: blocks that end behind these are not looked at.
        found: by holder; holders beyond it are passed over.
    """
    found[:] = 0
    before, start = 0, 0
    for span in range(len(uids)):
        first = first_block(start, unit, ahead)
        last = min(last_block(ends[span], unit, ahead), max_tokens // unit * unit)
        start = ends[span]
        if first > last:
            continue
        whole = False
        base = uids[span] << POSITION_BITS
        cell = heads[bucket_of(heads, uids[span])]
        while cell != 0:
            low, high = cells[cell, KEY] - base, cells[cell, LAST] - base
            if 0 < low <= first <= high:
                holder = cells[cell, HOLDER]
                if holder < len(found) and found[holder] == before:
                    found[holder] = min(high, last)
                    whole = whole or high >= last
            cell = cells[cell, NEXT]
        if not whole:
            break
        before = last
