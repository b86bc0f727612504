"""NVIDIA Dynamo's KV router: prefill that is left, and decode blocks, least in sum."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from kvsim.routing.contract import RoutedRequest, Router, Surroundings, Tier
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


@dataclass(frozen=True, slots=True)
class DynamoView:
    """What the costs of a request are made of, for each of `views.replicas`.

    Attributes:
        overlap_tokens: leading tokens found on the device.
        host_tokens: leading tokens beyond these found in the host tier.
        disk_tokens: leading tokens beyond these found in the disk tier.
        prefill_tokens: of active requests before their first token, without what was cached.
        decode_blocks: distinct full blocks of active requests and this one.
        active: active requests.
    """

    overlap_tokens: Ints
    host_tokens: Ints
    disk_tokens: Ints
    prefill_tokens: Ints
    decode_blocks: Ints
    active: Ints


class DynamoKv(Router[DynamoKvParameters]):
    """NVIDIA Dynamo's KV router: least of the prefill left to do plus decode blocks."""

    Parameters = DynamoKvParameters
    source = "ai-dynamo-runtime 1.6.1, lib/kv-router/src/scheduling/selector/default.rs"

    def __init__(self, parameters: DynamoKvParameters, surroundings: Surroundings) -> None:
        """Start with nothing sent and no events."""
        super().__init__(parameters, surroundings)
        unit = surroundings.block_tokens
        self._tiers: dict[Tier, EventIndex] = {"device": EventIndex(unit)}
        ttl = parameters.predicted_ttl
        if parameters.sees.events_after_s is None:
            ttl = parameters.decision_ttl
        self._decisions = None if ttl is None else DecisionIndex(unit, ttl)
        self._blocks = ActiveBlocks(unit)
        size = max(surroundings.num_replicas, 1)
        self._prefill_tokens: Ints = np.zeros(size, np.int64)
        self._decode_blocks: Ints = np.zeros(size, np.int64)
        self._active: Ints = np.zeros(size, np.int64)
        self._looked: tuple[str | None, dict[int, int]] = (None, {})
        self._prefilling: dict[str, int] = {}  # request: tokens that count until its first token

    def choose(
        self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random
    ) -> int | None:
        """The least cost, any of equals; or none yet, where all have too much to prefill."""
        given = self.parameters
        if given.queue_threshold is not None:
            most = given.queue_threshold * self.surroundings.max_num_batched_tokens
            if (views.of(self._prefill_tokens) > most).all():
                return None
        costs = self.costs(request, self.look(request, views, now_s))
        least = float(costs.min())
        if given.temperature > 0:
            spread = float(costs.max()) - least
            if spread == 0:
                return views.replicas[int(rng.random() * len(costs))]
            chances = np.exp((least - costs) / (spread * given.temperature)).cumsum()
            drawn = rng.random() * float(chances[-1])
            index = min(int(chances.searchsorted(drawn, side="right")), len(costs) - 1)
            return views.replicas[index]
        equals = (costs == least).nonzero()[0]
        pick = int(rng.random() * len(equals)) if len(equals) > 1 else 0
        return views.replicas[int(equals[pick])]

    def look(self, request: RoutedRequest, views: Views, now_s: float) -> DynamoView:
        """What the costs of a request are made of."""
        runs = request.runs(self.surroundings.block_tokens)
        total = runs[-1][2] // self.surroundings.block_tokens if runs else 0
        found = self._device_overlap(request, now_s)
        self._looked = (request.request_id, found)
        overlap = self._by_replica(found, views)
        host = disk = np.zeros(0, np.int64)
        if len(self._tiers) > 1:
            host = self._beyond("host", request, views, overlap)
            disk = self._beyond("disk", request, views, overlap + host)
        decode = views.of(self._decode_blocks) + total
        shared = self._blocks.shared(runs)
        if shared:
            decode = decode - self._by_replica(shared, views)
        return DynamoView(
            overlap, host, disk, views.of(self._prefill_tokens), decode, views.of(self._active)
        )

    def costs(self, request: RoutedRequest, view: DynamoView) -> Floats:
        """The cost of each of `views.replicas`, in blocks."""
        given, block = self.parameters, self.surroundings.block_tokens
        if given.role == "decode":
            return view.decode_blocks + given.request_weight * view.active
        prefill = (view.prefill_tokens + request.prompt_tokens) / block
        credit = (given.overlap_credit / block) * view.overlap_tokens
        if given.overlap_credit_decay:
            queued = (view.prefill_tokens - view.prefill_tokens.min()) / block
            prompt = max(1, math.ceil(request.prompt_tokens / block))
            credit = credit / (1.0 + given.overlap_credit_decay * queued / prompt)
        if len(view.host_tokens):
            credit = (
                credit
                + (given.host_credit / block) * view.host_tokens
                + (given.disk_credit / block) * view.disk_tokens
            )
        costs = given.prefill_scale * np.maximum(prefill - credit, 0.0)
        if given.role == "both":
            costs = costs + view.decode_blocks
        if given.request_weight:
            costs = costs + given.request_weight * view.active
        return costs

    def hold_order(self, request: RoutedRequest, now_s: float) -> float:
        """By the queue's policy."""
        policy = self.parameters.queue_policy
        if policy == "fcfs":
            return request.arrival_s
        if policy == "lcfs":
            return -request.arrival_s
        found = self._device_overlap(request, now_s)
        return float(request.prompt_tokens - max(found.values(), default=0))

    def on_sent(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """Book the request: its prefill without what is cached, and its blocks."""
        runs = request.runs(self.surroundings.block_tokens)
        role = self.parameters.role
        if role != "decode":
            looked, found = self._looked
            if looked != request.request_id:  # it asked for its replica by itself
                found = self._device_overlap(request, now_s)
            request.expected_hit_tokens = found.get(replica, 0)
            tokens = request.prompt_tokens - found.get(replica, 0)
            self._prefilling[request.request_id] = tokens
            self._prefill_tokens[replica] += tokens
        if role != "prefill":
            self._decode_blocks[replica] += self._blocks.add(replica, runs)
        self._active[replica] += 1
        if self._decisions is not None:
            self._decisions.store(replica, runs, now_s)

    def on_first_token(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """Its prefill counts no more, all at once."""
        self._prefill_tokens[replica] -= self._prefilling.pop(request.request_id, 0)

    def on_finished(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """Its blocks count no more."""
        self._prefill_tokens[replica] -= self._prefilling.pop(request.request_id, 0)
        if self.parameters.role != "prefill":
            runs = request.runs(self.surroundings.block_tokens)
            self._decode_blocks[replica] -= self._blocks.remove(replica, runs)
        self._active[replica] -= 1

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
            index = self._tiers[tier] = EventIndex(self.surroundings.block_tokens)
        if removed:
            index.remove(replica, removed)
        if stored:
            index.store(replica, stored)

    def on_replica_added(self, replica: int, now_s: float) -> None:
        """Make room for it."""
        while replica >= len(self._active):
            for name in ("_prefill_tokens", "_decode_blocks", "_active"):
                values = getattr(self, name)
                setattr(self, name, np.concatenate([values, np.zeros_like(values)]))

    def on_replica_removed(self, replica: int, now_s: float) -> None:
        """Forget its blocks."""
        for index in self._tiers.values():
            index.drop(replica)
        if self._decisions is not None:
            self._decisions.drop(replica)

    def _device_overlap(self, request: RoutedRequest, now_s: float) -> dict[int, int]:
        """Leading tokens on each replica, by events, by decisions, or the longer of the two."""
        runs = request.runs(self.surroundings.block_tokens)
        if self.parameters.role == "decode":
            return {}
        found = self._tiers["device"].overlap(runs)
        if self._decisions is not None:
            for replica, tokens in self._decisions.overlap(runs, now_s).items():
                if tokens > found.get(replica, 0):
                    found[replica] = tokens
        return found

    def _beyond(self, tier: Tier, request: RoutedRequest, views: Views, before: Ints) -> Ints:
        index = self._tiers.get(tier)
        if index is None:
            return np.zeros_like(before)
        found = index.overlap(request.runs(self.surroundings.block_tokens))
        beyond: Ints = np.maximum(self._by_replica(found, views) - before, 0)
        return beyond

    def _by_replica(self, found: dict[int, int], views: Views) -> Ints:
        values = np.zeros(len(self._active), np.int64)
        if found:
            values[list(found)] = list(found.values())
        return views.of(values)
