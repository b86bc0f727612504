"""The Mooncake reader: what a line becomes, and what is said about a line that is wrong."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import KvsimError
from kvsim.workload.traces.mooncake import TraceOptions, coarse_ids_warning, open_mooncake

CONVERSATION = Path(__file__).parents[3] / "scenarios/traces/mooncake_conversation.jsonl.gz"
GOOD = {"timestamp": 1500, "input_length": 1000, "output_length": 7, "hash_ids": [4, 9]}

WriteTrace = Callable[[list[Any]], Path]


@pytest.fixture
def trace(tmp_path: Path) -> WriteTrace:
    """Writes rows (strings as they are, else as JSON) to `trace.jsonl`."""

    def write(rows: list[Any]) -> Path:
        path = tmp_path / "trace.jsonl"
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return write


def row(**changes: Any) -> dict[str, Any]:
    return {**GOOD, **changes}


def read(path: Path, scheduler_block_tokens: int = 512, **options: Any) -> list[Any]:
    workload = open_mooncake(path, TraceOptions(**options), scheduler_block_tokens)
    return list(workload.requests)


def message(path: Path, **options: Any) -> str:
    with pytest.raises(KvsimError) as caught:
        read(path, **options)
    return str(caught.value).replace(str(path), "trace")


def test_a_line_becomes_a_request(trace: WriteTrace) -> None:
    (request,) = read(trace([row(extra=[1])]))
    assert request.request_id == "0000001"
    assert request.arrival_s == 1.5
    assert request.num_prompt_tokens == 1000
    assert request.num_output_tokens == 7
    assert request.content.spans() == [(4, 512), (9, 488)]


def test_a_whole_last_block(trace: WriteTrace) -> None:
    (request,) = read(trace([row(input_length=1024)]))
    assert request.content.spans() == [(4, 512), (9, 512)]


def test_a_prompt_longer_than_any_before(trace: WriteTrace) -> None:
    short, long = read(trace([row(), row(input_length=512 * 1000, hash_ids=list(range(1000)))]))
    assert short.content.num_tokens == 1000
    assert long.content.spans() == [(content_id, 512) for content_id in range(1000)]


def test_each_answer_is_content_of_its_own(trace: WriteTrace) -> None:
    requests = read(trace([row(), row(hash_ids=[4, 2**33 - 1]), row()]))
    answers = {request.output_uid for request in requests}
    prompts = {int(uid) for request in requests for uid in request.content.uids}
    assert len(answers) == 3
    assert not answers & prompts
    assert max(answers) < 2**35


def test_large_ids_are_numbered_and_never_meet_small_ones(trace: WriteTrace) -> None:
    huge = 2**64 + 5
    requests = read(trace([row(hash_ids=[3, huge]), row(hash_ids=[huge, 2**33]), row()]))
    first, second, third = (request.content.uids.tolist() for request in requests)
    assert first[0] == 3
    assert first[1] == second[0]
    assert len({*first, *second, *third}) == 5
    assert max(first + second) < 2**34


def test_blank_lines_are_passed_over_but_counted(trace: WriteTrace) -> None:
    assert [request.request_id for request in read(trace(["", row(), " ", row()]))] == [
        "0000002",
        "0000004",
    ]


def test_limit_ends_before_what_follows_is_read(trace: WriteTrace) -> None:
    assert len(read(trace([row(), row(), "{"]), limit=2)) == 2


def test_time_scale_stretches_all_times(trace: WriteTrace) -> None:
    requests = read(trace([row(), row(timestamp=2500.5)]), time_scale=2)
    assert [request.arrival_s for request in requests] == [3.0, 5.001]


def test_start_leaves_out_what_came_before_and_starts_the_clock(trace: WriteTrace) -> None:
    rows = [row(timestamp=1000 * second) for second in range(6)]
    requests = read(trace(rows), start_s=2, time_scale=10, limit=3)
    assert [request.arrival_s for request in requests] == [0, 10, 20]
    assert [request.request_id for request in requests] == ["0000003", "0000004", "0000005"]


def test_plain_and_gzip_are_told_apart_by_content(trace: WriteTrace, tmp_path: Path) -> None:
    plain = trace([row()])
    for name in ("zipped.jsonl.gz", "zipped.jsonl"):
        zipped = tmp_path / name
        zipped.write_bytes(gzip.compress(plain.read_bytes()))
        assert read(zipped)[0].content.spans() == read(plain)[0].content.spans()


def test_the_bundled_trace_is_whole() -> None:
    workload = open_mooncake(CONVERSATION, TraceOptions(), 256)
    assert workload.share_read() < 0.1
    requests = list(workload.requests)
    assert workload.share_read() == 1.0
    assert len(requests) == 12_031
    # 145 million prompt and 4.1 million output tokens in an hour.
    assert sum(request.num_prompt_tokens for request in requests) == 144_793_823
    assert sum(request.num_output_tokens for request in requests) == 4_122_048
    assert requests[-1].arrival_s == 3536.999
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(requests))
    assert all(request.content.num_tokens == request.num_prompt_tokens for request in requests)
    assert workload.block_tokens == 512
    assert workload.concurrency is None


def test_the_bundled_trace_hits_as_an_independent_count_says() -> None:
    """37.36 % of its prompt tokens hit where nothing is ever evicted."""
    seen: set[tuple[int, int]] = set()
    hit_tokens = num_tokens = 0
    for request in open_mooncake(CONVERSATION, TraceOptions(), 256).requests:
        ends = request.content.ends.tolist()
        prefixes = list(zip(request.content.uids.tolist(), ends, strict=True))
        hit_tokens += max((end for uid, end in prefixes if (uid, end) in seen), default=0)
        num_tokens += ends[-1]
        seen.update(prefixes)
    assert hit_tokens / num_tokens == pytest.approx(0.3736, abs=5e-5)


def test_reading_streams() -> None:
    workload = open_mooncake(CONVERSATION, TraceOptions(), 256)
    assert len(list(islice(workload.requests, 100))) == 100
    assert workload.share_read() < 0.1


def test_share_read_follows_the_limit() -> None:
    workload = open_mooncake(CONVERSATION, TraceOptions(limit=10), 256)
    next(workload.requests)
    assert workload.share_read() == pytest.approx(0.1)


def test_ids_coarser_than_the_scheduler_block_are_warned_of(trace: WriteTrace) -> None:
    path = trace([row()])
    assert open_mooncake(path, TraceOptions(), 512).warnings == []
    assert open_mooncake(path, TraceOptions(), 256, shown="x").warnings == [
        coarse_ids_warning("x", 512, 256)
    ]
    assert coarse_ids_warning("x", 512, 256) == (
        "x: one id stands for 512 tokens, but this model's hits come in units of 256. Where a "
        "prompt ends inside an id, the next turn's id differs although the text goes on, so the "
        "trace hides the hits for which a replay boundary is kept: hit rates of "
        "retention_interval 0 are a lower bound, and its rank against an interval may turn "
        "around on finer ids."
    )


ROW_PROBLEMS = [
    ("{", "not JSON: Expecting property name enclosed in double quotes at column 2. "),
    ("nope", "not JSON: Expecting value at column 1. "),
    ("9" * 5000, "not JSON: a number too long or lists too deep. "),
    ("[" * 100_000, "not JSON: a number too long or lists too deep. "),
    ("[1, 2]", "[1, 2] is not a JSON object. "),
    ("null", "null is not a JSON object. "),
    ({"timestamp": 0, "hash_ids": []}, "input_length, output_length: missing. A line needs "),
    (row(timestamp="3"), 'timestamp: "3" is not a number of milliseconds.'),
    (row(timestamp=True), "timestamp: true is not a number of milliseconds."),
    (row(timestamp=None), "timestamp: null is not a number of milliseconds."),
    (row(timestamp=float("nan")), "timestamp: NaN is not a number of milliseconds."),
    (row(timestamp=10**400), "timestamp: 1000000000000000000000000000000000000... is not a number"),
    (row(timestamp=-1), "timestamp: -1 is negative. Times are milliseconds from 0."),
    (row(input_length=1000.0), "input_length: 1000.0 is not an integer number of tokens."),
    (row(input_length=False), "input_length: false is not an integer number of tokens."),
    (row(input_length=0), "input_length: 0 is out of range. A request has 1 to 2147483647 tokens"),
    (row(output_length=0), "output_length: 0 is out of range. A request has 1 to 2147483647 "),
    (row(output_length=-3), "output_length: -3 is out of range. "),
    (row(output_length=2**31), "output_length: 2147483648 is out of range. "),
    (row(output_length="7"), 'output_length: "7" is not an integer number of tokens.'),
    (row(hash_ids="4,9"), 'hash_ids: "4,9" is not a list of integers.'),
    (row(hash_ids=[4, True]), "hash_ids: true is not an integer."),
    (row(hash_ids=[4, 9.0]), "hash_ids: 9.0 is not an integer."),
    (row(hash_ids=[[4], 9]), "hash_ids: [4] is not an integer."),
    (row(hash_ids=[4, -9]), "hash_ids: -9 is negative. Ids are integers from 0."),
    (
        row(hash_ids=[4]),
        "hash_ids: 1 ids for 1000 tokens, where one id for every 512 tokens makes 2. "
        "Use a trace with ids of 512 tokens.",
    ),
    (row(hash_ids=[]), "hash_ids: 0 ids for 1000 tokens, "),
]


@pytest.mark.parametrize(("bad", "problem"), ROW_PROBLEMS, ids=range(len(ROW_PROBLEMS)))
@pytest.mark.parametrize("place", [1, 3])
def test_a_bad_line_is_named(trace: WriteTrace, bad: Any, problem: str, place: int) -> None:
    text = message(trace([row()] * (place - 1) + [bad, row()]))
    assert text.startswith(f"trace: 1 problem\n  line {place}: {problem}")
    assert text.count("\n") == 1


def test_times_that_go_backwards(trace: WriteTrace) -> None:
    assert message(trace([row(), row(timestamp=1499.5)])) == (
        "trace: 1 problem\n"
        "  line 2: timestamp: 1499.5 is before the 1500 of the request above. "
        "Sort the trace by timestamp."
    )


def test_all_problems_at_once(trace: WriteTrace) -> None:
    bad = row(timestamp=-1, input_length="x", output_length=0)
    assert message(trace([row(), bad, row(), "{"])).splitlines() == [
        "trace: 4 problems",
        '  line 2: input_length: "x" is not an integer number of tokens.',
        "  line 2: output_length: 0 is out of range. A request has 1 to 2147483647 tokens; "
        "remove the line.",
        "  line 2: timestamp: -1 is negative. Times are milliseconds from 0.",
        "  line 4: not JSON: Expecting property name enclosed in double quotes at column 2. "
        "Write one object a line.",
    ]


def test_bad_lines_before_a_cut_are_named_too(trace: WriteTrace, tmp_path: Path) -> None:
    zipped = gzip.compress(trace([row(), "{", row(output_length=0)]).read_bytes())
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(zipped[:-4])
    lines = message(path).splitlines()
    assert lines[0] == "trace: 3 problems"
    assert [line[:9] for line in lines[1:]] == ["  line 2:", "  line 3:", "  line 4:"]
    assert lines[3] == "  line 4: the gzip file is cut here. Fetch it again."


def test_a_useless_file_is_not_read_to_its_end(trace: WriteTrace) -> None:
    assert len(message(trace(["x"] * 50)).splitlines()) == 11


def test_good_requests_before_a_bad_line_are_still_given(trace: WriteTrace) -> None:
    workload = open_mooncake(trace([row(), row(), "x", row()]), TraceOptions(), 512)
    assert [next(workload.requests).request_id for _ in range(2)] == ["0000001", "0000002"]
    with pytest.raises(KvsimError, match="line 3: not JSON"):
        next(workload.requests)


def test_a_wrong_first_line_is_found_when_opening(trace: WriteTrace) -> None:
    with pytest.raises(KvsimError, match="line 1: not JSON"):
        open_mooncake(trace(["x"]), TraceOptions(), 512)


@pytest.mark.parametrize("rows", [[], ["", " "]])
def test_an_empty_trace(trace: WriteTrace, rows: list[str]) -> None:
    assert message(trace(rows)) == (
        "trace: 1 problem\n  line 1: the trace is empty. It needs at least one request."
    )


def test_an_empty_gzip_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    for content in (b"", gzip.compress(b"")):
        path.write_bytes(content)
        assert "line 1: the trace is empty." in message(path)


def test_a_start_after_the_end(trace: WriteTrace) -> None:
    assert message(trace([row(), row()]), start_s=1.6) == (
        "trace: 1 problem\n"
        "  line 2: no request at or after start_s (1.6 s); the last one is at 1.5 s. "
        "Choose an earlier start_s."
    )


def test_a_file_that_is_not_gzip(trace: WriteTrace, tmp_path: Path) -> None:
    path = trace([row()]).rename(tmp_path / "trace.jsonl.gz")
    assert message(path) == (
        "trace: 1 problem\n  line 1: not a gzip file. Compress it, or name it without .gz."
    )


def test_a_cut_gzip_file(tmp_path: Path) -> None:
    whole = CONVERSATION.read_bytes()
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    text = message(path)
    number = int(text.split("line ")[1].split(":")[0])
    assert 5000 < number < 7000
    assert text.endswith(f"line {number}: the gzip file is cut here. Fetch it again.")


def test_a_damaged_gzip_file(trace: WriteTrace, tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(trace([row()] * 3).read_bytes()))
    whole[-8] ^= 255  # the checksum
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(bytes(whole))
    assert "the gzip file is damaged (CRC check failed" in message(path)
    path.write_bytes(bytes(whole[:10]) + b"\x07" * 40)  # no such kind of deflate block
    assert "line 1: the gzip file is damaged (" in message(path)


def test_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    good = json.dumps(GOOD).encode()
    path.write_bytes(good + b"\n" + b'{"a": "\xe4"}\n')
    assert message(path) == (
        "trace: 1 problem\n  line 2: byte 8 is not UTF-8. Convert the file to UTF-8."
    )
    path.write_text(json.dumps(GOOD), encoding="utf-16")
    assert "line 1: byte 1 is not UTF-8." in message(path)


def test_no_such_file(tmp_path: Path) -> None:
    assert message(tmp_path / "gone") == (
        "trace: 1 problem\n  path: there is no such file. Give the path of a trace file."
    )
    assert message(tmp_path) == (
        "trace: 1 problem\n  path: it is not a file. Give the path of a trace file."
    )
    # A device never ends.
    assert "it is not a file" in message(Path("/dev/zero"))
