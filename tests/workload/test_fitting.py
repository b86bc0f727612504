"""Fitting gives back what a trace was made with, and says how far off it is."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any

import pytest

from kvsim.errors import Problems
from kvsim.scenario import SyntheticWorkload
from kvsim.workload.fitting import Fit, fit_trace
from kvsim.workload.request import Request
from kvsim.workload.sessions import in_open_loop
from kvsim.workload.synthetic import synthetic_sessions


def requests(content: dict[str, Any], until_s: float = 3000.0, **changes: Any) -> list[Request]:
    config = SyntheticWorkload.model_validate(
        {
            "kind": "synthetic",
            "num_sessions": 1500,
            "sessions": {"loop": "open", "starts": "poisson(per_s=0.5)"},
            "content": [content],
            **changes,
        }
    )
    stream = in_open_loop(synthetic_sessions(config, 0))
    return list(takewhile(lambda request: request.arrival_s < until_s, stream))


def without_sessions(made: list[Request]) -> list[Request]:
    for request in made:
        request.session_id = None
    return made


def argument(text: str, name: str) -> float:
    found = re.search(rf"\b{name}=([-\d.e+]+)", text)
    assert found, text
    return float(found[1])


CHAT = {
    "kind": "chat",
    "system_tokens": 640,
    "num_system_prompts": 6,
    "system_zipf": 1.0,
    "turns": "geometric(mean=4, least=2)",
    "first_tokens": "lognormal(median=600, sigma=0.7)",
    "user_tokens": "lognormal(median=80, sigma=0.6)",
    "output_tokens": "lognormal(median=200, sigma=0.5)",
    "think_s": "lognormal(median_s=30, sigma=0.8)",
}


def assert_is_the_chat(fit: Fit) -> None:
    assert argument(fit.workload["sessions"]["starts"], "per_s") == pytest.approx(0.5, rel=0.1)
    assert argument(fit.workload["sessions"]["starts"], "cv") == pytest.approx(1, rel=0.15)
    content = max(fit.workload["content"], key=lambda content: content["weight"])
    assert content["kind"] == "chat"
    assert content["weight"] > 0.95
    assert content["answers"] == "return"
    assert content["num_system_prompts"] == 6
    assert content["system_zipf"] == pytest.approx(1.0, abs=0.15)
    assert content["system_tokens"] == pytest.approx(640, abs=16)
    assert argument(content["turns"], "mean") == pytest.approx(4, rel=0.1)
    assert argument(content["first_tokens"], "median") == pytest.approx(600, rel=0.1)
    assert argument(content["first_tokens"], "sigma") == pytest.approx(0.7, rel=0.1)
    assert argument(content["user_tokens"], "median") == pytest.approx(80, rel=0.1)
    assert argument(content["output_tokens"], "median") == pytest.approx(200, rel=0.1)
    assert argument(content["think_s"], "median_s") == pytest.approx(30, rel=0.15)
    assert fit.largest_difference < 0.03


def test_a_chat_is_found_again_by_its_session_ids() -> None:
    made = requests(CHAT)
    fit = fit_trace(made, 16, "trace")
    assert fit.num_requests == len(made)
    assert fit.num_synthetic == pytest.approx(len(made), rel=0.05)
    assert fit.num_sessions == len({request.session_id for request in made})
    assert_is_the_chat(fit)


def test_a_chat_is_found_again_by_its_blocks() -> None:
    assert_is_the_chat(fit_trace(without_sessions(requests(CHAT)), 16, "trace"))


def test_questions_about_documents_are_told_from_chat() -> None:
    content = {
        "kind": "document-qa",
        "system_tokens": 0,
        "num_documents": None,
        "document_tokens": "lognormal(median=8000, sigma=0.5)",
        "questions": "geometric(mean=5, least=2)",
        "question_tokens": "lognormal(median=60, sigma=0.8)",
        "output_tokens": 20,
        "think_s": "exponential(mean_s=40)",
    }
    fit = fit_trace(without_sessions(requests(content)), 16, "trace")
    (found,) = [part for part in fit.workload["content"] if part["weight"] > 0.9]
    assert found["kind"] == "document-qa"
    assert argument(found["document_tokens"], "median") == pytest.approx(8000, rel=0.1)
    assert argument(found["questions"], "mean") == pytest.approx(5, rel=0.15)
    assert argument(found["question_tokens"], "median") == pytest.approx(60, rel=0.3)
    # Pauses were exponential, and a lognormal stands for them.
    assert fit.largest_difference < 0.08


def test_prompts_that_share_nothing_stay_apart() -> None:
    content = {"kind": "one-off", "prompt_tokens": "lognormal(median=900, sigma=0.5)"}
    fit = fit_trace(requests(content), 16, "trace")
    (found,) = fit.workload["content"]
    assert found["turns"] == 1
    assert argument(found["first_tokens"], "median") == pytest.approx(900, rel=0.1)
    assert {point.recorded for point in fit.curve} == {0.0}
    assert fit.largest_difference == 0


def test_a_fit_is_a_workload_and_follows_from_the_trace() -> None:
    first, second = (fit_trace(requests(CHAT, 600), 16, "trace") for _ in range(2))
    assert first == second
    SyntheticWorkload.model_validate(first.workload)


def test_too_little_to_fit() -> None:
    with pytest.raises(Problems) as caught:
        fit_trace(requests(CHAT)[:4], 16, "t.jsonl")
    assert str(caught.value).startswith("t.jsonl: 1 problem\n  4 requests over ")
    assert str(caught.value).endswith("are too few to fit. Give 10 or more, at different times.")
    with pytest.raises(Problems, match=r"0 requests over 0 s are too few"):
        fit_trace([], 16, "t.jsonl")
