"""Free-queue order `earned`."""

from __future__ import annotations

from kvsim.policies.contract import count, free_queue, number
from kvsim.policies.facts import FULL_ATTENTION, INTERVAL, Block


@free_queue(
    "blocks found again stay longer; runs that a prompt has passed, and few have hit, leave early",
    source="kvsim; a turn resumes from the end of the one before, so older runs are spent",
    discount=number(1.0, "how much earlier a passed run leaves, in stays of a block", high=100.0),
    credit=number(1.0, "how much later a block leaves that was found again, likewise", high=100.0),
    hits=count(2, "hits that show that a passed run is one where prompts branch", low=1),
)
def earned(block: Block, discount: float, credit: float, hits: int) -> float:
    """In place of the time of giving back, a time that is earned.

    A stay is how long the block that left last had waited. A run of a window or state group is
    passed where it is neither at this prompt's replay boundary nor at its junction.
    """
    stay = max(0.0, block.now_s - block.floor)
    passed = block.kind != FULL_ATTENTION and block.boundary == INTERVAL
    if passed and block.num_hits < hits:
        return block.now_s - discount * stay
    return block.now_s + (credit * stay if block.num_hits > 0 else 0.0)
