"""Who chooses a rank within an engine: API servers with copies of counts that are published."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from kvsim.engine.clock import Clock
from kvsim.engine.feeding import call_at
from kvsim.engine.replica import Replica
from kvsim.routing import Decider, RoutedRequest, Surroundings, make_router
from kvsim.routing.coordinator import Coordinator, Publication

HANDED_OVER_S = 0.001
"""From a publication to the API servers that take it; as in the recordings of the coordinator."""


class Stamps(Protocol):
    """Where ranks that step together are."""

    wave: int
    step: int


class Counting:
    """The engine's coordinator on the clock: hears of its ranks, publishes, wakes.

    Attributes:
        num_publications: of counts, so far.
    """

    def __init__(self, clock: Clock, num_ranks: int, pace: Stamps | None) -> None:
        """Hear of idle ranks.

        Args:
            clock: the simulation's.
            num_ranks: of the engine.
            pace: where ranks step together; None where each runs on its own.
        """
        self.num_publications = 0
        self._clock = clock
        self._pace = pace
        self._coordinator = Coordinator(num_ranks, lockstep=pace is not None, start_s=clock.now)
        self._last: list[tuple[int, int]] = [(0, 0)] * num_ranks
        self._servers: list[tuple[int, Sequence[Decider]]] = []
        self._is_due = False

    def serve(self, first_rank: int, clients: Sequence[Decider]) -> None:
        """API servers that see the counts of ranks from one on, numbered from 0 there."""
        self._servers.append((first_rank, clients))

    def reset(self, rank: int) -> None:
        """A rank is a new one, idle."""
        self._last[rank] = (0, 0)

    def look(self, rank: int, replica: Replica) -> None:
        """A rank reports if its counts of requests have changed."""
        waiting, running, usage = replica.counts
        if (waiting, running) == self._last[rank]:
            return
        self._last[rank] = (waiting, running)
        now_s, coordinator, pace = self._clock.now, self._coordinator, self._pace
        if not self._is_due:  # publications of nothing new, which nobody has to be woken for
            while coordinator.due_s < now_s:
                coordinator.publish(coordinator.due_s)
        wave, step = (0, 0) if pace is None else (pace.wave, pace.step)
        coordinator.report(rank, (waiting, running, usage), now_s, wave=wave, step=step)
        self._set_timer()

    def note_wave(self, begins: bool) -> None:
        """A wave begins or is over."""
        assert self._pace is not None
        now_s = self._clock.now
        if begins:
            self._coordinator.start_wave(self._pace.wave, now_s)
        else:
            self._coordinator.complete_wave(self._pace.wave - 1, now_s)

    def _set_timer(self) -> None:
        if self._is_due:
            return
        self._is_due = True
        callbacks = self._clock.at(max(self._clock.now, self._coordinator.due_s)).callbacks
        assert callbacks is not None
        callbacks.append(lambda _: self._publish())

    def _publish(self) -> None:
        self._is_due = False
        coordinator, now_s = self._coordinator, self._clock.now
        if coordinator.due_s > now_s:  # a message has put it off
            self._set_timer()
            return
        publication = coordinator.publish(now_s)
        self.num_publications += 1
        call_at(self._clock, now_s + HANDED_OVER_S, lambda: self._hand_over(publication, now_s))
        if coordinator.has_changed:
            self._set_timer()

    def _hand_over(self, publication: Publication, at_s: float) -> None:
        for first, clients in self._servers:
            for client in clients:
                for rank in client.views.replicas:
                    if publication.counts is not None:
                        client.counts(rank, publication.counts[first + rank], at_s)


class Clients:
    """The API servers of a node, each with a view of its own of the node's ranks."""

    def __init__(self, num_ranks: int, num_clients: int, seed: int) -> None:
        """See idle ranks.

        Args:
            num_ranks: of the node.
            num_clients: API servers; connections are spread over them at random.
            seed: of these draws.
        """
        self.deciders = [
            Decider(
                make_router(
                    "vllm-dp",
                    {},
                    Surroundings(num_ranks, router_index=client, num_routers=num_clients),
                ),
                random.Random(seed + 1 + client),
                "vllm-dp",
            )
            for client in range(num_clients)
        ]
        self._rng = random.Random(seed)

    def choose(self, request: RoutedRequest, now_s: float) -> tuple[Decider, int]:
        """Which of them takes a request, and the rank it chooses."""
        clients = self.deciders
        client = clients[0] if len(clients) == 1 else clients[self._rng.randrange(len(clients))]
        rank = client.route(request, now_s)
        assert rank is not None, "vllm-dp holds nothing back"
        return client, rank
