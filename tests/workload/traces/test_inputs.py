"""Inputs of many shapes, each from a small file as its source writes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvsim.errors import KvsimError
from kvsim.workload.inspection import inspect
from kvsim.workload.request import After, Request
from kvsim.workload.traces import TraceOptions, open_trace_file
from kvsim.workload.traces.trace import Trace

DATA = Path(__file__).parents[2] / "data/traces"


def opened(name: str | Path, **options: Any) -> Trace:
    return open_trace_file(DATA / name, TraceOptions(**options), shown="t")


def message(path: Path, **options: Any) -> str:
    with pytest.raises(KvsimError) as caught:
        list(opened(path, **options).requests())
    return str(caught.value)


def shapes(requests: list[Request]) -> list[tuple[float, int, int]]:
    return [(round(r.arrival_s, 6), r.num_prompt_tokens, r.num_output_tokens) for r in requests]


def ideal(trace: Trace) -> float:
    return float(inspect(trace).figures["ideal_token_hit_rate"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aiperf_schedule.jsonl", "aiperf"),
        ("aiperf_texts.jsonl", "openai"),
        ("vidur.csv", "table"),
        ("hex_ids.jsonl", "mooncake"),
        ("token_ids.jsonl", "token-ids"),
        ("wildchat.jsonl", "wildchat"),
        ("lmsys.jsonl", "lmsys"),
        ("trajectory.json", "trajectories"),
        ("sessions.json", "mooncake"),
        ("session_steps.jsonl", "aiperf"),
        ("otlp.json", "opentelemetry"),
        ("spans_with_text.jsonl", "opentelemetry"),
    ],
)
def test_files_are_recognised(name: str, expected: str) -> None:
    assert opened(name).format == expected


def test_aiperf_schedules_without_output_lengths() -> None:
    trace = opened("aiperf_schedule.jsonl")
    requests = list(trace.requests())
    assert shapes(requests) == [(0.0, 600, 1), (0.5, 300, 1), (1.5, 900, 1)]
    assert trace.warnings == [
        "t: answers without a recorded length taken as 1 token (3 times, first on line 1)."
    ]
    with pytest.raises(KvsimError, match="line 1: an answer of no length. Remove the line, or"):
        opened("aiperf_schedule.jsonl", strict=True)
    texts = list(opened("aiperf_texts.jsonl").requests())
    assert [(r.arrival_s, r.num_output_tokens) for r in texts] == [(0.0, 1), (0.75, 1)]


def test_columns_of_usual_names() -> None:
    trace = opened("vidur.csv")
    assert shapes(list(trace.requests())) == [(0.0, 800, 20), (2.5, 450, 7), (4.25, 1200, 31)]
    assert trace.block_tokens is None
    assert any("times are taken as seconds (2.12 s from one to the" in w for w in trace.warnings)


COLUMNS = {"time": "when", "session": "user", "prompt": "in", "output": "out", "ids": "blocks"}


def test_columns_of_any_names() -> None:
    trace = opened("named_columns.csv", columns=COLUMNS)
    assert (trace.format, trace.block_tokens, trace.time_unit) == ("table", 16, "date")
    requests = list(trace.requests())
    assert shapes(requests) == [(0.0, 40, 3), (1.5, 33, 4), (8.75, 64, 5)]
    assert requests[1].content.spans() == [(1, 16), (2, 16), (9, 1)]
    assert [session.session_id for session in trace.sessions()] == ["a", "b"]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_tables_in_json_and_parquet(tmp_path: Path, ending: str) -> None:
    rows = [{"at": 1500 * n, "tokens": 40 + n, "ids": [1, 2, 7 + n]} for n in range(3)]
    path = tmp_path / f"t.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    trace = opened(path, columns={"time": "at", "prompt": "tokens", "ids": "ids"})
    assert shapes(list(trace.requests())) == [(0.0, 40, 1), (1.5, 41, 1), (3.0, 42, 1)]
    assert "t: times are taken as milliseconds (1.5 s from one to the next" in trace.warnings[0]


def test_columns_that_are_not_there() -> None:
    assert message(DATA / "named_columns.csv", columns={"time": "When", "prompt": "input"}) == (
        "t: 2 problems\n"
        "  columns.time: unknown column 'When'. Did you mean 'when'?\n"
        "  columns.prompt: unknown column 'input'. Known: when, user, in, out, blocks."
    )
    assert message(DATA / "named_columns.csv", columns={"time": "when"}) == (
        "t: 1 problem\n"
        "  columns.prompt: no column of this file has a usual name for it (when, user, in, out, "
        "blocks). Say which it is, as in workload.columns: {prompt: NAME} (--columns prompt=NAME)."
    )
    with pytest.raises(KvsimError, match="columns: format mooncake has columns of its own names"):
        open_trace_file(
            DATA / "hex_ids.jsonl", TraceOptions(columns=COLUMNS), trace_format="mooncake"
        )


def test_bad_rows_of_tables(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time,prompt_tokens,output_tokens\n0,9,x\nsoon,9,\n3,0,5\n4,5\n")
    assert message(path).splitlines() == [
        "t: 4 problems",
        '  line 2: output_tokens: "x" is not a number of tokens from 0 to 2147483647. Remove the '
        "line.",
        '  line 3: time: "soon" is not a number of seconds.',
        '  line 4: prompt_tokens: "0" is not a number of tokens from 1 to 2147483647. Remove the '
        "line.",
        "  line 5: 2 values, where the header names 3.",
    ]


def test_ids_in_hexadecimal(tmp_path: Path) -> None:
    one, two = opened("hex_ids.jsonl").requests()
    assert one.content.uids[0] == two.content.uids[0]
    assert one.content.uids.tolist()[1:] == [0x0A, 0xFF00]
    assert ideal(opened("hex_ids.jsonl")) == pytest.approx(32 / 73)
    path = tmp_path / "t.jsonl"
    row = {"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": ["xyz"]}
    path.write_text(json.dumps(row))
    assert '  line 1: hash_ids: "xyz" is not an integer.' in message(path)


def test_token_ids() -> None:
    trace = opened("token_ids.jsonl")
    requests = list(trace.requests())
    assert shapes(requests) == [(0.0, 40, 30), (4.5, 72, 9)]
    # All of the first prompt and of its answer, in whole blocks of 16: 64 of 70 tokens.
    assert ideal(opened("token_ids.jsonl")) == pytest.approx(64 / 112)
    assert requests[0].output_uid in requests[1].content.uids


def test_prompts_of_token_ids_in_openai_s_form(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"prompt": [5] * 33, "max_tokens": 4, "created": n, "model": "m"} for n in range(2)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert opened(path).format == "openai"
    assert shapes(list(opened(path).requests())) == [(0.0, 33, 4), (1.0, 33, 4)]
    assert ideal(opened(path)) == pytest.approx(0.5)


def test_wildchat_has_times_and_is_sorted_by_them() -> None:
    trace = opened("wildchat.jsonl")
    assert (trace.starts_recorded, trace.timed, trace.time_unit) == (True, True, "date")
    first, second = trace.sessions()
    assert (first.start_s, second.start_s) == (0.0, 163.0)
    assert [turn.request.arrival_s for turn in first.turns] == [0.0, 60.0]
    assert first.turns[1].after == (After(0, 60.0),)
    assert not first.delays_recorded
    assert first.turns[0].request.output_uid in first.turns[1].request.content.uids


def test_wildchat_in_parquet(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (DATA / "wildchat.jsonl").read_text().splitlines()]
    path = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    trace = opened(path)
    assert trace.format == "wildchat"
    plain = [shapes([t.request for t in s.turns]) for s in opened("wildchat.jsonl").sessions()]
    assert [shapes([t.request for t in s.turns]) for s in trace.sessions()] == plain


def test_lmsys_conversations_are_sessions_without_times() -> None:
    trace = opened("lmsys.jsonl")
    assert (trace.starts_recorded, trace.timed) == (False, False)
    one, two = trace.sessions()
    assert [len(session.turns) for session in (one, two)] == [2, 1]
    assert (
        one.turns[0].request.content.uids.tolist()[:3]
        == (two.turns[0].request.content.uids.tolist()[:3])
    )


def test_trajectories_are_sessions_of_their_answers() -> None:
    (session,) = opened("trajectory.json").sessions()
    one, two = (turn.request for turn in session.turns)
    assert session.turns[1].after == (After(0),)
    # The call of a tool is the answer, and stands in the next prompt.
    assert one.num_output_tokens > 10
    assert two.num_prompt_tokens > one.num_prompt_tokens + one.num_output_tokens


def test_one_message_without_an_answer_is_no_trajectory(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "a"}]}))
    assert "the answer has neither text nor a length" in message(path)


def test_sessions_with_turns_inside() -> None:
    trace = opened("sessions.json")
    assert "sorted by time" in (list(trace.requests()) and trace.warnings[0])
    first, second = opened("sessions.json").sessions()
    assert [shapes([t.request for t in s.turns]) for s in (first, second)] == [
        [(0.0, 32, 8), (5.0, 48, 8)],
        [(0.0, 32, 4)],
    ]
    assert ideal(opened("sessions.json")) == pytest.approx(48 / 112)


def test_steps_say_what_they_add() -> None:
    first, second = opened("session_steps.jsonl").sessions()
    assert shapes([turn.request for turn in first.turns]) == [(0.0, 1000, 50), (1.5, 1250, 60)]
    assert (first.session_id, second.session_id, first.start_s) == ("t1", "t2", None)
    assert first.turns[1].after == (After(0, 1.5),)


def test_spans_with_lengths_are_requests_of_their_conversation() -> None:
    trace = opened("otlp.json")
    assert (trace.block_tokens, trace.time_unit) == (None, "ns")
    assert shapes(list(trace.requests())) == [(0.0, 512, 40), (3.0, 640, 20)]
    assert any("what the turns of a session share is not known" in w for w in trace.warnings)
    assert not any("out of order" in w for w in trace.warnings)


def test_spans_with_text_share_what_they_say() -> None:
    trace = opened("spans_with_text.jsonl")
    (session,) = trace.sessions()
    assert [turn.request.arrival_s for turn in session.turns] == [0.0, 5.5]
    assert session.turns[1].after == (After(0, 3.5),)  # 2 s of answer, then 3.5 s
    one, two = (turn.request for turn in session.turns)
    assert one.output_uid in two.content.uids
    assert two.num_output_tokens == 7


Write = Callable[[Any], Path]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (
            {"resourceMetrics": []},
            "line 1: these are OpenTelemetry's metrics, which do not tell requests apart. Export "
            "the traces (resourceSpans).",
        ),
        ({"resourceLogs": []}, "line 1: these are OpenTelemetry's logs, "),
        (
            {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "GET /"}]}]}]},
            "line 1: no span of this OpenTelemetry file is a request to a model: none has "
            "gen_ai.usage.input_tokens or gen_ai.input.messages. Export spans with GenAI",
        ),
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_opentelemetry_without_requests(
    tmp_path: Path, document: Any, text: str, indent: int | None
) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document, indent=indent))
    assert text in message(path)


def test_standard_input_is_refused_with_the_reason() -> None:
    for name in ("-", "/dev/stdin"):
        with pytest.raises(KvsimError) as caught:
            open_trace_file(Path(name), TraceOptions())
        assert str(caught.value) == (
            f"{name}: 1 problem\n  path: standard input and pipes can be read once, and a trace is "
            "read several times. Write it to a file first, and give that."
        )
