"""Runs of synthetic workloads against what theory says, and against one another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvsim.engine.simulation import Simulation, simulate
from kvsim.scenario import Scenario


def run(workload: dict[str, Any], *, one_by_one: bool = False, **changes: Any) -> Simulation:
    data: dict[str, Any] = {
        "name": "theory",
        "model": {"groups": [{"kind": "full", "block_size": 16}]},
        "node": {"num_blocks": 3000},
        "step_time": {"kind": "constant", "step_s": 0.01},
        "workload": {"kind": "synthetic", **workload},
    }
    return simulate(Scenario.from_data({**data, **changes}), one_by_one=one_by_one)


def lru_by_che(popularity: np.ndarray, capacity: int) -> float:
    """Hit rate of LRU under independent references: Che, Tung and Wang 2002, equations 4 and 5.

    An item is resident when it was asked for within the characteristic time, which is such that
    the expected number of resident items is the capacity.
    """
    low, high = 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        if (1 - np.exp(-popularity * middle)).sum() < capacity:
            low = middle
        else:
            high = middle
    return float((popularity * (1 - np.exp(-popularity * low))).sum())


@pytest.mark.parametrize(("exponent", "capacity"), [(0.8, 300), (1.2, 50)])
def test_lru_hit_rate_is_ches(exponent: float, capacity: int) -> None:
    # Documents of one block, asked for independently; the question's block is never found again
    # and goes back to the head of the free queue, so all others hold documents, in LRU order.
    num = 8_000
    simulation = run(
        {
            "num_sessions": num,
            "sessions": {"concurrency": 1},
            "content": [
                {
                    "kind": "document-qa",
                    "system_tokens": 0,
                    "num_documents": 1000,
                    "document_zipf": exponent,
                    "document_tokens": 16,
                    "questions": 1,
                    "question_tokens": 1,
                    "output_tokens": 1,
                }
            ],
        },
        node={"num_blocks": capacity + 2},
    )
    frame = simulation.requests.frame()
    warm = frame.iloc[num // 4 :]
    popularity = np.arange(1, 1001) ** -exponent
    expected = lru_by_che(popularity / popularity.sum(), capacity)
    assert (warm["hit_tokens"] == 16).mean() == pytest.approx(expected, abs=0.02)


def test_a_cycle_hits_all_or_nothing_as_lru_does() -> None:
    def second_pass_hits(num_blocks: int) -> int:
        simulation = run(
            {
                "num_sessions": 16,
                "sessions": {"concurrency": 1},
                "content": [
                    {"kind": "cycle", "num_prompts": 8, "prompt_tokens": 1000, "output_tokens": 1}
                ],
            },
            node={"num_blocks": num_blocks},
        )
        frame = simulation.requests.frame().sort_values("request_id")
        assert (frame["hit_tokens"].iloc[:8] == 0).all()
        return int(frame["hit_tokens"].iloc[8:].sum())

    # 62 full blocks of each prompt and one for what is left of it.
    assert second_pass_hits(8 * 62 + 2) == 8 * 992
    assert second_pass_hits(4 * 62) == 0


MIXED: dict[str, Any] = {
    "num_sessions": 16,
    "sessions": {"starts": "gamma(per_s=2, cv=2)"},
    "content": [
        {"kind": "chat", "think_s": "exponential(mean_s=3)", "num_system_prompts": 3},
        {
            "kind": "agentic",
            "turns": 6,
            "subagent_share": 0.3,
            "compact_at_tokens": 4000,
            "tool_s": "exponential(mean_s=1)",
        },
        {"kind": "rag", "num_documents": 20},
        {"kind": "samples", "num_rounds": 2, "output_tokens": "uniform(low=5, high=60)"},
        {"kind": "one-off", "prompt_tokens": 5000},
    ],
}


def asked(simulation: Simulation) -> pd.DataFrame:
    """What does not depend on the policy."""
    frame = simulation.requests.frame()
    return (
        frame[["request_id", "prompt_tokens", "output_tokens"]]
        .sort_values("request_id")
        .reset_index(drop=True)
    )


@pytest.mark.parametrize("num_blocks", [1000, 3000])
def test_runs_of_steps_change_nothing(num_blocks: int) -> None:
    fast = run(MIXED, node={"num_blocks": num_blocks})
    slow = run(MIXED, node={"num_blocks": num_blocks}, one_by_one=True)
    pd.testing.assert_frame_equal(fast.requests.frame(), slow.requests.frame())


def test_every_policy_is_asked_the_same() -> None:
    few = {**MIXED, "num_sessions": 8}
    base = run(few)
    for changes in (
        {"cache": {"free_queue": "append"}},
        {"cache": {"enable_prefix_caching": False}},
        {"node": {"num_blocks": 900}},
        {"step_time": {"kind": "constant", "step_s": 0.05}},
    ):
        pd.testing.assert_frame_equal(asked(run(few, **changes)), asked(base))
    open_loop = {**few, "sessions": {"loop": "open", "starts": "poisson(per_s=2)"}}
    arrivals = [
        run(open_loop, cache={"enable_prefix_caching": on})
        .requests.frame()
        .sort_values("request_id")
        for on in (True, False)
    ]
    assert arrivals[0]["arrival_s"].tolist() == arrivals[1]["arrival_s"].tolist()


def test_a_closed_loop_waits_and_an_open_one_does_not() -> None:
    content = [{"kind": "chat", "turns": 2, "think_s": 1.0, "output_tokens": 100}]
    both = {}
    for loop in ("closed", "open"):
        sessions = {"loop": loop, "starts": "together"}
        simulation = run({"num_sessions": 1, "sessions": sessions, "content": content})
        both[loop] = simulation.requests.frame().sort_values("request_id")
    first, second = both["closed"].iloc[0], both["closed"].iloc[1]
    assert second["arrival_s"] == first["end_s"] + 1.0
    assert both["open"].iloc[1]["arrival_s"] == 1.0
    # The answer is part of the next prompt: 1 block at its end has no token computed after it.
    assert second["hit_tokens"] == (first["prompt_tokens"] + 99) // 16 * 16


def test_concurrency_is_kept_and_refilled_within_the_step() -> None:
    simulation = run(
        {
            "num_sessions": 12,
            "sessions": {"concurrency": 3},
            "content": [{"kind": "few-shot", "output_tokens": 5}],
        }
    )
    frame = simulation.requests.frame().sort_values("request_id")
    assert (frame["queue_s"] == 0).all()
    assert frame["arrival_s"].round(6).tolist() == [round(0.05 * (n // 3), 6) for n in range(12)]
