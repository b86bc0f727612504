"""What caches tell routers: in the routers' own keys, in the order of the logs, after the delay."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.block_pool import (
    ENTERED,
    ENTERED_AGAIN,
    LOG,
    LOG_LENGTH,
    LOG_ROWS,
    REMOVED,
    REMOVED_ONE,
)
from kvsim.cache.content import Ints, block_key
from kvsim.cache.span_table import HOLDER, KEY, LAST, NEXT
from kvsim.fleet.event_post import EventPost
from kvsim.fleet.simulation import simulate_fleet
from kvsim.routing import Parameters, RoutedRequest, Router, Sees, Surroundings, prefix_key
from kvsim.routing.contract import Tier
from kvsim.routing.decider import Decider
from kvsim.routing.dynamo import DynamoKv
from kvsim.routing.prefix_index import EventIndex
from kvsim.workload import open_workload
from tests.fleet.small import scenario
from tests.slow_model.slow_indexes import EventIndex as SlowEventIndex

REQUESTS = [
    {"prompt": [[f"p{n % 5}", 176], [f"q{n}", 40 + n]], "output": 1, "at_s": 0.5 * n}
    for n in range(20)
]


Told = tuple[int, list[int], list[int]]


class Listener(DynamoKv):
    """Dynamo's, which writes down what it is told."""

    told: list[Told] = []

    def on_events(
        self,
        replica: int,
        stored: Sequence[int],
        removed: Sequence[int],
        now_s: float,
        tier: Tier = "device",
    ) -> None:
        self.told.append((replica, list(stored), list(removed)))
        super().on_events(replica, stored, removed, now_s, tier)


def test_what_is_stored_are_the_prefixes_of_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every prompt all full blocks are told, under the keys it is looked up by."""
    monkeypatch.setattr(Listener, "told", [])
    monkeypatch.setattr("kvsim.routing.dynamo.DynamoKv", Listener)
    made = scenario(REQUESTS, fleet={"nodes": 2, "router": {"kind": "dynamo-kv"}})
    simulate_fleet(made.replace({"node.num_blocks": 4000}))
    assert not any(removed for _, _, removed in Listener.told)
    told = {key for _, stored, _ in Listener.told for key in stored}
    keys: set[int] = set()
    for request in open_workload(made.workload, 16, 0).requests:
        assert not isinstance(request, tuple)
        sent = RoutedRequest("", request.content, request.content.num_tokens, 0.0)
        keys |= set(sent.keys(16))
    assert len(keys) == 5 * 11 + sum((176 + 40 + n) // 16 - 11 for n in range(20))
    missing = len(keys - told)
    assert missing <= 4  # nobody arrives to be told of the last request
    assert told <= keys


@pytest.mark.parametrize("fleet", [{"nodes": 3}, {"nodes": 4, "router_replicas": 2}])
def test_an_index_fed_whole_holds_what_one_fed_by_calls_does(
    fleet: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same fleet, of small caches, with a router that overrides `on_events` alone."""
    made = scenario(fleet={**fleet, "router": "dynamo-kv"}, node={"num_blocks": 60})
    whole = simulate_fleet(made).requests.frame(fleet=True)
    monkeypatch.setattr(Listener, "told", [])
    monkeypatch.setattr("kvsim.routing.dynamo.DynamoKv", Listener)
    by_calls = simulate_fleet(made).requests.frame(fleet=True)
    assert any(removed for _, _, removed in Listener.told)
    assert whole.equals(by_calls)


class Hearer(Router[Parameters]):
    """Is told of events, one message at a time."""

    @property
    def sees(self) -> Sees:
        return Sees(own=True, events_after_s=1e-3)

    def __init__(self) -> None:
        super().__init__(Parameters(), Surroundings(REPLICAS, 16))
        self.told: list[Told] = []

    def on_events(
        self,
        replica: int,
        stored: Sequence[int],
        removed: Sequence[int],
        now_s: float,
        tier: Tier = "device",
    ) -> None:
        self.told.append((replica, list(stored), list(removed)))


class Indexer(Hearer):
    """Has an index take them."""

    def __init__(self) -> None:
        super().__init__()
        self.index = EventIndex(16)

    @property
    def event_index(self) -> EventIndex:
        return self.index


REPLICAS = 3
WHATS = (ENTERED, ENTERED_AGAIN, REMOVED, REMOVED_ONE)


