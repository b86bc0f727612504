"""Every format: recognised, read, and refused with file and line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvsim.errors import KvsimError
from kvsim.scenario import TraceWorkload
from kvsim.workload.request import After, Request, Session
from kvsim.workload.traces import FORMATS, TraceOptions, open_trace_file
from kvsim.workload.traces.trace import Trace

SHARED = Path(__file__).parents[4] / "shared/traces"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared traces")
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes lines (strings as they are, else as JSON) to a file."""

    def written(*lines: Any, name: str = "trace.jsonl") -> Path:
        path = tmp_path / name
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
        return path

    return written


def opened(path: Path, trace_format: str = "auto", **options: Any) -> Trace:
    return open_trace_file(path, TraceOptions(**options), trace_format=trace_format, shown="t")


def sessions(path: Path, trace_format: str = "auto", **options: Any) -> list[Session]:
    return list(opened(path, trace_format, **options).sessions())


def message(path: Path, trace_format: str = "auto", **options: Any) -> str:
    with pytest.raises(KvsimError) as caught:
        trace = opened(path, trace_format, **options)
        list(trace.sessions() if trace.has_sessions else trace.requests())
    return str(caught.value)


def lengths(session: Session) -> list[tuple[int, int]]:
    return [(t.request.num_prompt_tokens, t.request.num_output_tokens) for t in session.turns]


def common_tokens(one: Request, other: Request) -> int:
    """Tokens with which both prompts begin."""
    spans = list(zip(one.content.uids.tolist(), one.content.ends.tolist(), strict=True))
    known = dict(zip(other.content.uids.tolist(), other.content.ends.tolist(), strict=True))
    return max((min(end, known[uid]) for uid, end in spans if uid in known), default=0)


def test_the_formats_of_scenarios_are_those_there_are() -> None:
    assert set(get_args(TraceWorkload.model_fields["format"].annotation)) == {"auto", *FORMATS}


@needs_shared
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mooncake_conversation.jsonl.gz", "mooncake"),
        ("mini_swe_agent.jsonl.gz", "mooncake"),
        ("weka_claude_code_710.jsonl.gz", "weka"),
        ("azure_2023_code.csv.gz", "azure"),
        ("formats/weka_trace_0026.json", "weka"),
        ("formats/aiperf/production_trace.jsonl", "aiperf"),
        ("formats/dynamo/agentic-mooncake.jsonl", "agentic-mooncake"),
        ("formats/dynamo/applied-compute-agentic.jsonl", "applied-compute"),
        ("formats/dynamo/dynamo-agentic.jsonl", "dynamo-requests"),
        ("formats/dynamo/dynamo-standard.jsonl", "dynamo-requests"),
        ("formats/dynamo/mooncake-delta.jsonl", "mooncake-delta"),
        ("formats/dynamo/mooncake.jsonl", "mooncake"),
        ("formats/dynamo/mooncake_tiny.jsonl", "mooncake"),
    ],
)
def test_shared_files_are_recognised(name: str, expected: str) -> None:
    assert opened(SHARED / name).format == expected


# --- unknown files ---


def test_unknown_formats_are_refused_with_those_there_are(write: Write) -> None:
    known = ", ".join(FORMATS)
    assert message(write({"foo": 1, "bar": 2})) == (
        "t: 1 problem\n"
        "  line 1: a file that begins with keys foo, bar is of no known format. "
        f"Set format to one of {known}."
    )
    assert message(write({"foo": 1}), "moncake") == (
        "t: 1 problem\n  format: unknown format 'moncake'. Did you mean 'mooncake'?"
    )
    assert message(write("hello")) == (
        'trace: 1 problem\n  line 1: a file that begins with "hello" is of no known format. '
        f"Set format to one of {known}."
    ).replace("trace:", "t:")


def test_csv_without_its_header(write: Write) -> None:
    row = "2023-11-16 18:17:03.9799600,4808,10"
    assert message(write(row, name="t.csv")) == (
        't: 1 problem\n  line 1: "2023-11-16 18:17:03.9799600,4808,10" is no header of a known '
        "format. A CSV file begins with the names of its columns (azure: TIMESTAMP,ContextTokens,"
        "GeneratedTokens; burstgpt: Timestamp,Request tokens,Response tokens). For others say "
        "which column is what: workload.columns."
    )
    assert message(write(row, name="t.csv"), "azure") == (
        't: 1 problem\n  line 1: "2023-11-16 18:17:03.9799600,4808,10" is not the header. '
        "The first line has to name the columns TIMESTAMP,ContextTokens,GeneratedTokens."
    )


