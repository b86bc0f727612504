"""Routers that look at load alone: least requests, and the better of two."""

from __future__ import annotations

import random
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from kvsim.routing.contract import RoutedRequest, Router
from kvsim.routing.parameters import Parameters
from kvsim.routing.sees import Sees, SeesSetting, one_of
from kvsim.routing.views import Ints, Views

LoadSetting = Annotated[SeesSetting, one_of("own", "published", "scraped")]


class LeastRequestsParameters(Parameters):
    """Parameters of `LeastRequests`."""

    ties: Literal["first", "random"] = Field(
        default="first", description="who wins among equals: the first (SGLang, Vidur) or any"
    )
    sees: LoadSetting = Field(
        default=Sees(own=True), description="own requests in flight, or counts of the replicas"
    )


class LeastRequests(Router[LeastRequestsParameters]):
    """The replica with the fewest requests."""

    Parameters = LeastRequestsParameters
    source = "SGLang, Vidur LOR (first of equals); AIBrix, llm-d (any of equals)"

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        """The least of `load`."""
        load = self.load(views)
        if self.parameters.ties == "first":
            return views.replicas[int(load.argmin())]
        return any_least(load, views, rng)


class PowerOfTwoParameters(Parameters):
    """Parameters of `PowerOfTwo`."""

    sees: LoadSetting = Field(
        default=Sees(own=True),
        description="own requests in flight, or reported use of the KV cache where both report",
    )


class PowerOfTwo(Router[PowerOfTwoParameters]):
    """Two replicas drawn at random, and of these the less loaded."""

    Parameters = PowerOfTwoParameters
    source = "SGLang, sgl-model-gateway/src/policies/power_of_two.rs; Mitzenmacher 2001"

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        """The first drawn unless the second has less."""
        replicas = views.replicas
        count = len(replicas)
        if count == 1:
            return replicas[0]
        one = int(rng.random() * count)
        two = (one + 1 + int(rng.random() * (count - 1))) % count
        first, second = replicas[one], replicas[two]
        sees = self.parameters.sees
        reported = views.counted_at_s
        if (
            (sees.published or sees.scraped_every_s is not None)
            and np.isfinite(reported[first])
            and np.isfinite(reported[second])
        ):
            return first if views.kv_usage[first] <= views.kv_usage[second] else second
        return first if views.in_flight[first] <= views.in_flight[second] else second


def any_least(values: Ints, views: Views, rng: random.Random) -> int:
    """A replica with the least value, equal ones with equal chances."""
    least = np.flatnonzero(values == values.min())
    return views.replicas[int(least[int(rng.random() * len(least))])]
