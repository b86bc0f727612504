"""Free-queue order `pinned`."""

from __future__ import annotations

from kvsim.policies.contract import count, free_queue
from kvsim.policies.facts import ERA_S, Block


@free_queue(
    "the first tokens of prompts that are shared leave after everything else",
    source="pinned system prompts: Gim et al., Prompt Cache, MLSys 2024",
    tokens=count(4096, "how many tokens from the start are pinned", low=1),
    hits=count(2, "how often a block has to be found again to be pinned"),
)
def pinned(block: Block, tokens: int, hits: int) -> float:
    """Pinned too is what a request gave the retention priority 100."""
    shared = block.end_tokens <= tokens and block.num_hits >= hits
    asked = block.keep_priority == 100
    return block.now_s + (ERA_S if shared or asked else 0.0)
