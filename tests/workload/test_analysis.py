"""Reuse and hit rates by capacity, against slow caches, published figures, and an outside tool."""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.content import Content
from kvsim.workload.analysis import TraceBlocks, ideal_hit_tokens
from kvsim.workload.request import Request, Session
from kvsim.workload.sessions import in_open_loop, with_starts
from kvsim.workload.traces import TraceOptions, open_trace_file

SHARED = Path(__file__).parents[3] / "shared"
BUNDLED = Path(__file__).parents[2] / "scenarios/traces"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared traces")
OWN_UID = 10**9


def request(spans: list[tuple[int, int]], number: int = 0, at_s: float = 0.0) -> Request:
    content = Content.from_spans(spans)
    return Request(f"{number}", at_s, content, content.num_tokens, 1, OWN_UID + number)


def ids_request(ids: list[int], num_tokens: int, number: int, block: int = 4) -> Request:
    lengths = [block] * (len(ids) - 1) + [num_tokens - block * (len(ids) - 1)]
    return request(list(zip(ids, lengths, strict=True)), number, float(number))


def slow_hit_tokens(
    prompts: list[tuple[list[int], int]], capacity: int, policy: str, block: int, first: int
) -> int:
    """The caches as the module describes them, block by block."""
    resident: OrderedDict[int, None] = OrderedDict()
    hit_tokens = 0
    for number, (ids, num_tokens) in enumerate(prompts):
        num_hit = 0
        while num_hit < len(ids) and ids[num_hit] in resident:
            num_hit += 1
        if number >= first:
            hit_tokens += min(num_hit * block, num_tokens)
        for block_id in reversed(ids) if policy == "lru" else ids:
            if block_id not in resident:
                resident[block_id] = None
                if len(resident) > capacity:
                    resident.popitem(last=False)
            elif policy == "lru":
                resident.move_to_end(block_id)
    return hit_tokens


@st.composite
def chained_prompts(draw: st.DrawFn) -> list[tuple[list[int], int]]:
    """Prompts whose ids form a tree: each goes some way along an earlier one, then on its own."""
    prompts: list[tuple[list[int], int]] = []
    fresh = 0
    for _ in range(draw(st.integers(1, 25))):
        ids: list[int] = []
        if prompts and draw(st.booleans()):
            earlier, length = draw(st.sampled_from(prompts))
            most = len(earlier) if length % 4 == 0 else len(earlier) - 1
            ids = earlier[: draw(st.integers(0, most))]
            if draw(st.integers(0, 3)) == 0:
                prompts.append((earlier, length))
                continue
        num_new = draw(st.integers(0 if ids else 1, 5))
        ids = ids + list(range(fresh, fresh + num_new))
        fresh += num_new
        tail = draw(st.integers(1, 4)) if num_new else 4
        prompts.append((ids, 4 * (len(ids) - 1) + tail))
    return prompts


@settings(max_examples=80, deadline=None)
@given(chained_prompts())
def test_all_capacities_are_as_slow_caches_find(prompts: list[tuple[list[int], int]]) -> None:
    blocks = TraceBlocks.from_requests(
        [ids_request(ids, length, n) for n, (ids, length) in enumerate(prompts)], 4
    )
    assert blocks.is_chained
    assert blocks.num_unique == len({block for ids, _ in prompts for block in ids})
    for window in ("all", "last-half"):
        first = blocks.first_measured(window)
        total = sum(length for _, length in prompts[first:])
        curve = blocks.lru_curve(window)
        for capacity in range(1, blocks.num_unique + 2):
            lru = slow_hit_tokens(prompts, capacity, "lru", 4, first) / total
            assert curve.token_hit_rate(capacity) == pytest.approx(lru, abs=1e-12)
            fifo = slow_hit_tokens(prompts, capacity, "fifo", 4, first) / total
            assert blocks.fifo_token_hit_rate(capacity, window) == pytest.approx(fifo, abs=1e-12)
        ideal = slow_hit_tokens(prompts, 10**9, "lru", 4, first) / total
        assert blocks.ideal_token_hit_rate(window) == pytest.approx(ideal, abs=1e-12)


