"""Random histories: what is loaded was stored before and has not left since; room is kept to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.spec import GroupSpec
from kvsim.policies.host_chunks import EVICTABLE
from tests.offload.engine import (
    FULL,
    HYBRID,
    SPLIT_STATES,
    STATES,
    STATES_AND_WINDOW,
    Engine,
    Keys,
    request,
)
from tests.slow_model.slow_tier import watch_hits

pytestmark = pytest.mark.bounds

GROUPS = st.sampled_from(
    [
        FULL,
        HYBRID,
        STATES,
        SPLIT_STATES,
        STATES_AND_WINDOW,
        (GroupSpec("sliding_window", 16, 40),),
        (GroupSpec("full", 16), GroupSpec("sliding_window", 16, 48), GroupSpec("full", 16)),
    ]
)
REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 4),  # document
        st.integers(1, 90),  # tokens of it
        st.integers(1, 60),  # own tokens
        st.integers(1, 20),  # answer
        st.integers(0, 5),  # steps after the one before
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(
    groups=GROUPS,
    requests=REQUESTS,
    interval=st.sampled_from([None, 0]),
    num_blocks=st.integers(70, 160),
    num_chunks=st.integers(1, 60),
    blocks_per_chunk=st.sampled_from([1, 2, 4]),
    eviction=st.sampled_from(["lru", "arc"]),
    prompt_only=st.booleans(),
    budget=st.sampled_from([32, 64, 256]),
    load_steps=st.integers(1, 4),
    store_steps=st.integers(1, 6),
    unit=st.sampled_from([None, 4, 8]),
)
def test_conservation(
    groups: tuple[GroupSpec, ...],
    requests: list[tuple[int, int, int, int, int]],
    interval: int | None,
    num_blocks: int,
    num_chunks: int,
    blocks_per_chunk: int,
    eviction: str,
    prompt_only: bool,
    budget: int,
    load_steps: int,
    store_steps: int,
    unit: int | None,
) -> None:
    has_states = any(group.kind == "mamba" for group in groups)
    engine = Engine(
        groups,
        num_blocks=num_blocks,
        num_chunks=num_chunks,
        interval=interval,
        blocks_per_chunk=blocks_per_chunk,
        prompt_only=prompt_only,
        eviction=eviction,
        budget=budget,
        max_seqs=8,
        load_steps=load_steps,
        store_steps=store_steps,
        unit=unit if has_states else None,
    )
    if has_states:
        watch_hits(engine)
    due: dict[int, list[int]] = {}
    at = 0
    for number, (_, _, _, _, gap) in enumerate(requests):
        at += gap
        due.setdefault(at, []).append(number)
    resident: set[tuple[int, int, int]] = set()
    finished = 0
    while due or engine.scheduler.has_work or engine.scheduler.transfers_in_flight:
        for number in due.pop(engine.num_steps, []):
            document, shared, own, output, _ = requests[number]
            spans = [(document, shared), (1000 + number, own)]
            # A span's uid stands for one length of it only.
            spans[0] = (10 * shared + document, shared)
            engine.scheduler.add(request(f"a{number:03}", spans, output))
        done_before, loads_before = len(engine.offers), len(engine.loads)
        plan = engine.step()
        assert plan.stuck is None
        # Loads are issued while the step is planned, its stores at the end of that.
        for keys in engine.loads[loads_before:]:
            assert set(keys) <= resident
            assert len(set(keys)) == len(keys)
        for offered, stored, evicted in engine.offers[done_before:]:
            check_offer(resident, offered, stored, evicted)
        assert engine.tier.num_used == len(resident) <= num_chunks
        finished = engine.num_steps
        assert finished < 5000
    tier, connector = engine.tier, engine.connector
    assert tier.num_stored - tier.num_evicted == tier.num_used
    assert tier.num_stored == sum(connector.chunks_stored)
    assert tier.num_loaded == sum(connector.chunks_loaded)
    assert all(
        once <= min(stored, loaded)
        for once, stored, loaded in zip(
            connector.chunks_loaded_once,
            connector.chunks_stored,
            connector.chunks_loaded,
            strict=True,
        )
    )
    assert 0 <= connector.external_hits <= connector.external_queries
    # Nothing is held any more, on the device or in the tier.
    assert engine.cache.num_free == num_blocks - 1
    assert int(tier.chunks.totals[EVICTABLE]) == tier.num_used
    assert not np.any(tier.chunks.rows["num_loads"][5:] > 0)
    assert connector.idle


def check_offer(
    resident: set[tuple[int, int, int]], offered: Keys, stored: Keys | None, evicted: Keys
) -> None:
    assert len(set(offered)) == len(offered)
    if stored is None:
        assert evicted == []
        return
    assert stored == [key for key in offered if key not in resident]
    assert set(evicted) <= resident - set(offered)
    resident -= set(evicted)
    resident |= set(stored)


@settings(max_examples=25, deadline=None)
@given(requests=REQUESTS, num_chunks=st.integers(1, 60), num_blocks=st.integers(30, 120))
def test_a_tier_costs_a_full_attention_model_no_local_hit_that_it_does_not_bring_back(
    requests: list[tuple[int, int, int, int, int]], num_chunks: int, num_blocks: int
) -> None:
    """One request at a time, so that timing is equal: local and external hits are no fewer."""
    hits = []
    for chunks in (num_chunks, None):
        engine = Engine(num_blocks=num_blocks, num_chunks=chunks or 1)
        if chunks is None:
            engine.scheduler.connector = None
        total = 0
        for number, (document, shared, own, output, _) in enumerate(requests):
            spans = [(10 * shared + document, shared), (1000 + number, own)]
            engine.scheduler.add(request(f"a{number:03}", spans, output))
            while engine.scheduler.has_work or engine.scheduler.transfers_in_flight:
                if chunks is None:
                    if engine.scheduler.plan().num_computing:
                        engine.scheduler.end_step()
                else:
                    engine.step()
        total = engine.scheduler.counters.hits + engine.connector.external_hits
        hits.append(total)
    assert hits[0] >= hits[1]
