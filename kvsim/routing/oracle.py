"""A router that sees every cache as it is."""

from __future__ import annotations

import random

import numpy as np
from pydantic import Field

from kvsim.errors import KvsimError
from kvsim.routing.contract import RoutedRequest, Router, Surroundings
from kvsim.routing.parameters import NotNegative, Parameters
from kvsim.routing.sees import Sees
from kvsim.routing.views import Views


class OracleParameters(Parameters):
    """Parameters of `Oracle`."""

    prefill_weight: NotNegative = Field(
        default=0.0,
        description="tokens of hit worth a token that still waits for its prefill there; 0: the "
        "longest hit whatever the load, and the fewest requests among equals",
    )


class Oracle(Router[OracleParameters]):
    """Knows every cache at this moment: the longest hit there is, as no real router can."""

    Parameters = OracleParameters
    source = "a ceiling: greedy over the true caches, not optimal over the future"

    def __init__(self, parameters: OracleParameters, surroundings: Surroundings) -> None:
        """Start.

        Raises:
            KvsimError: the surroundings do not show the caches.
        """
        super().__init__(parameters, surroundings)
        if surroundings.cached_tokens is None:
            raise KvsimError("router oracle: needs a fleet that shows its caches")
        self._cached_tokens = surroundings.cached_tokens

    @property
    def sees(self) -> Sees:
        """Every cache as it is."""
        return Sees(own=True, caches=True)

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        """The longest hit less what waits, then the fewest requests, then the first."""
        cached = self._cached_tokens
        hits = np.array([cached(request, replica) for replica in views.replicas], np.float64)
        worth = hits - self.parameters.prefill_weight * views.of(views.prefill_tokens)
        best = np.flatnonzero(worth == worth.max())
        index = int(best[int(views.of(views.in_flight)[best].argmin())])
        request.expected_hit_tokens = int(hits[index])
        return views.replicas[index]
