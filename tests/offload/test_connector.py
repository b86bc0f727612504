from __future__ import annotations

import numpy as np
import pytest

from kvsim.cache.config import CacheConfig
from kvsim.cache.manager import KVCache
from kvsim.cache.spec import GroupSpec
from kvsim.engine.jobs import SchedulerConfig
from kvsim.engine.scheduler import Scheduler
from kvsim.offload.connector import OffloadConnector
from kvsim.offload.cpu_tier import ChunkTier
from tests.offload.engine import FULL, HYBRID, V4, Engine, Keys, request

BLOCK = 16
"""Tokens of a block, and of a chunk, of FULL."""


def ends(keys: Keys, group: int, tokens: int) -> list[int]:
    """Where a group's chunks end, in tokens."""
    return [number * tokens for of, _, number in keys if of == group]


# --- store jobs ---


@pytest.mark.parametrize(
    ("blocks_per_chunk", "interval", "prompt", "full", "window"),
    [
        # Dense: the run of one block before every 32 tokens, and before the last whole chunk.
        (1, None, 100, [32, 64, 96], [32, 64, 96]),
        (1, None, 108, [32, 64, 96], [32, 64, 96, 104]),
        (1, None, 7, [], []),
        (1, None, 8, [], [8]),
        # A boundary every 64 tokens; block 12 of 16 is the last of the last whole chunk.
        (2, None, 108, [64], [64, 96]),
        (2, None, 64, [64], [64]),
        (2, None, 130, [64, 128], [64, 128]),
        # A boundary every 128 tokens.
        (4, None, 108, [], [96]),
        (4, None, 140, [128], [128]),
        (4, None, 200, [128], [128, 192]),
        # Interval 0: only the run before the last token, rounded down to the boundary's unit.
        (1, 0, 100, [32, 64, 96], [96]),
        (1, 0, 97, [32, 64, 96], [96]),
        (1, 0, 96, [32, 64, 96], [64]),
        (2, 0, 100, [64], [64]),
        (2, 0, 64, [64], []),
        (4, 0, 100, [], []),
        (4, 0, 129, [128], [128]),
        # Every 32 tokens, whatever a chunk is; and the boundary.
        (1, 32, 100, [32, 64, 96], [32, 64, 96]),
        (2, 32, 100, [64], [32, 64, 96]),
        (4, 32, 100, [], [32, 64, 96]),
        (2, 64, 200, [64, 128, 192], [64, 128, 192]),
        (4, 64, 200, [128], [64, 128, 192]),
    ],
)
def test_what_a_prompt_stores(
    blocks_per_chunk: int, interval: int | None, prompt: int, full: list[int], window: list[int]
) -> None:
    engine = Engine(HYBRID, interval=interval, blocks_per_chunk=blocks_per_chunk)
    engine.run(request("a1", [(1, prompt)]))
    stored = [key for _, keys, _ in engine.offers for key in keys or ()]
    assert stored == engine.offered()
    assert ends(stored, 0, 32 * blocks_per_chunk) == full
    assert ends(stored, 1, 8 * blocks_per_chunk) == window
    assert {uid for _, uid, _ in stored} <= {1}
    assert engine.connector.chunks_stored == [len(full), len(window)]
    assert engine.connector.blocks_stored == [len(full) * blocks_per_chunk] + [
        len(window) * blocks_per_chunk
    ]


def test_stores_go_step_by_step() -> None:
    """A chunk is offered with the step that completes it, this step's tokens included."""
    engine = Engine(budget=64, blocks_per_chunk=2)
    engine.run(request("a1", [(1, 150)]))
    assert [[number for _, _, number in keys] for keys, _, _ in engine.offers] == [[1, 2], [3, 4]]


def test_generated_tokens_are_stored_on_demand() -> None:
    for prompt_only, numbers in ((True, [1, 2]), (False, [1, 2, 3, 4])):
        engine = Engine(prompt_only=prompt_only)
        engine.run(request("a1", [(1, 40)], output=25, uid=7))
        assert engine.offered() == [(0, 1 if n < 3 else 7, n) for n in numbers]
    # 40 prompt and 24 computed tokens of the answer: the last one sampled has no KV.


