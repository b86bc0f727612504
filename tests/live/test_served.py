"""A real server's answers: how many tokens of each prompt it found in its prefix cache."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import served
from tests.live.clients import Played, fitted_step_time, play

CONCURRENT = ("concurrent-6-s11", "concurrent-6-s13")

STEP_S, TOKEN_S = 0.02, 6e-5

# Requests that reached the server later than their turn, in seconds: behind one that was sent at
# most 5 ms after them, or (from 0.018 on) when one more step had been planned. They were found from
# the order in which answers ended and from who hit what.
LATE_S = {
    "concurrent-6-s11": {
        **{0: 0.03, 1: 0.03, 4: 0.03, 2: 0.04, 5: 0.03},  # when 3 was being computed
        150: 0.002,
        **{201: 0.018, 202: 0.018},
        **{213: 0.002, 211: 0.004},
        229: 0.045,
    },
    "concurrent-6-s13": {
        **{0: 0.02, 1: 0.02, 3: 0.02, 4: 0.02, 5: 0.02},  # when 2 was being computed
        114: 0.018,
    },
}

# The server of this recording had answered others before, so that its first requests hit what no
# request of the file had computed (below).
NUM_WARM = {"concurrent-6-s11": 0, "concurrent-6-s13": 8}


def num_identical(recorded: dict[str, Any], played: Played) -> int:
    answered = served.cached_tokens(recorded)
    return sum(played.hit_tokens[number] == cached for number, cached in answered.items())


def hit_rate_error(recorded: dict[str, Any], played: Played) -> float:
    """Points by which the hit rate is too high."""
    excess = sum(played.hit_tokens.values()) - sum(served.cached_tokens(recorded).values())
    return 100 * excess / served.num_prompt_tokens(recorded)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_one_after_another_all_requests_are_identical(asynchronous: bool) -> None:
    recorded = served.recording("gemma-like-300")
    scenario = served.scenario(recorded, STEP_S, TOKEN_S, async_scheduling=asynchronous)

    assert served.hit_tokens(scenario) == served.cached_tokens(recorded)


@pytest.mark.parametrize(("fitted", "other"), [CONCURRENT, CONCURRENT[::-1]])
def test_six_clients_with_a_step_time_fitted_to_another_recording(fitted: str, other: str) -> None:
    step_s, token_s = fitted_step_time(served.recording(fitted))
    recorded = served.recording(other)

    played = play(recorded, step_s, token_s)

    assert num_identical(recorded, played) >= 0.9 * len(recorded["requests"])
    assert abs(hit_rate_error(recorded, played)) <= 1.5
    last_s = max(request["done_s"] for request in recorded["requests"])
    assert max(played.done_s.values()) == pytest.approx(last_s, rel=0.15)


@pytest.mark.parametrize("name", CONCURRENT)
def test_hits_do_not_depend_on_what_a_step_takes(name: str) -> None:
    recorded = served.recording(name)

    slow = play(recorded, 3 * STEP_S, 3 * TOKEN_S)

    assert play(recorded, STEP_S, TOKEN_S).hit_tokens == slow.hit_tokens


@pytest.mark.parametrize("name", CONCURRENT)
def test_six_clients_all_requests_are_identical_in_the_order_of_their_arrival(name: str) -> None:
    recorded = served.recording(name)

    played = play(recorded, STEP_S, TOKEN_S, LATE_S[name])

    answered = served.cached_tokens(recorded)
    different = {i: hit for i, hit in played.hit_tokens.items() if hit != answered[i]}
    assert all(number < NUM_WARM[name] for number in different)
    # Answers end in the recorded order, but those that end with one step.
    done_s = [request["done_s"] for request in recorded["requests"]]
    overtaken = [
        (a, b)
        for a, earlier_s in played.done_s.items()
        for b, later_s in played.done_s.items()
        if earlier_s < later_s and done_s[a] > done_s[b] + 0.006
    ]
    assert overtaken == []


@pytest.mark.parametrize("name", CONCURRENT)
def test_with_two_steps_in_flight_the_same_arrivals_do_not_explain_the_answers(name: str) -> None:
    recorded = served.recording(name)

    played = play(recorded, STEP_S, TOKEN_S, LATE_S[name], asynchronous=True)

    assert num_identical(recorded, played) < 0.9 * len(recorded["requests"])


def test_a_recording_began_with_a_cache_that_was_not_empty() -> None:
    recorded = served.recording("concurrent-6-s13")
    second = recorded["requests"][1]
    before = [r for r in recorded["requests"] if r["sent_s"] < second["done_s"] and r is not second]

    assert second["cached"] > 0
    assert all(request["prompt"][0][0] != second["prompt"][0][0] for request in before)
