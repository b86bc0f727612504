"""Takes the requests of a workload for a whole fleet, and sends each where a router says."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from kvsim.engine.clock import Clock
from kvsim.engine.feeding import call_at
from kvsim.engine.hooks import Done
from kvsim.errors import KvsimError
from kvsim.fleet.nodes import Node, Nodes
from kvsim.metrics.records import RequestLog, RequestRecord
from kvsim.routing import Decider, RoutedRequest, Sees
from kvsim.workload.request import Request

PUBLISHED_S = 0.001
"""From a change of a replica's counts to a router that they are published to: a message within a
data centre and its handling. An assumption."""


class Sent:
    """A request on its way: who decided for it, and where it is.

    Attributes:
        request: what arrived.
        record: what has happened to it.
        done: to be triggered at its end.
        routed: as routers see it.
        decider: the router that has sent it, or holds it back.
        node: where it is; None while it is held back or waits for a node.
        client: the node's API server that has it; None without.
    """

    __slots__ = ("_front", "client", "decider", "done", "node", "record", "request", "routed")

    def __init__(
        self, front: Front, request: Request, record: RequestRecord, done: Done | None
    ) -> None:
        """One that has just arrived."""
        self._front = front
        self.request = request
        self.record = record
        self.done = done
        self.routed = RoutedRequest(
            request.request_id,
            request.content,
            request.num_prompt_tokens,
            record.arrival_s,
            request.session_id,
            None,
            request.priority,
        )
        self.decider: Decider | None = None
        self.node: Node | None = None
        self.client: Decider | None = None

    def first_token(self, now_s: float) -> None:
        """Its first token is there."""
        decider = self.decider
        assert decider is not None
        if self.client is not None:
            self.client.first_token(self.routed, now_s)
        decider.first_token(self.routed, now_s)
        if decider.held:
            self._front.release(decider)

    def ended(self, now_s: float) -> None:
        """It is finished or was refused."""
        decider, node = self.decider, self.node
        assert decider is not None
        assert node is not None
        self.forget(now_s)
        if decider.held:
            self._front.release(decider)
        self._front.note_end(node)

    def forget(self, now_s: float) -> None:
        """Nobody counts it any more."""
        if self.client is not None:
            self.client.finished(self.routed, now_s)
        assert self.decider is not None
        self.decider.finished(self.routed, now_s)


class Front:
    """Where the requests of a fleet arrive.

    Attributes:
        num_refused: requests refused here, because no node was left.
        ages_s: for every decision, how old the counts were that it saw of the chosen.
        under_way: for every decision of a router that goes by events, how many messages of caches
            had not reached it.
    """

    def __init__(
        self,
        clock: Clock,
        nodes: Nodes,
        deciders: Sequence[Decider],
        requests: RequestLog,
        seed: int,
        *,
        others_apart: bool = False,
    ) -> None:
        """Without nodes.

        Args:
            clock: the simulation's.
            nodes: of the fleet.
            deciders: routers side by side; arrivals are spread over them at random.
            requests: where refused requests are entered.
            seed: of these draws.
            others_apart: requests for nodes that are not there are somebody else's to run.
        """
        self.num_refused = 0
        self._others_apart = others_apart
        self.ages_s = array("d")
        self.under_way = array("q")
        self._clock = clock
        self._nodes = nodes
        self._deciders = deciders
        self._requests = requests
        self._rng = random.Random(seed)
        self._num_submitted = 0
        self._num_here = 0
        self._held: dict[str, Sent] = {}
        self._waiting: list[Sent] = []
        self._num_coming = 0
        self._last_loss = ""
        sees = self.sees
        self._scraped_every_s = sees.scraped_every_s
        self._sees_events = sees.events_after_s is not None
        self._sees_counts = sees.published or sees.scraped_every_s is not None
        self._is_scraping = False
        self._num_scraped = 0
        self._published: list[tuple[float, int, tuple[int, int, float]]] = []
        if sees.published:
            nodes.on_counts = self._publish

    @property
    def sees(self) -> Sees:
        """What routers are shown."""
        return self._deciders[0].router.sees

    @property
    def targets(self) -> list[int]:
        """What routers could choose among from the start, or can now."""
        return self._deciders[0].views.replicas

    # --- requests ---

    def submit(self, request: Request, done: Done | None = None) -> None:
        """A request arrives now."""
        record = RequestRecord(
            self._num_submitted,
            request.request_id,
            self._clock.now,
            request.num_prompt_tokens,
            request.num_output_tokens,
        )
        self._num_submitted += 1
        self._num_here += 1
        if self._scraped_every_s is not None and not self._is_scraping:
            self._scrape_later()
        self._route(Sent(self, request, record, done))

    def release(self, decider: Decider) -> None:
        """Requests that a router held back go where it says now."""
        for routed, target in decider.release(self._clock.now):
            self._send(self._held.pop(routed.request_id), target)
        if not self._held:
            self._nodes.follow_tokens(follow=False)

    def _route(self, sent: Sent) -> None:
        now_s = self._clock.now
        for node in self._nodes.there.values():
            if not node.is_draining:
                break
        else:
            if self._num_coming:
                self._waiting.append(sent)
            else:
                self._refuse(sent, f"no node is left ({self._last_loss})")
            return
        self._nodes.caches.deliver(now_s)
        if self._published:
            self._take_published(now_s)
        deciders = self._deciders
        decider = (
            deciders[0] if len(deciders) == 1 else deciders[self._rng.randrange(len(deciders))]
        )
        sent.decider = decider
        target = decider.route(sent.routed, now_s)
        if target is None:
            self._held[sent.routed.request_id] = sent
            self._nodes.follow_tokens(follow=True)
        else:
            self._send(sent, target)

    def _send(self, sent: Sent, target: int) -> None:
        """Hand a request to its node, which chooses a rank where it has several."""
        nodes, now_s = self._nodes, self._clock.now
        number = nodes.node_of(target)
        assert sent.decider is not None
        if self._others_apart and number not in nodes.there:
            sent.decider.finished(sent.routed, now_s)
            self._num_here -= 1
            return
        if self._sees_counts:
            age_s = now_s - float(sent.decider.views.counted_at_s[target])
            self.ages_s.append(min(age_s, now_s))
        if self._sees_events:
            self.under_way.append(nodes.caches.num_under_way)
        sent.record.expected_hit_tokens = sent.routed.expected_hit_tokens
        sent.client = None
        replica = target
        node = nodes.there[number]
        if node.clients is not None:  # its ranks stand behind it
            sent.client, rank = node.clients.choose(sent.routed, now_s)
            replica = nodes.replica_number(node, rank)
        sent.node = node
        caches, content = nodes.caches, sent.request.content
        sent.record.cached_elsewhere_tokens = caches.cached_elsewhere(content, replica)
        caches.note_duplicates()
        request = self._as_run(sent.request)
        nodes.replica(replica).submit(request, sent.done, record=sent.record, watcher=sent)

    def _as_run(self, request: Request) -> Request:
        """What its replica makes of a request."""
        return request

    def _refuse(self, sent: Sent, reason: str) -> None:
        sent.record.refused = reason
        self.num_refused += 1
        self._num_here -= 1
        self._requests.add(sent.record)
        if sent.done is not None:
            sent.done.succeed()

    # --- nodes that come and go ---

    def expect(self, num_nodes: int) -> None:
        """So many nodes will come."""
        self._num_coming += num_nodes

    def add(self, number: int, start_s: float, *, at_start: bool = False) -> None:
        """A node takes requests from now on.

        Args:
            number: which.
            start_s: when it was started.
            at_start: it is one of those that routers know from the start.
        """
        now_s = self._clock.now
        if number in self._nodes.there:
            raise KvsimError(
                f"fleet.events: node {number} still drains when it is added at {now_s:g} s. Use "
                "another number, or add it later."
            )
        self._nodes.add(number, start_s)
        if at_start:
            return
        self._num_coming -= 1
        for decider in self._deciders:
            for target in self._nodes.targets(number):
                decider.add_replica(target, now_s)
        waiting, self._waiting = self._waiting, []
        for sent in waiting:
            self._route(sent)
        for decider in self._deciders:
            self.release(decider)

    def drain(self, number: int) -> None:
        """A node is given nothing more, and leaves when it has nothing left."""
        node = self._nodes.there[number]
        node.is_draining = True
        self._take_out(number)
        self._last_loss = f"the last one was drained at {self._clock.now:g} s"
        self._leave_if_drained(node)
        self._give_up_held()

    def lose(self, number: int, *, resend: bool) -> None:
        """A node fails: its requests are sent again, or refused."""
        node, now_s = self._nodes.there[number], self._clock.now
        self._take_out(number)
        self._last_loss = f"the last one was lost at {now_s:g} s"
        lost = [ticket for life in node.lives for ticket in life.engine.lose()]
        self._nodes.remove(node)
        lost.sort(key=lambda ticket: ticket.record.order)
        again = []
        for ticket in lost:
            sent = ticket.watcher
            assert isinstance(sent, Sent)
            sent.forget(now_s)
            again.append(sent)
        for sent in again:
            self._take_care(sent, f"its node was lost at {now_s:g} s", resend=resend)
        self._give_up_held()

    def _take_care(self, sent: Sent, reason: str, *, resend: bool) -> None:
        """A request that its node will not answer is sent again, or refused."""
        if resend:
            self._send_again(sent)
        else:
            self._refuse(sent, reason)

    def _send_again(self, sent: Sent) -> None:
        sent.record.begin_again()
        self._route(sent)

    def note_end(self, node: Node) -> None:
        """A request of a node has ended; if it was the last of one that drains, the node leaves."""
        self._num_here -= 1
        if node.is_draining:
            self._leave_if_drained(node)

    def _leave_if_drained(self, node: Node) -> None:
        if node.is_draining and node.end_s is None and not node.num_requests:
            self._nodes.remove(node)

    def _take_out(self, number: int) -> None:
        for decider in self._deciders:
            for target in self._nodes.targets(number):
                decider.remove_replica(target, self._clock.now)

    def _give_up_held(self) -> None:
        """Where no node is left, requests that were held back wait for one or are refused."""
        for decider in self._deciders:
            if decider.held and not decider.views.replicas:
                held, decider.held = decider.held, []
                for routed in held:
                    self._route(self._held.pop(routed.request_id))

    # --- counts ---

    def _counts_of(self, target: int) -> tuple[int, int, float]:
        """Of a replica; of a node those of its ranks together, and the mean use of their pools."""
        replicas = self._nodes.replicas_of(target)
        counts = [replica.counts for replica in replicas]
        waiting, running, usage = (sum(column) for column in zip(*counts, strict=True))
        return int(waiting), int(running), usage / len(counts)

    def _publish(self, target: int) -> None:
        """A step of a target has ended: its counts are on their way."""
        if not self._nodes.has_target(target):
            return
        self._published.append((self._clock.now, target, self._counts_of(target)))

    def _take_published(self, now_s: float) -> None:
        published = self._published
        newest = {}
        taken = 0
        for at_s, target, counts in published:
            if at_s + PUBLISHED_S > now_s:
                break
            newest[target] = (at_s, counts)
            taken += 1
        del published[:taken]
        for target, (at_s, counts) in newest.items():
            for decider in self._deciders:
                if decider.views.is_available(target):
                    decider.counts(target, counts, at_s)

    def _scrape_later(self) -> None:
        every_s = self._scraped_every_s
        assert every_s is not None
        self._is_scraping = True
        # Counted, so that rounding never puts the next time at this one again.
        self._num_scraped = max(self._num_scraped, int(self._clock.now / every_s)) + 1
        call_at(self._clock, max(self._num_scraped * every_s, self._clock.now), self._scrape)

    def _scrape(self) -> None:
        """Ask every target for its counts, and again later while there are requests."""
        self._is_scraping = False
        for target in self._deciders[0].views.replicas:
            counts = self._counts_of(target)
            for decider in self._deciders:
                decider.counts(target, counts, self._clock.now)
        for decider in self._deciders:
            self.release(decider)
        if self._num_here > 0:
            self._scrape_later()
