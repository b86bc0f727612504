"""Free-queue order `hit-first`."""

from __future__ import annotations

from kvsim.policies.contract import count, free_queue
from kvsim.policies.facts import ERA_S, Block


@free_queue(
    "blocks that were never found again leave before those that were",
    source="segmented LRU: Karedla, Love, Wherry, IEEE Computer 27(3), 1994, without a limit",
    hits=count(1, "how often a block has to be found again to be spared", low=1),
)
def hit_first(block: Block, hits: int) -> float:
    """Two queues in one, each by the time of giving back."""
    return block.now_s + (ERA_S if block.num_hits >= hits else 0.0)
