"""What a router is asked, what it may know, and what it is told.

A *router* decides for one arrival which replica gets it. It looks at `Views` alone: copies of what
the replicas are like, each with an age, never the truth. Whoever runs the fleet gives every router
process a `kvsim.routing.decider.Decider`, which keeps its views and passes on what happens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from kvsim.routing.block_runs import POSITION_BITS, Run
from kvsim.routing.parameters import Parameters
from kvsim.routing.sees import NOTHING, Sees
from kvsim.routing.views import Ints, Views

if TYPE_CHECKING:
    from kvsim.cache.content import Content
    from kvsim.routing.prefix_index import EventIndex

Tier = Literal["device", "host", "disk"]
"""Where a replica keeps what it tells of in its events."""


@dataclass(slots=True)
class RoutedRequest:
    """A request as a router sees it.

    Attributes:
        request_id: unique in a run.
        content: the prompt's spans. Only `uids` and `ends` are read.
        prompt_tokens: its length, at least 1.
        arrival_s: when it came.
        session_id: the session it belongs to, or None.
        output_tokens: how long its answer will be, where the client says so; else None.
        priority: a lower number is served first, where anybody looks at it.
        pinned: the replica the request asks for by itself, or None.
        expected_hit_tokens: set by a router that looks for prefixes, in `choose` or `on_sent`:
            leading tokens it expects the replica to have cached. Nothing is decided by it; it is
            held against what was found.
    """

    request_id: str
    content: Content
    prompt_tokens: int
    arrival_s: float
    session_id: str | None = None
    output_tokens: int | None = None
    priority: int = 0
    pinned: int | None = None
    expected_hit_tokens: int | None = None
    _spans: list[tuple[int, int]] | None = field(default=None, repr=False)
    _runs: dict[int, list[Run]] | None = field(default=None, repr=False)
    _keys: dict[int, tuple[int, ...]] | None = field(default=None, repr=False)

    def spans(self) -> list[tuple[int, int]]:
        """The prompt as ``(uid, end)`` pairs, ends in tokens from the start."""
        if self._spans is None:
            uids, ends = self.content.uids.tolist(), self.content.ends.tolist()
            self._spans = list(zip(uids, ends, strict=True))
        return self._spans

    def runs(self, unit_tokens: int) -> list[Run]:
        """The prompt's full blocks of `unit_tokens`, those that end in one span taken together.

        As many as there are spans, however long they are: what an index of prefixes works on.
        """
        if self._runs is None:
            self._runs = {}
        runs = self._runs.get(unit_tokens)
        if runs is None:
            runs, start = [], 0
            for uid, end in self.spans():
                first = (start // unit_tokens + 1) * unit_tokens
                last = end // unit_tokens * unit_tokens
                if first <= last:
                    runs.append((uid, first, last))
                start = end
            self._runs[unit_tokens] = runs
        return runs

    def keys(self, unit_tokens: int) -> tuple[int, ...]:
        """One chained key for each of the prompt's full blocks, from the first on.

        Two requests have equal keys as far as their prompts are equal, and no further.
        """
        if self._keys is None:
            self._keys = {}
        keys = self._keys.get(unit_tokens)
        if keys is None:
            listed: list[int] = []
            for uid, first, last in self.runs(unit_tokens):
                span = uid << POSITION_BITS
                listed.extend(range(span | first, (span | last) + 1, unit_tokens))
            keys = tuple(listed)
            self._keys[unit_tokens] = keys
        return keys


CachedTokens = Callable[[RoutedRequest, int], int]
"""The truth for the `oracle` alone: how many of a request's leading tokens a replica holds now."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a router is told of the fleet when it starts.

    Attributes:
        num_replicas: replicas there are at the start, numbered from 0.
        block_tokens: block size of the engines, in whose units events come.
        num_blocks: blocks in a replica's pool; None where that is not known.
        max_num_batched_tokens: the engines' budget of a step.
        router_index: which of the router's processes this is, from 0.
        num_routers: how many router processes there are.
        cached_tokens: for the `oracle`.
    """

    num_replicas: int
    block_tokens: int = 16
    num_blocks: int | None = None
    max_num_batched_tokens: int = 8192
    router_index: int = 0
    num_routers: int = 1
    cached_tokens: CachedTokens | None = None


ParametersT = TypeVar("ParametersT", bound=Parameters)


class Router(Generic[ParametersT]):
    """Decides where requests go. Give `choose`; give any of the others if there is need.

    The first line of a router's docstring is its description. What happens is told after the views
    show it, except `on_sent`, which comes before: so that a router can compare.

    Attributes:
        Parameters: class of its parameters.
        source: where the rule comes from.
        parameters: its parameters.
        surroundings: what it was told at the start.
    """

    Parameters: ClassVar[type[Parameters]] = Parameters
    source: ClassVar[str] = ""

    def __init__(self, parameters: ParametersT, surroundings: Surroundings) -> None:
        """Start with nothing sent."""
        self.parameters = parameters
        self.surroundings = surroundings

    @property
    def sees(self) -> Sees:
        """What it must be shown, and how late; nothing unless said otherwise."""
        found = getattr(self.parameters, "sees", NOTHING)
        return found if isinstance(found, Sees) else NOTHING

    @property
    def event_index(self) -> EventIndex | None:
        """An index that takes what devices tell as it comes, without `on_events` being called.

        None: `on_events` is called, as it is where a subclass overrides that alone.
        """
        return None

    @property
    def by_session(self) -> bool:
        """Whether it chooses by the request's session alone, where requests have one."""
        return False

    def choose(
        self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random
    ) -> int | None:
        """The replica that gets a request, one of `views.replicas`, which is never empty.

        Args:
            request: what arrived.
            views: what this router knows of the replicas.
            now_s: the time.
            rng: its own source of random numbers; the only one it may draw from.

        Returns:
            The replica's number, or None to hold the request back: it is offered again whenever
            one of this router's requests has made its first token or is done.
        """
        raise NotImplementedError

    def load(self, views: Views) -> Ints:
        """Requests at each of `views.replicas`, by what this router goes by.

        Reported ones (waiting and running) where counts are published or scraped, otherwise its own
        in flight. Not to be written to.
        """
        sees = self.sees
        if sees.published or sees.scraped_every_s is not None:
            return views.of(views.waiting) + views.of(views.running)
        return views.of(views.in_flight)

    def hold_order(self, request: RoutedRequest, now_s: float) -> float:
        """Of requests held back the least is offered first, equal ones as they came."""
        return 0.0

    def on_sent(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """A request of this router goes to a replica, chosen or pinned."""

    def on_first_token(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """The first token of one of its requests came back."""

    def on_finished(self, request: RoutedRequest, replica: int, now_s: float) -> None:
        """One of its requests is done, or was given up; without a first token if it had none."""

    def on_counts(self, replica: int, at_s: float) -> None:
        """A replica's counts, as they were at `at_s`, are in the views from now on."""

    def on_events(
        self,
        replica: int,
        stored: Sequence[int],
        removed: Sequence[int],
        now_s: float,
        tier: Tier = "device",
    ) -> None:
        """A replica told what prefixes it has stored and removed (`prefix_key`s, block by block).

        What stands in both was removed and then stored again: take out first, then enter. In a run
        of a fleet both are `BlockRuns`, which an index can take in whole.
        Comes only to routers whose `sees.events_after_s` is not None, so long after it was so.
        """

    def on_replica_added(self, replica: int, now_s: float) -> None:
        """A replica is there from now on, with a cold cache."""

    def on_replica_removed(self, replica: int, now_s: float) -> None:
        """A replica gets no more requests; those it has may still finish."""
