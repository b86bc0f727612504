"""What routers expected to be cached, against what their replica found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvsim.fleet.simulation import simulate_fleet
from kvsim.metrics.fleet import EXPECTED_KEYS, fleet_summary
from kvsim.metrics.summary import summarize
from tests.fleet.small import CHAT, fleet, frame_of, scenario

EVENTS = {"kind": "dynamo-kv", "sees": {"events": "0 s"}}
LLM_D = {"scraped": "1 s", "events": "0 s"}


def apart(num: int) -> list[dict[str, Any]]:
    """The same prompt so many times, each long after the one before."""
    return [
        {"prompt": [["A", 160], [f"q{n}", 20]], "output": 2, "at_s": float(n)} for n in range(num)
    ]


def told(made: Any) -> dict[str, Any]:
    run = simulate_fleet(made)
    frame = frame_of(run)
    summary = summarize(frame, run.counters, wall_s=0.0)
    return fleet_summary(run.figures, frame, summary)


@pytest.mark.parametrize(
    ("router", "expected"),
    [
        (EVENTS, 160),
        ("oracle", 160),
        ("sglang-cache-aware", 160),
        ("aibrix-prefix", 160),
        ({"kind": "production-stack", "logic": "prefix-aware"}, 160),
        ({"kind": "production-stack", "logic": "load-aware"}, 160),
        ({"kind": "llm-d", "weights": {"prefix": 1}, "sees": LLM_D}, 160),
        # Approximate indexes have blocks of 64 tokens.
        ({"kind": "llm-d", "weights": {"prefix": 1}}, 128),
        ("sticky-until-saturated", 128),
    ],
)
def test_nothing_in_between_is_expected_as_found(router: Any, expected: int) -> None:
    """160 of 180 tokens, which are whole blocks, from the second time on."""
    frame = fleet(scenario(apart(4), fleet={"nodes": 3, "router": router}))
    assert frame["hit_tokens"].tolist() == [0, 160, 160, 160]
    assert frame["expected_hit_tokens"].tolist() == [0, expected, expected, expected]


@pytest.mark.parametrize("router", ["random", "session", "least-requests"])
def test_who_does_not_look_expects_nothing(router: str) -> None:
    made = scenario(apart(2), fleet={"nodes": 2, "router": router})
    assert fleet(made)["expected_hit_tokens"].isna().all()
    figures = told(made)
    assert figures["expected_hits"] is None
    assert figures["events_under_way"] is None


def test_a_burst_is_ahead_of_its_events() -> None:
    """Late events: the second prompt is sent where the router does not yet know of the first."""
    late = {"kind": "dynamo-kv", "sees": {"events": "2.5 s"}}
    figures = told(scenario(apart(6), fleet={"nodes": 1, "router": late}, node={"num_blocks": 99}))
    assert figures["events_under_way"] is not None
    assert figures["events_under_way"]["mean"] > 0
    expected = figures["expected_hits"]
    assert list(expected) == list(EXPECTED_KEYS)
    # Prompts 1 and 2 are found, and not expected; of 3 on they are known.
    assert expected["found_tokens"] - expected["expected_tokens"] == 2 * 160
    assert (expected["over_share"], expected["under_share"]) == (0, pytest.approx(2 / 6))
    assert expected["mean_error_tokens"] == pytest.approx(2 * 160 / 6)


def test_an_index_of_decisions_does_not_see_evictions() -> None:
    small = scenario(CHAT, node={"num_blocks": 40}, fleet={"nodes": 2, "router": EVENTS})
    own = {"kind": "dynamo-kv", "sees": "own", "decision_ttl": "1000 s"}
    by_events, by_decisions = (
        told(small.replace({"fleet.router": router}))["expected_hits"] for router in (EVENTS, own)
    )
    assert by_decisions["over_share"] > 0.2
    assert by_decisions["over_share"] > by_events["over_share"]
    assert by_decisions["mean_error_tokens"] > by_events["mean_error_tokens"]


def test_the_figures_are_those_of_the_requests() -> None:
    made = scenario(CHAT, node={"num_blocks": 60}, fleet={"nodes": 3, "router": EVENTS})
    frame, figures = fleet(made), told(made)["expected_hits"]
    more = (frame["expected_hit_tokens"] - frame["hit_tokens"]).to_numpy(dtype=float)
    assert figures["num_requests"] == len(frame)
    assert figures["mean_error_tokens"] == pytest.approx(np.abs(more).mean())
    assert figures["over_share"] == pytest.approx((more > 16).mean())
    assert figures["under_share"] == pytest.approx((more < -16).mean())


def test_prompts_that_were_handed_over_are_of_the_prefill_router() -> None:
    pools = {"prefill": {"nodes": 2, "router": EVENTS}, "decode": {"nodes": 1}}
    frame = fleet(scenario(apart(3), fleet={"pools": pools}))
    assert frame["expected_hit_tokens"].tolist() == frame["hit_tokens"].tolist() == [0, 160, 160]
