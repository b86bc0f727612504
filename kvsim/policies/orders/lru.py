"""Free-queue order `lru`."""

from __future__ import annotations

from kvsim.policies.contract import free_queue
from kvsim.policies.facts import Block


@free_queue(
    "least recently used: the block whose last user was admitted longest ago leaves first",
    source="Denning, The working set model for program behavior, CACM 11(5), 1968",
)
def lru(block: Block) -> float:
    """When its last user was admitted; the engine counts from when it was given back."""
    return max(block.last_hit_s, block.admitted_s)
