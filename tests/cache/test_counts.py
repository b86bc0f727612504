"""What the pool counts as it goes: free cached blocks, cached and evicted blocks by group."""

from __future__ import annotations

import numpy as np

from kvsim.cache.config import CacheConfig
from kvsim.cache.content import GROUP_BITS, Content
from kvsim.cache.manager import KVCache, Sequence
from kvsim.cache.spec import GroupSpec


def counts_again(cache: KVCache) -> tuple[int, list[int]]:
    """Free cached blocks and cached blocks by group, counted block by block."""
    blocks = cache.core.pool.blocks
    cached = blocks[blocks["key"] != 0]
    groups = cached["key"] & ((1 << GROUP_BITS) - 1)
    by_group = np.bincount(groups, minlength=len(cache.config.groups)).tolist()
    return int((cached["num_refs"] == 0).sum()), by_group


def test_counts_are_those_of_the_blocks() -> None:
    groups = (GroupSpec("full", 16), GroupSpec("sliding_window", 4, sliding_window=16))
    cache = KVCache(
        CacheConfig(
            num_blocks=200,
            groups=groups,
            max_model_len=4096,
            max_in_flight_tokens=256,
            retention_interval=None,
        )
    )
    random = np.random.default_rng(5)
    held: list[Sequence] = []
    for _ in range(400):
        if len(held) > 2:
            cache.free(held.pop(int(random.integers(len(held)))))
        name, tokens = int(random.integers(6)), int(random.integers(20, 250))
        sequence = Sequence(Content.from_spans([(name, tokens)]), tokens)
        hit = cache.lookup(sequence)
        if cache.allocate(sequence, tokens - hit.tokens, hit=hit):
            held.append(sequence)
        assert (cache.num_free_cached, cache.num_cached_by_group) == counts_again(cache)
    evicted = np.array(cache.num_evicted_by_group)
    assert evicted.shape == (2, 2)
    assert evicted.sum() == cache.num_evicted > 500
    assert (evicted > 0).all()
    assert cache.num_free_cached > 0

    for sequence in held:
        cache.free(sequence)
    assert cache.num_free_cached == cache.num_cached
    assert cache.reset()
    assert (cache.num_free_cached, cache.num_cached_by_group) == (0, [0, 0])


def test_a_group_that_evicts_another() -> None:
    """Two prompts through a pool that holds one: full attention takes from full attention."""
    cache = KVCache(
        CacheConfig(
            num_blocks=6,
            groups=(GroupSpec("full", 16),),
            max_model_len=4096,
            max_in_flight_tokens=256,
        )
    )
    for name in (1, 2):
        sequence = Sequence(Content.from_spans([(name, 80)]), 80)
        assert cache.allocate(sequence, 80, hit=cache.lookup(sequence))
        cache.free(sequence)
    assert cache.num_evicted_by_group == [[5]]
    assert cache.num_cached_by_group == [5]
