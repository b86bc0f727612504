"""llm-d's sticky until saturated: affinity, and an override by estimated time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from kvsim.routing.contract import RoutedRequest, Router, Surroundings, Tier
from kvsim.routing.llm_d import any_greatest, token_load
from kvsim.routing.llm_d_index import LlmdIndex
from kvsim.routing.parameters import Parameters, Positive, Seconds, Share
from kvsim.routing.sees import Sees, SeesSetting, one_of
from kvsim.routing.views import Views


class StickyParameters(Parameters):
    """Parameters of `StickyUntilSaturated`, with the defaults of llm-d's guides."""

    affinity: Share = Field(
        default=0.8, description="share of the prompt matched from which a replica is kept to"
    )
    slack: Seconds = Field(
        default=18.0,
        description="affinity gives way if the best other would answer so much sooner",
    )
    tokens_per_s: Positive = Field(
        default=15_928.0,
        description="prefill speed of a replica (Qwen3-32B on 2 H100; give your own)",
    )
    sees: Annotated[SeesSetting, one_of("own", "events")] = Field(
        default=Sees(own=True), description="own decisions, or KV events and how late they come"
    )


class StickyUntilSaturated(Router[StickyParameters]):
    """llm-d's guides since August 2026: stay with the prefix until another is much sooner done."""

    Parameters = StickyParameters
    source = "llm-d guides/optimized-baseline; llm-d blog 2026-08-17"

    def __init__(self, parameters: StickyParameters, surroundings: Surroundings) -> None:
        """Start with an empty index."""
        super().__init__(parameters, surroundings)
        precise = parameters.sees.events_after_s is not None
        self._index = LlmdIndex(surroundings, precise=precise)

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        """The least token load, of those with affinity as long as they are not far behind."""
        given = self.parameters
        share = self._index.share(request, views, now_s)
        scores = token_load(self._index, share, request.prompt_tokens, views)
        close = share >= given.affinity
        if close.any() and not close.all():
            times = self._index.tokens(views) / given.tokens_per_s
            if float(times[close].min()) - float(times[~close].min()) <= given.slack:
                scores = np.where(close, scores, -1.0)
        return any_greatest(scores, views, rng)

    def on_sent(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """Enter the prompt and its tokens."""
        self._index.sent(request, replica, now_s)

    def on_first_token(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """Its tokens are computed."""
        self._index.computed(request, replica)

    def on_finished(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """It is gone."""
        self._index.computed(request, replica)

    def on_events(
        self,
        replica: int,
        stored: Sequence[int],
        removed: Sequence[int],
        now_s: float,
        tier: Tier = "device",
    ) -> None:
        """Enter and take out blocks."""
        self._index.events(replica, stored, removed, tier)

    def on_replica_added(self, replica: int, now_s: float) -> None:
        """Make room for it."""
        self._index.add(replica)

    def on_replica_removed(self, replica: int, now_s: float) -> None:
        """Forget what it had."""
        self._index.drop(replica)
