"""What `kvsim trace inspect` says."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.workload.inspection import UNRECORDED_STARTS, inspect, timed_requests
from kvsim.workload.traces import TraceOptions, open_trace_file

BUNDLED = Path(__file__).parents[2] / "scenarios/traces"
ROWS = [
    {"timestamp": 0, "input_length": 40, "output_length": 2, "hash_ids": [1, 2, 3]},
    {"timestamp": 1000, "input_length": 48, "output_length": 4, "hash_ids": [1, 2, 4]},
    {"timestamp": 4000, "input_length": 20, "output_length": 6, "hash_ids": [1, 9]},
]


def write(tmp_path: Path, rows: list[dict[str, object]]) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_figures(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    shared = open_trace_file(path, TraceOptions(shared_tails=True))
    found = inspect(
        open_trace_file(path, TraceOptions(), shown="t"),
        capacities_blocks=[1, 2, 5],
        shared=shared,
    ).figures
    working = found.pop("working_set")
    assert found == {
        "format": "mooncake",
        "requests": 3,
        "sessions": None,
        "times": "recorded",
        "time_unit": "ms",
        "span_s": 4.0,
        "requests_per_s": 0.75,
        "block_tokens": 16,
        "block_tokens_from": "inferred",
        "prompt_tokens": {
            "mean": 36.0,
            "p50": 40.0,
            "p90": pytest.approx(46.4),
            "p99": pytest.approx(47.84),
            "max": 48,
            "sum": 108,
        },
        "output_tokens": {
            "mean": 4.0,
            "p50": 4.0,
            "p90": pytest.approx(5.6),
            "p99": pytest.approx(5.96),
            "max": 6,
            "sum": 12,
        },
        "blocks": 5,
        "single_use_share": 0.6,
        "reuse_time_s": {"p10": 1.0, "p50": 1.0, "p90": 3.0, "p99": 3.0},
        "window": "all",
        # 32 of the second prompt, 16 of the third.
        "ideal_token_hit_rate": pytest.approx(48 / 108),
        # All of the first prompt's tail of 8, and of the third's tail of 4.
        "ideal_token_hit_rate_shared_tails": pytest.approx((40 + 20) / 108),
        "capacities": [
            {"blocks": 1, "policy": "lru", "token_hit_rate": pytest.approx(32 / 108)},
            {"blocks": 2, "policy": "lru", "token_hit_rate": pytest.approx(48 / 108)},
            {"blocks": 5, "policy": "lru", "token_hit_rate": pytest.approx(48 / 108)},
        ],
        "notices": [],
    }
    assert len(working) == 48
    assert sum(window["blocks"] for window in working) == 3 + 3 + 2


DELTA = [
    {
        "session_id": "a",
        **({"timestamp": 0} if turn == 0 else {"delay": 2000}),
        "input_length": 1024,
        "output_length": 500,
        "hash_ids": [2 * turn, 2 * turn + 1],
    }
    for turn in range(4)
]


def test_answers_that_come_back_count_in_both_bounds(tmp_path: Path) -> None:
    """Each prompt finds all of the one before and the answer to it: 1,524, 3,048 and 4,572."""
    path = write(tmp_path, DELTA)
    traces = [
        open_trace_file(path, TraceOptions(shared_tails=shared), trace_format="mooncake-delta")
        for shared in (False, True)
    ]
    found = inspect(traces[0], shared=traces[1]).figures
    right = (1524 + 3048 + 4572) / (1024 + 2548 + 4072 + 5596)
    assert found["ideal_token_hit_rate"] == pytest.approx(right)
    assert found["ideal_token_hit_rate_shared_tails"] == pytest.approx(right)
    assert found["capacities"][-1]["token_hit_rate"] == pytest.approx((1024 + 2560 + 4096) / 13240)


def test_bounds_of_partial_blocks_of_different_lengths(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "input_length": length, "hash_ids": [0, 1, 2]} for length in (655, 672)]
    path = write(tmp_path, rows)
    shared = open_trace_file(path, TraceOptions(shared_tails=True))
    found = inspect(open_trace_file(path, TraceOptions()), shared=shared).figures
    assert found["ideal_token_hit_rate"] == pytest.approx(655 / 1327)
    assert found["ideal_token_hit_rate_shared_tails"] == pytest.approx(655 / 1327)


@st.composite
def turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of a few sessions, whose first turns share ids and whose later ones add tokens."""
    rows: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 10))):
        length = draw(st.integers(1, 40))
        first = draw(st.integers(0, 2))
        ids = [first * 10 + place for place in range(-(-length // 8))]
        if length % 8 and draw(st.booleans()):
            ids[-1] = 100 + number
        rows.append(
            {
                "session_id": draw(st.sampled_from("abcd")),
                "timestamp": 1000 * number,
                "input_length": length,
                "output_length": draw(st.integers(1, 12)),
                "hash_ids": ids,
            }
        )
    return rows


@settings(max_examples=80, deadline=None)
@given(turns(), st.sampled_from(["mooncake", "mooncake-delta", "aiperf"]))
def test_shared_is_never_below_distinct(rows: list[dict[str, Any]], trace_format: str) -> None:
    with TemporaryDirectory() as folder:
        path = write(Path(folder), rows)
        traces = [
            open_trace_file(
                path,
                TraceOptions(shared_tails=shared, block_tokens=8),
                trace_format=trace_format,
            )
            for shared in (False, True)
        ]
        found = inspect(traces[0], shared=traces[1]).figures
    ideal = found["ideal_token_hit_rate"]
    assert found["ideal_token_hit_rate_shared_tails"] >= ideal - 1e-9
    assert all(point["token_hit_rate"] <= ideal + 1e-9 for point in found["capacities"])


def test_fifo_and_the_last_half(tmp_path: Path) -> None:
    trace = open_trace_file(write(tmp_path, ROWS), TraceOptions())
    found = inspect(trace, capacities_blocks=[3, 4], policy="fifo", window="last-half").figures
    # Only the second and third requests count. With 4 blocks, block 1 has gone by the third.
    assert found["capacities"] == [
        {"blocks": 3, "policy": "fifo", "token_hit_rate": pytest.approx(32 / 68)},
        {"blocks": 4, "policy": "fifo", "token_hit_rate": pytest.approx(48 / 68)},
    ]


def test_ids_that_are_not_chained_are_noticed(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "hash_ids": ids} for ids in ([1, 2, 3], [7, 2, 3])]
    found = inspect(open_trace_file(write(tmp_path, rows), TraceOptions(), shown="t")).figures
    assert found["notices"] == [
        "t: some ids come after different ids, so they do not stand for whole prefixes: hits are "
        "counted by id and place, and LRU hit rates are approximate."
    ]


def test_sizes_by_default_reach_all_blocks() -> None:
    trace = open_trace_file(BUNDLED / "mooncake_conversation.jsonl.gz", TraceOptions(limit=2000))
    found = inspect(trace).figures
    sizes = [point["blocks"] for point in found["capacities"]]
    assert len(sizes) == 12
    assert sizes[-1] >= found["blocks"] > sizes[-2]
    assert found["capacities"][-1]["token_hit_rate"] == pytest.approx(found["ideal_token_hit_rate"])


def test_times_that_are_not_recorded(tmp_path: Path) -> None:
    template = {
        "num_turns": 1,
        "input_prompt_length": 16,
        "assistant_response_length": [4],
        "tool_call_output_length": [8],
        "tool_call_latency": [2.5],
        "final_assistant_response_length": 5,
    }
    path = write(tmp_path, [template, template])
    requests, how = timed_requests(open_trace_file(path, TraceOptions()), None, 0)
    assert how == f"{UNRECORDED_STARTS}, answers taking no time"
    times_s = [request.arrival_s for request in requests]
    assert len(times_s) == 4
    together, how = timed_requests(open_trace_file(path, TraceOptions()), "together", 0)
    assert [request.arrival_s for request in together] == [0.0, 0.0, 2.5, 2.5]
    assert how == "together, answers taking no time"
