"""Free-queue order `sieve`."""

from __future__ import annotations

from kvsim.policies.contract import free_queue
from kvsim.policies.facts import Block
from kvsim.policies.lists import LIST_ROWS, Rows, append, head_of, remove


@free_queue(
    "SIEVE: a hand goes from old to new, spares what was found since it last came by",
    source="Zhang et al., SIEVE is simpler than LRU, NSDI 2024",
    rows=(*LIST_ROWS, "idle", "visited"),
)
class sieve:
    """One list in the order of entry; row 0 keeps the hand, in ``after``."""

    @staticmethod
    def given_back(block: Block, rows: Rows) -> None:
        """A block enters once, and keeps its place."""
        row = rows[block.block]
        row.idle = 1
        if row.list == 0:
            append(rows, 1, block.block)

    @staticmethod
    def found_again(block: Block, rows: Rows) -> None:
        """It is marked where it stands."""
        rows[block.block].idle = 0
        rows[block.block].visited = 1

    @staticmethod
    def next_out(rows: Rows) -> int:
        """The first unmarked one from the hand on; marks are wiped off on the way."""
        first = rows[head_of(rows, 1)].after
        hand: int = rows[0].after
        for _ in range(2 * len(rows)):
            if hand == 0:
                hand = first
            row = rows[hand]
            if row.idle and not row.visited:
                rows[0].after = row.after
                remove(rows, hand)
                row.idle = 0
                return hand
            row.visited = 0
            hand = row.after
        return 0
