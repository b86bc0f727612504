"""Whatever stands in a field, a file is read or refused with its place; nothing else happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import KvsimError, Problems
from kvsim.workload.inspection import inspect
from kvsim.workload.traces import TraceOptions, open_trace_file

ROW = {"timestamp": 5, "input_length": 20, "output_length": 2, "hash_ids": [1, 2]}
DYNAMO = {"request_received_ms": 100, "total_time_ms": 10, "output_tokens": 2, "request_id": "r"}
REPLAY = {"trace_block_size": 4, "input_length": 4, "input_sequence_hashes": [5]}
CALL = {
    "t": 0,
    "type": "n",
    "in": 70,
    "out": 3,
    "hash_ids": [1],
    "api_time": 1.0,
    "think_time": 2.0,
}

GOOD: dict[str, list[dict[str, Any]]] = {
    "mooncake": [{**ROW, "session_id": "a"}, {**ROW, "session_id": "a", "timestamp": 9}],
    "mooncake-delta": [{**ROW, "session_id": "a"}, {**ROW, "session_id": "a", "delay": 3}],
    "aiperf": [{"input_length": 20}, {"input_length": 5, "session_id": "a", "delay": 1}],
    "agentic-mooncake": [
        {"schema": "dynamo.agentic_mooncake", "block_size": 16},
        {**ROW, "request_id": "a", "play_id": "p", "not_before_ms": 1},
        {
            **ROW,
            "request_id": "b",
            "play_id": "p",
            "dependencies": [{"request_id": "a", "trigger": "dispatch", "delay_ms": 5}],
        },
    ],
    "applied-compute": [
        {
            "num_turns": 1,
            "input_prompt_length": 16,
            "assistant_response_length": [4],
            "tool_call_output_length": [8],
            "tool_call_latency": [0.1],
            "final_assistant_response_length": 4,
        }
    ],
    "dynamo-requests": [
        {
            "schema": "dynamo.request.trace.v1",
            "event_type": "request_end",
            "agent_context": {"session_id": "s", "parent_session_id": None},
            "request": {**DYNAMO, "replay": REPLAY},
        },
        {
            "schema": "dynamo.request.trace.v1",
            "event_type": "tool_end",
            "tool": {"claude": {"execution_mode": "blocking", "child_session_id": "s"}},
        },
    ],
    "weka": [
        {
            "id": "s",
            "block_size": 64,
            "tool_tokens": 3,
            "requests": [
                CALL,
                [1, 70, 3, 0, 1.0, 2.0, [[1, 1]]],
                {"t": 2, "type": "subagent", "agent_id": "x", "requests": [CALL]},
            ],
        }
    ],
    "qwen-bailian": [
        {"chat_id": 1, "parent_chat_id": -1, "turn": 1, **ROW},
        {"chat_id": 2, "parent_chat_id": 1, "turn": 2, **ROW},
    ],
    "sharegpt": [
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    ],
    "openai": [
        {"messages": [{"role": "user", "content": "a"}], "created": 5, "max_tokens": 3},
        {"body": {"prompt": "a"}, "response": {"choices": [{"text": "b"}]}, "created": 6},
        {
            "messages": [{"role": "user", "content": [{"text": "a"}]}],
            "usage": {"completion_tokens": 3},
            "created": 7,
        },
    ],
}
SPAN = {
    "traceId": "a",
    "startTimeUnixNano": "1700000000000000000",
    "endTimeUnixNano": "1700000001000000000",
    "attributes": [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "9"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "2"}},
        {
            "key": "gen_ai.input.messages",
            "value": {"stringValue": '[{"role": "user", "parts": [{"content": "a"}]}]'},
        },
    ],
}
GOOD |= {
    "table": [{"time": 1, "prompt_tokens": 20, "output_tokens": 3, "hash_ids": [1, 2], "delay": 1}],
    "sessions": [{"session_id": "a", "turns": [{**ROW}, {**ROW, "timestamp": 9}]}],
    "opentelemetry": [{"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]}],
    "wildchat": [
        {
            "conversation_hash": "h",
            "timestamp": "2024-05-10T08:00:00Z",
            "conversation": [
                {"role": "user", "content": "a", "timestamp": None},
                {"role": "assistant", "content": "b", "timestamp": "2024-05-10T08:00:00Z"},
            ],
        }
    ],
    "lmsys": [
        {"conversation": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    ],
    "trajectories": [
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": None, "tool_calls": [{"name": "t"}]},
            ]
        }
    ],
    "token-ids": [
        {"prompt_token_ids": [1, 2], "output_token_ids": [3], "timestamp": 5, "session_id": "a"},
        {"prompt_token_ids": [1, 2, 3], "max_tokens": 4, "timestamp": 9, "session_id": "a"},
    ],
}
HOSTILE = (
    [None, True, -1, 0, 7, 1.5, 1e308, float("nan"), 2**70, "", "x", "-5"]
    + [[], [[]], [None], ["x"], [-1], [2**70], {}, {"a": 1}]
)  # fmt: skip


def variants(value: Any) -> Iterator[Any]:
    """The value with each of its parts replaced by each hostile one, or left out."""
    yield from HOSTILE
    if isinstance(value, dict):
        for key, part in value.items():
            yield {other: kept for other, kept in value.items() if other != key}
            for changed in variants(part):
                yield {**value, key: changed}
    if isinstance(value, list):
        for place, part in enumerate(value):
            for changed in variants(part):
                yield [*value[:place], changed, *value[place + 1 :]]


PLACES = ("line ", "block_tokens: ", "columns.", "when sessions start ")


def attempt(path: Path, trace_format: str, options: TraceOptions) -> str | None:
    """What is said about a file; None where it is read."""
    try:
        inspect(open_trace_file(path, options, trace_format=trace_format, shown="t"))
    except KvsimError as error:
        assert isinstance(error, Problems)
        assert all(problem.startswith(PLACES) for problem in error.problems)
        return str(error)
    return None


@pytest.mark.parametrize("trace_format", GOOD)
def test_good_rows_are_read(trace_format: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, GOOD[trace_format])))
    assert attempt(path, trace_format, TraceOptions()) is None
    assert attempt(path, trace_format, TraceOptions(shared_tails=True)) is None


@pytest.mark.parametrize("trace_format", GOOD)
def test_hostile_fields(trace_format: str, tmp_path: Path) -> None:
    rows = GOOD[trace_format]
    refused = 0
    path = tmp_path / "t.jsonl"
    for number, row in enumerate(rows):
        for changed in variants(row):
            written = [*rows[:number], changed, *rows[number + 1 :]]
            path.write_text("\n".join(map(json.dumps, written)))
            refused += attempt(path, trace_format, TraceOptions()) is not None
    assert refused > 20


@pytest.mark.parametrize("trace_format", ["auto", "azure", "burstgpt", *GOOD])
def test_hostile_files(trace_format: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for content in (
        b"",
        b"\n\n",
        b"\0",
        b"{",
        b"[",
        b"[]",
        b"{}",
        b"null",
        b'"',
        b"[" * 9999,
        b"\xff",
    ):
        path.write_bytes(content)
        with pytest.raises(Problems):
            inspect(open_trace_file(path, TraceOptions(), trace_format=trace_format))
