from __future__ import annotations

from typing import Any

import pytest

from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.manager import KVCache, Sequence
from kvsim.cache.spec import GroupSpec

FULL = (GroupSpec("full", 16),)
HYBRID = (GroupSpec("full", 16), GroupSpec("sliding_window", 8, 16))


def make(num_blocks: int = 50, groups: tuple[GroupSpec, ...] = FULL, **options: Any) -> KVCache:
    values: dict[str, Any] = {"max_model_len": 4096, "max_in_flight_tokens": 512, **options}
    return KVCache(CacheConfig(num_blocks=num_blocks, groups=groups, **values))


def sequence(*spans: tuple[int, int]) -> Sequence:
    content = Content.from_spans(spans)
    return Sequence(content, content.num_tokens)


def serve(cache: KVCache, *spans: tuple[int, int]) -> Sequence:
    """A prompt that is computed at once and stays."""
    seq = sequence(*spans)
    hit = cache.lookup(seq)
    assert cache.allocate(seq, seq.content.num_tokens - hit.tokens, hit=hit)
    return seq


def test_a_prefix_is_found_while_its_blocks_are_in_use_and_after() -> None:
    cache = make()
    first = serve(cache, (1, 100))
    assert cache.lookup(sequence((1, 64), (2, 10))).tokens == 64
    cache.free(first)
    hit = cache.lookup(sequence((1, 100), (3, 50)))
    assert hit.tokens == 96
    assert hit.reach == (96,)
    assert cache.num_cached == 6


def test_the_last_token_is_always_computed() -> None:
    cache = make()
    cache.free(serve(cache, (1, 64)))
    assert cache.lookup(sequence((1, 64))).tokens == 48


def test_block_tables_and_what_was_taken() -> None:
    cache = make(groups=HYBRID, retention_interval=0)
    seq = sequence((1, 40))
    assert cache.allocate(seq, 40, hit=cache.lookup(seq))
    assert [ids.tolist() for ids in cache.taken(seq)] == [[1, 2, 3], [4, 5, 6, 7, 8]]
    cache.append(seq, 9, 1)
    assert cache.allocate(seq, 1)
    assert cache.block_table(seq, 1).tolist() == [0, 0, 0, 7, 8, 5], "the window left three"
    assert cache.num_computed(seq) == 41
    assert cache.num_free == 49 - 3 - 3


def test_an_allocation_is_whole_or_nothing() -> None:
    cache = make(num_blocks=6)
    seq = sequence((1, 100))
    hit = cache.lookup(seq)
    assert not cache.allocate(seq, 100, hit=hit)
    assert not cache.allocate(seq, 16, hit=hit, full_fit=True)
    assert cache.num_free == 5
    assert cache.num_computed(seq) == 0
    assert cache.allocate(seq, 80, hit=hit)
    assert not cache.allocate(seq, 20)
    assert cache.num_free == 0


def test_blocks_can_be_reserved_for_others() -> None:
    cache = make(num_blocks=11)
    seq = sequence((1, 80))
    hit = cache.lookup(seq)
    assert not cache.allocate(seq, 80, hit=hit, num_reserved=6)
    assert cache.allocate(seq, 80, hit=hit, num_reserved=5)


def test_a_hit_counts_its_idle_blocks_as_needed() -> None:
    cache = make(num_blocks=6)
    cache.free(serve(cache, (1, 80)))
    seq = sequence((1, 80), (2, 16))
    hit = cache.lookup(seq)
    assert hit.tokens == 80
    assert not cache.allocate(seq, 16, hit=hit), "all five blocks are the hit's own"


def test_the_junction_is_where_full_attention_reaches_farther() -> None:
    cache = make(groups=HYBRID, retention_interval=0)
    cache.free(serve(cache, (1, 64), (2, 40)))
    second = sequence((1, 64), (3, 40))
    hit = cache.lookup(second)
    assert (hit.tokens, hit.junction, hit.reach) == (0, 64, (64, 0))
    assert cache.reach_by_group(hit) == (64, 0)
    assert cache.allocate(second, 104, hit=hit)
    cache.free(second)
    assert cache.lookup(sequence((1, 64), (4, 40))).tokens == 64, "the third one hits"


def test_hit_blocks_of_a_window_are_null_before_it() -> None:
    cache = make(groups=HYBRID, retention_interval=None)
    cache.free(serve(cache, (1, 64)))
    seq = sequence((1, 64), (2, 8))
    hit = cache.lookup(seq)
    assert [ids.tolist() for ids in cache.hit_blocks(seq, hit)] == [
        [1, 2, 3, 4],
        [0, 0, 0, 0, 0, 0, 11, 12],
    ]


