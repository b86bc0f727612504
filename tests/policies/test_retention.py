"""Masks written out by hand, and against the rule read literally."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.policies.retention import reachable_block_mask, replay_boundaries


def kept(
    interval: int | None,
    *,
    end_block: int = 16,
    block: int = 8,
    window: int = 8,
    alignment: int | None = 32,
    boundaries: tuple[int, ...] = (),
    **options: int | bool,
) -> list[int] | None:
    """Blocks kept of a window group; None for all."""
    mask = reachable_block_mask(
        "sliding_window",
        0,
        end_block,
        block,
        alignment,
        interval,
        boundaries,
        sliding_window=window,
        **options,  # type: ignore[arg-type]
    )
    return None if mask is None else np.flatnonzero(mask).tolist()


def test_the_masks_of_the_third_seed() -> None:
    # vLLM #44774: a full group of block 32 and a window group of block 8 and window 8, 128 tokens.
    assert kept(None) == [3, 7, 11, 15]
    assert kept(64) == [7, 15]
    assert kept(0) == []
    assert kept(0, boundaries=(99,)) == [11]
    assert kept(64, boundaries=(99,)) == [7, 11, 15]


def test_a_dense_interval_ignores_boundaries() -> None:
    assert kept(None, boundaries=(40,)) == kept(None)


def test_a_boundary_is_rounded_down_to_the_alignment() -> None:
    assert kept(0, boundaries=(31,)) == []
    assert kept(0, boundaries=(32,)) == [3]
    assert kept(0, boundaries=(63, 64)) == [3, 7]


def test_everything_is_kept_where_a_run_fills_its_segment() -> None:
    assert kept(None, window=26) is None  # four blocks of 8 in a segment of 32
    assert kept(None, window=25) == [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15]
    assert kept(64, window=57) == [i for i in range(16) if i % 8]
    assert kept(64, window=58) is None


def test_no_alignment_keeps_everything() -> None:
    assert kept(0, alignment=None) is None


def test_look_ahead_keeps_one_block_more_and_ends_behind_the_boundary() -> None:
    assert kept(None, use_eagle=True) == [3, 4, 7, 8, 11, 12, 15]
    assert kept(0, boundaries=(64,), use_eagle=True) == [7, 8]
    assert kept(0, boundaries=(0,), use_eagle=True) == [0]


def test_decode_context_parallelism_scales_window_blocks() -> None:
    assert kept(0, boundaries=(64,), dcp_world_size=2) == [3]
    assert kept(0, boundaries=(64,), dcp_world_size=8) is None, "32 is no multiple of 64: dense"


def test_the_final_segment_is_kept_as_far_as_it_goes() -> None:
    assert kept(64, final_segment_end_block=11) == [7, 10, 15]
    assert kept(64, final_segment_end_block=8) == [7, 15]
    assert kept(64, window=17, final_segment_end_block=9) == [6, 7, 8, 14, 15]
    assert kept(0, final_segment_end_block=11) == []
    assert kept(64, final_segment_end_block=11, use_eagle=True) == [7, 8, 15]


def test_full_attention_keeps_everything() -> None:
    assert reachable_block_mask("full", 0, 9, 16, 16, 0, (3,)) is None


@pytest.mark.parametrize(
    ("interval", "boundaries", "answer"),
    [
        (None, (100,), None),
        (0, (100,), [5]),
        (0, (15,), []),
        (64, (), [3, 7]),
        (64, (100,), [3, 5, 7]),
        (16, (), None),
    ],
)
def test_mamba_keeps_the_state_at_a_boundary(
    interval: int | None, boundaries: tuple[int, ...], answer: list[int] | None
) -> None:
    mask = reachable_block_mask("mamba", 0, 9, 16, 16, interval, boundaries, dcp_world_size=4)
    assert (None if mask is None else np.flatnonzero(mask).tolist()) == answer


def test_what_cannot_be_asked() -> None:
    with pytest.raises(
        ValueError, match="'maamba' is none of full, sliding_window, chunked_local, mamba"
    ):
        reachable_block_mask("maamba", 0, 1, 16, 16, 0)
    with pytest.raises(ValueError, match="needs its sliding_window"):
        reachable_block_mask("sliding_window", 0, 1, 16, 16, 0)


def literal(
    start: int,
    end: int,
    block: int,
    need: int,
    shift: int,
    unit: int,
    interval: int | None,
    boundaries: list[int],
) -> list[int] | None:
    """The rule as the engine's notes state it, boundary by boundary."""
    step = unit if interval is None else interval
    if step and need >= step // block:
        return None
    ends = list(range(step, (end + 2) * block + step, step)) if step else []
    if interval is not None:
        ends += [boundary // unit * unit for boundary in boundaries]
    runs = {
        i
        for boundary in ends
        for i in range(boundary // block + shift - need, boundary // block + shift)
    }
    # A dense or regular run begins behind the first segment's look-ahead block.
    return sorted(i for i in runs if start <= i < end and i >= 0)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_runs_end_where_the_rule_says(data: st.DataObject) -> None:
    block = data.draw(st.sampled_from((4, 8, 16)))
    unit = block * data.draw(st.sampled_from((1, 2, 4, 8)))
    interval = data.draw(st.sampled_from((None, 0, unit, 4 * unit)))
    window = data.draw(st.integers(2, 5 * block))
    eagle = data.draw(st.booleans())
    start = data.draw(st.integers(0, 30))
    end = start + data.draw(st.integers(0, 40))
    boundaries = data.draw(st.lists(st.integers(0, end * block), max_size=3))
    mask = reachable_block_mask(
        "sliding_window", start, end, block, unit, interval, boundaries,
        sliding_window=window, use_eagle=eagle,
    )  # fmt: skip
    need = -(-(window - 1) // block) + int(eagle)
    expected = literal(start, end, block, need, int(eagle), unit, interval, boundaries)
    got = None if mask is None else (np.flatnonzero(mask) + start).tolist()
    assert got == expected


def test_replay_boundaries() -> None:
    assert replay_boundaries(1000, 256, False) == (999,)
    assert replay_boundaries(1000, 256, True) == (512,)
    assert replay_boundaries(1024, 256, True) == (512, 768)
    assert replay_boundaries(10, 256, True) == (0,)