def log_of(entries: list[tuple[int, int, int]], num_stamped: int) -> Ints:
    """Totals of a pool with a log of key, what was done, and when."""
    room = len(entries) + 1
    totals = np.zeros(LOG + LOG_ROWS * room, np.int64)
    totals[LOG:].reshape(LOG_ROWS, room)[:, : len(entries)] = np.array(entries).T
    totals[LOG_LENGTH], totals[LOG_LENGTH + 1] = len(entries), num_stamped
    return totals


def messages_of(entries: list[tuple[int, int, int]]) -> list[tuple[int, list[int], list[int]]]:
    """Time, keys stored and keys removed: one message a time, or parts where a block is in both."""
    told = [
        (what in (ENTERED, ENTERED_AGAIN), prefix_key(uid_of(key), 16 * number_of(key)), time_ns)
        for key, what, time_ns in entries
        if key & 63 == 0
    ]
    both = {key for stored, key, _ in told if stored} & {
        key for stored, key, _ in told if not stored
    }
    parts = itertools.groupby(told, key=lambda row: (row[2], bool(both) and row[0]))
    return [
        (
            part[-1][2],
            [key for stored, key, _ in part if stored],
            [key for stored, key, _ in part if not stored],
        )
        for part in (list(rows) for _, rows in parts)
    ]


def held(index: EventIndex) -> set[tuple[int, int, int]]:
    """Replica, first and last key of every interval."""
    heads, cells = index.table.heads, index.table.cells
    found = []
    for cell in heads.tolist():
        while cell:
            row = cells[cell].tolist()
            found.append((row[HOLDER], row[KEY], row[LAST]))
            cell = row[NEXT]
    assert len(found) == len(set(found)) == index.table.num_cells
    return set(found)


def uid_of(key: int) -> int:
    return key >> 28


def number_of(key: int) -> int:
    return (key >> 6) & ((1 << 22) - 1)


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_messages_arrive_in_order_after_the_delay_and_in_parts_where_order_counts(
    seed: int,
) -> None:
    drawn = random.Random(seed)
    hearer, indexer, slow = Hearer(), Indexer(), SlowEventIndex(16)
    heard = EventPost(Decider(hearer, random.Random(0)), 1e-3, 0, 16)
    taken = EventPost(Decider(indexer, random.Random(0)), 1e-3, 0, 16)
    waiting: list[tuple[float, int, int, list[int], list[int]]] = []
    expected: list[Told] = []
    numbers = itertools.count()
    now_ns = 0
    for _ in range(30):
        now_ns += drawn.choice((0, 100_000, 700_000))
        target, time_ns = drawn.randrange(REPLICAS), now_ns - 50_000
        entries: list[tuple[int, int, int]] = []
        for _ in range(drawn.randrange(5)):
            uid, first, count = drawn.randrange(3), drawn.randrange(1, 9), drawn.randrange(1, 5)
            group = 1 if drawn.random() < 0.1 else 0
            keys = [block_key(uid, first + number, group) for number in range(count)]
            what, time_ns = drawn.choice(WHATS), min(now_ns, time_ns + drawn.choice((0, 20_000)))
            entries += [(key, what, time_ns) for key in (keys[::-1] if what > 1 else keys)]
        if entries:
            for post in (heard, taken):
                post.collect(log_of(entries, len(entries) - 1), target, entries[-1][2])
        for at_ns, stored, removed in messages_of(entries):
            at_s = float(at_ns) * 1e-9 + 1e-3
            heapq.heappush(waiting, (at_s, next(numbers), target, stored, removed))
        now_s = now_ns * 1e-9
        heard.deliver(now_s)
        taken.deliver(now_s)
        while waiting and waiting[0][0] <= now_s:
            _, _, whose, stored, removed = heapq.heappop(waiting)
            expected.append((whose, stored, removed))
            slow.remove(whose, removed)
            slow.store(whose, stored)
        assert hearer.told == expected
        assert held(indexer.index) == slow.held()
    assert not indexer.told


def test_a_router_that_goes_by_events_finds_every_prefix() -> None:
    """With nothing evicted and time between requests only the first of each prefix misses."""
    router: Any = {"kind": "llm-d", "weights": {"prefix": 1}, "sees": {"events": "1 ms"}}
    made = scenario(REQUESTS, fleet={"nodes": 4, "router": router}, node={"num_blocks": 4000})
    hits = simulate_fleet(made).requests.frame()["hit_tokens"]
    assert (hits[:5] == 0).all()
    assert (hits[5:] == 176).all()
