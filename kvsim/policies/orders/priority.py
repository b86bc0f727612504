"""Free-queue order `priority`."""

from __future__ import annotations

from kvsim.policies.contract import count, free_queue
from kvsim.policies.facts import ERA_S, Block


def _until(block: Block, default: int) -> float:
    return block.given_back_s + block.keep_s


@free_queue(
    "the lowest retention priority leaves first, each for as long as its request said",
    source="TensorRT-LLM, KvCacheRetentionConfig: priorities 0 to 100 with a duration, default 35",
    ask_again=_until,
    default=count(
        35, "priority of blocks whose request says none, or said it too long ago", high=100
    ),
)
def priority(block: Block, default: int) -> float:
    """Priorities in order, and within each the one given back (or demoted) longest ago."""
    level = default
    if block.keep_priority >= 0 and block.now_s < block.given_back_s + block.keep_s:
        level = block.keep_priority
    return level * ERA_S + block.now_s
