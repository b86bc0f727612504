"""vLLM production-stack's routers: round robin, session, prefix aware, load aware."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
from pydantic import Field

from kvsim.routing.contract import RoutedRequest, Router, Surroundings
from kvsim.routing.hash_ring import HashRing, hashed
from kvsim.routing.parameters import Count, NotNegative, Parameters, Positive
from kvsim.routing.prefix_index import DecisionIndex
from kvsim.routing.sees import NOTHING, Sees
from kvsim.routing.session import RecentArrivals
from kvsim.routing.views import Views

_FOREVER = float("inf")


class ProductionStackParameters(Parameters):
    """Parameters of `ProductionStack`."""

    logic: Literal["round-robin", "session", "prefix-aware", "load-aware"] = Field(
        default="round-robin", description="its routing logic"
    )
    chunk_characters: Count = Field(
        default=128, description="prefix-aware: characters of a chunk of the trie"
    )
    characters_per_token: Positive = Field(default=4.0, description="length of the text of a token")
    beta: NotNegative = Field(
        default=1.0,
        description="load-aware: share of the prompt that a load twice the mean outweighs",
    )


class ProductionStack(Router[ProductionStackParameters]):
    """vLLM production-stack: round robin, session, or longest prefix in a trie never trimmed."""

    Parameters = ProductionStackParameters
    source = "vLLM production-stack, src/vllm_router/routers/routing_logic.py; load-aware: #1035"

    def __init__(self, parameters: ProductionStackParameters, surroundings: Surroundings) -> None:
        """Start with an empty trie."""
        super().__init__(parameters, surroundings)
        chunk = round(parameters.chunk_characters / parameters.characters_per_token)
        self._trie = DecisionIndex(max(1, chunk), _FOREVER)
        self._ring = HashRing(list(range(surroundings.num_replicas)))
        self._arrivals = RecentArrivals()
        self._turn = 0

    @property
    def sees(self) -> Sees:
        """Own requests in flight if it goes by load, else nothing."""
        return Sees(own=True) if self.parameters.logic == "load-aware" else NOTHING

    @property
    def by_session(self) -> bool:
        """With logic: session."""
        return self.parameters.logic == "session"

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        """By the logic."""
        logic, replicas = self.parameters.logic, views.replicas
        if logic == "round-robin":
            self._turn += 1
            return replicas[(self._turn - 1) % len(replicas)]
        if logic == "session":
            if request.session_id is None:
                return self._arrivals.fewest(replicas, now_s)
            return self._ring.owner(hashed(request.session_id))
        matched = views.of(self._trie.overlap(request.content, len(views.in_flight), now_s))
        if logic == "prefix-aware":
            request.expected_hit_tokens = int(matched.max())
            among = np.flatnonzero(matched == matched.max())
            return replicas[int(among[int(rng.random() * len(among))])]
        load = views.of(views.in_flight)
        mean = float(load.mean())
        share = matched / request.prompt_tokens
        worth = share - self.parameters.beta * (load - mean) / max(1.0, mean)
        chosen = int(worth.argmax())
        request.expected_hit_tokens = int(matched[chosen])
        return replicas[chosen]

    def on_sent(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """Enter the prompt in the trie, or count the arrival."""
        logic = self.parameters.logic
        if logic == "session":
            self._arrivals.count(replica, now_s)
        elif logic != "round-robin":
            self._trie.store(replica, request.content, now_s)

    def on_replica_added(self, replica: int, now_s: float) -> None:
        """It takes its stretch of the ring."""
        self._ring.add(replica)

    def on_replica_removed(self, replica: int, now_s: float) -> None:
        """It leaves ring and trie."""
        self._ring.remove(replica)
        self._trie.drop(replica)
