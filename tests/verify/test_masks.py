from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.verify import Difference, TranscriptError, verify_file
from tests.verify.writing import MASKS, Record, changed, write


def test_a_mask_that_differs(tmp_path: Path) -> None:
    report = verify_file(write(tmp_path / "a.gz", changed(MASKS, 2, kept=[7, 15])))
    assert report.first_difference == Difference(2, "mask", "kept", [7, 15], [7, 11, 15])
    assert (report.checked, report.skipped) == (1, 0)


def test_all_is_not_the_same_as_each(tmp_path: Path) -> None:
    records = changed(MASKS, 2, kind="full", sliding_window=None, kept=list(range(16)))
    report = verify_file(write(tmp_path / "a.gz", records))
    assert report.first_difference == Difference(2, "mask", "kept", list(range(16)), None)


def test_boundaries_that_differ(tmp_path: Path) -> None:
    report = verify_file(write(tmp_path / "a.gz", changed(MASKS, 4, boundaries=[48])))
    assert report.first_difference == Difference(
        4, "replay_boundaries", "boundaries", [48], [32, 48]
    )
    assert (report.checked, report.skipped) == (3, 0)


def test_store_masks_alone_are_checked(tmp_path: Path) -> None:
    report = verify_file(write(tmp_path / "a.gz", [MASKS[0], MASKS[2], MASKS[2]]))
    assert (report.identical, report.checked, report.skipped) == (True, 2, 0)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"start_block": 17}, "mask end_block: 16 is below start_block, 17"),
        ({"sliding_window": None}, "mask sliding_window belongs to sliding_window groups"),
        ({"kind": "mamba"}, "mask sliding_window belongs to sliding_window groups"),
        ({"retention_interval": -32}, "mask retention_interval: -32 is not a multiple of 32."),
        ({"retention_interval": 16}, "mask retention_interval: 16 is not a multiple of 32."),
        ({"end_block": 2**25}, "mask end_block: 33554432 is not a whole number"),
        ({"kind": "cross"}, "mask kind: 'cross' is not one of full, sliding_window, mamba"),
    ],
)
def test_a_mask_that_cannot_be_asked_for(tmp_path: Path, fields: Record, text: str) -> None:
    path = write(tmp_path / "a.gz", changed(MASKS, 2, **fields))
    with pytest.raises(TranscriptError) as caught:
        verify_file(path)
    assert caught.value.line == 2
    assert caught.value.problem.startswith(text)
