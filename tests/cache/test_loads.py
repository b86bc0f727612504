from __future__ import annotations

import numpy as np
import pytest

from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.manager import KVCache, Sequence
from kvsim.cache.spec import GroupSpec

HYBRID = (GroupSpec("full", 16), GroupSpec("sliding_window", 16, 40))


def cache_of(num_blocks: int, groups: tuple[GroupSpec, ...] = HYBRID) -> KVCache:
    return KVCache(
        CacheConfig(
            num_blocks=num_blocks, groups=groups, max_model_len=1024, max_in_flight_tokens=512
        )
    )


def sequence(*spans: tuple[int, int]) -> Sequence:
    content = Content.from_spans(spans)
    return Sequence(content, content.num_tokens)


def compute(cache: KVCache, *spans: tuple[int, int]) -> Sequence:
    one = sequence(*spans)
    hit = cache.lookup(one)
    assert cache.allocate(one, one.content.num_tokens - hit.tokens, hit=hit)
    return one


def test_positions_the_window_will_have_left_get_no_block() -> None:
    cache = cache_of(100)
    one = sequence((1, 160))
    assert cache.allocate_load(one, cache.lookup(one), 128)
    assert cache.block_table(one, 0).tolist() == list(range(1, 9))
    # 128 tokens leave a window of 40 with everything before 128 - 39 = 89: five whole blocks.
    assert cache.block_table(one, 1).tolist() == [0] * 5 + [9, 10, 11]
    assert cache.num_computed(one) == 128
    assert cache.num_free == 99 - 11


def test_a_local_hit_is_held_as_far_as_the_window_reaches() -> None:
    cache = cache_of(100)
    cache.free(compute(cache, (1, 64), (2, 7)))
    one = sequence((1, 64), (3, 96))
    hit = cache.lookup(one)
    assert hit.tokens == 64
    assert cache.allocate_load(one, hit, 16)
    assert cache.block_table(one, 0)[:4].tolist() == [1, 2, 3, 4]
    # Of 80 tokens the window keeps those from 41 on: block 3 and 4 of the hit, and a new one.
    table = cache.block_table(one, 1).tolist()
    assert table[:2] == [0, 0]
    assert table[2:4] == [8, 9]
    assert len(table) == 5


def test_all_hits_are_held_before_any_block_is_taken() -> None:
    """The first group's new blocks must not be the second group's hit."""
    cache = cache_of(1 + 14)
    cache.free(compute(cache, (1, 64), (2, 1)))  # four blocks each are cached, two not
    one = sequence((1, 64), (3, 64))
    hit = cache.lookup(one)
    assert hit.tokens == 64
    assert cache.allocate_load(one, hit, 32)
    full, window = cache.block_table(one, 0).tolist(), cache.block_table(one, 1).tolist()
    held = [block for block in full + window if block]
    assert len(set(held)) == len(held)
    assert full[:4] == [1, 2, 3, 4]
    assert window[3] == 9


def test_blocks_are_cached_when_the_load_has_arrived() -> None:
    cache = cache_of(100)
    one = sequence((1, 160))
    assert cache.allocate_load(one, cache.lookup(one), 128)
    assert cache.num_cached == 0
    assert cache.lookup(sequence((1, 160))).tokens == 0
    cache.load_arrived(one)
    assert cache.num_cached == 8 + 3
    assert cache.lookup(sequence((1, 160))).tokens == 128


def test_the_last_token_of_a_whole_prompt_is_computed_again() -> None:
    cache = cache_of(100, (GroupSpec("full", 16),))
    one = sequence((1, 64))
    assert cache.allocate_load(one, cache.lookup(one), 64)
    cache.load_arrived(one)
    assert cache.num_computed(one) == 63
    assert cache.num_cached == 4
    assert cache.allocate(one, 1)
    assert cache.num_free == 99 - 4


@pytest.mark.parametrize(("num_reserved", "fits"), [(0, True), (2, True), (3, False)])
def test_a_load_leaves_reserved_blocks_free(num_reserved: int, fits: bool) -> None:
    cache = cache_of(1 + 6, (GroupSpec("full", 16),))
    one = sequence((1, 64))
    assert cache.allocate_load(one, cache.lookup(one), 64, num_reserved=num_reserved) == fits
    assert cache.num_free == (2 if fits else 6)
    assert (one.slot >= 0) == fits


def test_a_load_needs_room_for_the_whole_sequence() -> None:
    cache = cache_of(1 + 6, (GroupSpec("full", 16),))
    one = sequence((1, 32), (2, 80))
    assert not cache.allocate_load(one, cache.lookup(one), 32)
    assert cache.num_free == 6


def test_blocks_left() -> None:
    cache = cache_of(100)
    one = sequence((1, 160))
    assert cache.allocate_load(one, cache.lookup(one), 128)
    # Ten blocks each, of which eight positions each are covered.
    nobody = np.array([], dtype=np.int64)
    assert cache.num_blocks_left(np.array([one.slot]), np.array([128])) == 2 + 2
    assert cache.num_blocks_left(nobody, nobody) == 0


def test_windows_are_left_before_the_rest_is_given_back() -> None:
    cache = cache_of(1 + 12)
    one = compute(cache, (1, 96))
    cache.leave_windows(one)
    # 96 tokens leave blocks 1 to 3 of the window group: 7, 8, 9, newest first.
    assert cache.free_queue().tolist() == [9, 8, 7]
    cache.free(one)
    assert cache.free_queue().tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 12, 11, 10]


def test_what_cannot_be_loaded() -> None:
    cache = cache_of(100)
    one = sequence((1, 64))
    hit = cache.lookup(one)
    with pytest.raises(ValueError, match=r"^0 tokens to be loaded are below 1$"):
        cache.allocate_load(one, hit, 0)
    assert cache.allocate_load(one, hit, 16)
    with pytest.raises(ValueError, match=r"^only a sequence that holds nothing can be loaded$"):
        cache.allocate_load(one, hit, 16)
    cache.free(one)
    small = cache_of(1 + 5, (GroupSpec("full", 16),))
    small.free(compute(small, (1, 64)))
    two = sequence((1, 64), (2, 16))
    stale = small.lookup(two)
    assert stale.tokens == 64
    small.free(compute(small, (9, 80)))
    with pytest.raises(ValueError, match=r"^the hit no longer holds: blocks of it were evicted"):
        small.allocate_load(two, stale, 16)
    assert two.slot < 0