def test_the_engine_s_own_events_are_refused_with_the_reason(write: Write) -> None:
    text = message(write('[0.5, [{"type": "BlockStored", "block_hashes": [1]}]]'))
    assert text.startswith("t: 1 problem\n  line 1: these are vLLM's KV cache events. They say ")
    assert text.endswith("Replay the requests themselves, as logs of format openai.")


# --- packing ---


ROWS = [
    {"timestamp": 100 * n, "input_length": 40, "output_length": 2, "hash_ids": [1, 2, 10 + n]}
    for n in range(5)
]


def test_zstd_whole_cut_and_damaged(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.zst"
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        for row in ROWS * 200:
            file.write((json.dumps({**row, "timestamp": 0}) + "\n").encode())
    assert len(list(opened(path).requests())) == 1000
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert message(path).endswith("the zstd file is cut here. Fetch it again.")
    path.write_bytes(whole[:6] + b"\xff" * 40)
    assert "line 1: the zstd file is damaged (" in message(path)
    path.write_bytes(b"no")
    assert message(path) == (
        "t: 1 problem\n  line 1: not a zstd file. Compress it, or name it without .zst."
    )


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    trace = opened(path)
    assert (trace.format, trace.block_tokens) == ("mooncake", 16)
    requests = list(trace.requests())
    assert [r.arrival_s for r in requests] == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert requests[3].content.spans() == [(1, 16), (2, 16), (13, 8)]
    bad = [*ROWS, {**ROWS[0], "timestamp": 900, "input_length": -4}]
    pq.write_table(pa.Table.from_pylist(bad), path)
    assert message(path) == (
        "t: 1 problem\n  row 6: input_length: -4 is out of range. A request has 1 to 2147483647 "
        "tokens; remove the line."
    )
    late = [ROWS[1], ROWS[0]]
    pq.write_table(pa.Table.from_pylist(late), path)
    trace = opened(path)
    assert [r.arrival_s for r in trace.requests()] == [0.0, 0.1]
    assert "sorted by time (1 times, first on row 2)" in trace.warnings[0]


def test_parquet_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    assert message(path).startswith("t: 1 problem\n  format: a file that holds columns a is of no ")
    path.write_bytes(path.read_bytes()[:-7])
    assert message(path).startswith("t: 1 problem\n  row 1: not a whole Parquet file (")


# --- sessions in Mooncake's rows ---


def mooncake(session: str | None, time: float, ids: list[int], **more: Any) -> dict[str, Any]:
    row = {"timestamp": time, "input_length": 16 * len(ids), "output_length": 3, "hash_ids": ids}
    return {**row, **({} if session is None else {"session_id": session}), **more}


def test_sessions_interleave(write: Write) -> None:
    path = write(
        mooncake("a", 1000, [1, 2]),
        mooncake("b", 1500, [9, 8]),
        mooncake(None, 1750, [7, 7, 7]),
        mooncake("a", 4000, [1, 2, 3]),
        mooncake("b", 5000, [9, 8, 5]),
    )
    trace = opened(path, time_scale=2, start_s=1)
    assert trace.has_sessions and trace.starts_recorded and trace.timed
    found = list(trace.sessions())
    assert [(s.session_id, s.start_s) for s in found] == [("a", 0.0), ("b", 1.0), ("0000003", 1.5)]
    assert [[t.request.arrival_s for t in s.turns] for s in found] == [
        [0.0, 6.0],
        [0.0, 7.0],
        [0.0],
    ]
    assert [t.after for t in found[0].turns] == [(), (After(0, 6.0),)]
    assert not found[0].delays_recorded
    assert common_tokens(*(t.request for t in found[0].turns)) == 32
    assert [r.session_id for r in trace.requests()] == ["a", "b", None, "a", "b"]


def test_delays_that_are_recorded(write: Write) -> None:
    path = write(mooncake("a", 0, [1, 2]), mooncake("a", 9000, [1, 2, 3], delay=500))
    trace = opened(path)
    assert trace.format == "mooncake"  # the second prompt begins as the first: it is whole


# --- what a turn adds ---


def test_mooncake_delta(write: Write) -> None:
    first = {"request_id": "r0", "session_id": "s0", "input_length": 4, "output_length": 2}
    later = {"request_id": "r1", "session_id": "s0", "input_length": 2, "output_length": 1}
    path = write({**first, "hash_ids": [1], "timestamp": 7}, {**later, "hash_ids": [2], "delay": 5})
    trace = opened(path, block_tokens=4)
    assert (trace.format, trace.block_tokens_from) == ("mooncake-delta", "given")
    (session,) = trace.sessions()
    # 8 = 4, their answer of 2, and 2 more: as Dynamo's own tests have it.
    assert lengths(session) == [(4, 2), (8, 1)]
    one, two = (turn.request for turn in session.turns)
    assert two.content.spans() == [(1, 4), (one.output_uid, 2), (two.output_uid, 2)]
    assert session.turns[1].after == (After(0, 0.005),)
    assert (session.start_s, session.timed, session.delays_recorded) == (0.007, False, True)
    with pytest.raises(KvsimError, match="line 2: timestamp: missing. Without it this turn can"):
        list(opened(path).requests())


def test_mooncake_delta_with_all_times_in_an_open_loop(write: Write) -> None:
    rows = [mooncake("a", 0, [1]), mooncake("b", 1, [1]), mooncake("a", 2, [5], delay=1)]
    requests = list(opened(write(*rows), "mooncake-delta").requests())
    assert [r.num_prompt_tokens for r in requests] == [16, 16, 16 + 3 + 16]
    assert common_tokens(requests[0], requests[1]) == 16
    assert common_tokens(requests[0], requests[2]) == 16


def test_a_delta_s_first_turn_needs_a_time(write: Write) -> None:
    row = {"session_id": "a", "input_length": 16, "output_length": 1, "hash_ids": [1]}
    text = message(write(mooncake("b", 0, [1]), row), "mooncake-delta")
    assert text.startswith("t: 1 problem\n  line 2: timestamp: missing. A line needs timestamp, ")


def test_aiperf_rows_with_and_without_ids(write: Write) -> None:
    path = write(
        {"timestamp": 0, "input_length": 512, "output_length": 128},
        {"timestamp": "120", "input_length": 1024, "output_length": 256, "hash_ids": [1, 2, 3]},
        {"timestamp": 500, "input_length": 1536, "output_length": 320, "hash_ids": [1, 2]},
        {"timestamp": 600, "input_length": 700, "hash_ids": [1, 9]},
    )
    trace = opened(path)
    assert (trace.format, trace.block_tokens, trace.has_sessions) == ("aiperf", 512, False)
    requests = list(trace.requests())
    assert requests[0].content.spans() == [(requests[0].output_uid, 512)]
    assert requests[1].arrival_s == 0.12
    assert requests[1].content.spans() == [(1, 512), (2, 512)]  # the third stands for nothing
    assert requests[2].content.spans() == [(1, 512), (2, 512), (requests[2].output_uid, 512)]
    assert requests[3].num_output_tokens == 1


def test_aiperf_sessions_without_times(write: Write) -> None:
    path = write(
        {"session_id": "abc", "input_length": 300, "output_length": 40},
        {"session_id": "abc", "delay": 2, "input_length": 150, "output_length": 20},
        {"session_id": "xyz", "input_length": 8, "output_length": 4},
    )
    trace = opened(path)
    assert (trace.format, trace.timed, trace.starts_recorded) == ("aiperf", False, False)
    found = list(trace.sessions())
    assert [(s.session_id, s.start_s, s.timed) for s in found] == [
        ("abc", None, False),
        ("xyz", None, False),
    ]
    assert lengths(found[0]) == [(300, 40), (490, 20)]
    assert found[0].turns[1].after == (After(0, 0.002),)


# --- Dynamo ---


HEADER = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4}


