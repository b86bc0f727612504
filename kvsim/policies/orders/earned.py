"""Free-queue order `earned`."""

from __future__ import annotations

from kvsim.policies.contract import count, free_queue, number
from kvsim.policies.facts import FULL_ATTENTION, INTERVAL, Block


@free_queue(
    "runs that their prompt has passed leave early, and blocks found again may stay longer",
    source="kvsim; a turn resumes from the end of the one before, so older runs are spent",
    discount=number(1.0, "how much earlier a passed run leaves, in stays of a block", high=100.0),
    length=count(4096, "tokens before a run that was hit once which halve its discount", low=1),
    hits=count(2, "hits that show that a passed run is one where prompts branch", low=1),
    credit=number(0.0, "how much later a block leaves that was found again, in stays", high=100.0),
)
def earned(block: Block, discount: float, length: int, hits: int, credit: float) -> float:
    """In place of the time of giving back, a time that is earned.

    A stay is how long the block that left last had waited. A run of a window or state group is
    passed where it is neither at this prompt's replay boundary nor at its junction. One that was
    hit may be hit again: the longer what it saves, the better it is kept.
    """
    stay = max(0.0, block.now_s - block.floor)
    if block.kind != FULL_ATTENTION and block.boundary == INTERVAL:
        if block.num_hits == 0:
            return block.now_s - discount * stay
        if block.num_hits < hits:
            return block.now_s - discount * stay * length / (length + block.end_tokens)
    return block.now_s + (credit * stay if block.num_hits > 0 else 0.0)
