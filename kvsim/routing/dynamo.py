"""NVIDIA Dynamo's KV router: prefill that is left, and decode blocks, least in sum."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from kvsim.routing.contract import RoutedRequest, Router, Surroundings, Tier
from kvsim.routing.dynamo_choice import (
    ACTIVE,
    BLOCKS,
    DECIDED,
    DISK,
    EQUALS,
    HOST,
    NUM_WEIGHTS,
    OVERLAP,
    PREFILL,
    ROWS,
    book,
    choose_least,
    unbook,
)
from kvsim.routing.parameters import NotNegative, Parameters, Positive, Seconds
from kvsim.routing.prefix_index import ActiveBlocks, DecisionIndex, EventIndex
from kvsim.routing.sees import Sees, SeesSetting, one_of
from kvsim.routing.views import Floats, Ints, Views


class DynamoKvParameters(Parameters):
    """Parameters of `DynamoKv`, with Dynamo's defaults."""

    overlap_credit: NotNegative = Field(
        default=1.0, description="c: prefill blocks taken off for each block found on the device"
    )
    overlap_credit_decay: NotNegative = Field(
        default=0.0, description="d: how fast the credit falls with prefill queued there"
    )
    host_credit: NotNegative = Field(
        default=0.75, description="credit of a block that only the host tier has"
    )
    disk_credit: NotNegative = Field(
        default=0.25, description="credit of a block that only the disk tier has"
    )
    prefill_scale: NotNegative = Field(default=1.0, description="weight of prefill blocks")
    request_weight: NotNegative = Field(
        default=0.0, description="w: decode blocks that an active request counts for"
    )
    temperature: NotNegative = Field(
        default=0.0, description="0: the least cost; else drawn by softmax over scaled costs"
    )
    predicted_ttl: Seconds | None = Field(
        default=None, description="own decisions count as cached for so long; null: not at all"
    )
    decision_ttl: Seconds = Field(
        default=120.0, description="without events: how long own decisions are kept"
    )
    queue_threshold: Positive | None = Field(
        default=None,
        description="requests wait while every worker has more than so many times "
        "max_num_batched_tokens to prefill; null: never",
    )
    queue_policy: Literal["fcfs", "lcfs", "wspt"] = Field(
        default="fcfs", description="which of those that wait is next: first, last, shortest"
    )
    role: Literal["both", "prefill", "decode"] = Field(
        default="both",
        description="in split fleets: the prefill side counts no decode blocks; the decode side "
        "gives no credit and counts no prefill",
    )
    sees: Annotated[SeesSetting, one_of("own", "events")] = Field(
        default=Sees(own=True, events_after_s=0.005),
        description="KV events and how late they come, or own (decisions alone)",
    )


_TIER_ROWS: tuple[tuple[int, Tier], ...] = ((HOST, "host"), (DISK, "disk"))


@dataclass(frozen=True, slots=True)
class DynamoView:
    """What the costs of a request are made of, for each of `views.replicas`; used again.

    Attributes:
        overlap_tokens: leading tokens found on the device.
        host_tokens: leading tokens beyond these found in the host tier.
        disk_tokens: leading tokens beyond these found in the disk tier.
        prefill_tokens: of active requests before their first token, without what was cached.
        decode_blocks: distinct full blocks of active requests and this one.
        active: active requests.
        costs: in blocks.
    """

    overlap_tokens: Ints
    host_tokens: Ints
    disk_tokens: Ints
    prefill_tokens: Ints
    decode_blocks: Ints
    active: Ints
    costs: Floats


