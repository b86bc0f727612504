"""Blocks of a sequence that is over, held back until no step in flight can touch them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvsim.cache.block_pool import WATCHED, Ids, Pool, Rows, give_back_run
from kvsim.cache.content import Ints
from kvsim.cache.groups import Tables, tell_holder
from kvsim.jit import njit


class HeldBlocks(NamedTuple):
    """A sequence's blocks, without the sequence.

    Attributes:
        ids: int32, group after group, each from its first block.
        ends: int64 [groups], where each group's end.
        firsts: int64 [groups], the position of each group's first block.
        holder: one ``SEQUENCE_ROW``, what was known of the sequence.
    """

    ids: Ids
    ends: Ints
    firsts: Ints
    holder: Rows


def held_blocks(tables: Tables, slot: int) -> HeldBlocks:
    """Take a sequence's blocks out of its tables; they count as in use as before."""
    rows = tables.tables[slot]
    ends = np.zeros(len(rows), dtype=np.int64)
    ids = np.zeros((rows["length"] - rows["first"]).sum(), dtype=np.int32)
    firsts = np.zeros(len(ends), dtype=np.int64)
    holder = tables.sequences[slot : slot + 1].copy()
    _take_out(tables, slot, ids, ends, firsts)
    return HeldBlocks(ids[: ends[-1]], ends, firsts, holder)


@njit
def _take_out(tables: Tables, slot: int, ids: Ids, ends: Ints, firsts: Ints) -> None:
    num = 0
    for group in range(len(tables.groups)):
        row = tables.groups[group]
        table = tables.tables[slot, group]
        firsts[group] = table.first
        for index in range(table.first, table.length):
            block = tables.rings[slot, row.ring + (index & row.ring_mask)]
            if block != 0:  # null between states
                ids[num] = block
                num += 1
        ends[group] = num
        table.length = 0
        table.first = 0
        table.num_looked_at = 0
    tables.sequences[slot].num_computed = 0
    tables.sequences[slot].serial += 1


@njit
def give_back_held(
    pool: Pool, groups: Rows, ids: Ids, ends: Ints, firsts: Ints, holder: Rows
) -> None:
    """Give back held blocks as one list: the last group first, each from its last block.

    (A sequence that gives its blocks back itself does so group after group, from the first.)
    """
    prepended = 0
    for group in range(len(groups) - 1, -1, -1):
        start = ends[group - 1] if group > 0 else 0
        if pool.totals[WATCHED] != 0:
            tell_holder(pool, groups, group, holder[0], firsts[group] - start)
        prepend = groups[group].prepend_uncached != 0
        prepended = give_back_run(pool, ids, -1, start, ends[group], prepend, prepended)
