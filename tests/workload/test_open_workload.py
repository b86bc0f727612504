"""From the scenario's `workload` to requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.errors import KvsimError
from kvsim.scenario import TraceWorkload
from kvsim.workload import open_workload


def config(path: Path, **options: object) -> TraceWorkload:
    values = {"kind": "trace", "format": "mooncake", "path": path.name, **options}
    return TraceWorkload.model_validate(values, context={"directory": path.parent})


def test_a_trace_is_found_from_the_file_that_names_it_and_shown_as_written(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    lines = [
        {"timestamp": 1000 * i, "input_length": 9, "output_length": 2, "hash_ids": [i]}
        for i in range(9)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    workload = open_workload(config(path, limit=2, time_scale=0.5, start_s=3.0), 16)
    assert [request.arrival_s for request in workload.requests] == [0.0, 0.5]
    assert workload.block_tokens == 512
    assert len(workload.warnings) == 1
    assert workload.warnings[0].startswith("chat.jsonl: one id stands for 512 tokens")


def test_a_missing_trace_is_shown_as_written(tmp_path: Path) -> None:
    with pytest.raises(KvsimError) as caught:
        open_workload(config(tmp_path / "gone.jsonl"), 16)
    assert str(caught.value) == (
        "gone.jsonl: 1 problem\n  path: there is no such file. Give the path of a trace file."
    )


def delta(tmp_path: Path, *waits_ms: int) -> Path:
    row = {"session_id": "a", "input_length": 16, "output_length": 4, "hash_ids": [1]}
    rows = [{**row, "timestamp": 1000}, *({**row, "delay": wait_ms} for wait_ms in waits_ms)]
    path = tmp_path / "delta.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_an_open_loop_counts_delays_from_arrivals_and_says_so(tmp_path: Path) -> None:
    options = {"format": "mooncake-delta", "sessions": {"loop": "open"}, "block_tokens": 16}
    workload = open_workload(config(delta(tmp_path, 500, 2000), **options), 16)
    found = [(request.arrival_s, request.num_prompt_tokens) for request in workload.requests]
    assert found == [(1.0, 16), (1.5, 36), (3.5, 56)]
    assert workload.warnings == [
        "delta.jsonl: in this open loop, turns without a recorded time come as long after the "
        "arrival of the turn before as their delay says, not after its answer."
    ]


def test_delays_alone_need_a_loop(tmp_path: Path) -> None:
    options = {"format": "mooncake-delta", "block_tokens": 16}
    workload = open_workload(config(delta(tmp_path, 500), **options), 16)
    with pytest.raises(KvsimError, match="use sessions.loop closed, or open to count its delay"):
        list(workload.requests)


def test_how_a_trace_is_read_is_a_key_of_the_scenario(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("when,tokens\n" + "".join(f"{n},{9 * (n != 5)}\n" for n in range(40)))
    options = {
        "format": "auto",
        "columns": {"time": "when", "prompt": "tokens"},
        "time_unit": "ms",
        "on_bad": "skip",
    }
    workload = open_workload(config(path, **options), 16)
    requests = list(workload.requests)
    assert (len(requests), requests[-1].arrival_s) == (39, 0.039)
    assert workload.warnings[-2:] == [
        "t.csv: 1 of 40 lines (2.5 %) left out: tokens: ... is not a number of tokens from ... to "
        "... (1, first on line 7).",
        "t.csv: answers without a recorded length taken as 1 token (39 times, first on line 2).",
    ]
