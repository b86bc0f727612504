"""llm-d's prefix indexes and its tokens in flight, shared by its two ways of choosing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvsim.routing.contract import ParametersT, RoutedRequest, Router, Surroundings, Tier
from kvsim.routing.lru_index import LruIndex
from kvsim.routing.prefix_index import DecisionIndex, EventIndex
from kvsim.routing.views import Floats, Ints, Views

LEAST_BLOCK_TOKENS = 64
"""Blocks of the approximate index are not smaller."""
MOST_PROMPT_TOKENS = 131_072
"""Of a longer prompt the approximate index takes the beginning."""
UNKNOWN_NUM_BLOCKS = 31_250
"""Blocks of a pod whose pool is not known."""


class LlmdIndex:
    """What a llm-d router knows of prefixes: precise from events, or approximate from decisions."""

    def __init__(
        self,
        surroundings: Surroundings,
        *,
        precise: bool,
        host_weight: float = 0.8,
        speculative_s: float | None = None,
    ) -> None:
        """Start empty.

        Args:
            surroundings: block size and pool of the replicas.
            precise: by events, contiguous; else by decisions, wherever in the prompt.
            host_weight: precise: worth of a block that the host tier has and the device has not.
            speculative_s: precise: seconds for which own decisions count as well; None: not.
        """
        block = surroundings.block_tokens
        self.precise = precise
        self.block_tokens = block if precise else max(LEAST_BLOCK_TOKENS, block)
        self._host_weight = host_weight
        self._tiers: dict[Tier, EventIndex] = {"device": EventIndex(block)}
        self._speculative = None if speculative_s is None else DecisionIndex(block, speculative_s)
        self._lru = LruIndex(surroundings.num_blocks or UNKNOWN_NUM_BLOCKS)
        self._tokens: Ints = np.zeros(max(surroundings.num_replicas, 1), np.int64)
        self._counted: dict[str, int] = {}
        self._looked: tuple[str | None, Floats] = (None, np.zeros(0))

    @property
    def device(self) -> EventIndex:
        """What devices hold, by events."""
        return self._tiers["device"]

    def share(self, request: RoutedRequest, views: Views, now_s: float) -> Floats:
        """Share of the prompt's blocks that each of `views.replicas` is thought to have."""
        found = self._blocks(request, now_s)
        self._looked = (request.request_id, found)
        blocks = self._num_blocks(request)
        return views.of(found / blocks if blocks else np.zeros_like(found))

    def tokens(self, views: Views) -> Ints:
        """Tokens on the way to their first token on each replica, without what was matched."""
        return views.of(self._tokens)

    def sent(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """A request goes to a replica."""
        looked, found = self._looked
        if looked != request.request_id:  # it asked for its replica by itself
            found = self._blocks(request, now_s)
        matched = float(found[replica]) * self.block_tokens
        request.expected_hit_tokens = int(matched)
        tokens = max(0, request.prompt_tokens - int(matched))
        self._counted[request.request_id] = tokens
        self._tokens[replica] += tokens
        if not self.precise:
            self._lru.store(replica, self._keys(request))
        elif self._speculative is not None:
            self._speculative.store(replica, request.content, now_s)

    def computed(self, request: RoutedRequest, replica: int) -> None:
        """A request has made its first token, or is gone."""
        self._tokens[replica] -= self._counted.pop(request.request_id, 0)

    def events(
        self, replica: int, stored: Sequence[int], removed: Sequence[int], tier: Tier
    ) -> None:
        """A replica told what it stored and removed."""
        index = self._tiers.get(tier)
        if index is None:
            index = self._tiers[tier] = EventIndex(self.block_tokens)
        index.remove(replica, removed)
        index.store(replica, stored)

    def add(self, replica: int) -> None:
        """Make room for a replica."""
        while replica >= len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])

    def drop(self, replica: int) -> None:
        """A replica is gone."""
        self._lru.drop(replica)
        for index in self._tiers.values():
            index.drop(replica)
        if self._speculative is not None:
            self._speculative.drop(replica)

    def _blocks(self, request: RoutedRequest, now_s: float) -> Floats:
        """Blocks of the prompt on each replica, a block of the host tier for less."""
        size = len(self._tokens)
        if not self.precise:
            values: Floats = np.zeros(size)
            matched = self._lru.matched(self._keys(request), contiguous=False)
            if matched:
                values[list(matched)] = list(matched.values())
            return values
        device = self._tiers["device"].overlap(request.content, size)
        if self._speculative is not None:
            decided = self._speculative.overlap(request.content, size, now_s)
            device = np.maximum(device, decided)
        worth: Floats = device / self.block_tokens
        host = self._tiers.get("host")
        if host is not None:
            beyond = np.maximum(host.overlap(request.content, size) - device, 0)
            worth = worth + self._host_weight * (beyond / self.block_tokens)
        return worth

    def _keys(self, request: RoutedRequest) -> tuple[int, ...]:
        return request.keys(self.block_tokens)[: MOST_PROMPT_TOKENS // self.block_tokens]

    def _num_blocks(self, request: RoutedRequest) -> int:
        blocks = request.prompt_tokens // self.block_tokens
        return blocks if self.precise else min(blocks, MOST_PROMPT_TOKENS // self.block_tokens)


class IndexedRouter(Router[ParametersT]):
    """A router that keeps a `LlmdIndex` informed.

    Attributes:
        index: what it knows of prefixes and of tokens in flight.
    """

    index: LlmdIndex

    @property
    def event_index(self) -> EventIndex:
        """Of the device."""
        return self.index.device

    def on_sent(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """Enter the prompt and its tokens."""
        self.index.sent(request, replica, now_s)

    def on_first_token(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """Its tokens are computed."""
        self.index.computed(request, replica)

    def on_finished(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """It is gone."""
        self.index.computed(request, replica)

    def on_events(
        self,
        replica: int,
        stored: Sequence[int],
        removed: Sequence[int],
        now_s: float,
        tier: Tier = "device",
    ) -> None:
        """Enter and take out blocks."""
        self.index.events(replica, stored, removed, tier)

    def on_replica_added(self, replica: int, now_s: float) -> None:
        """Make room for it."""
        self.index.add(replica)

    def on_replica_removed(self, replica: int, now_s: float) -> None:
        """Forget what it had."""
        self.index.drop(replica)
