"""What caches tell routers is said in the routers' own keys."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.fleet.simulation import simulate_fleet
from kvsim.routing import RoutedRequest
from kvsim.routing.decider import Decider
from kvsim.workload import open_workload
from tests.fleet.small import scenario

REQUESTS = [
    {"prompt": [[f"p{n % 5}", 176], [f"q{n}", 40 + n]], "output": 1, "at_s": 0.5 * n}
    for n in range(20)
]


def test_what_is_stored_are_the_prefixes_of_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every prompt all full blocks are told, under the keys it is looked up by."""
    told: set[int] = set()

    def events(
        self: Decider, replica: int, stored: list[int], removed: list[int], now_s: float
    ) -> None:
        assert not removed
        told.update(stored)

    monkeypatch.setattr(Decider, "events", events)
    made = scenario(REQUESTS, fleet={"nodes": 2, "router": {"kind": "dynamo-kv"}})
    simulate_fleet(made.replace({"node.num_blocks": 4000}))
    keys: set[int] = set()
    for request in open_workload(made.workload, 16, 0).requests:
        assert not isinstance(request, tuple)
        sent = RoutedRequest("", request.content, request.content.num_tokens, 0.0)
        keys |= set(sent.keys(16))
    assert len(keys) == 5 * 11 + sum((176 + 40 + n) // 16 - 11 for n in range(20))
    missing = len(keys - told)
    assert missing <= 4  # nobody arrives to be told of the last request
    assert told <= keys


def test_a_router_that_goes_by_events_finds_every_prefix() -> None:
    """With nothing evicted and time between requests only the first of each prefix misses."""
    router: Any = {"kind": "llm-d", "weights": {"prefix": 1}, "sees": {"events": "1 ms"}}
    made = scenario(REQUESTS, fleet={"nodes": 4, "router": router}, node={"num_blocks": 4000})
    hits = simulate_fleet(made).requests.frame()["hit_tokens"]
    assert (hits[:5] == 0).all()
    assert (hits[5:] == 176).all()
