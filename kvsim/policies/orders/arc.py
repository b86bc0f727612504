"""Free-queue order `arc`."""

from __future__ import annotations

from kvsim.policies.contract import free_queue
from kvsim.policies.facts import Block
from kvsim.policies.lists import LIST_ROWS, Rows, append, head_of, remove

RECENT, FREQUENT = 1, 2


@free_queue(
    "ARC: blocks used once and used again, the balance learnt from those that left too early",
    source="Megiddo and Modha, ARC: a self-tuning, low overhead replacement cache, FAST 2003",
    remembers=True,
    rows=(*LIST_ROWS, "again", "ghosts", "target"),
)
class arc:
    """Lists of what is free; heads count their ghosts, row 0 keeps the target for the first.

    What left is remembered by how many left since, not in lists of its own: at skewed popularity
    within a point of the original, at flat popularity two below it.
    """

    @staticmethod
    def given_back(block: Block, rows: Rows) -> None:
        """To the end of its list; a content that left too early moves the target."""
        row = rows[block.block]
        recent, frequent = rows[head_of(rows, RECENT)], rows[head_of(rows, FREQUENT)]
        tag = block.ghost_tag
        if row.list == 0 and not row.again and tag > 0:
            head = rows[head_of(rows, tag)]
            if block.ghost_age < head.ghosts:
                ratio = frequent.ghosts / max(1, recent.ghosts)
                if tag == RECENT:
                    step = max(1, int(ratio))
                    rows[0].target = min(block.pool_blocks, rows[0].target + step)
                else:
                    step = max(1, int(recent.ghosts / max(1, frequent.ghosts)))
                    rows[0].target = max(0, rows[0].target - step)
                head.ghosts -= 1
                row.again = 1
        remove(rows, block.block)
        append(rows, FREQUENT if row.again else RECENT, block.block)

    @staticmethod
    def found_again(block: Block, rows: Rows) -> None:
        """From now on it belongs to the second list."""
        rows[block.block].again = 1
        remove(rows, block.block)

    @staticmethod
    def next_out(rows: Rows) -> int:
        """The oldest of the list that is longer than it should be; it is remembered."""
        recent, frequent = rows[head_of(rows, RECENT)], rows[head_of(rows, FREQUENT)]
        number = FREQUENT
        if recent.size > 0 and (recent.size > rows[0].target or frequent.size == 0):
            number = RECENT
        head = rows[head_of(rows, number)]
        block: int = head.after
        most = len(rows) - (recent.size if number == RECENT else 0)
        head.ghosts = min(head.ghosts + 1, max(1, most))
        remove(rows, block)
        rows[block].again = 0
        rows[block].tag = number
        return block
