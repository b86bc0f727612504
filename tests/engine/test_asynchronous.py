"""Two steps in flight, and draft tokens, on the clock."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from kvsim.engine.simulation import Simulation, simulate
from kvsim.scenario import Scenario

GROUPS = [
    {"kind": "full", "block_size": 16},
    {"kind": "sliding_window", "block_size": 8, "sliding_window": 16, "bytes_per_block": 4096},
]
GROUPS[0]["bytes_per_block"] = 4096


def scenario(requests: list[dict[str, Any]], **parts: Any) -> Scenario:
    """Blocks of 16 tokens; a step takes 10 ms."""
    data: dict[str, Any] = {
        "name": "small",
        "model": {"groups": GROUPS[:1]},
        "node": {"num_blocks": 101},
        "engine": {"max_model_len": 4096, "max_num_batched_tokens": 256},
        "step_time": {"kind": "constant", "step_s": 0.01},
        "workload": {"kind": "script", "requests": requests},
    }
    return Scenario.from_data({**data, **parts})


def first_tokens(simulation: Simulation) -> list[float]:
    return simulation.requests.frame().sort_values("request_id")["first_token_s"].tolist()


def with_engine(base: Scenario, **engine: Any) -> Scenario:
    return base.replace({f"engine.{key}": value for key, value in engine.items()})


def test_a_request_that_arrives_in_a_step_waits_for_the_one_planned_as_well() -> None:
    requests = [
        {"prompt": [["a", 40]], "output": 20},
        {"prompt": [["b", 40]], "output": 1, "at_s": 0.025},
    ]
    base = scenario(requests)
    # Synchronous: planned when the third step ends. Asynchronous: the fourth is planned by then.
    assert first_tokens(simulate(with_engine(base, async_scheduling=False))) == [
        pytest.approx(0.01),
        pytest.approx(0.04),
    ]
    assert first_tokens(simulate(with_engine(base, async_scheduling=True))) == [
        pytest.approx(0.01),
        pytest.approx(0.05),
    ]


def test_one_request_alone_is_served_in_the_same_time() -> None:
    base = scenario([{"prompt": [["a", 600]], "output": 4, "at_s": 1.0}])
    ends = [simulate(with_engine(base, async_scheduling=on)).counters for on in (False, True)]
    assert ends[0] == ends[1]
    assert ends[0].num_steps == 6


@pytest.mark.parametrize("on", [False, True])
def test_accepted_drafts_save_steps(on: bool) -> None:
    base = with_engine(scenario([{"prompt": [["a", 100]], "output": 41}]), async_scheduling=on)
    steps = {
        rate: simulate(
            base.replace({"engine.speculative": {"tokens": 1, "acceptance": rate}})
        ).counters.num_steps
        for rate in (0.0, 0.5, 1.0)
    }
    assert simulate(base).counters.num_steps == 41
    # One more may be planned before it is known that the last token was accepted.
    assert steps[0.0] in (41, 42)
    assert steps[1.0] in (21, 22)
    assert 24 < steps[0.5] < 36


def test_acceptance_is_the_scenarios_seed_and_nothing_else() -> None:
    base = scenario([{"prompt": [["a", 100]], "output": 200}]).replace(
        {"engine.speculative": {"tokens": 3, "acceptance": [0.8, 0.6, 0.3]}}
    )
    steps = [simulate(base.replace({"seed": seed})).counters.num_steps for seed in (1, 1, 2)]
    assert steps[0] == steps[1] != steps[2]
    # 1 + 0.8 + 0.6 + 0.3 tokens a step.
    assert steps[0] == pytest.approx(200 / 2.7, rel=0.15)


@pytest.mark.parametrize("drafts", [None, {"tokens": 1, "acceptance": 0.7}])
@pytest.mark.parametrize("kind", ["cpu", "mooncake"])
def test_with_a_tier_runs_are_their_steps_and_no_block_is_lost(
    kind: str, drafts: dict[str, Any] | None
) -> None:
    requests = [
        {
            "prompt": [["s", 200], [f"q{n % 7}", 300]],
            "output": 30 + n,
            "at_s": 0.04 * n,
        }
        for n in range(40)
    ]
    base = scenario(
        requests,
        model={"groups": GROUPS},
        node={"num_blocks": 170},
        offload={"kind": kind, "capacity": "2 MB", "link": "pcie-gen5-x16"},
        engine={
            "max_model_len": 2048,
            "max_num_batched_tokens": 128,
            "max_num_seqs": 8,
            "speculative": drafts,
        },
    )
    runs, steps = (simulate(base, one_by_one=one) for one in (False, True))
    pd.testing.assert_frame_equal(runs.requests.frame(), steps.requests.frame())
    assert runs.counters == steps.counters
    assert runs.counters.external_hit_tokens > 0
    last = runs.timeline.frame().iloc[-1]
    assert last["used_blocks"] == 0


def test_whoever_has_priority_is_served_first_and_preempted_last() -> None:
    requests = [{"prompt": [[f"p{n}", 320]], "output": 60, "priority": 2 - n % 3} for n in range(6)]
    base = scenario(requests, node={"num_blocks": 62})
    by_priority = simulate(with_engine(base, policy="priority")).requests.frame()
    ends = by_priority.sort_values("request_id")["end_s"].tolist()
    assert max(ends[2], ends[5]) < min(ends[0], ends[1], ends[3], ends[4])
    in_order = simulate(base).requests.frame().sort_values("request_id")["end_s"]
    assert in_order.is_monotonic_increasing