def play(name: str, *waits: Any, **more: Any) -> dict[str, Any]:
    row = {"request_id": name, "play_id": "p", "input_length": 4, "output_length": 2}
    return {**row, "hash_ids": [len(name)], "dependencies": list(waits), **more}


def test_agentic_mooncake(write: Write) -> None:
    path = write(
        HEADER,
        play("root", not_before_ms=100),
        play("child", {"request_id": "root", "trigger": "dispatch", "delay_ms": 5}),
        play("joiner", {"request_id": "root", "delay_ms": 1}, {"request_id": "child"}),
    )
    trace = opened(path)
    assert (trace.format, trace.block_tokens, trace.timed) == ("agentic-mooncake", 4, False)
    (session,) = trace.sessions()
    assert [turn.after for turn in session.turns] == [
        (),
        (After(0, 0.005, "start"),),
        (After(0, 0.001), After(1, 0.0)),
    ]
    assert (session.session_id, session.start_s) == ("p", 0.1)


def test_agentic_mooncake_as_it_was_before(write: Write) -> None:
    row = {"input_length": 4, "output_length": 2, "hash_ids": [1]}
    path = write(
        {**row, "request_id": "a", "timestamp": 10, "wait_for": []},
        {**row, "request_id": "b", "wait_for": ["a"], "delay": 3, "tool_wait_ms": 4},
    )
    (session,) = sessions(path, block_tokens=4)
    assert session.turns[1].after == (After(0, 0.007),)


