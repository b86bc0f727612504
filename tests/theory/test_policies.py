"""Orders against theory, against one another, and against an independent library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.cache.content import Content
from kvsim.cache.manager import CacheConfig, KVCache, Sequence
from kvsim.cache.spec import FULL, GroupSpec
from kvsim.policies.contract import FREE_QUEUE, free_queue
from kvsim.policies.facts import FRONT
from kvsim.policies.finding import Chosen, find_policy
from kvsim.policies.table import TABLE
from kvsim.study.optimum import Tree

CAPACITY = 50
NUM_IDS = 500


def cache_of(order: str | Chosen, capacity: int) -> KVCache:
    """A pool that holds so many blocks of content, and one for the end of the prompt in hand."""
    if isinstance(order, str) and order in TABLE[FREE_QUEUE]:
        order = find_policy(FREE_QUEUE, order)
    return KVCache(CacheConfig(capacity + 2, (GroupSpec(FULL, 4),), 64, 64, free_queue=order))


def drive(cache: KVCache, ids: Iterable[int]) -> list[bool]:
    """Prompts of one block of content, one after another: whether each was found."""
    found = []
    for number, uid in enumerate(ids):
        cache.at(float(number))
        sequence = Sequence(Content.from_spans([(int(uid), 4), (1_000_000 + number, 1)]), 5)
        hit = cache.lookup(sequence)
        found.append(hit.tokens > 0)
        assert cache.allocate(sequence, 5 - hit.tokens, hit=hit)
        cache.free(sequence)
    return found


def popular(num: int, exponent: float, seed: int) -> np.ndarray:
    """Ids from 0 on, the popularity of the k-th k ** -exponent."""
    weights = np.arange(1, NUM_IDS + 1) ** -exponent
    rng = np.random.default_rng(seed)
    return rng.choice(NUM_IDS, size=num, p=weights / weights.sum())


def by(function: Callable[[Any], float]) -> Chosen:
    return Chosen("mine", free_queue("a test's own", source="here")(function), ())


def first_in_first_out(block: Any) -> float:
    return block.score if block.score > FRONT else block.now_s  # type: ignore[no-any-return]


def at_random(block: Any) -> float:
    return (block.now_s * 0.6180339887498949 * (1 + block.block)) % 1.0  # type: ignore[no-any-return]


@pytest.mark.parametrize("order", ["lru", by(first_in_first_out), by(at_random)])
def test_on_uniform_popularity_all_hit_the_share_they_hold(order: str | Chosen) -> None:
    """King, 1971; Gelenbe, 1973: independent uniform requests, whatever the order."""
    found = drive(cache_of(order, CAPACITY), popular(6000, 0.0, 1))[1000:]
    expected = CAPACITY / NUM_IDS
    error = 4 * math.sqrt(expected * (1 - expected) / len(found))
    assert np.mean(found) == pytest.approx(expected, abs=error)


@pytest.mark.parametrize("exponent", [0.6, 0.9, 1.2])
def test_lru_on_zipf_is_within_ches_approximation(exponent: float) -> None:
    """Che, Tung, Wang, IEEE JSAC 20(7), 2002: one time of absence for all contents."""
    weights = np.arange(1, NUM_IDS + 1) ** -exponent
    weights /= weights.sum()
    low, high = 0.0, 1e7
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if np.sum(1 - np.exp(-weights * middle)) < CAPACITY else (low, middle)
        )
    expected = float(np.sum(weights * (1 - np.exp(-weights * low))))
    found = drive(cache_of("lru", CAPACITY), popular(8000, exponent, 2))[1000:]
    assert np.mean(found) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("order", ["append", "lru"])
def test_a_larger_lru_holds_all_that_a_smaller_one_does(order: str) -> None:
    """Mattson et al., 1970: every hit stays one in a larger pool, request by request."""
    ids = popular(1500, 0.8, 3)
    found = [drive(cache_of(order, capacity), ids) for capacity in (10, 11, 20, 60)]
    for smaller, larger in zip(found, found[1:], strict=False):
        assert all(later for now, later in zip(smaller, larger, strict=True) if now)


@pytest.mark.parametrize("name", sorted(TABLE[FREE_QUEUE]))
def test_no_order_beats_the_optimum(name: str) -> None:
    rng = np.random.default_rng(4)
    prompts = [
        (int(document), int(rng.integers(1, 8))) for document in rng.zipf(1.5, size=400) % 40
    ]
    tree = Tree()
    cache = cache_of(name, 40)
    hit_tokens = 0
    for number, (document, num_blocks) in enumerate(prompts):
        tree.walk([document << 24 | place for place in range(1, num_blocks + 1)], [4] * num_blocks)
        cache.at(float(number))
        spans = [(document, 4 * num_blocks), (1_000_000 + number, 1)]
        sequence = Sequence(Content.from_spans(spans), 4 * num_blocks + 1)
        hit = cache.lookup(sequence)
        hit_tokens += hit.tokens
        assert cache.allocate(sequence, 4 * num_blocks + 1 - hit.tokens, hit=hit)
        cache.free(sequence)
    (optimum,) = tree.hit_tokens([40])
    assert 0 < hit_tokens <= optimum


def test_gdsf_of_equal_costs_is_lfu_with_ageing() -> None:
    """Arlitt et al., 1999: LFU with dynamic ageing, here in plain Python."""
    ids = popular(3000, 0.8, 5)
    clock, uses, worth = 0.0, {}, {}
    expected = []
    last: dict[int, int] = {}
    for number, uid in enumerate(ids.tolist()):
        expected.append(uid in worth)
        if uid not in worth:
            if len(worth) == CAPACITY:
                victim = min(worth, key=lambda one: (worth[one], last[one]))
                clock = worth.pop(victim)
            uses[uid] = 0
        uses[uid] += 1
        worth[uid] = clock + 4.0 * uses[uid]
        last[uid] = number
    assert drive(cache_of("gdsf", CAPACITY), ids) == expected


@pytest.mark.parametrize(
    ("name", "theirs", "off_by"),
    [
        ("sieve", "Sieve", 0.0),
        ("s3-fifo", "S3FIFO", 0.01),
        ("arc", "ARC", 0.025),
        ("lru", "LRU", 0),
    ],
)
@pytest.mark.parametrize("exponent", [0.7, 1.0])
def test_as_an_independent_library(name: str, theirs: str, off_by: float, exponent: float) -> None:
    library = pytest.importorskip("libcachesim")
    ids = popular(8000, exponent, 6)
    other = getattr(library, theirs)(cache_size=CAPACITY)
    expected = []
    for uid in ids.tolist():
        request = library.Request()
        request.obj_id, request.obj_size = uid + 1, 1
        expected.append(bool(other.get(request)))
    found = drive(cache_of(name, CAPACITY), ids)
    if off_by == 0:
        assert found == expected
    assert np.mean(found) == pytest.approx(np.mean(expected), abs=off_by)


TRACES = Path(__file__).parents[2] / ".." / "shared" / "traces"


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("mooncake_conversation.jsonl.gz", [24.5, 38.6, 39.8, 39.8]),
        ("mooncake_synthetic.jsonl.gz", [45.6, 73.9, 86.3, 86.3]),
    ],
)
def test_the_optimum_is_the_published_one(trace: str, expected: list[float]) -> None:
    """`kvcache-simulator` 0.1.3: by token, over the last half of the requests."""
    import gzip
    import json

    path = TRACES / trace
    if not path.exists():
        pytest.skip("the trace is not here")
    tree = Tree()
    totals = []
    with gzip.open(path, "rt") as file:
        for line in file:
            record = json.loads(line)
            ids, length = record["hash_ids"], record["input_length"]
            tokens = [min(512, length - 512 * place) for place in range(len(ids))]
            tree.walk(ids, tokens)
            totals.append(sum(tokens))
    half = len(totals) // 2
    found = tree.hit_tokens([1638, 6553, 13107, 26214], half)
    assert [round(100 * hit / sum(totals[half:]), 1) for hit in found] == expected
