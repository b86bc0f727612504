"""The Mooncake store and its connector."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.manager import KVCache, Sequence
from kvsim.cache.spec import GroupSpec
from kvsim.offload.mooncake import MooncakeConnector
from kvsim.offload.mooncake_store import MooncakeStore
from kvsim.offload.transfers import Transfers

GROUPS = (GroupSpec("full", 32), GroupSpec("sliding_window", 8, 16))


def keys(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64) << 28


def test_who_was_used_longest_ago_leaves() -> None:
    store = MooncakeStore(3)
    store.put(keys(1, 2, 3))
    assert store.get(keys(1)).tolist() == [True]
    assert store.get(keys(1)).tolist() == [False]
    store.put(keys(4, 5))
    assert store.missing(keys(1, 2, 3, 4, 5)).tolist() == [False, True, True, False, False]
    assert (store.num_used, store.num_used_max, store.num_evicted) == (3, 3, 2)


def test_what_comes_again_counts_as_not_read() -> None:
    store = MooncakeStore(1)
    store.put(keys(1))
    store.get(keys(1))
    store.put(keys(2))
    store.put(keys(1))
    assert store.get(keys(1)).tolist() == [True]


def test_it_grows_up_to_its_capacity_and_keeps_the_order() -> None:
    store = MooncakeStore(10_000)
    for start in range(0, 10_000, 100):
        store.put(keys(*range(start + 1, start + 101)))
    store.get(keys(1))
    assert not store.missing(keys(*range(1, 10_001))).any()
    store.put(keys(*range(20_001, 20_101)))
    assert store.missing(keys(*range(1, 103))).tolist() == [False] + 100 * [True] + [False]
    assert (store.num_used, store.num_evicted) == (10_000, 100)


def test_a_store_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^num_units 0 is below 1: the store holds nothing$"):
        MooncakeStore(0)


class Node:
    """A cache and its connector, a request at a time, computed in one chunk."""

    def __init__(self, store: MooncakeStore, interval: int | None = None, blocks: int = 200):
        self.cache = KVCache(CacheConfig(blocks, GROUPS, 4096, 4096, interval))
        self.connector = MooncakeConnector(self.cache, store)

    def arrive(self, *spans: tuple[int, int]) -> Sequence:
        content = Content.from_spans(spans)
        sequence = Sequence(content, content.num_tokens)
        self.connector.arrive(sequence, f"r{spans}", 99, content.num_tokens + 1)
        return sequence

    def compute(self, sequence: Sequence) -> Transfers:
        """Admit it, load what there is at once, compute the rest."""
        hit = self.cache.lookup(sequence)
        external = self.connector.match(sequence, hit.tokens)
        assert external is not None
        if external:
            assert self.cache.allocate_load(sequence, hit, external)
            self.connector.load(sequence, hit.tokens, external)
            (load,) = self.connector.build([]).loads
            self.loaded = load.num_chunks
            assert self.connector.complete([load.number]) == [sequence]
            self.cache.load_arrived(sequence)
            left = sequence.content.num_tokens - self.cache.num_computed(sequence)
            assert self.cache.allocate(sequence, left)
            self.connector.resume(sequence)
        else:
            left = sequence.content.num_tokens - hit.tokens
            assert self.cache.allocate(sequence, left, hit=hit)
            self.connector.admit(sequence)
        self.external = external
        return self.connector.build([sequence])

    def finish(self, sequence: Sequence) -> None:
        self.connector.finish(sequence)
        self.cache.free(sequence)


def test_a_prompt_is_saved_in_whole_units_and_found_by_another_node() -> None:
    store = MooncakeStore(1000)
    one, two = Node(store), Node(store)
    request = one.arrive((1, 150))
    (job,) = one.compute(request).stores
    # 128 of 150 tokens: 4 full blocks; of the window 2 before each of 4 boundaries.
    assert job.num_chunks == (4, 8)
    one.finish(request)
    other = two.arrive((1, 150))
    assert two.connector.match(other, 0) == 0  # nothing has arrived yet
    assert one.connector.in_flight
    assert one.connector.complete([job.number]) == []
    assert store.num_used == 12
    again = two.compute(two.arrive((1, 150)))
    assert two.external == 128
    assert two.loaded == (4, 2)
    assert two.connector.chunks_loaded_once == [4, 2]
    (job,) = again.stores
    assert job.num_chunks == (0, 0)  # all of it is stored already
    assert two.connector.chunks_stored == [0, 0]
    assert (two.connector.external_queries, two.connector.external_hits) == (300, 128)


def test_what_is_being_stored_is_not_stored_twice() -> None:
    node = Node(MooncakeStore(1000))
    first = node.compute(node.arrive((1, 64), (2, 40)))
    second = node.compute(node.arrive((1, 64), (3, 40)))
    assert [job.num_chunks for job in first.stores] == [(3, 6)]
    assert [job.num_chunks for job in second.stores] == [(1, 2)]


def test_all_blocks_of_a_request_stay_on_the_device_until_it_is_saved() -> None:
    node = Node(MooncakeStore(1000))
    request = node.arrive((1, 128))
    (job,) = node.compute(request).stores
    node.finish(request)
    # 4 full blocks and 16 of the window, of which 8 are saved.
    assert job.num_chunks == (4, 8)
    assert node.connector.saving(job.number) == (128, 20)
    assert node.cache.num_free == 199 - 20
    node.connector.complete([job.number])
    assert node.cache.num_free == 199


def test_blocks_are_held_for_a_save_of_nothing_new() -> None:
    node = Node(MooncakeStore(1000))
    for expected in ((4, 8), (0, 0)):
        request = node.arrive((1, 128))
        (job,) = node.compute(request).stores
        assert job.num_chunks == expected
        node.finish(request)
        assert node.cache.num_free < 199
        node.connector.complete([job.number])
        assert node.cache.num_free == 199


def test_held_blocks_go_back_all_groups_at_once_tail_first() -> None:
    node = Node(MooncakeStore(1000), 0)
    request = node.arrive((1, 64))
    (job,) = node.compute(request).stores
    tables = [node.cache.block_table(request, group) for group in (0, 1)]
    cached = set(node.cache.cached_blocks().tolist())
    node.finish(request)
    node.connector.complete([job.number])
    queue = node.cache.free_queue().tolist()
    last_first = np.concatenate(tables)[::-1].tolist()
    uncached = [block for block in last_first if block not in cached]
    assert queue[: len(uncached)] == uncached
    assert queue[-len(cached) :] == [block for block in last_first if block in cached]


def test_who_starts_or_comes_back_is_saved_before_who_ran() -> None:
    node = Node(MooncakeStore(1000))
    ran, back, new = (node.arrive((uid, 64)) for uid in (1, 2, 3))
    for sequence in (ran, back, new):
        hit = node.cache.lookup(sequence)
        assert node.cache.allocate(sequence, 32, hit=hit)
    node.connector.admit(ran)
    assert len(node.connector.build([ran]).stores) == 1
    assert node.cache.allocate(ran, 32)
    node.connector.preempt(back)
    node.connector.admit(back)
    node.connector.admit(new)
    stores = node.connector.build([ran, back, new]).stores
    assert [job.name for job in stores] == ["r((3, 64),)", "r((2, 64),)", "r((1, 64),)"]


@pytest.mark.parametrize(("interval", "window"), [(None, 8), (0, 2), (64, 4)])
def test_the_retention_interval_decides_what_is_saved(interval: int | None, window: int) -> None:
    node = Node(MooncakeStore(1000), interval)
    # The replay boundary of 129 tokens is 128, which is a multiple of 64 as well.
    (job,) = node.compute(node.arrive((1, 129))).stores
    assert job.num_chunks == (4, window)


def test_a_hit_is_what_all_groups_can_serve() -> None:
    store = MooncakeStore(1000)
    node, other = Node(store, 0), Node(store, 0)
    request = node.arrive((1, 129))
    (job,) = node.compute(request).stores
    node.connector.complete([job.number])
    # It branches at 96 tokens, where no window run was kept.
    assert other.connector.match(other.arrive((1, 96), (2, 60)), 0) == 0
    assert other.connector.match(other.arrive((1, 129), (2, 60)), 0) == 128
    assert other.connector.match(other.arrive((1, 128)), 0) == 0  # all but its last token


def test_only_what_goes_beyond_the_local_hit_is_loaded() -> None:
    store = MooncakeStore(1000)
    one, two = Node(store), Node(store)
    request = one.arrive((1, 150))
    (job,) = one.compute(request).stores
    one.connector.complete([job.number])
    first = two.arrive((1, 70))
    two.compute(first)
    assert two.external == 64
    two.compute(two.arrive((1, 150)))
    assert two.external == 64
    assert two.loaded == (2, 2)