def test_agentic_mooncake_problems(write: Write) -> None:
    text = message(
        write(
            HEADER,
            play("a"),
            play("a"),
            play("b", {"request_id": "zz"}),
            play("c", {"trigger": "end"}, hash_ids=[1, 2, 3]),
            play("d", {"request_id": "a", "trigger": "later"}),
        )
    )
    assert text.splitlines() == [
        "t: 5 problems",
        '  line 3: request_id: "a" is there already. Give each request its own.',
        '  line 4: dependencies: "zz" is no request_id of a line above. Keep the request it names, '
        "before this one.",
        "  line 5: hash_ids: 3 ids for 4 tokens, where one id for every 4 tokens makes 1. "
        "Correct the line.",
        '  line 5: dependencies: {"trigger": "end"} names no request_id.',
        '  line 6: dependencies: "later": use completion or dispatch.',
    ]


TEMPLATE = {
    "num_turns": 2,
    "input_prompt_length": 16,
    "assistant_response_length": [4, 4],
    "tool_call_output_length": [8, 8],
    "tool_call_latency": [0.01, 0.02],
    "final_assistant_response_length": 5,
}


def test_applied_compute(write: Write) -> None:
    trace = opened(write(TEMPLATE, TEMPLATE))
    assert (trace.format, trace.block_tokens, trace.timed) == ("applied-compute", None, False)
    one, two = trace.sessions()
    assert lengths(one) == lengths(two) == [(16, 4), (28, 4), (40, 5)]
    assert [turn.after for turn in one.turns] == [(), (After(0, 0.01),), (After(1, 0.02),)]
    first, second = one.turns[0].request, one.turns[1].request
    # The answer is in the next prompt where it was made.
    assert second.content.spans()[1] == (first.output_uid, 4)
    assert common_tokens(one.turns[0].request, two.turns[0].request) == 0
    with pytest.raises(KvsimError, match="the times of turns are not recorded, only delays"):
        trace.requests()


def test_applied_compute_problems(write: Write) -> None:
    bad = {**TEMPLATE, "assistant_response_length": [4], "tool_call_latency": [0.1, -1]}
    assert message(write(TEMPLATE, bad)).splitlines() == [
        "t: 2 problems",
        "  line 2: assistant_response_length: [4] is not a list of num_turns (2) values.",
        "  line 2: tool_call_latency: -1 is not a number of seconds from 0.",
    ]


def dynamo_end(name: str, begin_ms: int, agent: str | None = None, **more: Any) -> dict[str, Any]:
    replay = {"trace_block_size": 4, "input_length": 4, "input_sequence_hashes": [begin_ms]}
    request = {"request_id": name, "output_tokens": 2, "request_received_ms": begin_ms}
    row = {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "request": {**request, "total_time_ms": 10, "replay": replay},
    }
    return row if agent is None else {**row, "agent_context": {"session_id": agent, **more}}


def test_dynamo_s_request_traces_are_ordered_by_end(write: Write) -> None:
    slow = dynamo_end("slow", 1000)
    slow["request"]["total_time_ms"] = 500
    path = write({"event_type": "request_payload"}, dynamo_end("quick", 1200), slow)
    trace = opened(path)
    assert [(r.request_id, r.arrival_s) for r in trace.requests()] == [
        ("slow", 0.0),
        ("quick", pytest.approx(0.2)),
    ]
    assert trace.warnings == []


