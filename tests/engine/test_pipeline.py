"""Stages of a pipeline on the clock; what is planned is held against recordings elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.engine.pipeline import Pipeline
from kvsim.engine.simulation import simulate
from kvsim.errors import Problems
from kvsim.scenario import Scenario


def scenario(requests: list[dict[str, Any]], stages: int = 2, **engine: Any) -> Scenario:
    """Blocks of 16 tokens, steps of at most 64; all layers of a step take a second."""
    return Scenario.from_data(
        {
            "name": "small",
            "model": {"groups": [{"kind": "full", "block_size": 16}]},
            "node": {"num_blocks": 101, "gpus": stages, "pipeline_parallel": stages},
            "engine": {"max_model_len": 1024, "max_num_batched_tokens": 64, **engine},
            "step_time": {"kind": "constant", "step_s": 1.0},
            "workload": {"kind": "script", "requests": requests},
        }
    )


def first_tokens(made: Scenario) -> list[Any]:
    frame = simulate(made).requests.frame().sort_values("request_id")
    return [pytest.approx(value) for value in frame["first_token_s"]]


def test_steps_follow_one_another_through_the_stages() -> None:
    pipeline = Pipeline(2)
    assert pipeline.begin(0.0, [1.0, 2.0]) == 3.0
    assert pipeline.begin(0.0, [1.0, 2.0]) == 2.0, "it waits for the second stage"
    assert pipeline.begin(7.0, [1.0, 0.5]) == 1.5, "nothing was at work for two seconds"
    assert [pipeline.take_end_s() for _ in range(3)] == [3.0, 5.0, 8.5]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_chunks_of_a_prompt_are_on_two_stages_at_once(asynchronous: bool) -> None:
    prompt = [{"prompt": [["a", 256]], "output": 1}]
    assert first_tokens(scenario(prompt, 1, async_scheduling=asynchronous)) == [4.0]
    # A chunk leaves the first stage every half second; the last one is half a second on the second.
    assert first_tokens(scenario(prompt, 2, async_scheduling=asynchronous)) == [2.5]
    assert first_tokens(scenario(prompt, 4, async_scheduling=asynchronous)) == [1.75]


def test_a_request_alone_decodes_no_faster() -> None:
    prompt = [{"prompt": [["a", 40]], "output": 5}]
    for stages in (1, 2, 4):
        frame = simulate(scenario(prompt, stages)).requests.frame()
        assert frame["end_s"].tolist() == [pytest.approx(5.0)]


def test_requests_that_decode_on_different_stages_are_served_at_once() -> None:
    prompts = [
        {"prompt": [[name, 60]], "output": 9, "output_name": f"{name} answer"} for name in "ab"
    ]
    # Their prompts do not fit one step, so they go on in steps of their own.
    together = simulate(scenario(prompts, 2)).requests.frame()["end_s"].max()
    alone = simulate(scenario(prompts[:1], 2)).requests.frame()["end_s"].max()
    assert alone == pytest.approx(9.0)
    assert together == pytest.approx(9.5)


def test_what_no_pipeline_is_simulated_with() -> None:
    made = scenario([{"prompt": [["a", 40]], "output": 1}])
    with pytest.raises(Problems, match=r"vllm-0\.32 is not known to run a pipeline"):
        simulate(made.replace({"engine.profile": "vllm-0.32"}))
    with pytest.raises(Problems, match="2 stages beside offload are not simulated yet"):
        simulate(made.replace({"offload": {"kind": "cpu", "num_chunks": 10}}))
