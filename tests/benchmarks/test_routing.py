"""What a choice costs, as a ratio: the replicas a router need not look at cost next to nothing."""

from __future__ import annotations

import random
import timeit

import pytest

from kvsim.cache.content import Content
from kvsim.routing import Decider, RoutedRequest, Surroundings, make_router

pytestmark = pytest.mark.benchmark


def seconds_a_request(kind: str, replicas: int) -> float:
    """Least seconds from arrival to end of a request of eight spans and 6,000 tokens.

    Sixteen requests are active on each replica; sixteen prompts share each of their beginnings.
    """
    around = Surroundings(replicas, num_blocks=30_000, cached_tokens=lambda request, replica: 0)
    fleet = Decider(make_router(kind, {}, around), random.Random(1))
    for number in range(16 * replicas):
        spans = [(number // 16 + 1, 2000)]
        spans += [(1000 + number * 20 + turn, 570) for turn in range(7)]
        content = Content.from_spans(spans)
        sent = RoutedRequest(f"r{number}", content, content.num_tokens, 0.0, f"s{number}")
        replica = fleet.route(sent, 0.0)
        assert replica is not None
        fleet.events(replica, sent.keys(16), [], 0.0)
    again = iter(range(10**9))

    def one() -> None:
        arriving = RoutedRequest(f"x{next(again)}", content, content.num_tokens, 0.0, "s")
        fleet.route(arriving, 0.0)
        fleet.first_token(arriving, 0.0)
        fleet.finished(arriving, 0.0)

    return min(timeit.repeat(one, number=10, repeat=200)) / 10


@pytest.mark.parametrize("kind", ["dynamo-kv", "llm-d", "sticky-until-saturated", "aibrix-prefix"])
def test_sixteen_times_the_replicas_cost_less_than_three_times_as_much(kind: str) -> None:
    few, many = seconds_a_request(kind, 4), seconds_a_request(kind, 64)
    print(f"{kind}: {few * 1e6:.0f} us with 4 replicas, {many * 1e6:.0f} us with 64")
    assert many < 3 * few
