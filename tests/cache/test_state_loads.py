"""Loads into a cache with groups of states: one block a group of states, and what is offered."""

from __future__ import annotations

import pytest

from kvsim.cache.config import CacheConfig
from kvsim.cache.manager import KVCache
from kvsim.cache.spec import GroupSpec
from tests.cache.test_loads import sequence

STATES = GroupSpec("mamba", 16, checkpoint_alignment=1)
GROUPS = (STATES, STATES, GroupSpec("full", 16))


def cache_of(num_blocks: int, groups: tuple[GroupSpec, ...] = GROUPS, unit: int = 16) -> KVCache:
    cache = KVCache(
        CacheConfig(
            num_blocks=num_blocks,
            groups=groups,
            max_model_len=1024,
            max_in_flight_tokens=256,
            prefix_match_unit=unit,
        )
    )
    cache.offer_states()
    cache.begin_step()
    return cache


def test_a_load_takes_one_block_for_a_group_of_states() -> None:
    cache = cache_of(100)
    one = sequence((1, 100))
    assert cache.allocate_load(one, cache.lookup(one), 96)
    assert cache.num_free == 99 - 2 - 6
    # Each group's table in turn; the nulls before the state are no blocks.
    assert cache.block_table(one, 0).tolist() == [0, 0, 0, 0, 0, 1]
    assert cache.block_table(one, 2).tolist() == [3, 4, 5, 6, 7, 8]
    assert cache.take_offers() == []
    cache.load_arrived(one)
    assert cache.take_offers() == [(one.slot, 0, 1, 96), (one.slot, 1, 2, 96)]
    assert cache.num_cached == 8


def test_drafts_have_blocks_from_the_load_on() -> None:
    groups = (GroupSpec("mamba", 16, num_drafts=2), GroupSpec("full", 16))
    cache = cache_of(100, groups)
    one = sequence((1, 100))
    assert cache.allocate_load(one, cache.lookup(one), 96)
    assert cache.block_table(one, 0).tolist() == [0, 0, 0, 0, 0, 1, 8, 9]


def test_the_local_state_is_left_where_it_is() -> None:
    cache = cache_of(100)
    before = sequence((1, 65))
    assert cache.allocate(before, 64, hit=cache.lookup(before))
    cache.free(before)
    cache.begin_step()
    one = sequence((1, 65), (2, 40))
    hit = cache.lookup(one)
    assert hit.tokens == 64
    free = cache.num_free
    assert cache.allocate_load(one, hit, 32)
    # Four blocks of full attention are taken along, two are new; and a state in either group.
    assert cache.num_free == free - 4 - 2 - 2
    assert cache.block_table(one, 0).tolist()[:5] == [0] * 5


@pytest.mark.parametrize(("num_blocks", "fits"), [(1 + 6 + 2 + 2, True), (1 + 6 + 2, False)])
def test_a_load_needs_room_for_the_whole_sequence(num_blocks: int, fits: bool) -> None:
    """All of full attention's blocks, and of a group of states the last and an exported one."""
    cache = cache_of(num_blocks)
    one = sequence((1, 96))
    assert cache.allocate_load(one, cache.lookup(one), 16) == fits
    assert cache.num_free == num_blocks - 1 - (3 if fits else 0)


def test_offers_of_who_is_gone_are_dropped() -> None:
    cache = cache_of(100)
    one, other = sequence((1, 33)), sequence((2, 33))
    for each in (one, other):
        assert cache.allocate(each, 32, hit=cache.lookup(each))
    cache.free(one)
    # In either group the state after 32 tokens, and one that the chunk exports after 16.
    offers = [(slot, group, tokens) for slot, group, _, tokens in cache.take_offers()]
    ends = [(group, tokens) for group in (0, 1) for tokens in (16, 32)]
    assert offers == [(other.slot, *end) for end in ends]
    assert cache.take_offers() == []


def test_a_cache_without_a_connector_offers_nothing() -> None:
    cache = KVCache(
        CacheConfig(num_blocks=20, groups=GROUPS, max_model_len=1024, max_in_flight_tokens=256)
    )
    cache.begin_step()
    one = sequence((1, 33))
    assert cache.allocate(one, 32, hit=cache.lookup(one))
    assert cache.take_offers() == []