def test_what_the_device_hits_is_offered_again() -> None:
    engine = Engine(store_steps=1)
    engine.run(request("a1", [(1, 64)]))
    engine.run(request("a2", [(1, 64), (2, 32)]))
    keys, stored, _ = engine.offers[-1]
    assert [number for _, _, number in keys] == [1, 2, 3, 4, 5, 6]
    assert stored == [(0, 2, 5), (0, 2, 6)]


def test_a_finished_request_offers_its_last_segment_again() -> None:
    """Dense, generated tokens too: the run before the end of the prompt gives way to its own."""
    engine = Engine(HYBRID, prompt_only=False)
    engine.run(request("a1", [(1, 40)], output=34, uid=7))
    window = ends(engine.offered(), 1, 8)
    # 32 and the prompt's end at 40 at once, 64 when it is reached, 72 (of 73 computed) at the end.
    assert window == [32, 40, 64, 72]


def test_blocks_a_window_left_are_stored_until_they_are_handed_out() -> None:
    """The connector's copy of the table nulls a block only when its id is handed out again."""
    groups = (GroupSpec("sliding_window", 16, 16),)
    # The last of a chunk's four blocks is needed; the window holds one or two at a time.
    roomy = Engine(groups, blocks_per_chunk=4, budget=16)
    roomy.run(request("a1", [(1, 64)]))
    tight = Engine(groups, blocks_per_chunk=4, budget=16, num_blocks=4)
    tight.run(request("a1", [(1, 64)]))
    assert roomy.offered() == tight.offered() == [(0, 1, 1)]
    assert roomy.connector.blocks_stored == [4]
    assert tight.connector.blocks_stored == [3]  # the first was handed out for the fourth


def test_a_store_is_flushed_when_its_blocks_are_handed_out() -> None:
    slow = Engine(num_blocks=6, store_steps=100, max_seqs=1)
    slow.run(request("a1", [(1, 64)]), request("a2", [(2, 64)]))
    # The first request's blocks are handed to the second while they are still being copied.
    assert slow.flushed == 1
    assert Engine(num_blocks=6).flushed == 0


def test_a_preempted_request_has_its_stores_flushed() -> None:
    engine = Engine(num_blocks=9, store_steps=100)
    engine.run(request("a1", [(1, 48)], output=40), request("a2", [(2, 48)], output=40))
    assert engine.scheduler.counters.preemptions > 0
    assert engine.flushed > 0


# --- lookups and loads ---


def test_a_prompt_comes_back_from_the_tier() -> None:
    engine = Engine()
    engine.run(request("a1", [(1, 64)]))
    assert engine.cache.reset()
    engine.scheduler.add(request("a2", [(1, 64)]))
    plan = engine.step()
    assert [num for _, num in plan.external] == [64]
    assert [load.job.request.request_id for load in plan.loading] == ["a2"]
    assert engine.loads == [[(0, 1, n) for n in (1, 2, 3, 4)]]
    plan = engine.scheduler.plan()
    # All of it was loaded; the last token is computed again.
    assert [(job.request.request_id, num) for job, num in engine.scheduler.scheduled()] == [
        ("a2", 1)
    ]
    assert [(job.num_external, hit.tokens) for job, hit in plan.started] == [(64, 0)]
    # Both stored and loaded once, and still there: the tier is inclusive.
    assert engine.tier.holds(np.array(engine.tier.chunks.rows["key"][5:9])).all()
    assert (engine.connector.external_queries, engine.connector.external_hits) == (128, 64)
    assert engine.connector.chunks_loaded == [4]
    assert engine.connector.chunks_loaded_once == [4]


def test_only_what_lies_beyond_the_local_hit_is_loaded() -> None:
    engine = Engine()
    engine.run(request("a1", [(1, 64)]))
    assert engine.cache.reset()
    engine.run(request("a2", [(1, 32), (2, 5)]))  # leaves the first two blocks on the device
    engine.loads.clear()
    engine.run(request("a3", [(1, 64), (3, 10)]))
    assert engine.loads == [[(0, 1, 3), (0, 1, 4)]]
    assert engine.scheduler.counters.hits == 32


def test_less_than_a_chunk_is_no_hit() -> None:
    engine = Engine(blocks_per_chunk=4)
    engine.run(request("a1", [(1, 64)]))
    assert engine.cache.reset()
    engine.run(request("a2", [(1, 63)]))
    assert engine.loads == []


