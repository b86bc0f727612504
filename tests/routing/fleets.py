"""Small fleets for the tests: deciders, requests, and a run of made-up events."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

from kvsim.cache.content import Content
from kvsim.routing import Decider, RoutedRequest, Surroundings, make_router, router_names

BLOCK = 16


def request(name: str, *spans: tuple[int, int], **fields: Any) -> RoutedRequest:
    content = Content.from_spans(spans or [(1, 100)])
    fields.setdefault("arrival_s", 0.0)
    return RoutedRequest(name, content, content.num_tokens, **fields)


def decider(
    kind: str,
    replicas: int,
    parameters: Mapping[str, Any] | None = None,
    *,
    seed: int = 1,
    **surroundings: Any,
) -> Decider:
    surroundings.setdefault("cached_tokens", lambda request, replica: replica % 3)
    around = Surroundings(replicas, BLOCK, **surroundings)
    return Decider(make_router(kind, parameters or {}, around), random.Random(seed), kind)


OTHER_SETTINGS: dict[str, list[dict[str, Any]]] = {
    "least-requests": [{"ties": "random"}, {"sees": {"scraped": "50 ms"}}, {"sees": "published"}],
    "power-of-two": [{"sees": {"scraped": 0.05}}],
    "session": [{"method": "sticky"}, {"method": "bounded", "load_factor": 1.0}],
    "production-stack": [
        {"logic": "session"},
        {"logic": "prefix-aware"},
        {"logic": "load-aware"},
    ],
    "sglang-cache-aware": [
        {"balance_abs_threshold": 1, "eviction_interval": 1.0, "max_tree_size": 2000}
    ],
    "sglang-prefix-hash": [{"overflow": "clockwise"}],
    "dynamo-kv": [
        {"temperature": 0.7, "overlap_credit_decay": 0.5, "request_weight": 2.0},
        {"sees": "own", "decision_ttl": 3.0},
        {"predicted_ttl": 2.0, "queue_threshold": 0.02, "queue_policy": "wspt"},
        {"role": "prefill", "queue_threshold": 0.02, "queue_policy": "lcfs"},
        {"role": "decode"},
    ],
    "llm-d": [
        {"sees": {"scraped": 0.05, "events": 0.005}, "speculative": 2.0},
        {"weights": {"load-aware": 1, "active-request": 1, "token-load": 1, "no-hit-lru": 1}},
        {"weights": {"queue": 1}, "sees": "own"},
    ],
    "sticky-until-saturated": [{"affinity": 0.3, "slack": 0.01}, {"sees": {"events": 0.0}}],
    "aibrix-prefix": [{"imbalance": 1, "num_blocks": 300, "keep": 2.0}],
    "oracle": [{"prefill_weight": 0.5}],
}


def settings() -> list[tuple[str, dict[str, Any]]]:
    """Every router there is, as it comes and otherwise."""
    return [
        (kind, parameters)
        for kind in router_names()
        for parameters in ({}, *OTHER_SETTINGS.get(kind, ()))
    ]


def history(
    fleet: Decider, seed: int, *, steps: int = 300, changing: bool = True
) -> list[tuple[str, int]]:
    """Let things happen, drawn by the seed alone, and say who was sent where."""
    rng = random.Random(seed)
    uids, names = itertools.count(100), itertools.count()
    sessions: list[list[tuple[int, int]]] = []
    on_the_way: list[tuple[RoutedRequest, int, bool]] = []
    caches: dict[int, list[int]] = {}
    sent: list[tuple[str, int]] = []
    numbers = itertools.count(len(fleet.views.replicas))
    now_s = 0.0

    def goes(which: RoutedRequest, replica: int) -> None:
        assert fleet.views.is_available(replica)
        sent.append((which.request_id, replica))
        on_the_way.append((which, replica, False))

    for _ in range(steps):
        now_s += rng.random() * 0.2
        what = rng.random()
        if what < 0.5:
            if sessions and rng.random() < 0.6:
                number = rng.randrange(len(sessions))
            else:
                number = len(sessions)
                sessions.append([(rng.randint(1, 3), 90)])
            sessions[number].append((next(uids), rng.randint(1, 200)))
            arriving = request(
                f"r{next(names)}",
                *sessions[number],
                session_id=f"s{number}" if rng.random() < 0.9 else None,
                arrival_s=now_s,
                pinned=rng.choice(fleet.views.replicas) if rng.random() < 0.05 else None,
            )
            replica = fleet.route(arriving, now_s)
            if replica is not None:
                goes(arriving, replica)
        elif what < 0.8 and on_the_way:
            which, replica, started = on_the_way.pop(rng.randrange(len(on_the_way)))
            if not started and rng.random() < 0.9:
                fleet.first_token(which, now_s)
                keys = which.keys(BLOCK)
                caches.setdefault(replica, []).extend(keys)
                fleet.events(replica, keys, [], now_s, rng.choice(("device", "host")))
                on_the_way.append((which, replica, True))
            else:
                fleet.finished(which, now_s)
        elif what < 0.87 and caches:
            replica = rng.choice(sorted(caches))
            gone = caches.pop(replica)[rng.randrange(3) :: 2]
            fleet.events(replica, [], gone, now_s)
        elif what < 0.94:
            replica = rng.choice(fleet.views.replicas)
            counts = (rng.randrange(4), rng.randrange(9), rng.random())
            fleet.counts(replica, counts, now_s)
        elif changing and what < 0.97 and len(fleet.views.replicas) > 1:
            replica = rng.choice(fleet.views.replicas)
            caches.pop(replica, None)
            fleet.remove_replica(replica, now_s)
        elif changing:
            fleet.add_replica(next(numbers), now_s)
        for which, replica in fleet.release(now_s):
            goes(which, replica)
    while on_the_way:
        fleet.finished(on_the_way.pop()[0], now_s)
        for which, replica in fleet.release(now_s):
            goes(which, replica)
    assert not fleet.held
    return sent
