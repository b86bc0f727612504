"""The fast core and the slow model side by side: the same is done to both, and all is compared."""

from __future__ import annotations

import numpy as np

from kvsim.cache.block_pool import find_block
from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.manager import KVCache, Sequence
from tests.slow_model.slow_cache import SlowCache


def slow_cache(config: CacheConfig) -> SlowCache:
    """The slow model of a fast core's configuration."""
    return SlowCache(
        num_blocks=config.num_blocks,
        groups=config.groups,
        max_model_len=config.max_model_len,
        max_in_flight_tokens=config.max_in_flight_tokens,
        retention_interval=config.retention_interval,
        enable_caching=config.enable_caching,
        use_eagle=config.use_eagle,
        key_lookahead_tokens=config.key_lookahead_tokens,
        profile=config.profile,
        free_queue=config.free_queue,
    )


class Twins:
    """Two caches of one configuration. Every operation compares answers, queue and cached set."""

    def __init__(self, config: CacheConfig) -> None:
        self.fast = KVCache(config)
        self.slow = slow_cache(config)
        self.sequences: dict[str, Sequence] = {}
        self.check()

    def begin(
        self,
        name: str,
        spans: list[list[int]],
        num_prompt: int,
        chunk: int,
        lookahead: int,
        full_fit: bool,
    ) -> bool:
        """Look up and allocate a first chunk, cut to what is left; False where there is no room."""
        sequence = Sequence(Content.from_spans(spans), num_prompt)
        hit = self.fast.lookup(sequence)
        blocks = [ids.tolist() for ids in self.fast.hit_blocks(sequence, hit)]
        assert (hit.tokens, hit.junction, blocks) == self.slow.lookup(name, spans, num_prompt)
        chunk = min(chunk, sum(n for _, n in spans) - hit.tokens)
        ok = self.fast.allocate(sequence, chunk, hit=hit, lookahead=lookahead, full_fit=full_fit)
        taken = self.slow.allocate(name, chunk, lookahead, full_fit)
        assert ok == (taken is not None)
        if ok:
            self.sequences[name] = sequence
            assert [ids.tolist() for ids in self.fast.taken(sequence)] == taken
        else:
            self.slow.forget(name)
        self.check()
        return ok

    def proceed(self, name: str, chunk: int, lookahead: int) -> bool:
        """Allocate more tokens of a request that holds blocks."""
        sequence = self.sequences[name]
        ok = self.fast.allocate(sequence, chunk, lookahead=lookahead)
        taken = self.slow.allocate(name, chunk, lookahead)
        assert ok == (taken is not None)
        if ok:
            assert [ids.tolist() for ids in self.fast.taken(sequence)] == taken
        self.check()
        return ok

    def append(self, name: str, uid: int) -> None:
        """The model produced a token."""
        self.fast.append(self.sequences[name], uid, 1)
        self.slow.append(name, uid, 1)

    def free(self, name: str) -> None:
        """A request gives its blocks back."""
        self.fast.free(self.sequences.pop(name))
        self.slow.free(name)
        self.check()

    def reset(self) -> None:
        """Empty the prefix cache, where no block is in use."""
        assert self.fast.reset() == self.slow.reset()
        self.check()

    def left(self, name: str) -> int:
        """Tokens of a request that are not computed yet."""
        request = self.slow.sequences[name]
        return request.num_tokens - request.num_computed

    def check(self) -> None:
        """Both hold the same blocks in the same order, and the pool is sound."""
        same_state(self.fast, self.slow)
        for name, sequence in self.sequences.items():
            request = self.slow.sequences[name]
            assert self.fast.num_computed(sequence) == request.num_computed
            for group, table in enumerate(request.tables):
                ids = self.fast.block_table(sequence, group).tolist()
                assert ids == [block.number for block in table]
        check_pool(self.fast, list(self.sequences.values()))


def same_state(fast: KVCache, slow: SlowCache) -> None:
    """The free queue's order, the cached set and the evictions agree."""
    assert fast.free_queue().tolist() == slow.free_queue()
    assert fast.cached_blocks().tolist() == slow.cached_blocks()
    assert fast.num_free == slow.num_free
    assert fast.num_evicted == slow.num_evicted


def check_pool(cache: KVCache, sequences: list[Sequence]) -> None:
    """What must hold of the pool after every operation."""
    pool = cache.core.pool
    num_blocks = len(pool.blocks)
    num_groups = len(cache.config.groups)

    held = np.zeros(num_blocks, dtype=np.int64)
    for sequence in sequences:
        for group in range(num_groups):
            np.add.at(held, cache.block_table(sequence, group), 1)
    held[0] = 0
    assert pool.blocks["num_refs"].tolist() == held.tolist()

    queue = cache.free_queue().tolist()
    assert sorted(queue) == [block for block in range(1, num_blocks) if held[block] == 0]
    assert len(queue) == cache.num_free
    for before, after in zip([0, *queue], [*queue, 0], strict=True):
        assert pool.blocks["after"][before] == after
        assert pool.blocks["before"][after] == before

    by_key: dict[int, set[int]] = {}
    for block, key in enumerate(pool.blocks["key"].tolist()):
        if key:
            by_key.setdefault(key, set()).add(block)
    assert 0 not in cache.cached_blocks()
    assert cache.num_cached == sum(map(len, by_key.values()))
    indexed = pool.hash_index["block"]
    assert sorted(indexed[indexed != 0].tolist()) == sorted(
        int(find_block(pool, key)) for key in by_key
    )
    for key, blocks in by_key.items():
        first = int(find_block(pool, key))
        ring = [first]
        while (following := int(pool.blocks["same_after"][ring[-1]])) != first:
            assert pool.blocks["same_before"][following] == ring[-1]
            ring.append(following)
        assert set(ring) == blocks
        assert len(ring) == len(blocks)