def test_a_window_model_loads_the_end_of_its_window_only() -> None:
    engine = Engine(V4, num_blocks=2000, interval=0)
    engine.run(request("a1", [(1, 1000)]))
    assert engine.cache.reset()
    engine.run(request("a2", [(1, 1000)]))
    (keys,) = engine.loads
    # Three chunks of 256; two, two, two and sixteen before 768 of the window groups.
    assert [ends(keys, g, size) for g, size in enumerate((256, 64, 64, 4, 8))] == [
        [256, 512, 768],
        [704, 768],
        [704, 768],
        [764, 768],
        list(range(648, 769, 8)),
    ]
    assert engine.connector.external_hits == 768


def test_a_chunk_being_written_is_no_hit_yet() -> None:
    engine = Engine(store_steps=20, num_blocks=20)
    engine.scheduler.add(request("a1", [(1, 64)]))
    engine.step()
    assert engine.cache.reset()
    engine.scheduler.add(request("a2", [(1, 64)]))
    engine.scheduler.add(request("a3", [(3, 10)]))
    plan = engine.step()
    # It is asked again, and the next one is looked at.
    assert [job.request.request_id for job in plan.deferred] == ["a2"]
    assert [job.request.request_id for job, _ in plan.started] == ["a3"]
    engine.run()
    assert engine.loads == [[(0, 1, n) for n in (1, 2, 3, 4)]]


def test_fifty_who_want_one_prefix_load_it_once() -> None:
    engine = Engine(num_blocks=2000, load_steps=3)
    engine.run(request("a0", [(1, 160)]))
    assert engine.cache.reset()
    engine.run(*(request(f"a{n}", [(1, 160), (n, 20)], output=3) for n in range(1, 51)))
    assert engine.loads == [[(0, 1, n) for n in range(1, 11)]]
    assert engine.tier.num_loaded == 10
    # The one that loads hits nothing on the device, the others all of it.
    assert engine.scheduler.counters.hits == 49 * 160
    assert engine.connector.external_hits == 160


def test_loads_are_served_before_who_waits() -> None:
    engine = Engine(num_blocks=60, load_steps=2, max_seqs=2)
    engine.run(request("a0", [(1, 64)]))
    assert engine.cache.reset()
    for each in (
        request("a1", [(2, 16)], output=20),
        request("a2", [(1, 64), (3, 4)]),
        request("a3", [(4, 16)], output=2),
        request("a4", [(5, 16)]),
    ):
        engine.scheduler.add(each)
    order: list[str] = []
    while engine.scheduler.has_work or engine.scheduler.transfers_in_flight:
        order += [job.request.request_id for job, _ in engine.step().started]
    assert order == ["a1", "a3", "a2", "a4"]


def test_a_load_leaves_room_for_what_runs() -> None:
    """A running prefill has its blocks reserved, so that a load cannot preempt it."""
    engine = Engine(num_blocks=1 + 12, budget=64, load_steps=2)
    engine.run(request("a0", [(1, 64)]))
    assert engine.cache.reset()
    # a1 computes 128 tokens in two chunks: eight blocks, of which it takes four now.
    engine.scheduler.add(request("a1", [(2, 128)]))
    engine.step()
    engine.scheduler.add(request("a2", [(1, 64), (5, 16)]))
    plan = engine.step()
    # With the other four reserved, four are left; the load takes four, its own fifth does not fit.
    assert plan.loading == []
    engine.run()
    assert engine.scheduler.counters.preemptions == 0
    assert engine.loads == [[(0, 1, n) for n in (1, 2, 3, 4)]]


def test_external_tokens_count_with_the_first_answer() -> None:
    """A request that waits for room is asked in every step, and counted once."""
    engine = Engine(num_blocks=8)
    engine.scheduler.add(request("a1", [(1, 64)], output=20))
    engine.scheduler.add(request("a2", [(2, 64)]))
    engine.step()
    assert engine.connector.external_queries == 128
    engine.step()
    assert engine.connector.external_queries == 128


# --- a tier that is full, and working sets ---


