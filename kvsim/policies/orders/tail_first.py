"""Free-queue order `tail-first`."""

from __future__ import annotations

import math

from kvsim.policies.contract import free_queue, seconds
from kvsim.policies.facts import Block


@free_queue(
    "the deepest blocks leave first, among those given back in the same period",
    source="leaf-first eviction of RadixAttention: Zheng et al., SGLang, NeurIPS 2024",
    period=seconds(60.0, "blocks given back in one period are ordered by depth alone", low=1e-3),
)
def tail_first(block: Block, period: float) -> float:
    """Periods in order, and within each the deepest first."""
    return math.floor(block.now_s / period) - block.end_tokens / 2.0**24
