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
from kvsim.workload.traces import TraceOptions, coarse_ids_warning, open_trace_file
from kvsim.workload.traces.mooncake import infer_block_tokens
from kvsim.workload.traces.trace import Trace

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


def opened(path: Path, **options: Any) -> Trace:
    return open_trace_file(path, TraceOptions(**options), trace_format="mooncake")


def read(path: Path, **options: Any) -> list[Any]:
    return list(opened(path, **options).requests())


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
    trace = opened(CONVERSATION)
    assert trace.share_read() < 0.1
    requests = list(trace.requests())
    assert trace.share_read() == 1.0
    assert len(requests) == 12_031
    # 145 million prompt and 4.1 million output tokens in an hour.
    assert sum(request.num_prompt_tokens for request in requests) == 144_793_823
    assert sum(request.num_output_tokens for request in requests) == 4_122_048
    assert requests[-1].arrival_s == 3536.999
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(requests))
    assert all(request.content.num_tokens == request.num_prompt_tokens for request in requests)
    assert (trace.block_tokens, trace.block_tokens_from) == (512, "inferred")
    assert not trace.has_sessions
    assert trace.warnings == []


def test_the_bundled_trace_hits_as_an_independent_count_says() -> None:
    """37.36 % of its prompt tokens hit where nothing is ever evicted."""
    seen: set[tuple[int, int]] = set()
    hit_tokens = num_tokens = 0
    for request in opened(CONVERSATION).requests():
        ends = request.content.ends.tolist()
        prefixes = list(zip(request.content.uids.tolist(), ends, strict=True))
        hit_tokens += max((end for uid, end in prefixes if (uid, end) in seen), default=0)
        num_tokens += ends[-1]
        seen.update(prefixes)
    assert hit_tokens / num_tokens == pytest.approx(0.3736, abs=5e-5)


def test_reading_streams() -> None:
    trace = opened(CONVERSATION)
    requests = trace.requests()
    assert len(list(islice(requests, 100))) == 100
    assert trace.share_read() < 0.1


def test_share_read_follows_the_limit() -> None:
    trace = opened(CONVERSATION, limit=10)
    requests = trace.requests()
    next(requests)
    assert trace.share_read() == pytest.approx(0.1)


def test_the_warning_about_coarse_ids_names_both_bounds() -> None:
    assert coarse_ids_warning("x", 512, 256, shared_tails=False) == (
        "x: one id stands for 512 tokens, but this model's hits come in units of 256, and the "
        "trace cannot tell where a shared prefix ends inside an id. partial_tail distinct, as "
        "here, gives a lower bound of what prompts share, shared an upper bound. It matters most "
        "for retention_interval 0, which keeps a prompt's end: compare both before ranking it "
        "against an interval."
    )
    assert (
        "partial_tail shared, as here, gives an upper bound of what prompts share, distinct a "
        in (coarse_ids_warning("x", 512, 256, shared_tails=True))
    )


@pytest.mark.parametrize(
    ("lengths", "block_tokens"),
    [
        ([(6758, 14), (7322, 15)], 512),
        ([(16, 1)], 512),  # one id says little: the usual size
        ([(1276, 80), (1291, 81)], 16),
        ([(1276, 80), (6758, 14), (1291, 81)], 16),  # most prompts count
        ([(250, 3), (300, 3)], 100),  # a size that is not usual, where it fits all
        ([(600, 2), (1500, 3)], 512),
        ([(10, 0)], None),
        ([], None),
        ([(1, 5)], None),
    ],
)
def test_the_size_of_a_block_follows_from_lengths_and_numbers_of_ids(
    lengths: list[tuple[int, int]], block_tokens: int | None
) -> None:
    assert infer_block_tokens(lengths) == block_tokens


def test_ids_of_16_tokens(trace: WriteTrace) -> None:
    path = trace([row(input_length=40, hash_ids=[1, 2, 3]), row(input_length=16, hash_ids=[1])])
    found = opened(path)
    assert (found.block_tokens, found.block_tokens_from) == (16, "inferred")
    assert [r.content.spans() for r in found.requests()] == [[(1, 16), (2, 16), (3, 8)], [(1, 16)]]
    given = opened(path, block_tokens=15)
    assert (given.block_tokens, given.block_tokens_from) == (15, "given")
    assert "2 ids" not in message(path, block_tokens=15)


