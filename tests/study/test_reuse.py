"""What a workload offers to reuse, read off it alone."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvsim.errors import KvsimError
from kvsim.scenario import Scenario
from kvsim.study.reuse import REUSE_COLUMNS, ceiling, reuse, reuse_by_run


def scenario(*requests: dict[str, Any], block_size: int = 16, **workload: Any) -> Scenario:
    return Scenario.from_data(
        {
            "name": "x",
            "model": {"groups": [{"kind": "full", "block_size": block_size}]},
            "node": {"num_blocks": 100_000},
            "step_time": {"kind": "constant", "step_s": 0.01},
            "workload": {"kind": "script", "requests": list(requests), **workload},
        }
    )


def offered(*requests: dict[str, Any], **more: Any) -> list[tuple[int, float | None]]:
    frame = reuse(scenario(*requests, **more))
    assert list(frame.columns) == list(REUSE_COLUMNS)
    idle_s = [None if math.isnan(value) else value for value in frame["idle_s"]]
    return list(zip(frame["reusable_tokens"].tolist(), idle_s, strict=True))


def test_a_resend_needs_its_last_token_computed() -> None:
    """A1 of the known answers: 1000 tokens again find 992, 1024 find 1008."""
    for tokens, found in ((1000, 992), (1024, 1008)):
        prompt = [["A", tokens]]
        assert offered({"prompt": prompt}, {"prompt": prompt, "at_s": 7.0}) == [
            (0, None),
            (found, 7.0),
        ]


def test_the_next_turn_finds_prompt_and_answer() -> None:
    first = {"prompt": [["A", 100]], "output": 60, "output_name": "A1"}
    turn = {"prompt": [["A", 100], ["A1", 60], ["B", 40]], "at_s": 5.0}
    assert offered(first, turn) == [(0, None), (160, 5.0)]


def test_a_longer_prefix_may_have_been_idle_longer() -> None:
    whole = {"prompt": [["A", 1000]]}
    head = {"prompt": [["A", 320], ["B", 20]], "at_s": 10.0}
    again = {"prompt": [["A", 1000]], "at_s": 30.0}
    branch = {"prompt": [["A", 320], ["C", 20]], "at_s": 31.0}
    assert offered(whole, head, again, branch) == [
        (0, None),
        (320, 10.0),
        (992, 30.0),  # the part beyond 320 was last seen at 0
        (320, 1.0),
    ]


def test_content_after_other_content_is_other_content() -> None:
    first = {"prompt": [["A", 64], ["B", 64]]}
    other = {"prompt": [["C", 64], ["B", 64]], "at_s": 1.0}
    assert offered(first, other) == [(0, None), (0, None)]


def test_the_ceiling_is_the_share_of_all_prompt_tokens() -> None:
    prompt = {"prompt": [["A", 1000]]}
    assert ceiling(scenario(prompt, prompt)) == 992 / 2000
    assert ceiling(scenario(prompt, prompt, block_size=256)) == 768 / 2000


def test_one_after_another_has_a_ceiling_but_no_idle_times() -> None:
    prompt = {"prompt": [["A", 1000]]}
    closed = scenario(prompt, prompt, concurrency=1)
    assert ceiling(closed) == 992 / 2000
    with pytest.raises(KvsimError) as caught:
        reuse(closed)
    assert str(caught.value) == (
        "workload: its arrivals depend on the run (sessions in a closed loop, or a concurrency), "
        "so idle times are not known before it. Give the requests of a run."
    )


def sessions(**played: Any) -> Scenario:
    """Two sessions of two turns in a closed loop, the second turn 5 s after the answer."""
    data = scenario({"prompt": [["A", 16]]}).written()
    data["workload"] = {
        "kind": "synthetic",
        "num_sessions": 6,
        "sessions": {"starts": "constant(per_s=0.5)", **played},
        "content": [
            {
                "kind": "samples",
                "prompt_tokens": 1000,
                "num_samples": 4,
                "output_tokens": 8,
            }
        ],
    }
    return Scenario.from_data(data)


def test_sessions_in_a_closed_loop_share_what_their_run_found() -> None:
    from kvsim.results.variants import run_variant

    made = sessions()
    result = run_variant(made)
    assert ceiling(made) == pytest.approx(0.75 * 992 / 1000)  # three of four samples find it
    frame = reuse(made, result.requests)
    assert len(frame) == 24
    assert frame["arrival_s"].is_monotonic_increasing
    assert (frame["reusable_tokens"] > 0).sum() == 18
    share = frame["reusable_tokens"].sum() / frame["prompt_tokens"].sum()
    assert share == pytest.approx(ceiling(made))
    drawn = reuse_by_run(made, {"a": result})
    assert isinstance(drawn, dict)
    assert drawn["a"].equals(frame)


def test_a_seed_of_ones_own_is_that_of_the_run() -> None:
    from kvsim.results.variants import run_variant

    made = sessions().replace(
        {"seed": 5, "workload.content.0.prompt_tokens": "lognormal(median=900, sigma=0.5)"}
    )
    requests = run_variant(made).requests
    assert reuse(made, requests)["prompt_tokens"].sum() == requests["prompt_tokens"].sum()


def test_an_infinite_cache_reaches_the_ceiling() -> None:
    """A pool that never evicts, one request after another, finds what is offered."""
    from kvsim.results.variants import run_variant

    requests = [{"prompt": [["A", 100 * n], ["B", 50]]} for n in (3, 9, 2, 9, 5)]
    made = scenario(*requests, concurrency=1)
    assert run_variant(made).summary["token_hit_rate"] == ceiling(made) > 0.5
