"""Consistent hashing: a ring of points, several for each replica."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from hashlib import blake2b

POINTS = 160
"""Points of a replica on the ring, as many as ketama has."""


def hashed(text: str) -> int:
    """A number of 64 bits that stands for a text, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class HashRing:
    """Replicas on a ring. When one comes or goes, only its own stretch changes hands."""

    def __init__(self, replicas: list[int]) -> None:
        """Put replicas on the ring."""
        self._points: list[tuple[int, int]] = []
        for replica in replicas:
            self.add(replica)

    def add(self, replica: int) -> None:
        """Put a replica on the ring, unless it is there."""
        if any(owner == replica for _, owner in self._points):
            return
        new = [(hashed(f"{replica}/{point}"), replica) for point in range(POINTS)]
        self._points = sorted([*self._points, *new])

    def remove(self, replica: int) -> None:
        """Take a replica off the ring."""
        self._points = [point for point in self._points if point[1] != replica]

    def owner(self, place: int) -> int:
        """The replica whose point is the next at or after a place."""
        return next(self.clockwise(place))

    def clockwise(self, place: int) -> Iterator[int]:
        """All replicas, as their first points come from a place on."""
        points = self._points
        start = bisect_left(points, (place, -1))
        seen = set()
        for turn in range(len(points)):
            replica = points[(start + turn) % len(points)][1]
            if replica not in seen:
                seen.add(replica)
                yield replica
