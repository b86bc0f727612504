"""Ranks that step together: by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvsim.fleet.lockstep import WAKE_S
from kvsim.fleet.simulation import simulate_fleet
from kvsim.metrics.records import REQUEST_COLUMNS
from kvsim.scenario import Scenario
from kvsim.times.step_time import constant_step_time, together_seconds
from tests.fleet.small import EXPERTS, GROUPS, alone, fleet, scenario

STEP_S, TOKEN_S = 0.01, 1e-5
EXPERT_MODEL = {"groups": GROUPS, **EXPERTS}


def ranks(requests: list[dict[str, Any]], *, experts: bool = True, **fleet_keys: Any) -> Scenario:
    """Two ranks of an engine, chosen by the router, one after the other."""
    model = EXPERT_MODEL if experts else {"groups": GROUPS}
    keys = {"balancing": "external", **fleet_keys}
    node = {"gpus": 2, "data_parallel": 2, "tensor_parallel": 1}
    return scenario(requests, model=model, node=node, fleet=keys)


def test_a_step_lasts_as_long_as_the_slowest_and_idle_ranks_run_dummies() -> None:
    requests = [
        {"prompt": [["A", 200]], "output": 3},
        {"prompt": [["B", 100]], "output": 3},
    ]
    made = ranks(requests)
    frame = fleet(made)
    assert frame["replica"].tolist() == [0, 1]
    # All fit a graph, so both pay for the 200 tokens of the first; then for one token each.
    first_s = WAKE_S + STEP_S + 200 * TOKEN_S
    assert frame["first_token_s"].tolist() == pytest.approx([first_s] * 2)
    assert frame["end_s"].tolist() == pytest.approx([first_s + 2 * (STEP_S + TOKEN_S)] * 2)
    one = simulate_fleet(ranks(requests[:1]))
    # Steps 2 and 3 make the last tokens; 4 to 16 are run by two ranks that have nothing to run.
    assert one.figures.num_dummy_steps == 3 + 2 * 13


def test_dense_ranks_have_nothing_in_common() -> None:
    requests = [
        {"prompt": [["A", 200]], "output": 30},
        {"prompt": [["B", 100]], "output": 30},
        {"prompt": [["C", 250]], "output": 10, "at_s": 0.05},
    ]
    together = fleet(ranks(requests, experts=False))
    assert simulate_fleet(ranks(requests, experts=False)).figures.num_dummy_steps == 0
    columns = [name for name in REQUEST_COLUMNS if name != "request_id"]
    for rank in range(2):
        own = together[together["replica"] == rank].reset_index(drop=True)
        apart = alone(scenario(requests[rank::2]))
        pd.testing.assert_frame_equal(own[columns], apart[columns])


def test_who_arrives_during_a_step_of_the_others_waits_for_its_end() -> None:
    requests = [
        {"prompt": [["A", 16]], "output": 10},
        {"prompt": [["B", 16]], "output": 1, "at_s": 0.005},
    ]
    frame = fleet(ranks(requests))
    # The second rank, woken in the first step of a wave, plans when that has ended.
    first_s = WAKE_S + STEP_S + 16 * TOKEN_S
    assert frame["queue_s"][1] == pytest.approx(first_s - 0.005)
    # The step of its prompt pads the first rank's one token to 16.
    assert frame["end_s"][1] == pytest.approx(first_s + STEP_S + 16 * TOKEN_S)


def test_a_wave_ends_at_a_sixteenth_step_and_the_next_one_has_to_be_woken() -> None:
    requests = [
        {"prompt": [["A", 16]], "output": 1},
        {"prompt": [["B", 16]], "output": 2, "at_s": 1.0},
        {"prompt": [["C", 16]], "output": 1, "at_s": 2.0},
    ]
    run = simulate_fleet(ranks(requests))
    frame = run.requests.frame()
    expected = [WAKE_S + STEP_S + 16 * TOKEN_S] * 3
    assert frame["ttft_s"].tolist() == pytest.approx(expected)
    # One step alone ends its wave at once; one of two steps at the sixteenth.
    assert run.figures.num_dummy_steps == 1 + (2 + 2 * 14) + 1


def test_long_prompts_run_without_padding() -> None:
    params = constant_step_time(STEP_S, TOKEN_S)
    rows = np.zeros((2, 9))
    rows[0, 0], rows[1, 0] = 600, 1
    assert together_seconds(params, rows, 512) == pytest.approx(STEP_S + 600 * TOKEN_S)
    # Of a roofline's terms the experts' see the tokens of all ranks.
    params.scalars[3] = 1e-6
    assert together_seconds(params, rows, 512) == pytest.approx(STEP_S + 600 * TOKEN_S + 601 * 1e-6)
    rows[0, 0] = 100
    assert together_seconds(params, rows, 512) == pytest.approx(STEP_S + 100 * TOKEN_S + 200 * 1e-6)


def test_one_rank_in_step_with_nobody_is_the_rank_alone_but_for_waking() -> None:
    requests = [{"prompt": [["A", 200]], "output": 20}]
    frame = fleet(ranks(requests))
    single = alone(scenario(requests))
    assert frame["end_s"][0] == pytest.approx(single["end_s"][0] + WAKE_S)


@pytest.mark.parametrize("balancing", ["internal", "hybrid", "external"])
@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_everybody_is_served(balancing: str, experts: bool, asynchronous: bool) -> None:
    engine = {"max_model_len": 4096, "max_num_batched_tokens": 256, "max_num_seqs": 8}
    made = scenario(
        model=EXPERT_MODEL if experts else {"groups": GROUPS},
        node={"gpus": 4, "data_parallel": 4, "tensor_parallel": 1, "num_blocks": 120},
        engine={**engine, "async_scheduling": asynchronous},
        fleet={"nodes": 2, "balancing": balancing},
    )
    frame = fleet(made)
    assert frame["end_s"].notna().all()
    assert set(frame["replica"]) == set(range(8))


def test_ranks_of_one_node_need_no_fleet() -> None:
    node = {"gpus": 4, "data_parallel": 4, "tensor_parallel": 1}
    made = scenario(node=node)
    assert made.is_fleet
    run = simulate_fleet(made)
    counts = run.requests.frame(fleet=True)["replica"].value_counts()
    assert len(counts) == 4
    assert counts.max() < 2 * counts.min()


def test_a_lost_rank_does_not_hold_the_others_up() -> None:
    requests = [{"prompt": [[f"p{n}", 100]], "output": 50, "at_s": 0.01 * n} for n in range(8)]
    events = [{"at": 0.2, "lose": 0}]
    made = ranks(requests, nodes=2, events=events, router="least-requests")
    frame = fleet(made)
    assert frame["end_s"].notna().all()
    assert frame["resent"].sum() == 4
