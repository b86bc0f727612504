"""Lists of blocks for full forms, kept in their rows: each block is in one list or in none.

The last rows are of no block: one for each list, which knows its ends and its size.
"""

from __future__ import annotations

from typing import Any

from kvsim.jit import njit

LIST_ROWS = ("before", "after", "list", "size")
"""What rows need for lists: neighbours (0 at either end), the list (0 for none), and sizes."""
NUM_LISTS = 3
"""Lists are numbered 1 to this."""

Rows = Any


@njit
def head_of(rows: Rows, number: int) -> int:
    """The row of a list itself: ``after`` is its first block, ``before`` its last; 0 for none."""
    return len(rows) - number


@njit
def append(rows: Rows, number: int, block: int) -> None:
    """Put a block, which is in no list, behind all others of a list."""
    head = len(rows) - number
    last = rows[head].before
    rows[block].before = last
    rows[block].after = 0
    rows[block].list = number
    if last == 0:
        rows[head].after = block
    else:
        rows[last].after = block
    rows[head].before = block
    rows[head].size += 1


@njit
def remove(rows: Rows, block: int) -> None:
    """Take a block out of its list, if it is in one."""
    number = rows[block].list
    if number == 0:
        return
    head = len(rows) - number
    before, after = rows[block].before, rows[block].after
    if before == 0:
        rows[head].after = after
    else:
        rows[before].after = after
    if after == 0:
        rows[head].before = before
    else:
        rows[after].before = before
    rows[block].list = 0
    rows[head].size -= 1