def test_a_full_tier_keeps_the_device_side_whole() -> None:
    """With a tier that refuses nearly everything, full attention runs as without one."""
    plain_cache = KVCache(
        CacheConfig(num_blocks=40, groups=FULL, max_model_len=16384, max_in_flight_tokens=128)
    )
    limits = SchedulerConfig(max_num_batched_tokens=128, max_num_seqs=64, max_model_len=16384)
    plain = Scheduler(plain_cache, limits)
    engine = Engine(num_blocks=40, num_chunks=1, budget=128)
    requests = [
        (f"a{n}", [(n % 5 + 1, 64 + 16 * (n % 5)), (100 + n, 30)], 1 + n % 40) for n in range(40)
    ]
    for name, spans, output in requests:
        plain.add(request(name, spans, output))
        engine.scheduler.add(request(name, spans, output))
    while plain.has_work:
        plan, twin = plain.plan(), engine.step()
        assert len(plan.started) == len(twin.started)
        if plan.num_computing:
            plain.end_step()
        assert plain_cache.free_queue().tolist() == engine.cache.free_queue().tolist()
    assert engine.tier.num_refused > 40
    assert plain.counters == engine.scheduler.counters
    assert plain.counters.hits > 0
    assert engine.tier.num_used == 0


def test_a_refused_offer_is_made_again() -> None:
    engine = Engine(num_chunks=3)
    engine.scheduler.add(request("a1", [(1, 64)], output=5))
    for _ in range(3):
        engine.step()
        assert not engine.scheduler.only_decodes
    assert [(len(keys), stored) for keys, stored, _ in engine.offers] == [(4, None)] * 3
    assert engine.tier.num_refused == 3


@pytest.mark.parametrize("eviction", ["lru", "arc"])
@pytest.mark.parametrize(("num_chunks", "hits"), [(20, True), (16, False)])
def test_a_cyclic_working_set(eviction: str, num_chunks: int, hits: bool) -> None:
    """Five documents of four chunks in turn: all comes back if all fit, nothing if four do."""
    engine = Engine(num_blocks=7, num_chunks=num_chunks, eviction=eviction)
    for turn in range(4):
        for document in range(1, 6):
            before = engine.connector.external_hits
            engine.run(request(f"a{10 * turn + document}", [(document, 64)]))
            loaded = engine.connector.external_hits - before
            assert loaded == (64 if hits and turn else 0)
    assert engine.scheduler.counters.hits == 0  # the device holds one document and a half


# --- idle, and what is refused ---


def test_a_request_that_never_fits_is_given_up() -> None:
    """Its prefix is in the tier, but the pool is too small for the rest: no hang."""
    engine = Engine(num_blocks=8)
    engine.run(request("a1", [(1, 64)]))
    assert engine.cache.reset()
    engine.scheduler.add(request("a2", [(1, 64), (2, 64)]))
    plan = engine.step()
    assert plan.stuck is not None
    assert plan.stuck.request.request_id == "a2"
    assert not engine.scheduler.has_work
    engine.run(request("a3", [(1, 64)]))
    assert engine.loads == [[(0, 1, n) for n in (1, 2, 3, 4)]]


def test_decode_steps_are_one_jump_once_all_is_stored() -> None:
    engine = Engine(store_steps=2)
    engine.scheduler.add(request("a1", [(1, 64)], output=50))
    engine.step()
    assert not engine.scheduler.only_decodes  # a store is under way
    engine.step()
    engine.step()
    assert engine.connector.idle
    assert engine.scheduler.only_decodes
    engine.run()
    assert engine.connector.idle


def test_a_finished_request_is_reported_with_the_next_step() -> None:
    engine = Engine()
    engine.scheduler.add(request("a1", [(1, 64)]))
    engine.step()
    assert engine.connector.has_news
    assert engine.scheduler.has_work
    engine.step()
    assert not engine.scheduler.has_work


def test_problems() -> None:
    cache = KVCache(
        CacheConfig(
            num_blocks=10,
            groups=HYBRID,
            max_model_len=64,
            max_in_flight_tokens=16,
            retention_interval=32,
        )
    )
    tier = ChunkTier(4)
    with pytest.raises(ValueError, match=r"^blocks_per_chunk: 0 is below 1\. A chunk is at"):
        OffloadConnector(cache, tier, blocks_per_chunk=0)
    with pytest.raises(ValueError, match=r"^retention_interval: 32 is not a multiple of the chunk"):
        OffloadConnector(cache, tier, blocks_per_chunk=8)
