"""Where the requests of a split fleet arrive: chooses a decode node, and whether to prefill apart.

The decode node is chosen first, as by llm-d's scheduler; then whether its cache holds enough of the
prompt to compute the rest there (llm-d: ``nonCachedTokens``; Dynamo: both a length and a share, or
prefill workers that are busy); then a prefill node. With a pull the request reaches the decode node
when its prompt is computed, with a push both at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvsim.errors import KvsimError
from kvsim.fleet.front import Front, Sent
from kvsim.fleet.handoff import Handoff, Handoffs
from kvsim.metrics.handoff import NO_HANDOFF, HandoffRecord
from kvsim.metrics.records import RequestRecord
from kvsim.routing import Decider
from kvsim.scenario import Split


class SplitFront(Front):
    """The front of the decode pool, before that of the prefill pool."""

    def __init__(
        self,
        *parts: Any,
        handoffs: Handoffs,
        rules: Split,
        first_replica: int,
        prefill_deciders: Sequence[Decider],
    ) -> None:
        """Without nodes.

        Args:
            parts: as for `Front`, of the decode pool.
            handoffs: between the pools.
            rules: what is computed by the decode pool alone.
            first_replica: what the decode pool's first replica is called in results.
            prefill_deciders: routers of the prefill pool.
        """
        super().__init__(*parts)
        self.prefill: Front
        self._handoffs = handoffs
        self._rules = rules
        self._first_replica = first_replica
        self._prefill_deciders = prefill_deciders
        self._sent: dict[str, tuple[Sent, int]] = {}

    def _send(self, sent: Sent, target: int) -> None:
        """A decode node is chosen: a request goes there, or first its prompt to the other pool."""
        if not self._is_split(sent, target):
            super()._send(sent, target)
            return
        name = sent.request.request_id
        handoff = self._handoffs.open(name)
        self._sent[name] = (sent, target)
        self.prefill.submit(replace(sent.request, num_output_tokens=1))
        if not self._handoffs.pulls and name in self._sent:  # it was not refused
            self._decode(handoff)

    def _is_split(self, sent: Sent, target: int) -> bool:
        rules, prompt_tokens = self._rules, sent.request.num_prompt_tokens
        if rules.prefill_busy is not None:
            least = min(
                int(decider.views.prefill_tokens[replica])
                for decider in self._prefill_deciders
                for replica in decider.views.replicas
            )
            if least >= rules.prefill_busy:
                return False
        if rules.uncached_tokens is None and rules.share is None:
            return True
        replicas = [one.number for one in self._nodes.replicas_of(target)]
        content, caches = sent.request.content, self._nodes.caches
        cached = max(
            caches.cached_tokens(content, number) for number in replicas if number is not None
        )
        uncached = prompt_tokens - cached
        is_short = rules.uncached_tokens is None or uncached < rules.uncached_tokens
        is_small = rules.share is None or uncached < rules.share * prompt_tokens
        return not (is_short and is_small)

    def _decode(self, handoff: Handoff) -> None:
        """A request reaches its decode node, which knows that its prompt is computed elsewhere."""
        sent, target = self._sent.pop(handoff.name)
        node = self._nodes.there[self._nodes.node_of(target)]
        if not handoff.is_lost:
            for life in node.lives:
                self._handoffs.decode_sides[life.replica].filler.expected.add(handoff.name)
        handoff.decode_s = self._clock.now
        super()._send(sent, target)

    def prompt_ended(self, record: RequestRecord) -> None:
        """The prefill pool is done with a prompt, or has refused it."""
        name = record.request_id
        handoff = self._handoffs.under_way.get(name)
        if handoff is None:  # the decode pool has refused it before
            return
        handoff.prefill_record = record
        waits = name in self._sent
        if record.refused is not None:
            if not waits:
                raise KvsimError(f"fleet.pools.prefill: request {name} {record.refused}")
            sent, _ = self._sent.pop(name)
            sent.forget(self._clock.now)
            self._refuse(sent, record.refused)
        elif handoff.held_s is None:  # preempted as it ended: computed again
            sent, _ = self._sent[name]
            self._handoffs.count_again(record)
            self.prefill.submit(replace(sent.request, num_output_tokens=1))
        elif self._handoffs.pulls:
            self._decode(handoff)

    def complete(self, record: RequestRecord) -> HandoffRecord:
        """A request has ended: its record is the decode side's, and becomes that of both."""
        if record.replica is not None:
            for side in self._handoffs.decode_sides.values():
                side.filler.expected.discard(record.request_id)
            record.replica += self._first_replica
        handoff = self._handoffs.close(record.request_id)
        prompt = None if handoff is None else handoff.prefill_record
        if handoff is None or prompt is None or record.refused is not None:
            return NO_HANDOFF
        if handoff.pull is None:
            self._handoffs.count_again(prompt)
        parts = HandoffRecord(lease_lost=int(handoff.is_lost), prefill_replica=prompt.replica)
        if handoff.pull is not None:
            assert handoff.begun_s is not None
            assert handoff.arrived_s is not None
            assert handoff.held_s is not None
            assert prompt.admitted_s is not None
            assert record.first_token_s is not None
            parts = replace(
                parts,
                prefill_queue_s=prompt.admitted_s - record.arrival_s,
                prefill_s=handoff.held_s - prompt.admitted_s,
                decode_queue_s=handoff.begun_s - handoff.held_s,
                transfer_s=handoff.arrived_s - handoff.begun_s,
                decode_start_s=record.first_token_s - handoff.arrived_s,
                decode_hit_tokens=handoff.pull.local_tokens,
                pulled_tokens=handoff.pull.num_tokens,
                moved_bytes=handoff.num_bytes,
            )
            for name in (
                "hit_tokens",
                "full_hit_tokens",
                "group_hit_tokens",
                "hit_ended",
                "misses",
            ):
                setattr(record, name, getattr(prompt, name))
            record.admitted_s = prompt.admitted_s
            record.external_hit_tokens = 0
        record.cached_elsewhere_tokens = prompt.cached_elsewhere_tokens
        record.expected_hit_tokens = prompt.expected_hit_tokens
        record.preemptions += prompt.preemptions
        return parts
