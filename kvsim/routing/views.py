"""What one router process knows of the replicas: copies with an age."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NumberT = TypeVar("NumberT", bound=np.generic)

Counts = tuple[int, int, float]
"""Requests waiting, requests running, share of the KV cache in use."""


class Views:
    """A router process's picture of the replicas. Routers read it and never write.

    Arrays are indexed by the replica's number and may be longer than there are replicas; `of` picks
    those of `replicas`. A number that was removed may come back: it is then a new, cold replica.

    Attributes:
        replicas: numbers of the replicas that take requests, ascending.
        in_flight: requests this router has sent that are not done; exact, but its own alone.
        prefill_tokens: prompt tokens of those that have made no token yet.
        waiting: requests waiting there, by the last counts seen.
        running: requests running there, by the last counts seen.
        kv_usage: share of the KV cache in use, by the last counts seen.
        counted_at_s: the time those counts came from; minus infinity where none have come.
    """

    def __init__(self, num_replicas: int) -> None:
        """Start with replicas 0 to `num_replicas` - 1, idle as far as anyone knows."""
        size = max(num_replicas, 1)
        self.replicas: list[int] = []
        self.in_flight: Ints = np.zeros(size, np.int64)
        self.prefill_tokens: Ints = np.zeros(size, np.int64)
        self.waiting: Ints = np.zeros(size, np.int64)
        self.running: Ints = np.zeros(size, np.int64)
        self.kv_usage: Floats = np.zeros(size)
        self.counted_at_s: Floats = np.full(size, -np.inf)
        self._numbers: Ints = np.zeros(0, np.int64)
        self._contiguous = True
        self._set_replicas(list(range(num_replicas)))

    @property
    def numbers(self) -> Ints:
        """`replicas` as an array."""
        return self._numbers

    @property
    def there(self) -> Bools:
        """Whether a replica takes requests, by number."""
        return self._is_there

    def of(self, values: npt.NDArray[NumberT]) -> npt.NDArray[NumberT]:
        """The values of `replicas`, in their order; not to be written to."""
        if self._contiguous:
            return values[: len(self.replicas)]
        return values[self._numbers]

    def is_available(self, replica: int) -> bool:
        """Whether a replica takes requests."""
        return 0 <= replica < len(self._is_there) and bool(self._is_there[replica])

    def add(self, replica: int) -> None:
        """A replica is there from now on, idle as far as anyone knows."""
        while replica >= len(self.in_flight):
            for name in ("in_flight", "prefill_tokens", "waiting", "running", "kv_usage"):
                values = getattr(self, name)
                setattr(self, name, np.concatenate([values, np.zeros_like(values)]))
            self.counted_at_s = np.concatenate(
                [self.counted_at_s, np.full_like(self.counted_at_s, -np.inf)]
            )
        for values in (self.waiting, self.running):
            values[replica] = 0
        self.kv_usage[replica], self.counted_at_s[replica] = 0.0, -np.inf
        if not self.is_available(replica):
            self._set_replicas(sorted([*self.replicas, replica]))

    def remove(self, replica: int) -> None:
        """A replica takes no more requests."""
        if self.is_available(replica):
            self._set_replicas([number for number in self.replicas if number != replica])

    def take(self, replica: int, counts: Counts | Sequence[float], at_s: float) -> None:
        """Replace what was last heard of a replica's counts."""
        if replica < len(self.in_flight):
            self.waiting[replica], self.running[replica], self.kv_usage[replica] = counts
            self.counted_at_s[replica] = at_s

    def _set_replicas(self, replicas: list[int]) -> None:
        self.replicas = replicas
        self._numbers = np.array(replicas, np.int64)
        self._contiguous = replicas == list(range(len(replicas)))
        self._is_there = np.zeros(len(self.in_flight), bool)
        self._is_there[self._numbers] = True
