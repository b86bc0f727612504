"""Lines that cannot be used, left out and counted; and what rows say of their own ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import KvsimError
from kvsim.workload.inspection import inspect
from kvsim.workload.traces import TraceOptions, open_trace_file
from kvsim.workload.traces.trace import Trace

ROW = {"input_length": 40, "output_length": 2, "hash_ids": [1, 2, 3]}


def opened(tmp_path: Path, rows: list[Any], trace_format: str = "auto", **options: Any) -> Trace:
    path = tmp_path / "t.jsonl"
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(texts))
    return open_trace_file(path, TraceOptions(**options), trace_format=trace_format, shown="t")


def rows(num: int) -> list[Any]:
    return [{"timestamp": 1000 * n, **ROW} for n in range(num)]


def test_bad_lines_are_left_out_and_counted_by_reason(tmp_path: Path) -> None:
    written = rows(100)
    written[7] = {**written[7], "input_length": 0}
    written[20] = "{cut"
    written[50] = {**written[50], "input_length": -3}
    trace = opened(tmp_path, written, skip_bad=True)
    assert len(list(trace.requests())) == 97
    assert trace.warnings == [
        "t: 3 of 100 lines (3 %) left out: input_length: ... is out of range (2, first on line 8); "
        "not JSON: Expecting property name enclosed in double quotes at column ... (1, first on "
        "line 21)."
    ]
    with pytest.raises(KvsimError, match="3 problems"):
        list(opened(tmp_path, written).requests())


def test_too_many_bad_lines_are_refused_before_anything_runs(tmp_path: Path) -> None:
    written = rows(50)
    for number in (10, 20, 30):
        written[number] = {**written[number], "output_length": -1}
    with pytest.raises(KvsimError) as caught:
        opened(tmp_path, written, skip_bad=True)
    assert str(caught.value) == (
        "t: 1 problem\n  3 of 50 lines (6 %) cannot be used, more than the 5% that on_bad: skip "
        "leaves out: output_length: ... is out of range (3, first on line 11). Correct the file."
    )


def test_what_adds_to_a_lost_turn_is_lost_too(tmp_path: Path) -> None:
    written = [{"session_id": f"s{n % 30}", "timestamp": 1000 * n, **ROW} for n in range(90)]
    written[30]["input_length"] = 0  # the second turn of s0
    trace = opened(tmp_path, written, "mooncake-delta", skip_bad=True)
    requests = list(trace.requests())
    assert [r.num_prompt_tokens for r in requests if r.session_id == "s0"] == [40]
    assert [r.num_prompt_tokens for r in requests if r.session_id == "s1"] == [40, 82, 124]
    assert "an earlier turn of this session cannot be used" in trace.warnings[0]


def test_bad_requests_of_a_session_leave_the_session(tmp_path: Path) -> None:
    calls = [[float(n), 64 * (n + 1), 3, 0, 0.5, 0.5, [[1, n + 1]]] for n in range(40)]
    calls[3] = [3.0, 0, 3, 0, 0.5, 0.5, []]
    trace = opened(tmp_path, [{"id": "s", "requests": calls}], skip_bad=True)
    (session,) = trace.sessions()
    assert len(session.turns) == 39
    assert trace.warnings == [
        "t: 1 of 40 requests (2.5 %) left out: in: ... is out of range (1, first on line 1)."
    ]
    with pytest.raises(KvsimError, match=r"line 1: requests.3: in: 0 is out of range"):
        opened(tmp_path, [{"id": "s", "requests": calls}])


@pytest.mark.parametrize("trace_format", ["lmsys", "openai", "token-ids"])
def test_every_reader_leaves_lines_out(tmp_path: Path, trace_format: str) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    good = {
        "lmsys": {"conversation": said},
        "openai": {"messages": said, "max_tokens": 3},
        "token-ids": {"prompt_token_ids": [1, 2], "max_tokens": 3},
    }[trace_format]
    written = [{**good, "created": n} for n in range(40)]
    trace = opened(tmp_path, [*written, {"x": 1}], trace_format, skip_bad=True)
    found = trace.sessions() if trace_format == "lmsys" else trace.requests()
    assert len(list(found)) == 40
    assert " 1 of 41 " in " ".join(trace.warnings)


def test_a_row_s_own_block_size_is_taken(tmp_path: Path) -> None:
    """Three prompts of 640 tokens in ids of 64, of which 6 are shared: 42.9 % of what follows."""
    written = [
        {
            "timestamp": 1000 * n,
            "input_length": 448,
            "output_length": 2,
            "hash_ids": [0, 1, 2, *range(10 * n + 10, 10 * n + 14)],
            "block_size": 64,
        }
        for n in range(1000)
    ]
    trace = opened(tmp_path, written)
    assert (trace.block_tokens, trace.block_tokens_from) == (64, "file")
    found = inspect(trace).figures
    assert found["ideal_token_hit_rate"] == pytest.approx(192 * 999 / 448_000)
    with pytest.raises(KvsimError, match="block_tokens: 512, where the file says 64. Leave it out"):
        opened(tmp_path, written, block_tokens=512)


@pytest.mark.parametrize("trace_format", ["mooncake", "mooncake-delta", "aiperf"])
def test_rows_of_another_block_size_are_refused(tmp_path: Path, trace_format: str) -> None:
    written = [{**row, "block_size": 16} for row in rows(3)]
    written[2]["block_size"] = 512
    with pytest.raises(KvsimError) as caught:
        list(opened(tmp_path, written, trace_format).requests())
    assert str(caught.value) == (
        "t: 1 problem\n  line 3: block_size: 512, where an id of this trace stands for 16 tokens. "
        "Keep rows of one size in a file."
    )
