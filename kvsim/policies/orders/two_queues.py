"""Free-queue order `2q`."""

from __future__ import annotations

from kvsim.policies.contract import free_queue, share
from kvsim.policies.facts import Block
from kvsim.policies.lists import LIST_ROWS, Rows, append, head_of, remove

NEW, AGAIN = 1, 2


@free_queue(
    "2Q: new blocks in a queue of their own, those computed again soon after in a second by use",
    source="Johnson and Shasha, 2Q: a low overhead buffer management algorithm, VLDB 1994",
    remembers=True,
    rows=(*LIST_ROWS, "idle"),
    new=share(0.25, "share of the blocks that the first queue may hold"),
    ghosts=share(0.5, "blocks remembered that left it, as a share of the pool"),
)
class two_queues:
    """A use while in the first queue changes nothing there."""

    @staticmethod
    def given_back(block: Block, rows: Rows, new: float, ghosts: float) -> None:
        """To the end of the second queue, or once to that of the first."""
        row = rows[block.block]
        row.idle = 1
        if row.list == 0:
            back = block.ghost_tag == NEW and block.ghost_age < ghosts * block.pool_blocks
            row.tag = AGAIN if back or row.tag == AGAIN else NEW
            append(rows, row.tag, block.block)

    @staticmethod
    def found_again(block: Block, rows: Rows, new: float, ghosts: float) -> None:
        """Out of the second queue, to come back at its end."""
        rows[block.block].idle = 0
        if rows[block.block].list == AGAIN:
            remove(rows, block.block)

    @staticmethod
    def next_out(rows: Rows, new: float, ghosts: float) -> int:
        """The oldest of the first queue while that is too long, else of the second."""
        num_new, num_again = rows[head_of(rows, NEW)].size, rows[head_of(rows, AGAIN)].size
        number = NEW if num_again == 0 or num_new > new * (num_new + num_again) else AGAIN
        for _ in range(2):
            block: int = rows[head_of(rows, number)].after
            while block != 0:
                if rows[block].idle:
                    remove(rows, block)
                    rows[block].idle = 0
                    return block
                block = rows[block].after
            number = NEW + AGAIN - number
        return 0
