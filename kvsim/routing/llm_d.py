"""llm-d's router, also the Gateway API endpoint picker: weighted scores."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field

from kvsim.errors import show, unknown_name
from kvsim.routing.contract import RoutedRequest, Surroundings
from kvsim.routing.llm_d_index import IndexedRouter, LlmdIndex
from kvsim.routing.parameters import Parameters, Seconds, Share
from kvsim.routing.sees import Sees, SeesSetting
from kvsim.routing.views import Floats, Views

MOST_WAITING = 128
"""load-aware: so many waiting requests are worth nothing."""
MOST_TOKENS = 4_194_304
"""token-load: so many tokens in flight are worth nothing."""


def _queue(router: LlmD, views: Views) -> Floats:
    """By how far the queue is from the longest; all equal: all 1."""
    waiting = views.of(views.waiting)
    most, least = int(waiting.max()), int(waiting.min())
    if most == least:
        return np.ones(len(waiting))
    return (most - waiting) / (most - least)


def _kv_utilization(router: LlmD, views: Views) -> Floats:
    return 1.0 - views.of(views.kv_usage)


def _prefix(router: LlmD, views: Views) -> Floats:
    return router.share


def _load_aware(router: LlmD, views: Views) -> Floats:
    waiting = np.minimum(views.of(views.waiting), MOST_WAITING)
    return 0.5 * (1.0 - waiting / MOST_WAITING)


def _active_request(router: LlmD, views: Views) -> Floats:
    count = views.of(views.in_flight)
    most = max(int(count.max()), 1)
    return (most - count) / most  # an idle one is worth 1 by the same formula


def _token_load(router: LlmD, views: Views) -> Floats:
    return token_load(router.index, router.share, router.prompt_tokens, views)


def _no_hit_lru(router: LlmD, views: Views) -> Floats:
    """Where nobody has any of the prompt: by how long it is since the last such went there."""
    count = len(views.replicas)
    if count == 1 or router.share.any():
        return np.full(count, 0.5)
    used = [router.cold_used.get(replica, -1) for replica in views.replicas]
    order = np.argsort(np.argsort(used, kind="stable"), kind="stable")
    return 1.0 - order / (count - 1)


SCORERS: dict[str, Callable[[LlmD, Views], Floats]] = {
    "queue": _queue,
    "kv-utilization": _kv_utilization,
    "prefix": _prefix,
    "load-aware": _load_aware,
    "active-request": _active_request,
    "token-load": _token_load,
    "no-hit-lru": _no_hit_lru,
}
"""Each from 0 to 1 for each of `views.replicas`."""
_PREFIX_SCORERS = {"prefix", "token-load", "no-hit-lru"}


def _known_scorers(weights: Mapping[str, float]) -> Mapping[str, float]:
    for name, weight in weights.items():
        if name not in SCORERS:
            raise ValueError(unknown_name("scorer", name, SCORERS))
        if weight < 0:
            raise ValueError(f"{name}: {show(weight)} is below 0. Use 0 or more.")
    if not any(weights.values()):
        raise ValueError("no scorer has a weight. Give one a weight above 0.")
    return weights


def _not_published(sees: Sees) -> Sees:
    if sees.published:
        raise ValueError("'published' is of no use here. Choices: own, scraped, events.")
    return sees


class LlmDParameters(Parameters):
    """Parameters of `LlmD`; the weights are those of its built-in profile."""

    weights: Annotated[dict[str, float], AfterValidator(_known_scorers)] = Field(
        default={"queue": 2.0, "kv-utilization": 2.0, "prefix": 3.0},
        description=f"scorers that count, and how much: {', '.join(SCORERS)}",
    )
    host_weight: Share = Field(
        default=0.8, description="with events: worth of a block that only the host tier has"
    )
    speculative: Seconds | None = Field(
        default=None, description="with events: own decisions count for so long; null: not at all"
    )
    sees: Annotated[SeesSetting, AfterValidator(_not_published)] = Field(
        default=Sees(own=True, scraped_every_s=0.05),
        description="how often metrics are scraped; with events, how late they come: the prefix "
        "index is then the precise one",
    )


class LlmD(IndexedRouter[LlmDParameters]):
    """llm-d: the greatest weighted sum of scores for queue, KV use, prefix and load."""

    Parameters = LlmDParameters
    source = "llm-d-router (August 2026), pkg/epp; weights: config/loader/defaults.go"

    def __init__(self, parameters: LlmDParameters, surroundings: Surroundings) -> None:
        """Start with an empty index."""
        super().__init__(parameters, surroundings)
        self.index = LlmdIndex(
            surroundings,
            precise=parameters.sees.events_after_s is not None,
            host_weight=parameters.host_weight,
            speculative_s=parameters.speculative,
        )
        self.share: Floats = np.zeros(0)  # of the prompt that is being placed
        self.prompt_tokens = 0
        self.cold_used: dict[int, int] = {}  # replica: number of the last cold prompt sent there
        self._num_cold = 0
        self._scorers = [
            (SCORERS[name], weight) for name, weight in parameters.weights.items() if weight
        ]
        names = {name for name, weight in parameters.weights.items() if weight}
        self._looks_at_prefixes = bool(names & _PREFIX_SCORERS)

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        """The greatest sum, any of equals."""
        if self._looks_at_prefixes:
            self.share = self.index.share(request, views, now_s)
            self.prompt_tokens = request.prompt_tokens
        total: Floats = np.zeros(len(views.replicas))
        for scorer, weight in self._scorers:
            total = total + weight * scorer(self, views)
        chosen = any_greatest(total, views, rng)
        if self._looks_at_prefixes and not self.share.any():
            self._num_cold += 1
            self.cold_used[chosen] = self._num_cold
        return chosen

    def on_sent(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """Enter the prompt and its tokens."""
        if self._looks_at_prefixes:
            super().on_sent(request, replica, now_s)

    def on_replica_removed(self, replica: int, now_s: float) -> None:
        """Forget what it had."""
        super().on_replica_removed(replica, now_s)
        self.cold_used.pop(replica, None)


def token_load(index: LlmdIndex, share: Floats, prompt_tokens: int, views: Views) -> Floats:
    """llm-d's token-load score: by tokens in flight and what this request has uncached."""
    tokens = index.tokens(views) + (1.0 - share) * prompt_tokens
    return 1.0 - np.minimum(tokens, MOST_TOKENS) / MOST_TOKENS


def any_greatest(values: Floats, views: Views, rng: random.Random) -> int:
    """A replica with the greatest value, equal ones with equal chances."""
    best = np.flatnonzero(values == values.max())
    return views.replicas[int(best[int(rng.random() * len(best))])]
