"""llm-d's sticky until saturated: affinity, and an override by estimated time."""

from __future__ import annotations

import random
from typing import Annotated

import numpy as np
from pydantic import Field

from kvsim.routing.contract import RoutedRequest, Surroundings
from kvsim.routing.llm_d import any_greatest, token_load
from kvsim.routing.llm_d_index import IndexedRouter, LlmdIndex
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


class StickyUntilSaturated(IndexedRouter[StickyParameters]):
    """llm-d's guides since August 2026: stay with the prefix until another is much sooner done."""

    Parameters = StickyParameters
    source = "llm-d guides/optimized-baseline; llm-d blog 2026-08-17"

    def __init__(self, parameters: StickyParameters, surroundings: Surroundings) -> None:
        """Start with an empty index."""
        super().__init__(parameters, surroundings)
        precise = parameters.sees.events_after_s is not None
        self.index = LlmdIndex(surroundings, precise=precise)

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        """The least token load, of those with affinity as long as they are not far behind."""
        given = self.parameters
        share = self.index.share(request, views, now_s)
        scores = token_load(self.index, share, request.prompt_tokens, views)
        close = share >= given.affinity
        if close.any() and not close.all():
            times = self.index.tokens(views) / given.tokens_per_s
            if float(times[close].min()) - float(times[~close].min()) <= given.slack:
                scores = np.where(close, scores, -1.0)
        return any_greatest(scores, views, rng)
