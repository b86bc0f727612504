"""Where a block that nobody holds any more goes in the free queue.

The pool takes blocks from the head and evicts what they held, so the place is the whole policy.
The engine's three orders differ only in which groups put *uncached* blocks (whose content no
lookup could find) back at the head; cached blocks always join the tail.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FreeQueuePolicy:
    """A free-queue order.

    Attributes:
        name: as written in a scenario.
        description: one line.
        prepend_uncached: kinds of groups whose uncached blocks go to the head, keeping their
            order; all other blocks are appended in the order given.
    """

    name: str
    description: str
    prepend_uncached: frozenset[str]


APPEND = FreeQueuePolicy(
    "append", "the block that was given back longest ago leaves first", frozenset()
)
PREPEND_UNCACHED_WINDOW = FreeQueuePolicy(
    "prepend-uncached-window",
    "as append, but uncached blocks of windows leave before all others",
    frozenset({"sliding_window"}),
)
PREPEND_UNCACHED = FreeQueuePolicy(
    "prepend-uncached",
    "as append, but uncached blocks leave before all others",
    frozenset({"full", "sliding_window", "chunked_local", "mamba"}),
)

FREE_QUEUE_POLICIES = {
    policy.name: policy for policy in (APPEND, PREPEND_UNCACHED_WINDOW, PREPEND_UNCACHED)
}
