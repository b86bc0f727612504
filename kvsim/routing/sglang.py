"""SGLang's routers: cache aware, and consistent hashing of the prompt's beginning."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
from pydantic import Field

from kvsim.routing.contract import RoutedRequest, Router, Surroundings
from kvsim.routing.hash_ring import HashRing, hashed
from kvsim.routing.parameters import Count, Parameters, Positive, Seconds, Share
from kvsim.routing.sees import Sees
from kvsim.routing.session import within_bound
from kvsim.routing.text_tree import TextTree
from kvsim.routing.views import Views


class SglangCacheAwareParameters(Parameters):
    """Parameters of `SglangCacheAware`; defaults of its command line."""

    cache_threshold: Share = Field(
        default=0.3, description="a match counts if it is more than this share of the prompt"
    )
    balance_abs_threshold: int = Field(
        default=64, ge=0, description="load is balanced if most minus least in flight exceeds it"
    )
    balance_rel_threshold: float = Field(
        default=1.5, ge=0, description="and the most exceeds so many times the least"
    )
    eviction_interval: Seconds = Field(
        default=60.0, description="from one trimming of the tree to the next; 0: never"
    )
    max_tree_size: Count = Field(
        default=2**26, description="characters remembered for a worker after trimming"
    )
    characters_per_token: Positive = Field(
        default=4.0, description="length of the text of a token, for max_tree_size"
    )


class SglangCacheAware(Router[SglangCacheAwareParameters]):
    """SGLang's cache-aware router: longest match of the text it has sent, unless out of balance."""

    Parameters = SglangCacheAwareParameters
    source = "sglang-router 0.3.2, sgl-model-gateway/src/policies/cache_aware.rs, tree.rs"

    def __init__(self, parameters: SglangCacheAwareParameters, surroundings: Surroundings) -> None:
        """Start with an empty tree."""
        super().__init__(parameters, surroundings)
        self._tree = TextTree()
        self._trimmed_s: float | None = None

    @property
    def sees(self) -> Sees:
        """Own requests in flight."""
        return Sees(own=True)

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        """Balance first, then the longest match, then the least loaded; the first of equals."""
        self._trim(now_s)
        chosen = self._preferred(request, views)
        self._tree.insert(request.spans(), chosen)
        return chosen

    def on_replica_removed(self, replica: int, now_s: float) -> None:
        """Its texts are forgotten."""
        self._tree.remove(replica)

    def _preferred(self, request: RoutedRequest, views: Views) -> int:
        given = self.parameters
        load = views.of(views.in_flight)
        emptiest = int(load.argmin())
        most, least = int(load.max()), int(load[emptiest])
        if (
            most - least > given.balance_abs_threshold
            and most > given.balance_rel_threshold * least
        ):
            request.expected_hit_tokens = None  # it does not look
            return views.replicas[emptiest]
        matched, worker = self._tree.match(request.spans())
        known = np.float32(matched) / np.float32(request.prompt_tokens)  # Rust's f32
        if (
            known > np.float32(given.cache_threshold)
            and worker is not None
            and views.is_available(worker)
        ):
            request.expected_hit_tokens = matched
            return worker
        chosen = views.replicas[emptiest]
        request.expected_hit_tokens = matched if worker == chosen else 0
        return chosen

    def _trim(self, now_s: float) -> None:
        given = self.parameters
        if self._trimmed_s is None:
            self._trimmed_s = now_s
        if given.eviction_interval and now_s - self._trimmed_s >= given.eviction_interval:
            self._trimmed_s = now_s
            self._tree.evict(int(given.max_tree_size / given.characters_per_token))


class SglangPrefixHashParameters(Parameters):
    """Parameters of `SglangPrefixHash`."""

    prefix_tokens: Count = Field(
        default=256, description="tokens at the beginning of the prompt that are hashed"
    )
    load_factor: float = Field(
        default=1.25, ge=1, description="most requests in flight over the mean"
    )
    overflow: Literal["least", "clockwise"] = Field(
        default="least",
        description="beyond the bound: the least loaded within it, or the next on the ring",
    )


class SglangPrefixHash(Router[SglangPrefixHashParameters]):
    """SGLang's prefix hash: a ring by the prompt's first tokens, with bounded loads."""

    Parameters = SglangPrefixHashParameters
    source = "sglang-router 0.3.2, sgl-model-gateway/src/policies/prefix_hash.rs"

    def __init__(self, parameters: SglangPrefixHashParameters, surroundings: Surroundings) -> None:
        """Put the replicas on the ring."""
        super().__init__(parameters, surroundings)
        self._ring = HashRing(list(range(surroundings.num_replicas)))

    @property
    def sees(self) -> Sees:
        """Own requests in flight."""
        return Sees(own=True)

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        """The prefix's replica, unless it has too much."""
        given = self.parameters
        end = min(given.prefix_tokens, request.prompt_tokens)
        uid = next(uid for uid, until in request.spans() if until >= end)
        place = hashed(f"{uid}/{end}")
        if given.overflow == "clockwise":
            return within_bound(self._ring, place, views, given.load_factor)
        home = self._ring.owner(place)
        load = views.of(views.in_flight)
        bound = given.load_factor * (int(load.sum()) + 1) / len(load)
        if views.in_flight[home] <= bound:
            return home
        return views.replicas[int(load.argmin())]

    def on_replica_added(self, replica: int, now_s: float) -> None:
        """It takes its stretch of the ring."""
        self._ring.add(replica)

    def on_replica_removed(self, replica: int, now_s: float) -> None:
        """Its stretch goes to the next ones."""
        self._ring.remove(replica)