class DynamoKv(Router[DynamoKvParameters]):
    """NVIDIA Dynamo's KV router: least of the prefill left to do plus decode blocks."""

    Parameters = DynamoKvParameters
    source = "ai-dynamo-runtime 1.6.1, lib/kv-router/src/scheduling/selector/default.rs"

    def __init__(self, parameters: DynamoKvParameters, surroundings: Surroundings) -> None:
        """Start with nothing sent and no events."""
        super().__init__(parameters, surroundings)
        given = parameters
        self._unit = unit = surroundings.block_tokens
        self._tiers: dict[Tier, EventIndex] = {"device": EventIndex(unit)}
        ttl = given.predicted_ttl if given.sees.events_after_s is not None else given.decision_ttl
        self._decisions = None if ttl is None else DecisionIndex(unit, ttl)
        self._blocks = ActiveBlocks(unit)
        self._weights: Floats = np.zeros(NUM_WEIGHTS)
        self._weights[:] = (
            given.overlap_credit / unit,
            given.overlap_credit_decay,
            given.host_credit / unit,
            given.disk_credit / unit,
            given.prefill_scale,
            given.request_weight,
            given.role != "decode",
            given.role != "prefill",
        )
        size = max(surroundings.num_replicas, 1)
        self._state: Ints = np.zeros((ROWS, size), np.int64)
        self._costs: Floats = np.zeros(size)
        self._looked: str | None = None  # the request that `OVERLAP` is of
        self._prefilling: dict[str, int] = {}  # request: tokens that count until its first token

    @property
    def event_index(self) -> EventIndex:
        """Of the device."""
        return self._tiers["device"]

    def choose(
        self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random
    ) -> int | None:
        """The least cost, any of equals; or none yet, where all have too much to prefill."""
        given, state = self.parameters, self._state
        if given.queue_threshold is not None:
            most = given.queue_threshold * self.surroundings.max_num_batched_tokens
            if (views.of(state[PREFILL]) > most).all():
                return None
        least = self._weigh(request, views, now_s)
        if given.temperature > 0:
            return self._drawn(views, rng)
        if least >= 0:
            return least
        return int(state[EQUALS, int(rng.random() * -least)])

    def look(self, request: RoutedRequest, views: Views, now_s: float) -> DynamoView:
        """What the costs of a request are made of."""
        self._weigh(request, views, now_s)
        overlap, host, disk, prefill, blocks, active = (
            views.of(self._state[row]) for row in (OVERLAP, HOST, DISK, PREFILL, BLOCKS, ACTIVE)
        )
        return DynamoView(overlap, host, disk, prefill, blocks, active, views.of(self._costs))

    def hold_order(self, request: RoutedRequest, now_s: float) -> float:
        """By the queue's policy."""
        policy = self.parameters.queue_policy
        if policy == "fcfs":
            return request.arrival_s
        if policy == "lcfs":
            return -request.arrival_s
        return float(request.prompt_tokens - int(self._device_overlap(request, now_s).max()))

    def on_sent(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """Book the request: its prefill without what is cached, and its blocks."""
        if self._looked != request.request_id:  # it asked for its replica by itself
            self._state[OVERLAP] = self._device_overlap(request, now_s)
            self._looked = request.request_id
        content, active = request.content, self._blocks.table
        tokens = -1
        while tokens < 0:
            tokens = book(
                content.uids, content.ends, request.prompt_tokens, replica, self._unit,
                self._weights, self._state, active.heads, active.cells,
            )  # fmt: skip
            if tokens < 0:
                active.grow(len(content.uids))
        self._prefilling[request.request_id] = tokens
        if self.parameters.role != "decode":
            request.expected_hit_tokens = int(self._state[OVERLAP, replica])
        if self._decisions is not None:
            self._decisions.store(replica, content, now_s)

    def on_first_token(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """Its prefill counts no more, all at once."""
        self._state[PREFILL, replica] -= self._prefilling.pop(request.request_id, 0)

    def on_finished(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """Its blocks count no more."""
        content, active = request.content, self._blocks.table
        unbook(
            content.uids, content.ends, self._prefilling.pop(request.request_id, 0), replica,
            self._unit, self._weights, self._state, active.heads, active.cells,
        )  # fmt: skip

    def on_events(
        self,
        replica: int,
        stored: Sequence[int],
        removed: Sequence[int],
        now_s: float,
        tier: Tier = "device",
    ) -> None:
        """Enter and take out blocks."""
        index = self._tiers.get(tier)
        if index is None:
            index = self._tiers[tier] = EventIndex(self._unit)
        index.remove(replica, removed)
        index.store(replica, stored)

    def on_replica_added(self, replica: int, now_s: float) -> None:
        """Make room for it."""
        while replica >= len(self._costs):
            self._state = np.concatenate([self._state, np.zeros_like(self._state)], axis=1)
            self._costs = np.concatenate([self._costs, np.zeros_like(self._costs)])

    def on_replica_removed(self, replica: int, now_s: float) -> None:
        """Forget its blocks."""
        for index in self._tiers.values():
            index.drop(replica)
        if self._decisions is not None:
            self._decisions.drop(replica)

    def _weigh(self, request: RoutedRequest, views: Views, now_s: float) -> int:
        """Fill the state and the costs; see `choose_least`."""
        self._looked = request.request_id
        content, state = request.content, self._state
        if self._decisions is not None and self.parameters.role != "decode":
            state[DECIDED] = self._decisions.overlap(content, len(self._costs), now_s)
        if len(self._tiers) > 1:
            for row, tier in _TIER_ROWS:
                if tier in self._tiers:
                    state[row] = self._tiers[tier].overlap(content, len(self._costs))
        device, active = self._tiers["device"].table, self._blocks.table
        return choose_least(
            content.uids, content.ends, request.prompt_tokens, views.numbers, self._unit,
            self._weights, state, self._costs, device.heads, device.cells, active.heads,
            active.cells,
        )  # fmt: skip

    def _drawn(self, views: Views, rng: random.Random) -> int:
        """By softmax over scaled costs."""
        costs = views.of(self._costs)
        least = float(costs.min())
        spread = float(costs.max()) - least
        if spread == 0:
            return views.replicas[int(rng.random() * len(costs))]
        scale = spread * self.parameters.temperature
        chances = np.exp((least - costs) / scale).cumsum()
        drawn = rng.random() * float(chances[-1])
        index = min(int(chances.searchsorted(drawn, side="right")), len(costs) - 1)
        return views.replicas[index]

    def _device_overlap(self, request: RoutedRequest, now_s: float) -> Ints:
        """Leading tokens on each device, by events, by decisions, or the longer of the two."""
        content, size = request.content, len(self._costs)
        if self.parameters.role == "decode":
            return np.zeros(size, np.int64)
        found = self._tiers["device"].overlap(content, size)
        if self._decisions is not None:
            found = np.maximum(found, self._decisions.overlap(content, size, now_s))
        return found
