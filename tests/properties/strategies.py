"""Random models, caches and histories for the property tests."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from math import lcm

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kvsim.cache.config import CacheConfig
from kvsim.cache.spec import GroupSpec

THOROUGH = int(os.environ.get("KVSIM_PROPERTIES", "1"))
"""How many times as many examples as by default; above 1 they are new ones in every run."""


def bounded(num_examples: int) -> settings:
    """So many examples, the same in every run."""
    return settings(
        max_examples=num_examples * THOROUGH,
        derandomize=THOROUGH == 1,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


DSV4_SMALL = (
    GroupSpec("full", 32),
    GroupSpec("sliding_window", 8, 16),
    GroupSpec("sliding_window", 8, 16),
    GroupSpec("sliding_window", 2, 4),
    GroupSpec("sliding_window", 4, 24),
)
"""The groups of DeepSeek V4 with everything about eight times smaller."""


@st.composite
def groups(draw: st.DrawFn) -> tuple[GroupSpec, ...]:
    """One to five groups; the block sizes share many divisors, as in real models."""
    kind = draw(st.integers(0, 4))
    if kind == 4:
        return draw(chunked_groups())
    if kind == 0:
        found = list(DSV4_SMALL)
    else:
        found = [
            GroupSpec("full", size)
            for size in draw(st.lists(st.sampled_from((2, 4, 8, 12, 16)), max_size=2))
        ]
        windows = draw(
            st.lists(
                st.tuples(st.sampled_from((1, 2, 4, 8, 16)), st.integers(1, 40)),
                min_size=0 if found else 1,
                max_size=3,
            )
        )
        found += [GroupSpec("sliding_window", size, window) for size, window in windows]
        found = draw(st.permutations(found))
    flagged = draw(st.lists(st.booleans(), min_size=len(found), max_size=len(found)))
    if draw(st.booleans()):
        found = [
            GroupSpec(group.kind, group.block_size, group.sliding_window, eagle)
            for group, eagle in zip(found, flagged, strict=True)
        ]
    return tuple(found)


@st.composite
def chunked_groups(draw: st.DrawFn) -> tuple[GroupSpec, ...]:
    """Chunked local groups, as a rule beside full attention and now and then beside a window.

    All have blocks of one size, and at most full attention drops a look-ahead block.
    """
    size = draw(st.sampled_from((1, 2, 4, 8)))
    chunks = draw(st.lists(st.sampled_from((1, 2, 2, 3, 6)), min_size=1, max_size=3))
    found = [
        GroupSpec("chunked_local", size, attention_chunk_size=size * blocks) for blocks in chunks
    ]
    if draw(st.integers(0, 3)):
        found.append(GroupSpec("full", size, eagle=draw(st.booleans())))
    if draw(st.integers(0, 3)) == 0:
        found.append(GroupSpec("sliding_window", size, draw(st.integers(1, 40))))
    return tuple(draw(st.permutations(found)))


@st.composite
def caches(draw: st.DrawFn) -> CacheConfig:
    """A small cache of any profile and policy."""
    chosen = draw(groups())
    unit = lcm(*(group.block_size for group in chosen))
    profile = draw(
        st.sampled_from(("vllm-0.22", "vllm-0.23", "vllm-0.32", "vllm-0.33", "vllm-0.33"))
    )
    intervals: list[int | None] = [None]
    if profile != "vllm-0.22":
        intervals.append(0)
        if any(group.kind == "sliding_window" for group in chosen):
            intervals += [unit, 2 * unit, 3 * unit]
    max_model_len = draw(st.sampled_from((max(40, unit * 8), 200)))
    whole = sum(-(-max_model_len // group.block_size) for group in chosen)
    has_chunks = any(group.kind == "chunked_local" for group in chosen)
    can_drop = not has_chunks or any(group.eagle for group in chosen)
    return CacheConfig(
        num_blocks=2 + whole * draw(st.integers(1, 10)) // 4,
        groups=chosen,
        max_model_len=max_model_len,
        max_in_flight_tokens=draw(st.integers(4, 80)),
        retention_interval=draw(st.sampled_from(intervals)),
        enable_caching=draw(st.integers(0, 9)) > 0,
        use_eagle=can_drop and draw(st.booleans()),
        profile=profile,
        free_queue=draw(
            st.sampled_from((None, None, "append", "prepend-uncached-window", "prepend-uncached"))
        ),
    )


@st.composite
def caches_with_states(draw: st.DrawFn) -> CacheConfig:
    """A small cache of a model with states: full attention and a window beside them, or neither."""
    size = draw(st.sampled_from((8, 12, 16)))
    unit = draw(st.sampled_from((None, size // 4, size // 2)))
    caching = draw(st.integers(0, 9)) > 0
    max_model_len = draw(st.sampled_from((8 * size, 200)))
    num_drafts = draw(st.sampled_from((0, 0, 1, 3)))
    alignments = st.sampled_from((None, 1, size // 2, size))
    found = [
        GroupSpec(
            "mamba",
            size if caching else max_model_len,
            num_drafts=num_drafts,
            checkpoint_alignment=draw(alignments) if caching else None,
            one_state=not caching,
        )
    ]
    found *= draw(st.integers(1, 3))
    found += [GroupSpec("full", size)] * draw(st.sampled_from((1, 1, 2)))
    if draw(st.integers(0, 3)) == 0:
        window = draw(st.sampled_from((size, unit or size, size // 2)))
        if unit is None or window % unit == 0:
            found.append(GroupSpec("sliding_window", window, draw(st.integers(1, 40))))
    found = draw(st.permutations(found))
    eagle = draw(st.sampled_from((False, False, True)))
    if eagle and draw(st.booleans()):
        found = [replace(group, eagle=group.kind == "full") for group in found]
    scheduler_block = lcm(*(group.block_size for group in found))
    intervals = (None, 0, 0, scheduler_block, 2 * scheduler_block)
    whole = sum(
        group.blocks_held if group.kind == "mamba" else -(-max_model_len // group.block_size)
        for group in found
    )
    return CacheConfig(
        num_blocks=3 + whole * draw(st.integers(2, 10)) // 4,
        groups=tuple(found),
        max_model_len=max_model_len,
        max_in_flight_tokens=draw(st.integers(5, 80)),
        retention_interval=draw(st.sampled_from(intervals)) if caching else None,
        enable_caching=caching,
        use_eagle=eagle,
        key_lookahead_tokens=0 if eagle else draw(st.sampled_from((0, 0, 1))),
        prefix_match_unit=unit if caching else None,
        shared_prefix_checkpoint=draw(st.booleans()),
    )


@dataclass(frozen=True)
class Deed:
    """One thing done to a cache. The numbers choose among what is there, by remainder."""

    what: str
    a: int
    b: int
    c: int


_WHATS = ("begin",) * 6 + ("proceed",) * 6 + ("produce",) * 4 + ("end",) * 3 + ("preempt", "reset")


def deeds(most: int) -> st.SearchStrategy[list[Deed]]:
    """A history: requests begin, proceed, produce, end, are preempted; now and then a reset."""
    number = st.integers(0, 255)
    return st.lists(
        st.builds(Deed, st.sampled_from(_WHATS), number, number, number), min_size=1, max_size=most
    )


def long_history(seed: int, num_deeds: int) -> list[Deed]:
    """A history too long to be drawn one by one: it fills the pool over and over."""
    rng = random.Random(seed)
    return [
        Deed(rng.choice(_WHATS), *(rng.randrange(256) for _ in range(3))) for _ in range(num_deeds)
    ]
