"""Free-queue order `s3-fifo`."""

from __future__ import annotations

from kvsim.policies.contract import count, free_queue, share
from kvsim.policies.facts import Block
from kvsim.policies.lists import LIST_ROWS, Rows, append, head_of, remove

SMALL, MAIN = 1, 2


@free_queue(
    "S3-FIFO: a small queue for new blocks, a main one for those found again",
    source="Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023",
    remembers=True,
    rows=(*LIST_ROWS, "idle", "uses"),
    small=share(0.1, "share of the pool that is the small queue's"),
    ghosts=share(0.9, "evicted blocks remembered, as a share of the pool"),
    uses=count(2, "uses in the small queue that bring a block to the main one", low=1, high=3),
)
class s3_fifo:
    """Blocks in use keep their places and are passed over."""

    @staticmethod
    def given_back(block: Block, rows: Rows, small: float, ghosts: float, uses: int) -> None:
        """New ones join the small queue, those that left it not long ago the main one."""
        row = rows[block.block]
        row.idle = 1
        if row.list == 0:
            back = block.ghost_tag == SMALL and block.ghost_age < ghosts * block.pool_blocks
            append(rows, MAIN if back else SMALL, block.block)

    @staticmethod
    def found_again(block: Block, rows: Rows, small: float, ghosts: float, uses: int) -> None:
        """Uses are counted to three."""
        row = rows[block.block]
        row.idle = 0
        row.uses = min(3, row.uses + 1)

    @staticmethod
    def next_out(rows: Rows, small: float, ghosts: float, uses: int) -> int:
        """Out of the small queue while it has its share, else out of the main one."""
        least = small * (rows[head_of(rows, SMALL)].size + rows[head_of(rows, MAIN)].size)
        number = SMALL if rows[head_of(rows, SMALL)].size >= max(1.0, least) else MAIN
        block: int = rows[head_of(rows, number)].after
        for _ in range(8 * len(rows)):
            if block == 0:
                number = SMALL + MAIN - number
                block = rows[head_of(rows, number)].after
                continue
            row = rows[block]
            after = row.after
            if row.idle:
                worth = uses if number == SMALL else 1
                remove(rows, block)
                if row.uses < worth:
                    row.idle = row.uses = 0
                    row.tag = number
                    return block
                row.uses = 0 if number == SMALL else row.uses - 1
                append(rows, MAIN, block)
            block = after
        return 0
