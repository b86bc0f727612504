from __future__ import annotations

from typing import Any

import pytest

from kvsim.engine.clock import Clock
from kvsim.engine.simulation import Simulation, simulate
from kvsim.errors import Problems
from kvsim.scenario import Scenario


def scenario(requests: list[dict[str, Any]], **parts: Any) -> Scenario:
    """One full-attention group of 16-token blocks; a step takes 10 ms."""
    data: dict[str, Any] = {
        "name": "small",
        "model": {"groups": [{"kind": "full", "block_size": 16}]},
        "node": {"num_blocks": 101},
        "engine": {"max_model_len": 4096, "max_num_batched_tokens": 256},
        "step_time": {"kind": "constant", "step_s": 0.01},
        "workload": {"kind": "script", "requests": requests},
    }
    return Scenario.from_data({**data, **parts})


def rows(simulation: Simulation, *columns: str) -> list[tuple[Any, ...]]:
    frame = simulation.requests.frame().astype(object)
    frame = frame.where(frame.notna(), None)
    return list(frame[list(columns)].itertuples(index=False, name=None))


def test_times_of_one_request() -> None:
    simulation = simulate(
        scenario([{"prompt": [["A", 600]], "output": 4, "at_s": 1.0}]), one_by_one=False
    )
    ((arrival_s, first_token_s, end_s, queue_s, ttft_s, tpot_s),) = rows(
        simulation, "arrival_s", "first_token_s", "end_s", "queue_s", "ttft_s", "tpot_s"
    )
    # Three chunks of at most 256 tokens, then three decode steps.
    assert arrival_s == 1.0
    assert first_token_s == pytest.approx(1.03)
    assert end_s == pytest.approx(1.06)
    assert queue_s == 0.0
    assert ttft_s == pytest.approx(0.03)
    assert tpot_s == pytest.approx(0.01)
    assert simulation.counters.num_steps == 6
    assert simulation.counters.scheduled_tokens == 603
    assert simulation.counters.simulated_s == pytest.approx(1.06)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_last_chunk_of_one_token_makes_the_first_token(one_by_one: bool) -> None:
    simulation = simulate(scenario([{"prompt": [["A", 257]], "output": 3}]), one_by_one=one_by_one)
    assert rows(simulation, "first_token_s", "end_s") == [
        (pytest.approx(0.02), pytest.approx(0.04))
    ]


def test_one_output_token_needs_no_decode_step() -> None:
    simulation = simulate(scenario([{"prompt": [["A", 100]], "output": 1}]))
    assert rows(simulation, "first_token_s", "end_s", "tpot_s") == [(0.01, 0.01, None)]
    assert simulation.counters.num_steps == 1


def test_a_request_that_arrives_during_a_step_waits_for_its_end() -> None:
    requests = [
        {"prompt": [["A", 100]], "output": 30},
        {"prompt": [["B", 100]], "output": 1, "at_s": 0.015},
        {"prompt": [["C", 100]], "output": 1, "at_s": 0.05},
    ]
    simulation = simulate(scenario(requests))
    queue_s = [queue for (queue,) in rows(simulation, "queue_s")]
    assert queue_s == pytest.approx([0.0, 0.005, 0.0])


def test_the_answer_is_part_of_a_later_prompt() -> None:
    requests = [
        {"prompt": [["A", 64]], "output": 64, "output_name": "A1"},
        {"prompt": [["A", 64], ["A1", 64], ["B", 20]], "output": 1},
        {"prompt": [["A", 64], ["x", 64], ["B", 20]], "output": 1},
    ]
    workload = {"kind": "script", "concurrency": 1, "requests": requests}
    simulation = simulate(scenario([], workload=workload))
    # The answer's last token has no KV yet when the request ends, so its last block is not full.
    assert rows(simulation, "hit_tokens") == [(0,), (112,), (64,)]


def test_concurrency_1_starts_each_request_when_the_one_before_has_ended() -> None:
    requests = [{"prompt": [[name, 100]], "output": 3} for name in "ABC"]
    workload = {"kind": "script", "concurrency": 1, "requests": requests}
    simulation = simulate(scenario([], workload=workload))
    arrivals = [arrival for (arrival,) in rows(simulation, "arrival_s")]
    ends = [end for (end,) in rows(simulation, "end_s")]
    assert arrivals == [0.0, ends[0], ends[1]]
    assert ends == pytest.approx([0.03, 0.06, 0.09])


def test_requests_that_can_never_run_are_refused_and_the_others_run() -> None:
    requests = [
        {"prompt": [["A", 100]], "output": 1},
        {"prompt": [["B", 4000]], "output": 97},
        {"prompt": [["C", 2000]], "output": 1},
        {"prompt": [["D", 1500]], "output": 200},
        {"prompt": [["E", 100]], "output": 2},
    ]
    simulation = simulate(scenario(requests))
    assert [reason for (reason,) in rows(simulation, "refused")] == [
        None,
        "4000 prompt and 97 output tokens are more than max_model_len (4096)",
        "needs 125 blocks, and the pool has 100",
        "needs 107 blocks, and the pool has 100",
        None,
    ]
    assert [end for (end,) in rows(simulation, "end_s")][1:4] == [None, None, None]