def test_dynamo_s_agents_wait_for_each_other(write: Write) -> None:
    tool = {"consumer_request_id": "p2", "child_session_id": "c", "execution_mode": "blocking"}
    path = write(
        dynamo_end("p1", 100, "parent"),
        {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {"claude": tool}},
        dynamo_end("c1", 120, "c", parent_session_id="parent"),
        dynamo_end("c2", 150, "c", parent_session_id="parent"),
        dynamo_end("p2", 200, "parent"),
    )
    (session,) = sessions(path)
    waits = [[(a.turn, round(a.delay_s, 6), a.event) for a in t.after] for t in session.turns]
    assert waits == [
        [],
        [(0, 0.01, "end")],
        [(1, 0.02, "end")],
        [(0, 0.0, "end"), (2, 0.04, "end")],
    ]


def test_a_dynamo_session_with_an_unknown_parent(write: Write) -> None:
    path = write("", dynamo_end("c1", 120, "c", parent_session_id="gone"))
    assert message(path) == (
        't: 1 problem\n  line 2: parent_session_id: "gone" is the session of no request here. '
        "Keep its requests, or remove the link."
    )


# --- coding agents ---


def weka(t: float, tokens: int, ids: list[int], **more: Any) -> dict[str, Any]:
    row = {"t": t, "type": "n", "model": "m", "in": tokens, "out": 9, "hash_ids": ids}
    return {**row, "api_time": 2.0, "think_time": 3.0, **more}


def weka_session(*requests: Any, **more: Any) -> dict[str, Any]:
    return {"id": "s", "block_size": 64, "requests": list(requests), **more}


def test_weka_as_shipped_and_with_runs_of_ids_are_the_same(write: Write) -> None:
    shipped = weka_session(weka(0, 200, [1, 2, 3]), weka(5, 330, [1, 2, 3, 7, 8]))
    runs = {
        "id": "s",
        "requests": [
            [0, 200, 9, 0, 2.0, 3.0, [[1, 3]]],
            [5, 330, 9, 0, 2.0, 3.0, [[1, 3], [7, 2]]],
        ],
    }
    (one,), (two,) = sessions(write(shipped)), sessions(write(runs))
    for first, second in zip(one.turns, two.turns, strict=True):
        assert first.request.content.spans() == second.request.content.spans()
        assert first.after == second.after
    request = one.turns[1].request
    assert request.content.spans() == [(1, 192), (7, 128), (request.output_uid, 10)]
    assert [turn.after for turn in one.turns] == [(), (After(0, 3.0),)]
    assert (one.start_s, one.timed, one.delays_recorded) == (None, True, True)
    assert [turn.request.request_id for turn in one.turns] == ["s-00001", "s-00002"]


def test_weka_ids_are_local_to_a_session(write: Write) -> None:
    one, two = sessions(write(*[weka_session(weka(0, 64, [1]), id=name) for name in "ab"]))
    assert common_tokens(one.turns[0].request, two.turns[0].request) == 0


def test_weka_warns_of_what_sessions_share(write: Write) -> None:
    trace = opened(write(weka_session(weka(0, 64, [1]), tool_tokens=40, system_tokens=9)))
    assert trace.warnings == [
        "t: ids are local to a session, so the tools and system prompt that sessions share (49 "
        "tokens in the first) are not found again: hit rates are a lower bound."
    ]


@pytest.mark.parametrize("begin", [20, 0], ids=["absolute", "relative"])
def test_weka_sub_agents(write: Write, begin: int) -> None:
    inner = [weka(begin + 1, 64, [50]), weka(begin + 6, 128, [50, 51])]
    agent = {"t": 20, "type": "subagent", "agent_id": "x", "requests": inner}
    path = write(weka_session(weka(0, 64, [1]), agent, weka(30, 128, [1, 2], think_time=28.0)))
    (session,) = sessions(path)
    assert [turn.request.arrival_s for turn in session.turns] == [0.0, 21.0, 26.0, 30.0]
    assert [turn.after for turn in session.turns] == [
        (),
        (After(0, 19.0),),
        (After(1, 3.0),),
        (After(0, 0.0), After(2, 2.0)),  # its think time was the sub-agent's
    ]


