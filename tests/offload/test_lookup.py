from __future__ import annotations

import numpy as np
import pytest

from kvsim.cache.spec import GroupSpec
from kvsim.offload.cpu_tier import ChunkTier, ChunkUse
from kvsim.offload.geometry import group_chunks
from kvsim.offload.lookup import external_hit, lookup_order

FULL = GroupSpec("full", 16)
WINDOW = GroupSpec("sliding_window", 16, 32)


def hit(
    specs: tuple[GroupSpec, ...],
    there: list[list[int]],
    num_tokens: int,
    num_local: int = 0,
    *,
    writing: list[list[int]] | None = None,
    blocks_per_chunk: int = 1,
    loading: list[int] | None = None,
    load_once: bool = True,
) -> int | None:
    """The hit where a tier holds these chunks (numbers from 1) of each group."""
    groups = tuple(group_chunks(spec, blocks_per_chunk) for spec in specs)
    counts = [num_tokens // group.tokens for group in groups]
    starts = [0, *np.cumsum(counts).tolist()[:-1]]
    keys = np.arange(1, sum(counts) + 1)
    use = ChunkUse(keys, keys * 16, np.zeros_like(keys))
    tier = ChunkTier(1000)
    for group, numbers in enumerate(there):
        stored = tier.store(use, np.array([starts[group] + n - 1 for n in numbers], dtype=int))
        assert stored is not None
        tier.written(stored.rows)
    for group, numbers in enumerate(writing or []):
        tier.store(use, np.array([starts[group] + n - 1 for n in numbers], dtype=int))
    if loading:
        tier.load(use, np.array(loading) - 1)
    order = lookup_order(groups)
    return external_hit(
        tier.chunks, groups, order, keys, starts, num_tokens, num_local, load_once=load_once
    )


def test_full_attention_is_asked_first_then_larger_windows() -> None:
    specs = (WINDOW, GroupSpec("sliding_window", 16, 200), FULL, GroupSpec("full", 32))
    assert lookup_order(tuple(group_chunks(spec, 1) for spec in specs)) == (2, 3, 1, 0)


@pytest.mark.parametrize(
    ("there", "num_tokens", "num_local", "tokens"),
    [
        ([1, 2, 3, 4], 64, 0, 64),  # the whole prompt
        ([1, 2, 3, 4], 79, 0, 64),
        ([1, 2, 4], 64, 0, 32),
        ([2, 3], 64, 0, 0),
        ([2, 3], 64, 16, 32),
        ([1, 2, 3, 4], 64, 64, 0),
    ],
)
def test_full_attention(there: list[int], num_tokens: int, num_local: int, tokens: int) -> None:
    assert hit((FULL,), [there], num_tokens, num_local) == tokens


@pytest.mark.parametrize(
    ("full", "window", "num_tokens", "tokens"),
    [
        # A window of 32 needs the two chunks at its end; the last token is computed again.
        ([1, 2, 3, 4], [3, 4], 80, 64),
        ([1, 2, 3, 4], [3, 4], 64, 63),
        ([1, 2, 3, 4], [1, 2, 4], 64, 32),
        ([1, 2, 3, 4], [2, 3], 80, 48),
        ([1, 2], [3, 4], 80, 0),
        ([1, 2, 3, 4], [1], 80, 16),  # a run from the start counts though it is short
        ([1, 2, 3, 4], [4], 80, 0),
    ],
)
def test_a_window_bounds_the_hit(
    full: list[int], window: list[int], num_tokens: int, tokens: int
) -> None:
    assert hit((FULL, WINDOW), [full, window], num_tokens) == tokens


def test_the_windows_are_asked_again_where_one_shortens_the_other() -> None:
    specs = (WINDOW, GroupSpec("sliding_window", 16, 48))
    # The larger window, asked first, ends at 80; the smaller one at 64; there the larger has all.
    assert hit(specs, [[3, 4], [2, 3, 4, 5]], 100) == 64
    assert hit(specs, [[3, 4], [3, 4, 5]], 100) == 0


def test_what_is_being_written_is_asked_again() -> None:
    assert hit((FULL,), [[1, 2]], 64, writing=[[3]]) is None
    assert hit((FULL,), [[1, 2]], 64, writing=[[4]]) == 32
    assert hit((FULL, WINDOW), [[1, 2, 3, 4], [4]], 80, writing=[[], [3]]) is None
    # A window that has another run to its left is not helped by it.
    assert hit((FULL, WINDOW), [[1, 2, 3, 4], [1, 2]], 80, writing=[[], [4]]) == 32


def test_what_another_request_is_loading_is_asked_again_unless_it_could_not_be_shared() -> None:
    assert hit((FULL,), [[1, 2, 3]], 64, loading=[2]) is None
    assert hit((FULL,), [[1, 2, 3]], 64, loading=[2], load_once=False) == 48
    assert hit((FULL,), [[1, 2, 3]], 64, num_local=32, loading=[2]) == 16


def test_less_than_a_chunk_is_no_hit() -> None:
    assert hit((FULL,), [[]], 63, blocks_per_chunk=4) == 0
    assert hit((FULL, WINDOW), [[1], [1]], 64, blocks_per_chunk=4) == 0
    assert hit((FULL, WINDOW), [[1], [1]], 65, blocks_per_chunk=4) == 64


def test_a_draft_group_drops_the_chunk_it_looks_ahead() -> None:
    eagle = GroupSpec("full", 16, eagle=True)
    assert hit((eagle,), [[1, 2, 3, 4]], 96) == 48
    assert hit((eagle,), [[1]], 96) == 0
    # The look-ahead chunk of the draft group lies beyond what the other group bounds it to.
    assert hit((FULL, GroupSpec("full", 16, eagle=True)), [[1, 2, 3], [1, 2, 3, 4]], 96) == 48
    window = GroupSpec("sliding_window", 16, 32, eagle=True)
    assert hit((FULL, window), [[1, 2, 3, 4], [3, 4, 5]], 96) == 64
