"""Masks of the Mooncake store: the seed's own cases, and what they do not share with the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvsim.cache.spec import GroupSpec
from kvsim.offload.store_masks import Mask, look_ahead_groups, lookup_masks, store_masks
from kvsim.verify import verify_file

FULL = GroupSpec("full", 32)
WINDOW = GroupSpec("sliding_window", 8, 8)
MAMBA = GroupSpec("mamba", 32)
SHARED = Path(__file__).parents[3] / "shared" / "oracle" / "transcripts"


def kept(mask: Mask) -> list[int] | None:
    return None if mask is None else np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(
    ("interval", "prompt", "window"),
    [
        (None, None, [3, 7, 11, 15]),
        (64, None, [7, 15]),
        (0, None, []),
        (0, 100, [11]),
        (64, 100, [7, 11, 15]),
    ],
)
def test_the_cases_of_the_seed(interval: int | None, prompt: int | None, window: list[int]) -> None:
    masks = store_masks(
        (FULL, WINDOW), 32, 128, num_prompt_tokens=prompt, retention_interval=interval
    )
    assert [kept(mask) for mask in masks] == [None, window]


def test_a_mask_starts_where_the_last_one_ended() -> None:
    whole = store_masks((FULL, WINDOW), 32, 128)[1]
    rest = store_masks((FULL, WINDOW), 32, 128, start_token=60)[1]
    assert whole is not None and rest is not None
    assert rest.tolist() == whole[8:].tolist()  # 60 tokens are 7.5 blocks


def test_nothing_of_mamba_is_saved_and_all_is_looked_up() -> None:
    assert kept(store_masks((MAMBA, WINDOW), 32, 128)[0]) == []
    assert lookup_masks((MAMBA, WINDOW), 32, 128)[0] is None


def test_lookups_are_dense_whatever_was_saved() -> None:
    assert kept(lookup_masks((FULL, WINDOW), 32, 128)[1]) == [3, 7, 11, 15]


def test_with_a_look_ahead_block_a_prompt_has_two_replay_boundaries() -> None:
    groups = (GroupSpec("full", 32, eagle=True), WINDOW)
    # Resend and extension of 128 tokens end at 64 and 96; the unflagged window keeps its own runs.
    masks = store_masks(
        groups, 32, 128, num_prompt_tokens=128, retention_interval=0, use_eagle=True
    )
    assert kept(masks[1]) == [7, 11]


def test_groups_of_one_spec_share_the_look_ahead_block() -> None:
    twice = (FULL, WINDOW, GroupSpec("sliding_window", 8, 8, eagle=True))
    assert look_ahead_groups(twice, True) == {1, 2}
    assert look_ahead_groups((FULL, WINDOW), True) == {0, 1}
    assert look_ahead_groups((FULL, WINDOW), False) == frozenset()


def test_blocks_scaled_for_context_parallelism_are_not_scaled_again() -> None:
    scaled = GroupSpec("sliding_window", 16, 8)  # of 8, over 2 ranks
    assert kept(store_masks((FULL, scaled), 32, 128)[1]) == [1, 3, 5, 7]


def test_only_whole_units_are_saved() -> None:
    with pytest.raises(ValueError, match=r"^100 tokens are no multiple of 32$"):
        store_masks((FULL, WINDOW), 32, 100)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded transcripts are not here")
def test_every_recorded_mask_is_the_same() -> None:
    report = verify_file(SHARED / "masks-s1.jsonl.gz")
    assert report.identical
    assert (report.checked, report.skipped) == (3000, 0)