def test_weka_sub_agents_side_by_side_are_told_apart_by_their_ids(write: Write) -> None:
    rows = [
        [0, 64, 9, 0, 2.0, 0.0, [[1, 1]]],
        [1, 64, 9, 1, 2.0, 0.0, [[50, 1]]],
        [1.5, 64, 9, 1, 2.0, 0.0, [[70, 1]]],
        [8, 128, 9, 1, 2.0, 5.0, [[50, 2]]],
        [9, 128, 9, 1, None, None, [[70, 2]]],
    ]
    (session,) = sessions(write({"id": "s", "requests": rows}))
    assert [turn.after for turn in session.turns] == [
        (),
        (After(0, 1.0, "start"),),
        (After(0, 1.5, "start"),),
        (After(1, 5.0),),
        (After(2, 5.5),),
    ]


def test_weka_problems(write: Write) -> None:
    path = write(
        weka_session(weka(0, 64, [1])),
        weka_session(
            weka(0, -1, []),
            weka(-2, 64, [1]),
            weka(0, 64, [1, 2]),
            weka(0, 64, ["a"]),
            {"t": 0, "in": 5},
            7,
            {"type": "subagent", "t": 0},
        ),
        weka_session(block_size=32),
        {"id": "s"},
    )
    assert message(path).splitlines() == [
        "t: 9 problems",
        "  line 2: requests.0: in: -1 is out of range. A request has 1 to 2147483647 tokens; "
        "remove the line.",
        "  line 2: requests.1: t: -2 is not a number of seconds from 0.",
        "  line 2: requests.2: 2 ids for 64 tokens, which have 1 whole blocks of 64.",
        '  line 2: requests.3: hash_ids: "a" is not an integer.',
        "  line 2: requests.4: out: missing.",
        "  line 2: requests.5: 7 is no request. Write an object, or a list of 7.",
        "  line 2: requests.6: a sub-agent without t or requests.",
        "  line 3: block_size: 32, where lines before have 64.",
        "  line 4: id, requests: missing. A line needs id and a list of requests.",
    ]
    assert message(write(weka_session(weka(0, 64, [1]))), block_tokens=16) == (
        "t: 1 problem\n  block_tokens: 16, where the file says 64. Leave it out."
    )
    assert message(write(weka_session(weka(0, 64, [1]))), start_s=5.0) == (
        "t: 1 problem\n  start_s: 5 s, but when sessions start is not recorded. Leave it out."
    )


def test_weka_as_an_indented_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(weka_session(weka(0, 64, [1])), indent=1))
    assert len(sessions(path)) == 1


def test_limits_and_time_scales_of_sessions(write: Write) -> None:
    path = write(*[weka_session(weka(0, 64, [1]), weka(5, 64, [1]), id=n) for n in "abc"])
    found = sessions(path, limit=3, time_scale=2.0)
    assert [len(session.turns) for session in found] == [2, 1]
    assert found[0].turns[1].request.arrival_s == 10.0
    assert found[0].turns[1].after == (After(0, 6.0),)


def test_answers_of_no_tokens_in_sessions(write: Write) -> None:
    path = write(weka_session(weka(0, 64, [1], out=0)))
    trace = opened(path)
    assert lengths(next(trace.sessions())) == [(64, 1)]
    assert trace.warnings == [
        "t: answers of 0 tokens taken as 1, the least the engine makes (1 times, first on line 1)."
    ]
    assert message(path, strict=True) == (
        "t: 1 problem\n  line 1: request s-00001: an answer of 0 tokens. Remove it, or leave out "
        "strict."
    )


@needs_shared
def test_weka_s_shared_file_is_whole() -> None:
    trace = opened(SHARED / "weka_claude_code_710.jsonl.gz", limit=5000)
    found = list(trace.sessions())
    assert sum(len(session.turns) for session in found) == 5000
    assert all(a.turn < n for s in found for n, t in enumerate(s.turns) for a in t.after)
    assert sum(not turn.after for session in found for turn in session.turns) == len(found)


# --- chats linked by the turn before ---


def qwen(chat: int, parent: int, time: float, ids: list[int], **more: Any) -> dict[str, Any]:
    row = {"chat_id": chat, "parent_chat_id": parent, "timestamp": time, "type": "text", "turn": 1}
    tokens = 16 * len(ids) - 3
    return {**row, "input_length": tokens, "output_length": 5, "hash_ids": ids, **more}


