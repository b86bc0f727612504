"""Draws as users write them, and what a synthetic workload refuses, in which words."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.errors import Problems
from kvsim.scenario import Scenario
from kvsim.scenario.draws import Draw, parse_duration, parse_length, parse_starts


def test_what_is_read() -> None:
    assert parse_length(200) == Draw("fixed", {"value": 200})
    assert parse_length(" lognormal( median = 200,sigma=1 ) ") == Draw(
        "lognormal", {"median": 200, "sigma": 1, "max": 2**24 - 1}
    )
    assert parse_length("geometric(mean=4)").arguments == {"mean": 4, "least": 1}
    assert parse_length("recorded-prompt") == Draw("recorded-prompt", {})
    assert parse_duration("2 min") == Draw("fixed", {"value": 120})
    assert parse_duration(0.5) == Draw("fixed", {"value": 0.5})
    assert parse_duration("uniform(low_s=500 ms, high_s=1 h)").arguments == {
        "low_s": 0.5,
        "high_s": 3600,
    }
    assert parse_starts("together") == Draw("together", {})
    assert parse_starts("diurnal(mean_per_s=2, swing=0.5)").arguments["period_s"] == 86400


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 is out of range. Use 1 to 16777215."),
        (2**24, "16777216 is out of range. Use 1 to 16777215."),
        (
            True,
            "true is not a whole number or a draw of them. Write 200 or "
            "'lognormal(median=200, sigma=1)'.",
        ),
        (
            2.5,
            "2.5 is not a whole number or a draw of them. Write 200 or "
            "'lognormal(median=200, sigma=1)'.",
        ),
        ("normal(1)", "'normal(1)': unknown form 'normal'. Did you mean 'lognormal'?"),
        (
            "lognormal(median=5)",
            "'lognormal(median=5)' lacks sigma. Write lognormal(median=..., sigma=...).",
        ),
        (
            "lognormal(median=5, sigma=1, mx=4)",
            "'lognormal(median=5, sigma=1, mx=4)': unknown argument 'mx'. Did you mean 'max'?",
        ),
        (
            "lognormal(median=5, sigma=x)",
            "'lognormal(median=5, sigma=x)': sigma: 'x' is not a number.",
        ),
        (
            "lognormal(median=nan, sigma=1)",
            "'lognormal(median=nan, sigma=1)': median is nan. Use 1 to 16777215.",
        ),
        (
            "lognormal(median=50, sigma=1, max=4)",
            "'lognormal(median=50, sigma=1, max=4)': median is above max. Write the smaller one as "
            "median.",
        ),
        (
            "uniform(low=9, high=3)",
            "'uniform(low=9, high=3)': low is above high. Write the smaller one as low.",
        ),
        (
            "uniform(low=1, low=2, high=4)",
            "'uniform(low=1, low=2, high=4)': gives low twice. Write uniform(low=..., high=...).",
        ),
        ("geometric(4)", "'geometric(4)': '4' is no argument. Write geometric(mean=...)."),
        (
            "geometric(mean=0.5)",
            "'geometric(mean=0.5)': mean is 0.5. Use 1 to 16777215.",
        ),
    ],
)
def test_lengths_that_are_none(value: object, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_length(value)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1, "-1 is below 0. Use 0 or more."),
        (
            "5 sec",
            "'5 sec' has an unknown unit. Use one of ns, us, µs, ms, s, min, h, d.",
        ),
        (
            "exponential(mean_s=5 sec)",
            "'exponential(mean_s=5 sec)': mean_s: '5 sec' has an unknown unit. Use one of ns, us, "
            "µs, ms, s, min, h, d.",
        ),
        (
            "exponential(mean_s=0)",
            "'exponential(mean_s=0)': mean_s is 0. Use a value above 0.",
        ),
        (None, "null is not a time. Write a finite one, as in '15 ms'."),
    ],
)
def test_durations_that_are_none(value: object, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(value)
    assert str(caught.value) == text


def problems(**workload: Any) -> list[str]:
    data = {
        "kind": "synthetic",
        "num_sessions": 5,
        "sessions": {"starts": "together"},
        "content": [{"kind": "few-shot"}],
        **workload,
    }
    with pytest.raises(Problems) as caught:
        Scenario.from_data(
            {
                "name": "s",
                "model": {"groups": [{"kind": "full", "block_size": 16}]},
                "node": {"num_blocks": 9},
                "step_time": {"kind": "constant", "step_s": 1},
                "workload": data,
            }
        )
    return caught.value.problems


@pytest.mark.parametrize(
    ("workload", "texts"),
    [
        (
            {"sessions": {}},
            [
                "workload.sessions: has neither starts nor concurrency. Give one, as in starts: "
                "poisson(per_s=2)."
            ],
        ),
        (
            {"sessions": {"starts": "together", "concurrency": 2}},
            ["workload.sessions: gives both starts and concurrency. Leave one out."],
        ),
        (
            {"sessions": {"loop": "open", "concurrency": 2}},
            ["workload.sessions: concurrency needs loop: closed. Change one."],
        ),
        (
            {"sessions": {"starts": "poison(per_s=1)"}},
            [
                "workload.sessions.starts: 'poison(per_s=1)': unknown form 'poison'. Did you mean "
                "'poisson'?"
            ],
        ),
        (
            {
                "sessions": {"starts": "recorded"},
                "content": [{"kind": "one-off", "prompt_tokens": "recorded-prompt"}],
            },
            [
                "workload.sessions.starts: is taken from a trace, and workload.path names none. "
                "Give it.",
                "workload.content.0.prompt_tokens: is taken from a trace, and workload.path names "
                "none. Give it.",
            ],
        ),
        (
            {"path": "t.jsonl"},
            [
                "workload.path: 't.jsonl': nothing is taken from it. Leave it out, or use "
                "recorded-prompt, recorded-output or recorded."
            ],
        ),
        ({"content": []}, ["workload.content: has 0 entries. Give at least 1."]),
        (
            {"content": [{"kind": "agent"}, {"kind": "cycle"}, {"kind": "chat", "turn": 2}]},
            [
                "workload.content.0.kind: unknown kind 'agent'. Did you mean 'agentic'?",
                "workload.content.1.num_prompts: is missing. Give: different prompts.",
                "workload.content.2.turn: unknown key. Did you mean 'turns'?",
            ],
        ),
    ],
)
def test_what_a_synthetic_workload_refuses(workload: dict[str, Any], texts: list[str]) -> None:
    assert problems(**workload) == texts
