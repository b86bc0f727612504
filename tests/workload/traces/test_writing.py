"""Traces written, and made from others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvsim.cache.content import Content
from kvsim.errors import KvsimError
from kvsim.workload.analysis import TraceBlocks
from kvsim.workload.request import Request
from kvsim.workload.traces import TraceOptions, open_trace_file
from kvsim.workload.traces.editing import merged, sampled
from kvsim.workload.traces.writing import BlockIds, write_mooncake

CONVERSATION = Path(__file__).parents[3] / "scenarios/traces/mooncake_conversation.jsonl.gz"


def request(
    spans: list[tuple[int, int]], number: int = 0, at_s: float = 0.0, session: str | None = None
) -> Request:
    content = Content.from_spans(spans)
    return Request(str(number), at_s, content, content.num_tokens, 3, 900 + number, session)


def conversation(limit: int | None = None) -> Iterator[Request]:
    return open_trace_file(CONVERSATION, TraceOptions(limit=limit)).requests()


def test_blocks_are_numbered_as_they_come() -> None:
    ids = BlockIds()
    assert ids.of_prompt(request([(7, 12), (8, 4)]), 4) == [0, 1, 2, 3]
    assert ids.of_prompt(request([(7, 20)]), 4) == [0, 1, 2, 4, 5]
    # A block belongs to the span of its last token; a tail to those alike.
    assert ids.of_prompt(request([(7, 6), (9, 3)]), 4) == [0, 6, 7]
    assert ids.of_prompt(request([(7, 6), (9, 3)]), 4) == [0, 6, 7]
    assert ids.of_prompt(request([(7, 6), (9, 2)]), 4) == [0, 6]
    assert ids.of_prompt(request([(7, 28)]), 4) == [0, 1, 2, 4, 5, 8, 9]


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_what_is_written_is_read_again(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"copy.{ending}"
    assert write_mooncake(path, conversation(500), 512) == 500
    trace = open_trace_file(path, TraceOptions())
    assert (trace.format, trace.block_tokens) == ("mooncake", 512)
    for before, after in zip(conversation(500), trace.requests(), strict=True):
        assert before.arrival_s == pytest.approx(after.arrival_s, abs=1e-9)
        assert before.num_prompt_tokens == after.num_prompt_tokens
        assert before.num_output_tokens == after.num_output_tokens
    curves = [
        TraceBlocks.from_requests(requests, 512).lru_curve().token_hit_rates.tolist()
        for requests in (conversation(500), open_trace_file(path, TraceOptions()).requests())
    ]
    assert curves[0] == curves[1]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_sessions_are_written(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    requests = [request([(1, 40)], 0, 0.5, "a"), request([(2, 40)], 1, 0.75)]
    write_mooncake(path, requests, 16)
    assert path.read_text() == (
        '{"timestamp":500,"input_length":40,"output_length":3,"hash_ids":[0,1,2],"session_id":"a"}\n'
        '{"timestamp":750,"input_length":40,"output_length":3,"hash_ids":[3,4,5]}\n'
    )


def test_the_same_trace_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_mooncake(tmp_path / name, conversation(50), 512)
    first, second = ((tmp_path / name).read_bytes() for name in ("a.jsonl.gz", "b.jsonl.gz"))
    assert first == second


def test_places_that_cannot_be_written_to(tmp_path: Path) -> None:
    def message(path: Path) -> str:
        with pytest.raises(KvsimError) as caught:
            write_mooncake(path, conversation(5), 512)
        return str(caught.value).replace(str(path), "out")

    assert message(tmp_path / "trace.csv") == (
        "out: 1 problem\n  is no name for a trace. Let it end in one of .jsonl, .jsonl.gz, "
        ".jsonl.zst, .parquet."
    )
    there = tmp_path / "there.jsonl"
    there.write_text("x")
    assert message(there) == (
        "out: 1 problem\n  is there already. Remove it, or choose another name."
    )
    assert there.read_text() == "x"
    assert message(tmp_path / "gone" / "t.jsonl") == (
        "out: 1 problem\n  cannot be written: No such file or directory. Choose another place."
    )


def test_nothing_is_left_of_a_trace_that_turns_out_bad(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    row = '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n'
    bad.write_text(row + "x\n")
    with pytest.raises(KvsimError, match="line 2: not JSON"):
        write_mooncake(tmp_path / "out.jsonl", open_trace_file(bad, TraceOptions()).requests(), 512)
    assert [file.name for file in tmp_path.iterdir()] == ["bad.jsonl"]


def test_samples_keep_sessions_whole_and_grow() -> None:
    requests = [request([(1, 4)], n, n, f"s{n % 100}") for n in range(1000)]
    small, large = (list(sampled(requests, share, 1)) for share in (0.2, 0.5))
    assert {r.session_id for r in small} < {r.session_id for r in large}
    assert all(sum(r.session_id == s for r in large) == 10 for s in {r.session_id for r in large})
    assert 35 <= len({r.session_id for r in large}) <= 65
    assert list(sampled(requests, 1.0, 1)) == requests
    assert [r.request_id for r in sampled(requests, 0.2, 2)] != [r.request_id for r in small]
    singles = [request([(1, 4)], n) for n in range(1000)]
    assert 150 < len(list(sampled(singles, 0.2, 1))) < 250


def test_merged_traces_share_nothing_and_stay_in_order() -> None:
    one = [request([(1, 8), (2, 8)], n, float(n), "a") for n in range(3)]
    two = [request([(1, 8), (2, 8)], n, n + 0.5) for n in range(3)]
    found = list(merged([iter(one), iter(two)]))
    assert [r.arrival_s for r in found] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert [r.session_id for r in found[:2]] == ["1-a", None]
    uids = [set(r.content.uids.tolist()) for r in found]
    assert uids[0] == uids[2] == uids[4]
    assert not uids[0] & uids[1]
    assert len({r.output_uid for r in found}) == 6
    blocks = TraceBlocks.from_requests(found, 8)
    assert blocks.ideal_token_hit_rate() == pytest.approx(4 / 6)
