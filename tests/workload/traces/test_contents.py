"""Partial last ids: what is shared inside them, as recorded and at most."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.content import Content
from kvsim.workload.analysis import ideal_hit_tokens
from kvsim.workload.request import Request
from kvsim.workload.traces import TraceOptions, open_trace_file
from kvsim.workload.traces.contents import SharedTails, TraceUids

CONVERSATION = Path(__file__).parents[3] / "scenarios/traces/mooncake_conversation.jsonl.gz"
BLOCK = 10


def prompt(ids: list[int], num_tokens: int, number: int = 0) -> Request:
    own_uid = 2**34 + number
    content = TraceUids().content(ids, num_tokens, BLOCK, own_uid)
    return Request(str(number), 0.0, content, num_tokens, 1, own_uid)


def shared(*prompts: tuple[list[int], int]) -> list[Request]:
    requests = [prompt(ids, length, n) for n, (ids, length) in enumerate(prompts)]
    tails = SharedTails(BLOCK, requests)
    return [replace(request, content=tails.content(request)) for request in requests]


def common_tokens(one: Request, other: Request) -> int:
    """Tokens with which both begin, token by token."""
    tokens = []
    for request in (one, other):
        spans = request.content.spans()
        tokens.append([uid for uid, length in spans for _ in range(length)])
    alike = [a == b for a, b in zip(*tokens, strict=False)]
    return alike.index(False) if False in alike else len(alike)


def test_contents_from_ids() -> None:
    uids = TraceUids()
    assert uids.content([1, 2], 20, 10, 99).spans() == [(1, 10), (2, 10)]
    assert uids.content([1, 2], 13, 10, 99).spans() == [(1, 10), (2, 3)]
    assert uids.content([1, 2], 25, 10, 99).spans() == [(1, 10), (2, 10), (99, 5)]
    assert uids.content([1, 2, 3], 15, 10, 99).spans() == [(1, 10), (2, 5)]
    assert (
        uids.content([], 15, 10, 99).spans() == uids.content(None, 15, 10, 99).spans() == [(99, 15)]
    )
    assert uids.content([1, 2], 8, 4, 99).spans() == [(1, 4), (2, 4)]


def test_a_growing_conversation_shares_its_tail() -> None:
    turn, next_turn = shared(([1, 2], 14), ([1, 3, 4], 27))
    assert common_tokens(turn, next_turn) == 14
    # The conversation goes on where it was, also when id 3 comes again.
    again = shared(([1, 2], 14), ([1, 3, 4], 27), ([1, 3, 5, 6], 33))
    assert common_tokens(again[1], again[2]) == 27
    assert common_tokens(again[0], again[2]) == 14


def test_the_order_of_arrival_does_not_matter() -> None:
    longer, shorter = shared(([1, 3, 4], 27), ([1, 2], 14))
    assert common_tokens(longer, shorter) == 14


def test_the_longest_tail_behind_the_same_ids_counts() -> None:
    one, two, whole, other = shared(([1, 2], 12), ([1, 3], 17), ([1, 4], 20), ([1, 5, 6], 29))
    assert common_tokens(one, two) == common_tokens(one, whole) == 12
    assert common_tokens(two, whole) == common_tokens(two, other) == 17
    assert common_tokens(whole, other) == 17  # and not 20: their ids differ


def test_what_stays_apart() -> None:
    # Prompts without a whole id in common, and whole ids that nobody ends in.
    assert common_tokens(*shared(([1], 4), ([2, 3], 15))) == 0
    assert common_tokens(*shared(([1, 2], 20), ([1, 3], 20))) == 10
    # The end of a prompt at the end of an id is no tail.
    assert common_tokens(*shared(([1], 10), ([1, 3], 14))) == 10


def test_an_end_without_an_id_is_a_tail() -> None:
    first, later = shared(([1], 16), ([1, 3], 25))
    assert common_tokens(first, later) == 16


def test_a_tail_inside_a_long_span() -> None:
    one = Request("0", 0.0, Content.from_spans([(5, 30), (90, 4)]), 34, 1, 90)
    two = Request("1", 0.0, Content.from_spans([(5, 60), (91, 2)]), 62, 1, 91)
    tails = SharedTails(BLOCK, [one, two])
    first, second = (replace(r, content=tails.content(r)) for r in (one, two))
    assert common_tokens(first, second) == 34
    assert second.content.spans()[0] == (5, 30)
    assert [length for _, length in second.content.spans()] == [30, 4, 26, 2]


@st.composite
def prompts(draw: st.DrawFn) -> list[tuple[list[int], int]]:
    found: list[tuple[list[int], int]] = []
    fresh = 1
    for _ in range(draw(st.integers(1, 12))):
        ids: list[int] = []
        if found and draw(st.booleans()):
            earlier, length = draw(st.sampled_from(found))
            ids = earlier[: draw(st.integers(0, length // BLOCK))]
        num_new = draw(st.integers(1, 3))
        ids = [*ids, *range(fresh, fresh + num_new)]
        fresh += num_new
        found.append((ids, BLOCK * (len(ids) - 1) + draw(st.integers(1, BLOCK))))
    return found


@settings(max_examples=100, deadline=None)
@given(prompts())
def test_the_rule_holds_for_every_pair(found: list[tuple[list[int], int]]) -> None:
    recorded = [prompt(ids, length, n) for n, (ids, length) in enumerate(found)]
    applied = shared(*found)
    for request, before in zip(applied, recorded, strict=True):
        assert request.content.num_tokens == before.content.num_tokens
        assert all(a < b for a, b in pairwise([0, *request.content.ends.tolist()]))
    for one, (ids, length) in enumerate(found):
        for other, (other_ids, other_length) in enumerate(found):
            alike = 0
            while alike < min(len(ids), len(other_ids)) and ids[alike] == other_ids[alike]:
                alike += 1
            lower = min(alike * BLOCK, length, other_length)
            now = common_tokens(applied[one], applied[other])
            assert now >= lower
            ends_here = alike == len(ids) - 1 and alike and length < other_length and length % BLOCK
            if ends_here:
                assert now == length
            if not alike:
                assert now == 0
            # Different whole ids stay different.
            if alike and min(length, other_length) >= (alike + 1) * BLOCK:
                assert one == other or alike == len(ids) or now < (alike + 1) * BLOCK


def test_both_bounds_of_the_bundled_trace() -> None:
    found = []
    for shared_tails in (False, True):
        trace = open_trace_file(CONVERSATION, TraceOptions(shared_tails=shared_tails))
        hit_tokens, num_tokens = ideal_hit_tokens(trace.requests())
        assert num_tokens == 144_793_823
        found.append(round(hit_tokens / num_tokens, 4))
    assert found == [0.3736, 0.4055]


def test_shared_tails_are_the_same_in_every_pass(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 20, "output_length": 1, "hash_ids": [1, 2]},
        {"timestamp": 1, "input_length": 40, "output_length": 1, "hash_ids": [1, 3, 4]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    trace = open_trace_file(path, TraceOptions(shared_tails=True))
    passes = [[r.content.spans() for r in trace.requests()] for _ in range(2)]
    assert passes[0] == passes[1]
    assert passes[0][0][0] == (1, 16)
    assert passes[0][0][1] == passes[0][1][1] == (passes[0][0][1][0], 4)


@pytest.mark.parametrize("content_id", [2**33, 2**63, 2**70])
def test_large_ids_are_numbered(content_id: int) -> None:
    uids = TraceUids()
    assert uids.of(content_id) == uids.of(content_id) == 2**33
    assert uids.of(content_id + 1) == 2**33 + 1
    assert uids.of(5) == 5
