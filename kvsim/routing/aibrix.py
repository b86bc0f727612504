"""AIBrix's prefix-cache routing."""

from __future__ import annotations

import random

from pydantic import Field

from kvsim.routing.contract import RoutedRequest, Router, Surroundings
from kvsim.routing.lru_index import SharedLruIndex
from kvsim.routing.parameters import Count, NotNegative, Parameters, Seconds
from kvsim.routing.sees import Sees
from kvsim.routing.views import Views


class AibrixPrefixParameters(Parameters):
    """Parameters of `AibrixPrefix`, with AIBrix's defaults."""

    imbalance: int = Field(
        default=8, ge=0, description="beyond it, most less least in flight, only the least count"
    )
    deviations: NotNegative = Field(
        default=1.0, description="standard deviations over the mean load that a match may have"
    )
    block_tokens: Count = Field(
        default=1, description="tokens of a block of the index (4 bytes of text)"
    )
    num_blocks: Count = Field(default=200_000, description="most blocks in the index")
    keep: Seconds = Field(default=1200.0, description="after so long unused a block is forgotten")


class AibrixPrefix(Router[AibrixPrefixParameters]):
    """AIBrix's prefix cache: most of the prompt matched, unless the load stands out."""

    Parameters = AibrixPrefixParameters
    source = "AIBrix, pkg/plugins/gateway/algorithms/prefix_cache.go, prefixcacheindexer/hash.go"

    def __init__(self, parameters: AibrixPrefixParameters, surroundings: Surroundings) -> None:
        """Start with an empty index."""
        super().__init__(parameters, surroundings)
        given = parameters
        self._index = SharedLruIndex(given.block_tokens, given.num_blocks, given.keep)

    @property
    def sees(self) -> Sees:
        """Own requests in flight."""
        return Sees(own=True)

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        """Most matched, then fewest requests, then any, of those not over the mean."""
        load = views.of(views.in_flight)
        loads = load.tolist()
        least = min(loads)
        if max(loads) - least > self.parameters.imbalance:
            request.expected_hit_tokens = None  # it does not look
            among = [who for who, own in zip(views.replicas, loads, strict=True) if own == least]
            return among[int(rng.random() * len(among))]
        bound = float(load.mean()) + self.parameters.deviations * float(load.std())
        matched = self._index.overlap(request.runs(self.parameters.block_tokens), now_s)
        # The least loaded are never over the mean, so there is always one.
        keys = [
            (-matched.get(who, 0), own, who)
            for who, own in zip(views.replicas, loads, strict=True)
            if own <= bound
        ]
        best = min(keys)[:2]
        request.expected_hit_tokens = -best[0]
        among = [key[2] for key in keys if key[:2] == best]
        return among[int(rng.random() * len(among))]

    def on_sent(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """Enter the prompt at the decision."""
        self._index.store(replica, request.runs(self.parameters.block_tokens), now_s)

    def on_replica_removed(self, replica: int, now_s: float) -> None:
        """Forget what it was sent."""
        self._index.drop(replica)
