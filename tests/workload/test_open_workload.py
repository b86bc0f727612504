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
