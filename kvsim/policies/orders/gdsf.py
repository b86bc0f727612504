"""Free-queue order `gdsf`."""

from __future__ import annotations

from kvsim.policies.contract import free_queue
from kvsim.policies.facts import Block


@free_queue(
    "greedy dual: uses times the seconds to compute the block again, ageing as others leave",
    source="Cherkasova, GreedyDual-Size-Frequency, HP Labs HPL-98-69R1, 1998",
)
def gdsf(block: Block) -> float:
    """All blocks are of one size; the clock is the worth of the block that left last."""
    return block.floor + (1 + block.num_hits) * block.own_s
