from __future__ import annotations

import pytest

from kvsim.cache.spec import GroupSpec
from kvsim.offload.geometry import (
    alignment_tokens,
    blocks_per_chunk_problem,
    chunk_bytes,
    group_chunks,
    interval_problem,
    num_chunks_in,
    tokens_per_chunk,
)
from tests.offload.engine import HYBRID, V4

FULL_16, FULL_32 = GroupSpec("full", 16), GroupSpec("full", 32)
WINDOW_16 = GroupSpec("sliding_window", 16, 128)
WINDOW_64 = GroupSpec("sliding_window", 64, 128)
MAMBA = GroupSpec("mamba", 512)


@pytest.mark.parametrize(
    ("groups", "blocks_per_chunk", "dcp", "tokens"),
    [
        ((FULL_16, WINDOW_64), 1, 1, 16),
        ((FULL_16, FULL_16, WINDOW_64), 4, 1, 64),
        ((FULL_16, FULL_32, WINDOW_64), 1, 1, None),
        ((WINDOW_16, WINDOW_64), 2, 1, 128),
        ((WINDOW_16, MAMBA), 1, 1, 512),
        ((FULL_16, WINDOW_64), 2, 4, 128),
        ((MAMBA, WINDOW_16), 1, 8, 512),
        ((MAMBA, WINDOW_64), 1, 16, 1024),
    ],
)
def test_alignment(
    groups: tuple[GroupSpec, ...], blocks_per_chunk: int, dcp: int, tokens: int | None
) -> None:
    assert alignment_tokens(groups, blocks_per_chunk, dcp) == tokens


def test_a_mamba_state_is_not_scaled() -> None:
    assert tokens_per_chunk(MAMBA, 2, 4) == 1024
    assert tokens_per_chunk(WINDOW_64, 2, 4) == 512
    assert tokens_per_chunk(FULL_16, 2, 4) == 128


@pytest.mark.parametrize(
    ("group", "blocks_per_chunk", "num_tokens", "window"),
    [
        (FULL_16, 1, 160, None),
        (WINDOW_64, 1, 640, 2),
        (WINDOW_64, 1, 641, 3),  # the last chunk holds 1 of its 64 tokens
        (WINDOW_64, 1, 704 - 1, 2),
        (WINDOW_64, 4, 512, 1),
        (WINDOW_64, 4, 385, 1),  # 127 + 127 tokens end in one chunk of 256
        (WINDOW_64, 4, 257, 2),
        (GroupSpec("sliding_window", 4, 8), 1, 100, 2),
        (MAMBA, 1, 1000, 1),
    ],
)
def test_chunks_a_hit_needs(
    group: GroupSpec, blocks_per_chunk: int, num_tokens: int, window: int | None
) -> None:
    assert group_chunks(group, blocks_per_chunk).window_at(num_tokens) == window


@pytest.mark.parametrize("interval", [None, 0, 256, 512])
def test_intervals_that_are_accepted(interval: int | None) -> None:
    assert interval_problem(V4, 1, interval) is None
    assert interval_problem((FULL_16,), 1, 8) is None  # full attention keeps all


@pytest.mark.parametrize(
    ("groups", "blocks_per_chunk", "interval", "dcp", "problem"),
    [
        (
            HYBRID,
            1,
            -32,
            1,
            "-32 is negative. Use 0, a positive number of tokens, or null.",
        ),
        (
            HYBRID,
            8,
            32,
            1,
            "32 is not a multiple of the chunk of group 1 (sliding-window: 64 tokens). "
            "Use 0, 64, 128, ... or null, or fewer blocks a chunk.",
        ),
        (
            HYBRID,
            1,
            32,
            8,
            "32 is not a multiple of the chunk of group 1 (sliding-window: 64 tokens). "
            "Use 0, 64, 128, ... or null, or fewer blocks a chunk.",
        ),
        (
            (FULL_16, MAMBA),
            1,
            256,
            4,
            "256 is not a multiple of the chunk of group 1 (Mamba: 512 tokens). "
            "Use 0, 512, 1024, ... or null, or fewer blocks a chunk.",
        ),
    ],
)
def test_intervals_that_are_refused(
    groups: tuple[GroupSpec, ...], blocks_per_chunk: int, interval: int, dcp: int, problem: str
) -> None:
    assert interval_problem(groups, blocks_per_chunk, interval, dcp) == problem


def test_a_chunk_is_at_least_one_block() -> None:
    assert blocks_per_chunk_problem(1) is None
    assert blocks_per_chunk_problem(0) == "0 is below 1. A chunk is at least one block."


@pytest.mark.parametrize(
    ("block_bytes", "blocks_per_chunk", "num_copies", "size"),
    [(4096, 1, 1, 4096), (4097, 1, 1, 8192), (1000, 4, 1, 4096), (1000, 4, 2, 8192)],
)
def test_a_chunk_takes_whole_memory_pages(
    block_bytes: int, blocks_per_chunk: int, num_copies: int, size: int
) -> None:
    assert chunk_bytes(block_bytes, blocks_per_chunk, num_copies) == size


def test_chunks_in_a_capacity() -> None:
    assert num_chunks_in(40_959, 4096) == 9
    assert num_chunks_in(4095, 4096) == 0
