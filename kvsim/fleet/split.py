"""Where the requests of a split fleet arrive: chooses a decode node, and whether to prefill apart.

The decode node is chosen first, as by llm-d's scheduler; then whether its cache holds enough of the
prompt to compute the rest there (llm-d: ``nonCachedTokens``; Dynamo: both a length and a share, or
prefill workers that are busy); then a prefill node. With a pull the request reaches the decode node
when its prompt is computed, with a push both at once.

Where a prefill node fails, with a pull its prompts are sent again, or refused, and what it kept
for others cannot be loaded; with a push nothing of it can. Where a decode node fails, its requests
begin anew, under another name, and what was kept for them stays to the end of its lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvsim.cache.content import Content
from kvsim.cache.reasons import LAST_TOKEN
from kvsim.fleet.front import Front, Sent
from kvsim.fleet.handoff import Handoff, Handoffs
from kvsim.fleet.nodes import Node
from kvsim.metrics.handoff import NO_HANDOFF, HandoffRecord
from kvsim.metrics.records import RequestRecord
from kvsim.routing import Decider
from kvsim.scenario import Split
from kvsim.workload.request import Request


def _attempt(record: RequestRecord) -> str:
    """What a request is called in both pools."""
    return f"{record.request_id} (again, {record.resent})" if record.resent else record.request_id


def _beginning(content: Content, num_tokens: int) -> Content:
    """The first tokens of a content."""
    spans, left = [], num_tokens
    for uid, length in content.spans():
        if left > 0:
            spans.append((uid, min(length, left)))
            left -= length
    return Content.from_spans(spans)


class PromptFront(Front):
    """The front of the prefill pool."""

    def __init__(self, *parts: Any, handoffs: Handoffs, requests: SplitFront) -> None:
        """Without nodes.

        Args:
            parts: as for `Front`, of the prefill pool.
            handoffs: between the pools.
            requests: the front of the whole.
        """
        super().__init__(*parts)
        self._whole = requests
        self._handoffs = handoffs
        handoffs.on_let_go = self._look

    def _take_care(self, sent: Sent, reason: str, *, resend: bool) -> None:
        if self._whole.prompt_lost(sent.record):
            super()._take_care(sent, reason, resend=resend)
        else:
            self._num_here -= 1

    def _as_run(self, request: Request) -> Request:
        """The end of a prompt may be left to the decode side."""
        num_tokens = self._handoffs.shorter(request.num_prompt_tokens)
        if num_tokens == request.num_prompt_tokens:
            return request
        content = _beginning(request.content, num_tokens)
        return replace(request, content=content, num_prompt_tokens=num_tokens)

    def _look(self, replica: int) -> None:
        """A replica keeps blocks of one prompt less."""
        node = self._nodes.there.get(replica // self._nodes.ranks)
        if node is not None:
            self._leave_if_drained(node)

    def _leave_if_drained(self, node: Node) -> None:
        """A node that drains is there until all that it keeps was read, or its leases are over."""
        replicas = {life.replica for life in node.lives}
        sides = self._handoffs.prefill_sides
        if not any(s.replica in replicas and not s.is_gone and s.keeper.num_kept for s in sides):
            super()._leave_if_drained(node)


class SplitFront(Front):
    """The front of the decode pool, before that of the prefill pool."""

    def __init__(
        self,
        *parts: Any,
        handoffs: Handoffs,
        rules: Split,
        first_replica: int,
        prefill_deciders: Sequence[Decider],
        resends: bool,
    ) -> None:
        """Without nodes.

        Args:
            parts: as for `Front`, of the decode pool.
            handoffs: between the pools.
            rules: what is computed by the decode pool alone.
            first_replica: what the decode pool's first replica is called in results.
            prefill_deciders: routers of the prefill pool.
            resends: requests whose KV could not be loaded are sent again.
        """
        super().__init__(*parts)
        self.prefill: Front
        self._handoffs = handoffs
        self._rules = rules
        self._first_replica = first_replica
        self._prefill_deciders = prefill_deciders
        self._resends = resends
        self._sent: dict[str, tuple[Sent, int]] = {}

    def _send(self, sent: Sent, target: int) -> None:
        """A decode node is chosen: a request goes there, or first its prompt to the other pool."""
        name = sent.request.request_id
        handoff = self._handoffs.under_way.get(name)
        if handoff is not None:  # its prompt is computed, and the node it was for is gone
            self._hand_on(handoff, sent, target)
        elif not self._is_split(sent, target):
            super()._send(sent, target)
        else:
            handoff = self._handoffs.open(replace(sent.request, num_output_tokens=1))
            self._sent[name] = (sent, target)
            assert handoff.prompt is not None
            self.prefill.submit(handoff.prompt)
            if not self._handoffs.pulls and name in self._sent:  # it was not refused
                self._decode(handoff)

    def _is_split(self, sent: Sent, target: int) -> bool:
        rules, prompt_tokens = self._rules, sent.request.num_prompt_tokens
        if rules.prefill_busy is not None:
            counted = (
                int(decider.views.prefill_tokens[replica])
                for decider in self._prefill_deciders
                for replica in decider.views.replicas
            )
            least = min(counted, default=0)
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
        """A request goes to its decode node, or to another one where that is given nothing more."""
        sent, target = self._sent.pop(handoff.name)
        node = self._nodes.there.get(self._nodes.node_of(target))
        if node is not None and not node.is_draining:
            self._hand_on(handoff, sent, target)
            return
        decider = sent.decider
        sent.forget(self._clock.now)
        self._route(sent)
        if decider is not None:
            self.release(decider)

    def _hand_on(self, handoff: Handoff, sent: Sent, target: int) -> None:
        """A request reaches a decode node, which knows that its prompt is computed elsewhere."""
        node = self._nodes.there[self._nodes.node_of(target)]
        self._handoffs.expect(handoff, [life.replica for life in node.lives])
        super()._send(sent, target)

    # --- what becomes of prompts ---

    def prompt_ended(self, record: RequestRecord) -> None:
        """The prefill pool is done with a prompt, or has refused it."""
        name = record.request_id
        handoff = self._handoffs.under_way.get(name)
        if handoff is None:  # the decode pool has refused it before, or lost it
            return
        if record.refused is not None:
            sent = self._sent.pop(name)[0] if name in self._sent else self._take_back(handoff)
            decider = sent.decider
            sent.forget(self._clock.now)
            self._refuse(sent, record.refused)
            if decider is not None:
                self.release(decider)
            return
        handoff.prefill_record = record
        if handoff.held_s is None:  # preempted as it ended: computed again
            self._handoffs.count_again(record)
            assert handoff.prompt is not None
            self.prefill.submit(handoff.prompt)
        elif self._handoffs.pulls:
            self._decode(handoff)

    def prompt_lost(self, record: RequestRecord) -> bool:
        """A prompt's node has failed; whether it is to be sent to another one."""
        if self._handoffs.pulls:
            return True
        handoff = self._handoffs.under_way.get(record.request_id)
        if handoff is not None:  # the decode node was told of the one that failed
            if record.hit_tokens is not None:
                self._handoffs.count_again(record)
            self._handoffs.fail(handoff)
        return False

    # --- what becomes of requests ---

    def _send_again(self, sent: Sent) -> None:
        """A request begins anew; to both pools it is another one."""
        self._handoffs.close(sent.request.request_id)
        sent.record.begin_again()
        request = replace(sent.request, request_id=_attempt(sent.record))
        sent.request, sent.routed = request, replace(sent.routed, request_id=request.request_id)
        self._route(sent)

    def failed(self, handoff: Handoff) -> None:
        """What a request has asked for cannot be loaded."""
        assert handoff.filler is not None
        filler, name = handoff.filler.filler, handoff.name
        replica = self._nodes.replica(handoff.filler.replica)
        if self._handoffs.transfer.kv_load_failure_policy == "recompute":
            kept = replica.load_failed(name)
            filler.drop(handoff.number, keeps_hit=kept > 0)
            handoff.filler = handoff.pull = None
            return
        filler.drop(handoff.number)
        now_s, sent = self._clock.now, self._take_back(handoff)
        decider, node = sent.decider, sent.node
        sent.forget(now_s)
        reason = f"its KV could not be loaded at {now_s:g} s"
        self._take_care(sent, reason, resend=self._resends)
        if decider is not None:
            self.release(decider)
        if node is not None:
            self._leave_if_drained(node)

    def _take_back(self, handoff: Handoff) -> Sent:
        """A request that waits on the decode side is taken out there."""
        lives = (life for node in self._nodes.there.values() for life in node.lives)
        replica = next(
            life.engine.replica for life in lives if life.engine.replica.has(handoff.name)
        )
        sent = replica.drop(handoff.name).watcher
        assert isinstance(sent, Sent)
        self._handoffs.expect_no_more(handoff.name)
        return sent

    def complete(self, record: RequestRecord) -> HandoffRecord:
        """A request has ended: its record is the decode side's, and becomes that of both."""
        name = _attempt(record)
        if record.replica is not None:
            self._handoffs.expect_no_more(name)
            record.replica += self._first_replica
        handoff = self._handoffs.close(name)
        prompt = None if handoff is None else handoff.prefill_record
        record.resent += 0 if prompt is None else prompt.resent
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
            if record.first_token_s > handoff.arrived_s:  # else an attempt before has made it
                parts = replace(
                    parts,
                    prefill_queue_s=prompt.admitted_s - record.arrival_s,
                    prefill_s=handoff.held_s - prompt.admitted_s,
                    decode_queue_s=handoff.begun_s - handoff.held_s,
                    transfer_s=handoff.arrived_s - handoff.begun_s,
                    decode_start_s=record.first_token_s - handoff.arrived_s,
                )
            parts = replace(
                parts,
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
            num_left = self._handoffs.count_left(record.prompt_tokens)
            if record.misses is not None and num_left:
                numbers = list(record.misses.numbers)
                numbers[LAST_TOKEN] += num_left
                record.misses = replace(record.misses, numbers=numbers)
            record.admitted_s = prompt.admitted_s
            record.external_hit_tokens = prompt.external_hit_tokens
        record.cached_elsewhere_tokens = prompt.cached_elsewhere_tokens
        record.expected_hit_tokens = prompt.expected_hit_tokens
        record.preemptions += prompt.preemptions
        return parts
