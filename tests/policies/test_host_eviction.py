"""What every host eviction order must keep to, and each order against a plain model of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvsim.offload.cpu_tier import ChunkTier, ChunkUse
from kvsim.policies.contract import HOST_EVICTION
from kvsim.policies.host_arc import Arc
from kvsim.policies.table import TABLE
from tests.policies.slow_host_tier import SlowTier, SlowUse

EVICTIONS = sorted(TABLE[HOST_EVICTION])


def use_of(keys: list[int], positions: list[int] | None = None) -> ChunkUse:
    """A request with these chunks, in the order of its prompt; all of group 0."""
    ends = list(range(16, 16 * len(keys) + 1, 16)) if positions is None else positions
    return ChunkUse(
        np.array(keys, dtype=np.int64),
        np.array(ends, dtype=np.int64),
        np.zeros(len(keys), dtype=np.int64),
    )


def request(tier: ChunkTier, keys: list[int], *, offers: int = 1) -> list[int] | None:
    """A whole request: offer, write, finish. The keys that left, or None where it was refused."""
    use = use_of(keys)
    evicted: list[int] = []
    for part in np.array_split(np.arange(len(keys)), offers):
        stored = tier.store(use, part)
        if stored is None:
            return None
        evicted += stored.evicted.tolist()
        tier.written(stored.rows)
    tier.finish(use)
    return evicted


def test_names() -> None:
    assert EVICTIONS == ["arc", "lru"]
    with pytest.raises(ValueError, match=r"^unknown eviction 'lfu'\. Did you mean 'lru'\?$"):
        ChunkTier(4, "lfu")
    with pytest.raises(ValueError, match=r"^num_chunks 0 is below 1: the tier holds nothing$"):
        ChunkTier(0)


@pytest.mark.parametrize("eviction", EVICTIONS)
class TestContract:
    def test_nothing_leaves_while_there_is_room(self, eviction: str) -> None:
        tier = ChunkTier(4, eviction)
        assert request(tier, [1, 2]) == []
        assert request(tier, [3, 4]) == []
        assert (tier.num_used, tier.num_evicted) == (4, 0)

    def test_tails_leave_before_heads(self, eviction: str) -> None:
        tier = ChunkTier(4, eviction)
        request(tier, [1, 2, 3, 4], offers=2)
        assert request(tier, [5, 6, 7]) == [4, 3, 2]

    def test_the_oldest_request_leaves_first(self, eviction: str) -> None:
        tier = ChunkTier(4, eviction)
        request(tier, [1, 2])
        request(tier, [3, 4])
        assert request(tier, [5, 6]) == [2, 1]

    def test_what_an_offer_names_stays(self, eviction: str) -> None:
        tier = ChunkTier(3, eviction)
        request(tier, [1, 2])
        request(tier, [3])
        assert request(tier, [1, 2, 9]) == [3]
        assert tier.holds(np.array([1, 2, 3, 9])).tolist() == [True, True, False, True]

    def test_what_is_written_or_read_stays(self, eviction: str) -> None:
        tier = ChunkTier(3, eviction)
        request(tier, [1, 2])
        reader = use_of([1])
        rows, _ = tier.load(reader, np.array([0]))
        stored = tier.store(use_of([3]), np.array([0]))
        assert stored is not None
        assert request(tier, [4]) == [2]
        assert request(tier, [5, 6]) is None
        tier.read(rows)
        tier.written(stored.rows)
        assert request(tier, [5, 6, 7]) is not None
        assert tier.num_refused == 1

    def test_a_refused_offer_changes_nothing(self, eviction: str) -> None:
        tier = ChunkTier(2, eviction)
        request(tier, [1, 2])
        assert tier.store(use_of([1, 3, 4]), np.arange(3)) is None
        assert tier.holds(np.array([1, 2])).all()
        assert (tier.num_used, tier.num_stored, tier.num_evicted) == (2, 2, 0)

    def test_an_offer_larger_than_the_tier_is_refused(self, eviction: str) -> None:
        tier = ChunkTier(2, eviction)
        assert request(tier, [1, 2, 3]) is None

    def test_written_before_it_is_held(self, eviction: str) -> None:
        tier = ChunkTier(2, eviction)
        stored = tier.store(use_of([1]), np.array([0]))
        assert stored is not None
        assert not tier.holds(np.array([1])).any()
        tier.written(stored.rows)
        assert tier.holds(np.array([1])).all()

    def test_use_again_saves_a_chunk(self, eviction: str) -> None:
        tier = ChunkTier(3, eviction)
        for key in (1, 2, 3):
            request(tier, [key])
        request(tier, [1])
        assert request(tier, [4]) == [2]

    @pytest.mark.parametrize("seed", range(6))
    def test_as_the_plain_model(self, eviction: str, seed: int) -> None:
        """Random histories of overlapping requests, with transfers that take their time."""
        rng = random.Random(f"{eviction} {seed}")
        num_chunks = rng.randrange(4, 40)
        tier, slow = ChunkTier(num_chunks, eviction), SlowTier(num_chunks, eviction)
        live: list[tuple[list[int], ChunkUse, SlowUse]] = []
        writes: list[tuple[np.ndarray, list[int]]] = []
        reads: list[tuple[np.ndarray, list[int]]] = []
        for _ in range(600):
            deed = rng.random()
            if deed < 0.2 or not live:
                # A document has its own keys; requests use prefixes of few documents.
                document, length = rng.randrange(1, 7), rng.randrange(1, 12)
                keys = [document * 1000 + i for i in range(length)]
                positions = [16 * (i // 2 + 1) for i in range(length)]
                groups = [i % 2 for i in range(length)]
                arrays = (np.array(a, dtype=np.int64) for a in (keys, positions, groups))
                plain = SlowUse(
                    dict(zip(keys, positions, strict=True)), dict(zip(keys, groups, strict=True))
                )
                live.append((keys, ChunkUse(*arrays), plain))
                continue
            keys, use, plain = rng.choice(live)
            if deed < 0.6:
                start = rng.randrange(len(keys))
                which = list(range(start, rng.randrange(start, len(keys)) + 1))
                stored = tier.store(use, np.array(which))
                answer = slow.store([keys[i] for i in which], plain)
                assert (stored is None) == (answer is None)
                if stored is not None and answer is not None:
                    assert use.keys[stored.chunks].tolist() == answer[0]
                    assert stored.evicted.tolist() == answer[1]
                    writes.append((stored.rows, answer[0]))
            elif deed < 0.7:
                which = [i for i, key in enumerate(keys) if slow.readable(key)]
                if which:
                    rows, _ = tier.load(use, np.array(which))
                    slow.load([keys[i] for i in which], plain)
                    reads.append((rows, [keys[i] for i in which]))
            elif deed < 0.8 and writes:
                rows, done = writes.pop(rng.randrange(len(writes)))
                tier.written(rows)
                slow.writing -= set(done)
            elif deed < 0.9 and reads:
                rows, done = reads.pop(rng.randrange(len(reads)))
                tier.read(rows)
                for key in done:
                    slow.reading[key] -= 1
            elif deed >= 0.9:
                tier.finish(use)
                slow.finish(plain)
                live = [entry for entry in live if entry[1] is not use]
            every = [document * 1000 + i for document in range(1, 7) for i in range(12)]
            held = tier.holds(np.array(every)).tolist()
            assert held == [slow.readable(key) for key in every]
            assert tier.num_used == len(slow.policy.resident()) <= num_chunks
            assert tier.num_refused == slow.num_refused


def test_lru_requests_share_a_rank_until_they_end() -> None:
    """Two requests that run at once: the one that came first goes first, its tail first."""
    tier = ChunkTier(6, "lru")
    one, two = use_of([1, 2, 3]), use_of([11, 12, 13])
    for which in (0, 1, 2):
        for use in (one, two):
            stored = tier.store(use, np.array([which]))
            assert stored is not None
            tier.written(stored.rows)
    assert request(tier, [21, 22, 23, 24]) == [3, 2, 1, 13]


def test_lru_ties_of_one_position_go_by_group() -> None:
    tier = ChunkTier(3, "lru")
    use = ChunkUse(np.array([1, 2, 3]), np.array([16, 16, 32]), np.array([0, 1, 0]))
    stored = tier.store(use, np.arange(3))
    assert stored is not None
    tier.written(stored.rows)
    # While the request runs the lower group goes first, when it has ended the higher one.
    assert request(tier, [9, 10]) == [3, 1]
    ended = ChunkTier(3, "lru")
    use = ChunkUse(np.array([1, 2, 3]), np.array([16, 16, 32]), np.array([0, 1, 0]))
    stored = ended.store(use, np.arange(3))
    assert stored is not None
    ended.written(stored.rows)
    ended.finish(use)
    assert request(ended, [9, 10]) == [3, 2]


def test_arc_learns_from_what_it_evicted() -> None:
    tier = ChunkTier(4, "arc")
    arc = tier._eviction
    assert isinstance(arc, Arc)
    request(tier, [1])
    request(tier, [1])  # seen again
    request(tier, [2, 3, 4])
    assert request(tier, [5]) == [4]
    assert arc.target == 0
    assert request(tier, [4]) == [3]  # its ghost asks for a larger first list
    assert arc.target == 1
    assert tier.holds(np.array([1])).all()


def test_arc_keeps_what_was_seen_again_through_a_scan() -> None:
    for eviction, held in (("arc", True), ("lru", False)):
        tier = ChunkTier(8, eviction)
        request(tier, [1, 2])
        request(tier, [1, 2])
        for start in range(100, 200, 4):
            request(tier, list(range(start, start + 4)))
        assert tier.holds(np.array([1, 2])).all() == held