def test_a_span_of_many_blocks_is_as_good_as_a_span_a_block() -> None:
    prompts = [([(1, 40)], 0), ([(1, 28), (2, 9)], 1), ([(1, 60)], 2), ([(1, 28), (2, 30)], 3)]
    by_span = TraceBlocks.from_requests([request(s, n, n) for s, n in prompts], 4)
    by_block = []
    for spans, number in prompts:
        cut, end = [], 0
        for uid, length in spans:
            cut += [(100 * uid + k, 4) for k in range(end // 4, (end + length) // 4)]
            end += length
        by_block.append(request(cut, number, number))
    expected = TraceBlocks.from_requests(by_block, 4)
    assert by_span.num_unique == expected.num_unique
    tokens = [
        blocks.lru_curve().token_hit_rates * blocks.num_tokens() for blocks in (by_span, expected)
    ]
    assert tokens[0].tolist() == pytest.approx(tokens[1].tolist())


def test_what_lies_behind_the_last_id_is_no_block() -> None:
    own = Request("0", 0.0, Content.from_spans([(1, 8), (OWN_UID, 3)]), 11, 1, OWN_UID)
    assert TraceBlocks.from_requests([own], 4).num_unique == 2
    with_id = Request("0", 0.0, Content.from_spans([(1, 8), (2, 3)]), 11, 1, OWN_UID)
    assert TraceBlocks.from_requests([with_id], 4).num_unique == 3


def test_reuse_times_single_use_and_working_sets() -> None:
    requests = [
        ids_request([1, 2, 3], 12, 0),
        ids_request([1, 2, 4], 12, 1),
        ids_request([5], 4, 2),
        ids_request([1], 4, 6),
    ]
    blocks = TraceBlocks.from_requests(requests, 4)
    assert blocks.num_single_use() == 3
    # Blocks 1 and 2 come again after 1 s, block 1 once more after 5 s.
    assert blocks.reuse_time_quantiles_s([0.5, 0.66, 0.67, 1.0]) == [1.0, 1.0, 5.0, 5.0]
    assert blocks.working_sets(2) == [(3.0, 5), (6.0, 1)]
    assert TraceBlocks.from_requests(requests[:1], 4).reuse_time_quantiles_s([0.5]) is None


def test_ids_that_follow_different_ids_are_noticed() -> None:
    requests = [ids_request([1, 2], 8, 0), ids_request([3, 2], 8, 1)]
    assert not TraceBlocks.from_requests(requests, 4).is_chained
    assert TraceBlocks.from_requests(requests[:1] * 2, 4).is_chained


def test_an_id_in_another_place_is_another() -> None:
    requests = [ids_request([3], 4, 0), ids_request([1, 2, 3], 12, 1), ids_request([3], 4, 2)]
    blocks = TraceBlocks.from_requests(requests, 4)
    assert not blocks.is_chained
    assert (blocks.num_unique, blocks.num_single_use()) == (4, 3)
    assert blocks.lru_curve().token_hit_rate(9) == pytest.approx(4 / 20)
    assert blocks.fifo_token_hit_rate(9) == pytest.approx(4 / 20)


def test_a_partial_block_is_found_as_far_as_it_was_seen() -> None:
    """Two prompts of 655 and 672 tokens in ids of 256: 655 tokens can be shared."""
    requests = [ids_request([0, 1, 2], length, n, 256) for n, length in enumerate((655, 672, 660))]
    total = 655 + 672 + 660
    blocks = TraceBlocks.from_requests(requests, 256)
    assert blocks.ideal_token_hit_rate() == pytest.approx((655 + 660) / total)
    assert blocks.fifo_token_hit_rate(9) == pytest.approx((655 + 660) / total)
    assert blocks.lru_curve().token_hit_rate(2) == pytest.approx((512 + 512) / total)
    assert ideal_hit_tokens(requests) == (655 + 660, total)


@st.composite
def conversations(draw: st.DrawFn) -> list[Request]:
    """Turns of a few sessions: what was said before, the answer to it, and something new."""
    said: dict[int, list[tuple[int, int]]] = {}
    requests = []
    for number in range(draw(st.integers(1, 12))):
        session = draw(st.integers(0, 2))
        new = (1000 + number, draw(st.integers(1, 9)))
        spans = [*said.get(session, [(session % 2, 7)]), new]
        num_tokens, num_output = sum(length for _, length in spans), draw(st.integers(1, 9))
        own = OWN_UID + number
        requests.append(
            Request(str(number), number, Content.from_spans(spans), num_tokens, num_output, own)
        )
        said[session] = [*spans, (own, num_output)]
    return requests


@settings(max_examples=60, deadline=None)
@given(conversations(), st.integers(1, 5))
def test_answers_that_come_back_are_found(requests: list[Request], block: int) -> None:
    """Against a list of tokens for each prompt and its answer, token by token and in blocks."""
    resident: list[list[int]] = []
    ideal = whole = 0
    for request in requests:
        spans = [*request.content.spans(), (request.output_uid, request.num_output_tokens)]
        tokens = [uid for uid, length in spans for _ in range(length)]
        prompt = tokens[: request.num_prompt_tokens]
        agreed = [
            next((n for n, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b), None)
            or min(len(prompt), len(other)) * (prompt[0] == other[0])
            for other in resident
        ]
        ideal += max(agreed, default=0)
        whole += max(agreed, default=0) // block * block
        resident.append(tokens)
    total = sum(request.num_prompt_tokens for request in requests)
    assert ideal_hit_tokens(requests) == (ideal, total)
    found = TraceBlocks.from_requests(requests, block)
    tails = total * found.ideal_token_hit_rate()
    # A last block that is not whole is found where its span is met again.
    assert whole - 1e-6 <= tails <= ideal + 1e-6
    largest = found.lru_curve().token_hit_rate(10**6)
    assert found.fifo_token_hit_rate(10**6) == pytest.approx(largest)
    assert found.ideal_token_hit_rate() == pytest.approx(largest)


def test_no_requests() -> None:
    blocks = TraceBlocks.from_requests([], 4)
    assert (blocks.num_requests, blocks.num_unique, blocks.ideal_token_hit_rate()) == (0, 0, 0.0)
    assert blocks.lru_curve().token_hit_rate(5) == 0.0
    assert blocks.working_sets(3) == []


def test_ideal_hits_may_end_at_any_token() -> None:
    requests = [request([(1, 10)], 0), request([(1, 7), (2, 9)], 1), request([(1, 99)], 2)]
    assert ideal_hit_tokens(requests) == (7 + 10, 10 + 16 + 99)
    assert ideal_hit_tokens(requests, first=2) == (10, 99)


TABLE = [
    # file, ideal, hit rates by LRU blocks; from the README of the traces
    ("mooncake_conversation", 0.3736, {10_000: 0.2157, 50_000: 0.3615, 200_000: 0.3736}),
    ("mooncake_synthetic", 0.6512, {10_000: 0.4318, 50_000: 0.6512, 200_000: 0.6512}),
    ("weka_claude_code_710", 0.9632, {10_000: 0.1729, 50_000: 0.7814, 200_000: 0.9534}),
    ("mini_swe_agent", 0.9342, {1_000: 0.782, 10_000: 0.9342}),
]


@cache
def claude_code_sessions() -> list[Session]:
    path = SHARED / "traces/weka_claude_code_710.jsonl.gz"
    return list(open_trace_file(path, TraceOptions()).sessions())


def shared_blocks(name: str, starts: str | None = None) -> TraceBlocks:
    if starts is not None:
        sessions = with_starts(claude_code_sessions(), starts, 0, name)
        return TraceBlocks.from_requests(in_open_loop(sessions), 64)
    trace = open_trace_file(SHARED / f"traces/{name}.jsonl.gz", TraceOptions())
    assert trace.block_tokens is not None
    return TraceBlocks.from_requests(trace.requests(), trace.block_tokens)


@needs_shared
@pytest.mark.parametrize(("name", "ideal", "by_blocks"), TABLE, ids=[row[0] for row in TABLE])
def test_the_published_table(name: str, ideal: float, by_blocks: dict[int, float]) -> None:
    blocks = shared_blocks(name, "uniform(span_s=12 h)" if name.startswith("weka") else None)
    assert blocks.is_chained
    assert round(blocks.ideal_token_hit_rate(), 4) == ideal
    curve = blocks.lru_curve()
    digits = 3 if name == "mini_swe_agent" else 4
    assert {size: round(curve.token_hit_rate(size), 4) for size in by_blocks} == pytest.approx(
        by_blocks, abs=0.51 * 10**-digits if digits == 3 else 1e-9
    )


@needs_shared
def test_claude_code_when_all_sessions_start_together() -> None:
    curve = shared_blocks("weka_claude_code_710", "together").lru_curve()
    assert round(curve.token_hit_rate(50_000), 3) == 0.257


P8_P9 = {
    # percent of tokens at 1638, 6553, 13107, 26214 and unlimited blocks, last half
    "conversation": ([5.2, 15.3, 25.0, 33.0, 39.8], [5.1, 14.3, 21.6, 29.0, 39.8]),
    "synthetic": ([19.6, 48.8, 67.7, 82.6, 86.3], [18.8, 45.6, 63.9, 76.7, 86.3]),
}


@needs_shared
@pytest.mark.parametrize("name", P8_P9)
def test_published_figures_p8_and_p9(name: str) -> None:
    blocks = shared_blocks(f"mooncake_{name}")
    sizes = [1638, 6553, 13107, 26214, 10**9]
    for policy, published in zip(("lru", "fifo"), P8_P9[name], strict=True):
        rates = blocks.token_hit_rates(policy, sizes, "last-half")  # type: ignore[arg-type]
        assert [round(100 * rate, 1) for rate in rates] == published


@needs_shared
@pytest.mark.parametrize("name", P8_P9)
def test_an_outside_tool_counts_the_same_tokens(name: str) -> None:
    """Every capacity of kvcache-simulator 0.1.3 that holds the longest prompt."""
    facts = json.loads((SHARED / f"facts/{name}.kvcache-simulator-0.1.3.json").read_text())
    blocks = shared_blocks(f"mooncake_{name}")
    longest = int(np.ceil(blocks.prompt_tokens.max() / 512))
    curve = blocks.lru_curve("last-half")
    compared = 0
    for point in facts["points"]:
        size, results = point["cacheBlocks"], point["results"]
        if size < longest:
            continue
        found = {
            "lru": curve.token_hit_rate(size),
            "fifo": blocks.fifo_token_hit_rate(size, "last-half"),
        }
        for policy, rate in found.items():
            assert rate == pytest.approx(results[policy]["hitRate"], abs=1e-12), (size, policy)
            compared += 1
    assert compared >= 10
    ideal = blocks.ideal_token_hit_rate("last-half")
    assert ideal == pytest.approx(facts["hitRateCeiling"], abs=1e-12)


def test_the_bundled_conversation_trace() -> None:
    trace = open_trace_file(BUNDLED / "mooncake_conversation.jsonl.gz", TraceOptions())
    blocks = TraceBlocks.from_requests(trace.requests(), 512)
    assert round(blocks.ideal_token_hit_rate(), 4) == 0.3736
    assert round(blocks.lru_curve().token_hit_rate(10_000), 4) == 0.2157