def test_a_cache_with_caching_off_finds_nothing() -> None:
    cache = make(enable_caching=False)
    cache.free(serve(cache, (1, 64)))
    assert cache.lookup(sequence((1, 64), (2, 8))).tokens == 0
    assert cache.num_cached == 0


def test_many_sequences_and_many_spans_fit() -> None:
    cache = make(num_blocks=2000)
    held = [serve(cache, *((100 * n + i, 3) for i in range(n))) for n in range(1, 60)]
    assert len({seq.slot for seq in held}) == len(held)
    for seq in held:
        assert cache.block_table(seq, 0).size == -(-seq.content.num_tokens // 16)
        cache.free(seq)
    assert cache.num_free == 1999
    assert cache.lookup(sequence(*((100 * 59 + i, 3) for i in range(59)))).tokens == 176


def test_a_stale_hit_is_refused() -> None:
    cache = make(num_blocks=6)
    cache.free(serve(cache, (1, 64)))
    late = sequence((1, 64), (2, 8))
    hit = cache.lookup(late)
    cache.free(serve(cache, (3, 80)))
    with pytest.raises(ValueError, match="the hit no longer holds"):
        cache.allocate(late, 8, hit=hit)
    assert late.slot < 0
    assert cache.num_free == 5


def test_misuse_is_told() -> None:
    cache = make()
    seq = sequence((1, 40))
    hit = cache.lookup(seq)
    with pytest.raises(ValueError, match="takes its hit"):
        cache.allocate(seq, 40)
    with pytest.raises(ValueError, match=r"0 new tokens are not in 1 \.\. 512"):
        cache.allocate(seq, 0, hit=hit)
    with pytest.raises(ValueError, match=r"513 new tokens are not in 1 \.\. 512"):
        cache.allocate(seq, 513, hit=hit)
    with pytest.raises(ValueError, match=r"999 draft tokens are not in 0 \.\. 256"):
        cache.allocate(seq, 40, hit=hit, lookahead=999)
    assert cache.allocate(seq, 40, hit=hit)
    with pytest.raises(ValueError, match="takes its hit"):
        cache.allocate(seq, 1, hit=hit)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 1}, "num_blocks 1 leaves none"),
        ({"groups": ()}, "a model has 1 to 64 groups, not 0"),
        (
            {"groups": (GroupSpec("mamba", 16),), "profile": "vllm-0.32"},
            "mamba groups are simulated for vllm-0.33, not vllm-0.32",
        ),
        (
            {"groups": (GroupSpec("mamba", 16, one_state=True),)},
            "a group with one state a sequence needs prefix caching to be off",
        ),
        (
            {"groups": (GroupSpec("mamba", 16), *FULL), "prefix_match_unit": 5},
            "prefix_match_unit 5 does not divide the groups' blocks, 16",
        ),
        ({"groups": FULL, "prefix_match_unit": 8}, "prefix_match_unit needs a mamba group"),
        ({"groups": FULL, "max_model_len": 1 << 24}, "max_model_len 16777216 is not in"),
        (
            {"groups": (GroupSpec("full", 1),), "max_model_len": 1 << 21},
            r"is 2\*\*21 blocks of 1 tokens or more",
        ),
        ({"groups": FULL, "profile": "vllm-1"}, "profile 'vllm-1' is none of"),
        ({"groups": FULL, "free_queue": "lifo"}, "free_queue 'lifo' is none of append"),
        ({"groups": FULL, "max_model_len": 0}, "max_model_len 0 is not in"),
        ({"groups": FULL, "max_in_flight_tokens": 0}, "max_in_flight_tokens 0 is below 1"),
        ({"groups": HYBRID, "retention_interval": 24}, "not a multiple of the scheduler block"),
    ],
)
def test_configurations_no_engine_would_take(options: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"groups": FULL, **options}
    with pytest.raises(ValueError, match=message):
        make(**values)


def test_what_a_request_needs() -> None:
    cache = make(groups=HYBRID, num_blocks=500)
    assert cache.num_blocks_to_admit(1000) == 63 + 67  # the window's cap: ceil((15 + 512) / 8) + 1
    assert cache.num_blocks_to_admit(40) == 3 + 5
    assert cache.num_blocks_to_hold(1000) == 63 + 2
