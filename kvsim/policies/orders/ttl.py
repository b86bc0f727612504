"""Free-queue order `ttl`."""

from __future__ import annotations

from kvsim.policies.contract import count, free_queue, seconds
from kvsim.policies.facts import ERA_S, FRONT, Block


def _expiry(block: Block, ttl: float, hits: int) -> float:
    return block.given_back_s + ttl


@free_queue(
    "time to live: blocks that were found again are spared until they have not been for a while",
    source="Anthropic, prompt caching: entries live 5 minutes, refreshed by each use",
    ask_again=_expiry,
    ttl=seconds(300.0, "how long after its last use a block is spared", low=1e-3),
    hits=count(1, "how often a block has to be found again to be spared at all"),
)
def ttl(block: Block, ttl: float, hits: int) -> float:
    """Expired ones leave first of all; then those that are not spared; each by age."""
    if block.now_s >= block.given_back_s + ttl:
        return FRONT
    return block.given_back_s + (ERA_S if block.num_hits >= hits else 0.0)
