"""What the tests of policies share: small caches, random histories, every policy there is."""

from __future__ import annotations

import numpy as np

from kvsim.cache.content import Content
from kvsim.cache.manager import CacheConfig, KVCache, Sequence
from kvsim.cache.spec import FULL, SLIDING_WINDOW, GroupSpec
from kvsim.policies.contract import FREE_QUEUE, RETENTION
from kvsim.policies.finding import Chosen, find_policy
from kvsim.policies.table import TABLE

ORDERS = sorted(TABLE[FREE_QUEUE])
RETENTIONS = sorted(TABLE[RETENTION])
HYBRID = (GroupSpec(FULL, 4), GroupSpec(SLIDING_WINDOW, 2, 4))
PLAIN = (GroupSpec(FULL, 4),)


def order(name: str, **parameters: float) -> Chosen:
    """A free-queue policy by name."""
    return find_policy(FREE_QUEUE, {"name": name, **parameters})


def make_cache(
    free_queue: str | Chosen | None = None,
    *,
    num_blocks: int = 40,
    groups: tuple[GroupSpec, ...] = HYBRID,
    retention_interval: int | None = None,
    retention: Chosen | None = None,
) -> KVCache:
    """A small cache."""
    return KVCache(
        CacheConfig(
            num_blocks,
            groups,
            max_model_len=256,
            max_in_flight_tokens=64,
            retention_interval=retention_interval,
            free_queue=free_queue,
            retention=retention,
        )
    )


class History:
    """Random requests over few documents, some at the same time; what happened, step by step.

    Attributes:
        log: hits, blocks taken and blocks free, in order.
        held: blocks of each live sequence, as the tables say.
    """

    def __init__(self, cache: KVCache, seed: int) -> None:
        self.cache = cache
        self.rng = np.random.default_rng(seed)
        self.log: list[object] = []
        self.live: list[Sequence] = []
        self.number = 1000
        self.now_s = 0.0

    def held(self, but: Sequence | None = None) -> list[int]:
        """Ids of all blocks in use, by others than one; one that several hold appears as often."""
        holders = [sequence for sequence in self.live if sequence is not but]
        groups = range(len(self.cache.config.groups))
        tables = [self.cache.block_table(holder, group) for holder in holders for group in groups]
        return [int(block) for table in tables for block in table if block]

    def step(self) -> None:
        """A request comes, goes, or makes a token."""
        cache, rng = self.cache, self.rng
        self.now_s += float(rng.exponential(5.0))
        cache.at(self.now_s)
        deed = rng.random()
        if self.live and deed < 0.35:
            cache.free(self.live.pop(int(rng.integers(len(self.live)))))
        elif self.live and deed < 0.6:
            sequence = self.live[int(rng.integers(len(self.live)))]
            cache.append(sequence, self.number, 1)
            self.number += 1
            before = set(self.held(sequence))
            if cache.allocate(sequence, 1):
                self._took(sequence, before)
            else:
                cache.free(sequence)
                self.live.remove(sequence)
        else:
            spans = [(int(rng.integers(1, 6)), int(rng.integers(1, 40))), (self.number, 3)]
            self.number += 1
            sequence = Sequence(Content.from_spans(spans), sum(n for _, n in spans))
            hit = cache.lookup(sequence)
            before = set(self.held())
            num_new = sequence.content.num_tokens - hit.tokens
            if cache.allocate(sequence, num_new, hit=hit, full_fit=True):
                cache.tell_request(sequence, 0, int(rng.integers(-1, 101)), 20, 30.0)
                self.live.append(sequence)
                self.log.append(hit.tokens)
                self._took(sequence, before)
        self.log.append(cache.num_free)

    def _took(self, sequence: Sequence, in_use: set[int]) -> None:
        taken = [int(block) for blocks in self.cache.taken(sequence) for block in blocks]
        self.log.append(taken)
        assert not in_use & set(taken), "a block in use was given out"
        assert len(taken) == len(set(taken)), "a block was given out twice"

    def check(self) -> None:
        """Every block is free or held, never both, and the queue has each free one once."""
        queue = self.cache.free_queue().tolist()
        everything = range(1, self.cache.config.num_blocks)
        assert sorted({*queue, *self.held()}) == list(everything)
        assert len(queue) == len(set(queue)) == self.cache.num_free
        assert not set(queue) & set(self.held())
