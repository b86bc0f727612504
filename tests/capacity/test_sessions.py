"""Closed forms of what stays cached, against known answers and against the cache itself."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvsim import catalog
from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.manager import Hit, KVCache, Sequence
from kvsim.capacity.memory import derive_num_blocks, group_spec
from kvsim.capacity.requests import blocks_of_request, fits, longest_in_pool
from kvsim.capacity.sessions import (
    Caching,
    blocks_for_sessions,
    hits_of,
    session_blocks,
    sessions_cached,
)
from kvsim.catalog import KVGroup, Model

PRO = catalog.model("deepseek-v4-pro")


def caching(interval: int | None, unit: int = 256, *, reuses: bool = True) -> Caching:
    return Caching(unit, interval, reuses, 8192, 8192)


@pytest.mark.parametrize(
    ("interval", "bounds"), [(None, (2, 2)), (4096, (11, 12)), (32_768, (22, 23)), (0, (26, 27))]
)
def test_a7_long_prompts_that_stay(interval: int | None, bounds: tuple[int, int]) -> None:
    """Recorded: dense 2 and not 3; 4096: 10, not 12; 32768: 22, not 23; 0: 26, not 27."""
    assert sessions_cached(PRO, caching(interval), 108_025, 1_000_000) == bounds


def test_a7_before_retention_every_block_taken_pushes_one_out() -> None:
    """So after a second request of 1M tokens the first misses, as vLLM #43447 says."""
    assert sessions_cached(PRO, caching(None, reuses=False), 108_025, 1_000_000)[0] == 1


def test_eight_prompts_of_44k_on_two_h200_before_and_after_retention() -> None:
    """vLLM #42948: a second pass over 8 (16) prompts hit nothing before, 90 (87) % after."""
    flash = catalog.model("deepseek-v4-flash")
    num_blocks = derive_num_blocks(flash, catalog.gpu("h200"), 2, 0.9).num_blocks
    before = sessions_cached(flash, caching(None, reuses=False), num_blocks, 44_250)
    assert before[1] < 8  # a cycle longer than what stays finds nothing
    for interval in (0, 4096):
        assert sessions_cached(flash, caching(interval), num_blocks, 44_250)[0] >= 16


@pytest.mark.parametrize(
    ("interval", "branch"), [(None, 499_968), (4096, 499_712), (32_768, 491_520), (0, 0)]
)
def test_a8_a_branch_in_the_middle(interval: int | None, branch: int) -> None:
    hits = hits_of(PRO, caching(interval), 1_000_000, 1)
    assert (hits.resend, hits.branch, hits.branch_tokens) == (999_936, branch, 500_000)


def test_the_inverse_is_the_fewest_blocks() -> None:
    for interval in (None, 4096, 0):
        blocks = blocks_for_sessions(PRO, caching(interval), 20, 300_000)
        assert sessions_cached(PRO, caching(interval), blocks, 300_000)[0] >= 20
        assert sessions_cached(PRO, caching(interval), blocks - 1, 300_000)[0] < 20


def test_a_next_turn_goes_on_from_what_the_interval_keeps() -> None:
    turns = [hits_of(PRO, caching(x), 10_000, 6_000).next_turn for x in (None, 4096, 0)]
    assert turns == [15_872, 12_288, 9_984]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Model, int, int, int | None, int]:
    sizes = draw(st.sampled_from([(16,), (16, 16), (32, 16), (16, 8, 4), (64, 16, 4)]))
    groups = [KVGroup("full", sizes[0])]
    for size in sizes[1:]:
        groups.append(KVGroup("sliding_window", size, draw(st.sampled_from([size * 2, 33, 100]))))
    groups = list(draw(st.permutations(groups)))
    unit = sizes[0]
    interval = None
    if len(groups) > 1:
        interval = draw(st.sampled_from([None, 0, unit * 4, unit * 16]))
    tokens = draw(st.integers(unit * 4, 1500))
    return Model("random", tuple(groups)), unit, tokens, interval, draw(st.integers(300, 4000))


@settings(max_examples=40, deadline=None)
@given(cases())
def test_the_bounds_hold_in_the_cache(case: tuple[Model, int, int, int | None, int]) -> None:
    model, unit, tokens, interval, num_blocks = case
    how = Caching(unit, interval, True, 256, 256)
    assume(fits(model, num_blocks, tokens, 256))
    least, most = sessions_cached(model, how, num_blocks, tokens)
    assume(least >= 1 and most < 60)
    whole = hits_of(model, how, tokens, 1).resend
    assert found_after(model, num_blocks, tokens, interval, least) == whole
    assert found_after(model, num_blocks, tokens, interval, most + 1) < whole


def found_after(
    model: Model, num_blocks: int, tokens: int, interval: int | None, sessions: int
) -> int:
    """Tokens of the first of so many prompts that are found when it comes again."""
    cache = KVCache(
        CacheConfig(
            num_blocks=num_blocks,
            groups=tuple(group_spec(group) for group in model.groups),
            max_model_len=4096,
            max_in_flight_tokens=256,
            retention_interval=interval,
        )
    )
    found = 0
    for uid in (*range(sessions), 0):
        content = Content.from_spans([(uid, tokens)])
        sequence = Sequence(content, tokens)
        hit = cache.lookup(sequence)
        first: Hit | None = hit
        found = done = hit.tokens
        while done < tokens:
            step = min(256, tokens - done)
            assert cache.allocate(sequence, step, hit=first, full_fit=first is not None)
            first, done = None, done + step
        cache.free(sequence)
    return found


def test_blocks_of_a_request_and_the_longest_that_fits() -> None:
    model = Model("two", (KVGroup("full", 16), KVGroup("sliding_window", 16, 128)))
    assert blocks_of_request(model, 4096, 512) == (256, 41)
    longest = longest_in_pool(model, 200, 4096, 512)
    assert fits(model, 200, longest, 512)
    assert not fits(model, 200, longest + 1, 512)
    assert longest_in_pool(model, 2, 4096, 512) == 0


def test_states_are_kept_where_chunks_end() -> None:
    model = catalog.model("qwen3-next-80b-a3b")
    how = Caching(576, 0, True, 8192, 8192)
    left = session_blocks(model, how, 65_536)
    assert left.left == 65_536 // 576 + 3
    assert hits_of(model, how, 65_536, 1).resend == 65_535 // 576 * 576