ROW_PROBLEMS = [
    ("{", "not JSON: Expecting property name enclosed in double quotes at column 2. "),
    ("nope", "not JSON: Expecting value at column 1. "),
    ("9" * 5000, "not JSON: a number too long or lists too deep. "),
    ("[" * 100_000, "not JSON: a number too long or lists too deep. "),
    ("[1, 2]", "[1, 2] is not a JSON object. "),
    ("null", "null is not a JSON object. "),
    ({"timestamp": 0, "hash_ids": []}, "input_length, output_length: missing. A line needs "),
    (row(timestamp="3s"), 'timestamp: "3s" is not a number of milliseconds.'),
    (row(timestamp=True), "timestamp: true is not a number of milliseconds."),
    (row(timestamp=None), "timestamp: null is not a number of milliseconds."),
    (row(timestamp=float("nan")), "timestamp: NaN is not a number of milliseconds."),
    (row(timestamp=10**400), "timestamp: 1000000000000000000000000000000000000... is not a number"),
    (row(timestamp=-1), "timestamp: -1 is negative. Times are milliseconds from 0."),
    (row(input_length=1000.0), "input_length: 1000.0 is not an integer number of tokens."),
    (row(input_length=False), "input_length: false is not an integer number of tokens."),
    (row(input_length=0), "input_length: 0 is out of range. A request has 1 to 2147483647 tokens"),
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
        "Correct the line, or give the block_tokens of this trace.",
    ),
    (row(hash_ids=[]), "hash_ids: 0 ids for 1000 tokens, "),
]


@pytest.mark.parametrize(("bad", "problem"), ROW_PROBLEMS, ids=range(len(ROW_PROBLEMS)))
@pytest.mark.parametrize("place", [1, 3])
def test_a_bad_line_is_named(trace: WriteTrace, bad: Any, problem: str, place: int) -> None:
    text = message(trace([row()] * (place - 1) + [bad, row()]))
    assert text.startswith(f"trace: 1 problem\n  line {place}: {problem}")
    assert text.count("\n") == 1


def test_times_that_go_backwards_are_sorted_with_a_notice(trace: WriteTrace) -> None:
    found = opened(trace([row(), row(timestamp="1499.5"), row(timestamp=1499.5), row()]))
    requests = list(found.requests())
    assert [request.request_id for request in requests] == [
        "0000002",
        "0000003",
        "0000001",
        "0000004",
    ]
    assert [request.arrival_s for request in requests] == [1.4995, 1.4995, 1.5, 1.5]
    assert found.warnings == [
        "trace.jsonl: times out of order, so the requests were sorted by time "
        "(1 times, first on line 2)."
    ]


def test_times_that_go_backwards_are_refused_if_strict(trace: WriteTrace) -> None:
    assert message(trace([row(), row(timestamp=1499.5)]), strict=True) == (
        "trace: 1 problem\n"
        "  line 2: timestamp: 1.4995 s is before the 1.5 s of the request above. "
        "Sort the trace by time, or leave out strict."
    )


def test_answers_without_tokens(trace: WriteTrace) -> None:
    path = trace([row(), row(output_length=0)])
    found = opened(path)
    assert [request.num_output_tokens for request in found.requests()] == [7, 1]
    assert found.warnings == [
        "trace.jsonl: answers of 0 tokens taken as 1, the least the engine makes "
        "(1 times, first on line 2)."
    ]
    assert message(path, strict=True) == (
        "trace: 1 problem\n  line 2: an answer of 0 tokens. Remove the line, or leave out strict."
    )


def test_names_that_dynamo_allows(trace: WriteTrace) -> None:
    names = {"created_time": 20, "input_tokens": 9, "output_tokens": 2, "hash_ids": [1]}
    (request,) = read(trace([names]))
    assert (request.arrival_s, request.num_prompt_tokens, request.num_output_tokens) == (0.02, 9, 2)


def test_all_problems_at_once(trace: WriteTrace) -> None:
    bad = row(timestamp=-1, input_length="x", output_length=-2)
    assert message(trace([row(), bad, row(), "{"])).splitlines() == [
        "trace: 4 problems",
        '  line 2: input_length: "x" is not an integer number of tokens.',
        "  line 2: output_length: -2 is out of range. A request has 0 to 2147483647 tokens; "
        "remove the line.",
        "  line 2: timestamp: -1 is negative. Times are milliseconds from 0.",
        "  line 4: not JSON: Expecting property name enclosed in double quotes at column 2. "
        "Write one object a line.",
    ]


def test_bad_lines_before_a_cut_are_named_too(trace: WriteTrace, tmp_path: Path) -> None:
    zipped = gzip.compress(trace([row(), "{", row(output_length=-1)]).read_bytes())
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(zipped[:-4])
    lines = message(path).splitlines()
    assert lines[0] == "trace: 3 problems"
    assert [line[:9] for line in lines[1:]] == ["  line 2:", "  line 3:", "  line 4:"]
    assert lines[3] == "  line 4: the gzip file is cut here. Fetch it again."


def test_a_useless_file_is_not_read_to_its_end(trace: WriteTrace) -> None:
    assert len(message(trace(["x"] * 50)).splitlines()) == 11


def test_good_requests_before_a_bad_line_are_still_given(trace: WriteTrace) -> None:
    requests = opened(trace([row(), row(), "x", row()])).requests()
    assert [next(requests).request_id for _ in range(2)] == ["0000001", "0000002"]
    with pytest.raises(KvsimError, match="line 3: not JSON"):
        next(requests)


def test_a_wrong_first_line_is_found_when_opening(trace: WriteTrace) -> None:
    with pytest.raises(KvsimError, match="line 1: not JSON"):
        opened(trace(["x"]))


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
