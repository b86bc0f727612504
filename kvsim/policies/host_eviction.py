"""Which chunk leaves a host tier: what an order has to answer; `table` has them by name."""

from __future__ import annotations

from typing import Protocol

from kvsim.policies.host_chunks import Chunks, Ints, RowIds, Uses


class HostEviction(Protocol):
    """An order in which chunks leave; it is told all that happens to them."""

    def __init__(self, num_chunks: int) -> None:
        """For a tier of so many chunks; parameters of the policy follow by name."""

    def next_number(self) -> int:
        """A number for a request that sees its first key."""

    def missed(self, chunks: Chunks, keys: Ints) -> None:
        """A request misses keys for the first time, before they are stored."""

    def seen(
        self, chunks: Chunks, rows: RowIds, positions: Ints, groups: Ints, number: int
    ) -> None:
        """A request sees chunks for the first time.

        Args:
            chunks: the tier's.
            rows: int64; 0 where the chunk is not in the tier.
            positions: int64, where each ends, in tokens.
            groups: int64, the KV cache group of each.
            number: the request's.
        """

    def inserted(
        self, chunks: Chunks, keys: Ints, positions: Ints, groups: Ints, number: int, rows: RowIds
    ) -> None:
        """A request stores chunks; their rows are written to ``rows``."""

    def evictable(self, chunks: Chunks, rows: RowIds) -> None:
        """No transfer holds these chunks any more."""

    def evict(self, chunks: Chunks, offer: int, keys: Ints) -> None:
        """Let ``len(keys)`` chunks leave, none of them in transfer or in this offer.

        There are enough of them; their keys are written in the order they leave.
        """

    def finished(self, chunks: Chunks, keys: Ints, uses: Uses) -> None:
        """A request is finished: all keys it saw, tail first, and what it did with each."""
