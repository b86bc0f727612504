"""Free-queue order `lfu`."""

from __future__ import annotations

import math

from kvsim.policies.contract import free_queue, seconds
from kvsim.policies.facts import Block


@free_queue(
    "least frequently used, with ageing: uses count less the longer they are ago",
    source="Lee et al., LRFU: a spectrum of policies, IEEE Trans. Computers 50(12), 2001",
    half_life=seconds(600.0, "time in which a use loses half its weight", low=1e-3),
)
def lfu(block: Block, half_life: float) -> float:
    """The logarithm of all uses' weights, as seen from time 0: ageing changes no order."""
    new = block.now_s / half_life
    old = block.score
    most, least = max(new, old), min(new, old)
    return most + math.log2(1.0 + 2.0 ** (least - most))
