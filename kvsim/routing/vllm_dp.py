"""vLLM's choice of a data-parallel rank."""

from __future__ import annotations

import random

from kvsim.routing.contract import RoutedRequest, Router, Surroundings
from kvsim.routing.parameters import Parameters
from kvsim.routing.sees import Sees
from kvsim.routing.views import Views

_PENALTY = 6.0
"""Weight of a waiting request for each share of KV cache in use above `_FREE_USAGE`."""
_FREE_USAGE = 0.5


class VllmDp(Router[Parameters]):
    """vLLM's API server over data-parallel ranks: least of own and published load, in turn."""

    source = (
        "vLLM 0.33.0, vllm/v1/engine/core_client.py, DPLBAsyncMPClient.get_core_engine_for_request"
    )

    def __init__(self, parameters: Parameters, surroundings: Surroundings) -> None:
        """Start where this client's scan begins; clients are spread over the ranks."""
        super().__init__(parameters, surroundings)
        self.scan_start = (
            surroundings.num_replicas * surroundings.router_index // surroundings.num_routers
        )
        self._sent_waiting: dict[int, int] = {}  # own additions to the last snapshot's `waiting`

    @property
    def sees(self) -> Sees:
        """Own counts, and what the coordinator publishes."""
        return Sees(own=True, published=True)

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        """The least score; the first in the order of the scan wins a tie."""
        clients = self.surroundings.num_routers
        replicas = views.replicas
        waiting = views.of(views.waiting).tolist()
        running = views.of(views.running).tolist()
        usage = views.of(views.kv_usage).tolist()
        in_flight = views.of(views.in_flight).tolist()
        added = self._sent_waiting
        count = len(replicas)
        best, least = 0, float("inf")
        for turn in range(count):
            index = (self.scan_start + turn) % count
            queued = waiting[index] + added.get(replicas[index], 0)
            score = max(clients * in_flight[index], queued + running[index])
            if queued:
                score += queued * _PENALTY * max(0.0, usage[index] - _FREE_USAGE)
            if score < least:
                best, least = index, score
        replica = replicas[best]
        added[replica] = added.get(replica, 0) + clients
        self.scan_start = (self.scan_start + 1) % count
        return replica

    def on_counts(self, replica: int, at_s: float) -> None:
        """A snapshot replaces the client's copy, own additions and all."""
        self._sent_waiting.pop(replica, None)

    def seen_counts(self, views: Views) -> list[list[float]]:
        """The client's copy, for each rank: waiting with its own additions, running, KV usage."""
        return [
            [
                int(views.waiting[replica]) + self._sent_waiting.get(replica, 0),
                int(views.running[replica]),
                float(views.kv_usage[replica]),
            ]
            for replica in views.replicas
        ]