def test_the_largest_request_that_fits_runs() -> None:
    requests = [{"prompt": [["A", 1500]], "output": 101}]
    assert rows(simulate(scenario(requests)), "refused", "preemptions") == [(None, 0)]


def test_a_window_request_that_does_not_fit_back_is_refused_in_the_end_and_not_a_hang() -> None:
    model = {
        "groups": [
            {"kind": "full", "block_size": 16},
            {"kind": "sliding_window", "block_size": 4, "sliding_window": 64},
        ]
    }
    # Two requests fit at first; as they grow, one is preempted, and then wants more than there is.
    requests = [{"prompt": [[name, 100]], "output": 700} for name in "AB"]
    for num_blocks in range(45, 90, 4):
        parts: dict[str, Any] = {"model": model, "node": {"num_blocks": num_blocks}}
        try:
            simulation = simulate(scenario(requests, **parts))
        except Problems as error:
            assert "none of its 2 requests can run" in str(error)
            continue
        outcomes = rows(simulation, "end_s", "refused")
        assert all((end is None) != (refused is None) for end, refused in outcomes)


def test_none_that_can_run_is_an_error() -> None:
    with pytest.raises(Problems) as caught:
        simulate(scenario([{"prompt": [["A", 2000]], "output": 1}] * 2))
    assert str(caught.value) == (
        "scenario small: 1 problem\n"
        "  workload: none of its 2 requests can run. "
        "The first one needs 125 blocks, and the pool has 100."
    )


@pytest.mark.parametrize(
    ("parts", "ended"),
    [
        ({}, ["group 0 (full attention)", "end of prompt", "group 0 (full attention)"]),
        ({"cache": {"enable_prefix_caching": False}}, ["caching is off"] * 3),
    ],
)
def test_why_a_hit_ended(parts: dict[str, Any], ended: list[str]) -> None:
    requests = [
        {"prompt": [["A", 100]]},
        {"prompt": [["A", 100]]},
        {"prompt": [["A", 50], ["B", 50]]},
    ]
    workload = {"kind": "script", "concurrency": 1, "requests": requests}
    simulation = simulate(scenario([], workload=workload, **parts))
    assert [why for (why,) in rows(simulation, "hit_ended")] == ended


def test_the_reach_of_each_group_where_they_differ() -> None:
    model = {
        "groups": [
            {"kind": "full", "block_size": 16},
            {"kind": "sliding_window", "block_size": 8, "sliding_window": 16},
        ]
    }
    requests = [{"prompt": [["A", 64], [name, 40]]} for name in "xyz"]
    workload = {"kind": "script", "concurrency": 1, "requests": requests}
    simulation = simulate(scenario([], workload=workload, model=model))
    assert rows(simulation, "hit_tokens", "full_hit_tokens", "hit_ended", "group_hit_tokens") == [
        (0, 0, "group 0 (full attention)", None),
        (0, 64, "group 1 (sliding window)", [64, 0]),
        (64, 64, "group 0 (full attention)", None),
    ]


def test_the_timeline_tells_blocks_and_queues() -> None:
    requests = [{"prompt": [[name, 160]], "output": 20} for name in "ABC"]
    parts = {"output": {"timeline_interval_s": 0.05}}
    simulation = simulate(
        scenario(requests, engine={"max_model_len": 4096, "max_num_seqs": 2}, **parts)
    )
    timeline = simulation.timeline.frame()
    assert ((timeline["used_blocks"] + timeline["free_blocks"]) == 100).all()
    assert timeline["running"].max() == 2
    assert timeline["waiting"].tolist()[:3] == [0, 3, 1], "idle, all three have come, two run"
    assert timeline["time_s"].is_monotonic_increasing
    assert timeline.iloc[-1][["used_blocks", "running", "waiting"]].tolist() == [0, 0, 0]


def test_a_run_is_a_function_of_its_scenario() -> None:
    requests = [
        {"prompt": [["A", 100 + 30 * n], [f"b{n}", 40]], "output": 1 + 7 * n, "at_s": 0.02 * n}
        for n in range(12)
    ]
    one, other = simulate(scenario(requests)), simulate(scenario(requests))
    assert one.requests.frame().equals(other.requests.frame())
    assert one.counters == other.counters


def test_progress_is_told_and_ends_at_1() -> None:
    told: list[float] = []
    simulate(scenario([{"prompt": [["A", 10]]}] * 200), on_progress=told.append)
    assert told[-1] == 1.0
    assert told == sorted(told)
    assert len(told) > 2


def test_a_clock_keeps_exact_times_and_arrivals_come_first() -> None:
    clock, seen = Clock(), []

    def wait(name: str, at_s: float, before_others: bool) -> Any:
        yield clock.at(at_s, before_others=before_others)
        seen.append((name, clock.now))

    clock.process(wait("step", 0.1 + 0.2, False))
    clock.process(wait("arrival", 0.1 + 0.2, True))
    clock.run()
    assert seen == [("arrival", 0.1 + 0.2), ("step", 0.1 + 0.2)]
    with pytest.raises(ValueError, match="has passed"):
        clock.at(0.1)
