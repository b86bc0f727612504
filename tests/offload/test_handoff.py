"""Both ends of a hand-off, without a clock."""

from __future__ import annotations

from kvsim.cache.content import Content
from kvsim.cache.manager import CacheConfig, KVCache, Sequence
from kvsim.cache.spec import GroupSpec
from kvsim.offload.handoff import DecodeConnector, PrefillConnector

GROUPS = (GroupSpec("full", 16), GroupSpec("sliding_window", 16, 64))


def cache() -> KVCache:
    return KVCache(
        CacheConfig(num_blocks=100, groups=GROUPS, max_model_len=512, max_in_flight_tokens=256)
    )


def prompt(num_tokens: int) -> Sequence:
    return Sequence(Content.from_spans([(1, num_tokens)]), num_tokens)


def test_a_finished_prompt_keeps_its_tail_until_it_is_let_go() -> None:
    pool, told = cache(), []
    keeper = PrefillConnector(pool, lambda name, has_blocks: told.append((name, has_blocks)))
    sequence = prompt(200)
    keeper.arrive(sequence, "one", 2, 201)
    assert keeper.match(sequence, 0) == 0
    assert pool.allocate(sequence, 200, hit=pool.lookup(sequence))
    pool.leave_windows(sequence)
    keeper.finish(sequence)
    assert told == [("one", True)]
    assert sequence.slot < 0
    assert keeper.in_flight
    # 13 blocks of the full group; of the window's those from (200 - 63) // 16 on.
    assert 99 - pool.num_free == 13 + 5
    pool.free(sequence)  # as the scheduler does: it has nothing any more
    assert 99 - pool.num_free == 13 + 5
    assert keeper.complete([keeper.let_go("one")]) == []
    assert pool.num_free == 99
    assert not keeper.in_flight
    assert pool.lookup(prompt(200)).tokens == 192


def test_a_prompt_that_lost_its_blocks_is_told_of() -> None:
    told: list[tuple[str, bool]] = []
    keeper = PrefillConnector(cache(), lambda name, has_blocks: told.append((name, has_blocks)))
    sequence = prompt(40)
    keeper.arrive(sequence, "one", 2, 41)
    keeper.finish(sequence)
    assert told == [("one", False)]
    assert not keeper.in_flight


def test_a_prompt_is_asked_for_once() -> None:
    pool = cache()
    filler = DecodeConnector(pool, 0, lambda name: None)
    sequence = prompt(200)
    filler.arrive(sequence, "one", 2, 210)
    assert filler.match(sequence, 0) == 0  # nobody has it
    filler.expected.add("one")
    assert filler.match(sequence, 32) == 168
    assert filler.match(sequence, 0) == 200
    assert pool.allocate_load(sequence, pool.lookup(sequence), 200)
    filler.load(sequence, 0, 200)
    assert filler.in_flight
    (job,) = filler.build([]).loads
    assert job.num_blocks == (13, 5)
    assert filler.pull(job.number).spans == ((0, 13), (8, 13))
    assert filler.blocks_received == [0, 0]
    assert filler.complete([job.number]) == [sequence]
    assert filler.blocks_received == [13, 5]
    assert filler.match(sequence, 0) == 0
    assert (filler.queried_tokens, filler.hit_tokens) == (200, 0)
    assert not filler.build([]).loads
