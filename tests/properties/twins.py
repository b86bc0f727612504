"""The fast core and the slow model side by side: the same is done to both, and all is compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.cache.block_pool import find_block
from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.manager import KVCache, Sequence
from kvsim.cache.state_entry import next_chunk
from kvsim.cache.state_tables import IDLE_ROW, NUM_ALIASES
from tests.slow_model.slow_cache import SlowCache
from tests.slow_model.slow_states import SlowStates


def slow_cache(config: CacheConfig) -> SlowCache:
    """The slow model of a fast core's configuration."""
    options: dict[str, Any] = {
        "num_blocks": config.num_blocks,
        "groups": config.groups,
        "max_model_len": config.max_model_len,
        "max_in_flight_tokens": config.max_in_flight_tokens,
        "retention_interval": config.retention_interval,
        "enable_caching": config.enable_caching,
        "use_eagle": config.use_eagle,
        "key_lookahead_tokens": config.key_lookahead_tokens,
        "profile": config.profile,
        "free_queue": config.free_queue,
    }
    if not any(group.kind == "mamba" for group in config.groups):
        return SlowCache(**options)
    return SlowStates(
        **options,
        prefix_match_unit=config.prefix_match_unit,
        shared_prefix_checkpoint=config.shared_prefix_checkpoint,
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
        if isinstance(self.slow, SlowStates):
            most = self.fast.config.max_in_flight_tokens
            cut = self.fast.chunk(sequence, hit.tokens, chunk, most)
            assert cut == self.slow.chunk(name, hit.tokens, chunk, most)
            chunk = cut
            if chunk == 0:  # it has to wait for a step with more room
                self.slow.forget(name)
                return False
        ok = self.fast.allocate(sequence, chunk, hit=hit, lookahead=lookahead, full_fit=full_fit)
        taken = self.slow.allocate(name, chunk, lookahead, full_fit)
        assert ok == (taken is not None)
        if ok:
            self.sequences[name] = sequence
            assert self.taken(sequence) == taken
        else:
            self.slow.forget(name)
        self.check()
        return ok

    def proceed(self, name: str, chunk: int, lookahead: int) -> bool:
        """Allocate more tokens of a request that holds blocks; True where it has to wait."""
        sequence = self.sequences[name]
        if isinstance(self.slow, SlowStates):
            start, most = self.fast.num_computed(sequence), self.fast.config.max_in_flight_tokens
            cut = next_chunk(self.fast.arrays, sequence.slot, chunk, most)
            assert cut == self.slow.chunk(name, start, chunk, most)
            chunk = cut
            if chunk == 0:
                return True
        ok = self.fast.allocate(sequence, chunk, lookahead=lookahead)
        taken = self.slow.allocate(name, chunk, lookahead)
        assert ok == (taken is not None)
        if ok:
            assert self.taken(sequence) == taken
        self.check()
        return ok

    def taken(self, sequence: Sequence) -> list[list[int]]:
        """What the fast core's last allocation took, as the slow model says it."""
        if isinstance(self.slow, SlowStates):
            return [self.fast.taken_in_order().tolist()]
        return [ids.tolist() for ids in self.fast.taken(sequence)]

    def step(self) -> None:
        """A step ends, and the next one begins."""
        assert isinstance(self.slow, SlowStates)
        ends = self.fast.copies().tolist()
        self.fast.let_go_of_copies()
        self.fast.begin_step()
        assert [[*pair] for pair in zip(ends[::2], ends[1::2], strict=True)] == self.slow.step()
        self.check()

    def rollback(self, name: str, num_tokens: int) -> None:
        """Drafts were refused."""
        assert isinstance(self.slow, SlowStates)
        self.fast.roll_back(self.sequences[name], num_tokens)
        self.slow.rollback(name, num_tokens)

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
    num_blocks = cache.config.num_blocks
    num_groups = len(cache.config.groups)

    held = np.zeros(num_blocks, dtype=np.int64)
    for sequence in sequences:
        for group in range(num_groups):
            np.add.at(held, cache.block_table(sequence, group), 1)
    if cache.has_states:
        np.add.at(held, cache.copies(), 1)  # both ends, until the step is over
    held[0] = 0
    assert pool.blocks["num_refs"][:num_blocks].tolist() == held.tolist()

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
    aliases = _aliases(cache) if cache.has_states else []
    known = [row for rows in by_key.values() for row in rows]
    assert sorted(aliases) == sorted(row for row in known if row >= num_blocks)
    assert cache.num_cached == len(known) - len(aliases)
    indexed = pool.hash_index["block"]
    assert sorted(indexed[indexed != 0].tolist()) == sorted(
        int(find_block(pool, key)) for key in by_key
    )
    for key, rows in by_key.items():
        first = int(find_block(pool, key))
        ring = [first]
        while (following := int(pool.blocks["same_after"][ring[-1]])) != first:
            assert pool.blocks["same_before"][following] == ring[-1]
            ring.append(following)
        assert set(ring) == rows
        assert len(ring) == len(rows)


def _aliases(cache: KVCache) -> list[int]:
    """Rows of the pool that stand for a further key of a block; none is lost."""
    states, blocks = cache.core.states, cache.core.pool.blocks
    found = []
    for block, first in enumerate(states.aliases.tolist()):
        row = first
        while row:
            assert blocks["num_refs"][row] == block
            assert blocks["key"][block] != 0
            found.append(row)
            row = int(blocks["after"][row])
    idle = int(states.meter[IDLE_ROW])
    num_idle = 0
    while idle:
        assert blocks["key"][idle] == 0
        num_idle += 1
        idle = int(blocks["after"][idle])
    assert len(found) == states.meter[NUM_ALIASES]
    assert len(found) + num_idle == len(blocks) - cache.config.num_blocks
    return found