def test_qwen_bailian(write: Write) -> None:
    path = write(
        qwen(7, -1, 12.5, [1, 2]),
        qwen(8, -1, 13.0, [1, 5]),
        qwen(9, 7, 20.0, [1, 9, 3]),
        qwen(10, 7, 21.0, [1, 9, 4]),  # the same turn asked again
        qwen(11, 9, 30.0, [1, 9, 6, 7]),
    )
    trace = opened(path, start_s=10)
    assert (trace.format, trace.block_tokens) == ("qwen-bailian", 16)
    one, two = trace.sessions()
    assert [turn.request.arrival_s for turn in one.turns] == [0.0, 7.5, 8.5, 17.5]
    assert [turn.after for turn in one.turns] == [
        (),
        (After(0, 7.5),),
        (After(0, 8.5),),
        (After(1, 10.0),),
    ]
    assert (one.start_s, two.start_s) == (2.5, 3.0)
    first, second = one.turns[0].request, one.turns[1].request
    assert first.content.spans() == [(1, 16), (2, 13)]
    assert common_tokens(first, second) == 16  # the padded last id need not return


def test_qwen_bailian_with_an_unknown_parent(write: Write) -> None:
    path = write(qwen(7, -1, 1, [1]), qwen(8, 3, 2, [1]), qwen(9, "x", 3, [1]))  # type: ignore[arg-type]
    assert message(path).splitlines() == [
        "t: 2 problems",
        "  line 2: parent_chat_id: 3 is no chat_id of a line above. Keep the turn it names, or "
        "write -1 for a chat that begins here.",
        '  line 3: parent_chat_id: "x" is not an integer.',
    ]
    assert message(write(qwen(7, -1, 1, [1])), block_tokens=64) == (
        "t: 1 problem\n  block_tokens: 64, where an id of qwen-bailian stands for 16 tokens. "
        "Leave it out."
    )


# --- lengths only ---


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


@pytest.mark.parametrize(
    "dates",
    [
        ("2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0319600"),
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00.061930+00:00"),
    ],
)
def test_azure(write: Write, dates: tuple[str, str]) -> None:
    path = write(AZURE, f"{dates[0]},4808,10", f"{dates[1]},3180,8", name="t.csv")
    trace = opened(path)
    assert (trace.format, trace.block_tokens, trace.has_sessions) == ("azure", None, False)
    one, two = trace.requests()
    assert (one.arrival_s, two.arrival_s) == (0.0, pytest.approx(0.052, abs=1e-6))
    assert (two.num_prompt_tokens, two.num_output_tokens) == (3180, 8)
    assert common_tokens(one, two) == 0


def test_azure_problems(write: Write) -> None:
    path = write(AZURE, "2023-11-16 18:17:03,-5,10", "yesterday,5,1", "a,5", "b,5,x", name="t.csv")
    assert message(path).splitlines() == [
        "t: 5 problems",
        '  line 2: ContextTokens: "-5" is not a number of tokens from 1 to 2147483647. '
        "Remove the line.",
        '  line 3: TIMESTAMP: "yesterday" is not a date and time. Write it as in '
        "2023-11-16 18:17:03.97.",
        "  line 4: 2 values, where the header names 3.",
        '  line 5: GeneratedTokens: "x" is not a number of tokens from 0 to 2147483647. '
        "Remove the line.",
        '  line 5: TIMESTAMP: "b" is not a date and time. Write it as in 2023-11-16 18:17:03.97.',
    ]


def test_burstgpt(write: Write, tmp_path: Path) -> None:
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    plain = write(header, "5,ChatGPT,472,18,490,Conversation log", "45,GPT-4,1087,0,1087,API log")
    path = tmp_path / "burst.csv.gz"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    trace = opened(path)
    assert trace.format == "burstgpt"
    requests = list(trace.requests())
    assert [(r.arrival_s, r.num_prompt_tokens, r.num_output_tokens) for r in requests] == [
        (5.0, 472, 18),
        (45.0, 1087, 1),
    ]
    assert trace.warnings == [
        "t: the trace has lengths only and no reuse is drawn, so no prefix is ever found again.",
        "t: answers of 0 tokens taken as 1, the least the engine makes (1 times, first on line 3).",
    ]
    assert message(write(header, "-1,m,5,5,10,l")) == (
        't: 1 problem\n  line 2: Timestamp: "-1" is negative. Times are seconds from 0.'
    )
