"""Which of several caches hold which blocks: the truth about a fleet, for figures and ceilings.

Fed with the logs of the caches, whose entries become runs of neighbouring blocks here.
"""

from __future__ import annotations

import numpy as np

from kvsim.cache.block_pool import (
    ENTERED,
    ENTERED_AGAIN,
    LOG,
    LOG_LENGTH,
    LOG_ROWS,
    REMOVED,
)
from kvsim.cache.content import GROUP_BITS, NUMBER_BITS, POSITION_BITS, Content, Ints
from kvsim.cache.span_table import (
    HOLDER,
    KEY,
    LAST,
    NEXT,
    NUM_FREE,
    OWN,
    OWN_TOO,
    SpanTable,
    free_cell,
    num_unheld,
    overlap_runs,
    remove_run,
    store_run,
)
from kvsim.jit import njit


class Holders:
    """The blocks of one group, of so many caches.

    Attributes:
        group: number of the group.
        block_size: tokens of its blocks.
    """

    def __init__(
        self, num_caches: int, group: int, block_size: int, key_lookahead: int = 0
    ) -> None:
        """Empty caches.

        Args:
            num_caches: numbered from 0.
            group: whose blocks are looked at; others in the logs are passed over.
            block_size: tokens of its blocks.
            key_lookahead: tokens behind a block that its key covers as well.
        """
        self.group = group
        self.block_size = block_size
        self._key_lookahead = key_lookahead
        self._table = SpanTable()
        self._reach = np.zeros(num_caches, dtype=np.int64)

    @property
    def num_keys(self) -> int:
        """Different blocks that are held."""
        return int(self._table.cells[0, OWN_TOO])

    @property
    def num_held(self) -> int:
        """Blocks that are held, each as often as caches hold it."""
        return int(self._table.cells[0, OWN])

    def read(self, cache: int, totals: Ints) -> None:
        """Take in what a cache has entered and removed; its log stays as it is.

        Args:
            cache: its number.
            totals: of its pool, with a log that was long enough.
        """
        table = self._table
        while not _read(totals, table.heads, table.cells, cache, self.group, self.block_size):
            table.grow(int(totals[LOG_LENGTH]))

    def forget(self, cache: int) -> None:
        """A cache is empty."""
        table = self._table
        _forget(table.heads, table.cells, cache, self.block_size)

    def reach(self, content: Content, max_tokens: int) -> Ints:
        """Leading tokens that each cache holds, in whole blocks; int64 [caches], used again."""
        table = self._table
        overlap_runs(
            table.heads, table.cells, content.uids, content.ends, self.block_size,
            self._key_lookahead, max_tokens, self._reach,
        )  # fmt: skip
        return self._reach


@njit
def is_entry(what: int) -> bool:
    """Whether an entry of a log is of a block that was entered, not removed."""
    return what in (ENTERED, ENTERED_AGAIN)


@njit
def prefix_of(key: int, size: int) -> int:
    """The prefix that ends with a block: uid and tokens, as in ``POSITION_BITS``."""
    position = ((key >> GROUP_BITS) & ((1 << NUMBER_BITS) - 1)) * size
    return (key >> (NUMBER_BITS + GROUP_BITS) << POSITION_BITS) | position


@njit
def group_of_entry(key: int) -> int:
    """The group of a block that an entry of a log names."""
    return key & ((1 << GROUP_BITS) - 1)


@njit
def _read(log: Ints, heads: Ints, cells: Ints, cache: int, group: int, size: int) -> bool:
    """Enter runs of neighbours; nothing is done where cells could be too few."""
    number = log[LOG_LENGTH]
    if cells[0, NUM_FREE] < number:
        return False
    entries = (len(log) - LOG) // LOG_ROWS
    kind, low, high = -1, 0, 0
    for i in range(number + 1):
        stored, prefix = -1, 0
        if i < number:
            key, what = log[LOG + i], log[LOG + entries + i]
            # Only the first block under a key and the last one change what a cache holds.
            if group_of_entry(key) != group or (what != ENTERED and what != REMOVED):
                continue
            stored, prefix = 1 if what == ENTERED else 0, prefix_of(key, size)
            if stored == kind and (prefix == high + size or prefix == low - size):
                low, high = min(low, prefix), max(high, prefix)
                continue
        if kind >= 0:
            unheld = num_unheld(heads, cells, low, high, size)
            if kind == 1:
                cells[0, OWN] += store_run(heads, cells, cache, low, high, size)
            else:
                cells[0, OWN] -= remove_run(heads, cells, cache, low, high, size)
            cells[0, OWN_TOO] += unheld - num_unheld(heads, cells, low, high, size)
        kind, low, high = stored, prefix, prefix
    return True


@njit
def _forget(heads: Ints, cells: Ints, cache: int, size: int) -> None:
    """Take out all that a cache holds."""
    for bucket in range(len(heads)):
        before, cell = 0, heads[bucket]
        while cell != 0:
            following = cells[cell, NEXT]
            if cells[cell, HOLDER] == cache:
                low, high = cells[cell, KEY], cells[cell, LAST]
                free_cell(heads, cells, bucket, before, cell)
                cells[0, OWN] -= (high - low) // size + 1
                cells[0, OWN_TOO] -= num_unheld(heads, cells, low, high, size)
            else:
                before = cell
            cell = following
