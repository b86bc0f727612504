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
        prepend_uncached: kinds of groups whose uncached blocks go to the head, keeping their
            order; all other blocks are appended in the order given.
    """

    name: str
    prepend_uncached: frozenset[str]


APPEND = FreeQueuePolicy("append", frozenset())
PREPEND_UNCACHED_WINDOW = FreeQueuePolicy("prepend-uncached-window", frozenset({"sliding_window"}))
PREPEND_UNCACHED = FreeQueuePolicy(
    "prepend-uncached", frozenset({"full", "sliding_window", "mamba"})
)

FREE_QUEUE_POLICIES = {
    policy.name: policy for policy in (APPEND, PREPEND_UNCACHED_WINDOW, PREPEND_UNCACHED)
}
