"""Routers that keep a session where it is."""

from __future__ import annotations

import random
from collections import deque
from typing import Literal

from pydantic import Field

from kvsim.routing.contract import RoutedRequest, Router, Surroundings
from kvsim.routing.hash_ring import HashRing, hashed
from kvsim.routing.parameters import Parameters
from kvsim.routing.sees import NOTHING, Sees
from kvsim.routing.views import Views

WINDOW_S = 60.0
"""Arrivals are counted over so long where a request belongs to no session."""


class SessionParameters(Parameters):
    """Parameters of `Session`."""

    method: Literal["ring", "sticky", "bounded"] = Field(
        default="ring",
        description="a hash ring; or where its first request went, which is the replica with the "
        "fewest; or a hash ring with bounded loads",
    )
    load_factor: float = Field(
        default=1.5,
        ge=1,
        description="bounded: most requests in flight over the mean, the new one included",
    )


class Session(Router[SessionParameters]):
    """Sessions stay on one replica: by a hash ring, by memory, or by a ring with bounded loads."""

    Parameters = SessionParameters
    source = (
        "production-stack, routing_logic.py (session); SGLang, bounded_consistent_hashing; "
        "Mirrokni et al. 2017 (bounded loads)"
    )

    def __init__(self, parameters: SessionParameters, surroundings: Surroundings) -> None:
        """Put the replicas on the ring."""
        super().__init__(parameters, surroundings)
        self._ring = HashRing(list(range(surroundings.num_replicas)))
        self._homes: dict[str, int] = {}
        self._arrivals = RecentArrivals()

    @property
    def sees(self) -> Sees:
        """Nothing with a ring alone; own requests in flight otherwise."""
        return NOTHING if self.parameters.method == "ring" else Sees(own=True)

    @property
    def by_session(self) -> bool:
        """With a ring alone."""
        return self.parameters.method == "ring"

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        """The session's replica; without a session, the one with the fewest arrivals of late."""
        session, method = request.session_id, self.parameters.method
        if session is None:
            return self._arrivals.fewest(views.replicas, now_s)
        if method == "sticky":
            home = self._homes.get(session)
            if home is None or not views.is_available(home):
                home = views.replicas[int(views.of(views.in_flight).argmin())]
                self._homes[session] = home
            return home
        if method == "bounded":
            return within_bound(self._ring, hashed(session), views, self.parameters.load_factor)
        return self._ring.owner(hashed(session))

    def on_sent(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """Count an arrival."""
        self._arrivals.count(replica, now_s)

    def on_replica_added(self, replica: int, now_s: float) -> None:
        """It takes its stretch of the ring."""
        self._ring.add(replica)

    def on_replica_removed(self, replica: int, now_s: float) -> None:
        """Its stretch goes to the next ones."""
        self._ring.remove(replica)


class RecentArrivals:
    """Requests sent to each replica in the last minute."""

    def __init__(self) -> None:
        """Start with none."""
        self._times: deque[tuple[float, int]] = deque()
        self._counts: dict[int, int] = {}

    def count(self, replica: int, now_s: float) -> None:
        """A request was sent."""
        self._times.append((now_s, replica))
        self._counts[replica] = self._counts.get(replica, 0) + 1
        self._forget(now_s)

    def fewest(self, replicas: list[int], now_s: float) -> int:
        """The replica with the fewest; one never sent to comes before all, the first of equals."""
        self._forget(now_s)
        return min(replicas, key=lambda replica: self._counts.get(replica, -1))

    def _forget(self, now_s: float) -> None:
        while self._times and self._times[0][0] <= now_s - WINDOW_S:
            self._counts[self._times.popleft()[1]] -= 1


def within_bound(ring: HashRing, place: int, views: Views, load_factor: float) -> int:
    """The first replica clockwise that stays within the bound; else the one at the place.

    The bound is `load_factor` times the mean load with the new request.
    """
    bound = load_factor * (int(views.of(views.in_flight).sum()) + 1) / len(views.replicas)
    for replica in ring.clockwise(place):
        if views.in_flight[replica] + 1 <= bound:
            return replica
    return ring.owner(place)
