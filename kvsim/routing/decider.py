"""One router process: a router, its views, its random source, and its requests on the way."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError
from kvsim.routing.contract import RoutedRequest, Router, Tier
from kvsim.routing.views import Counts, Views

if TYPE_CHECKING:
    from kvsim.routing.prefix_index import EventIndex


class RouterError(KvsimError):
    """A router that breaks the contract: it raised, or named a replica that takes no requests."""


class NoReplicaError(KvsimError):
    """There is no replica left that takes requests."""


class Decider:
    """A router process. A fleet with several of them spreads its arrivals and tells each its own.

    Attributes:
        router: who decides.
        name: what the router is called in messages.
        views: what it knows.
        held: requests it holds back, in no order.
    """

    def __init__(self, router: Router[Any], rng: random.Random, name: str = "router") -> None:
        """Start with the replicas of the router's surroundings.

        Args:
            router: made for this process alone.
            rng: made for this process alone, from the seed and its index.
            name: what the router is called in messages.
        """
        self.router = router
        self.name = name
        self.views = Views(router.surroundings.num_replicas)
        self.held: list[RoutedRequest] = []
        self._rng = rng
        self._sent: dict[str, list[int]] = {}  # request id: replica, prompt tokens before the first
        kind = type(router)
        self._hears = {
            name: getattr(kind, name) is not getattr(Router, name)
            for name in ("on_sent", "on_first_token", "on_finished", "on_events", "on_counts")
        }

    @property
    def event_index(self) -> EventIndex | None:
        """What takes the events of devices whole, in place of `events`; None: nothing does."""
        for kind in type(self.router).__mro__:
            if "event_index" in vars(kind):
                return self.router.event_index
            if "on_events" in vars(kind):
                return None
        return None

    @property
    def num_on_the_way(self) -> int:
        """Requests sent that are not done."""
        return len(self._sent)

    def route(self, request: RoutedRequest, now_s: float) -> int | None:
        """Where a request goes that has arrived; from now on it counts as sent there.

        Returns:
            The replica, or None where the router holds the request back; then it comes out of
            `release`.

        Raises:
            NoReplicaError: no replica takes requests.
            RouterError: the router raised, or named a replica that takes no requests.
        """
        views = self.views
        if not views.replicas:
            raise NoReplicaError(f"{request.request_id}: no replica is left that takes requests")
        replica = request.pinned
        if replica is None or not views.is_available(replica):
            replica = self._chosen(request, now_s)
            if replica is None:
                self.held.append(request)
                return None
        self._send(request, replica, now_s)
        return replica

    def release(self, now_s: float) -> list[tuple[RoutedRequest, int]]:
        """Requests that were held back and go now, with their replicas.

        To be asked after `first_token`, `finished`, `counts` and `add_replica` while `held` is not
        empty. The first one that is held back again keeps those behind it.

        Raises:
            RouterError: the router raised, or named a replica that takes no requests.
        """
        if not self.held or not self.views.replicas:
            return []
        order = self.router.hold_order
        self.held.sort(key=lambda request: order(request, now_s))
        gone: list[tuple[RoutedRequest, int]] = []
        for request in self.held:
            replica = self._chosen(request, now_s)
            if replica is None:
                break
            self._send(request, replica, now_s)
            gone.append((request, replica))
        del self.held[: len(gone)]
        return gone

    def first_token(self, request: RoutedRequest, now_s: float) -> None:
        """The first token of a request that this router sent came back to it."""
        sent = self._sent[request.request_id]
        replica, tokens = sent
        if tokens:
            self.views.prefill_tokens[replica] -= tokens
            sent[1] = 0
        if self._hears["on_first_token"]:
            self.router.on_first_token(request, replica, now_s)

    def finished(self, request: RoutedRequest, now_s: float) -> None:
        """A request that this router sent is done, or was given up by its replica."""
        replica, tokens = self._sent.pop(request.request_id)
        self.views.in_flight[replica] -= 1
        self.views.prefill_tokens[replica] -= tokens
        if self._hears["on_finished"]:
            self.router.on_finished(request, replica, now_s)

    def counts(self, replica: int, counts: Counts | Sequence[float], at_s: float) -> None:
        """A replica's counts have reached this router.

        Args:
            replica: whose.
            counts: requests waiting, requests running, share of the KV cache in use.
            at_s: when they were so, which may be a while ago.
        """
        self.views.take(replica, counts, at_s)
        if self._hears["on_counts"]:
            self.router.on_counts(replica, at_s)

    def events(
        self,
        replica: int,
        stored: Sequence[int],
        removed: Sequence[int],
        now_s: float,
        tier: Tier = "device",
    ) -> None:
        """A replica's events have reached this router: see `Router.on_events`."""
        if self._hears["on_events"] and self.views.is_available(replica):
            self.router.on_events(replica, stored, removed, now_s, tier)

    def add_replica(self, replica: int, now_s: float) -> None:
        """A replica takes requests from now on; its cache is cold.

        A number that was removed may come back when all its requests are done.
        """
        self.views.add(replica)
        self.router.on_replica_added(replica, now_s)

    def remove_replica(self, replica: int, now_s: float) -> None:
        """A replica takes no more requests. Those it loses are to be `finished` and routed anew."""
        self.views.remove(replica)
        self.router.on_replica_removed(replica, now_s)

    def _chosen(self, request: RoutedRequest, now_s: float) -> int | None:
        try:
            replica = self.router.choose(request, self.views, now_s, self._rng)
        except KvsimError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise RouterError(
                f"router {self.name}: choose() failed for request {request.request_id}: {what}"
            ) from error
        if replica is None:
            return None
        try:
            number = replica.__index__()  # an integer of numpy counts as one
        except AttributeError:
            number = -1
        if not self.views.is_available(number):
            raise RouterError(
                f"router {self.name}: choose() answered {replica!r} for request "
                f"{request.request_id}, which is none of views.replicas. Return one of them, or "
                "None to hold the request back."
            )
        return number

    def _send(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        if self._hears["on_sent"]:
            self.router.on_sent(request, replica, now_s)
        self.views.in_flight[replica] += 1
        self.views.prefill_tokens[replica] += request.prompt_tokens
        self._sent[request.request_id] = [replica, request.prompt_tokens]
