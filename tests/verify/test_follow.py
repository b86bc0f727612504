from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.verify import Difference, FileReport, TranscriptError, verify_file, verify_files
from tests.verify.writing import HISTORY, MASKS, STEPS, Record, changed, write


@pytest.mark.parametrize(
    ("records", "checked", "skipped"),
    [(HISTORY, 10, 0), (STEPS, 18, 0), (MASKS, 3, 0)],
    ids=["operations", "steps", "masks"],
)
def test_a_transcript_that_is_the_same(
    tmp_path: Path, records: list[Record], checked: int, skipped: int
) -> None:
    path = write(tmp_path / "a.jsonl.gz", records)
    assert verify_file(path) == FileReport(str(path), True, checked, skipped, None)


def test_following_ends_at_the_first_difference(tmp_path: Path) -> None:
    twice = changed(changed(HISTORY, 3, free=7), 5, free=7)
    report = verify_file(write(tmp_path / "a.jsonl.gz", twice))
    assert report.identical is False
    assert report.first_difference == Difference(3, "allocate", "free", 7, 6)
    assert report.checked == 6  # three of the lookup, three of the allocation


def test_a_broken_file_does_not_keep_the_others_from_being_followed(tmp_path: Path) -> None:
    broken = write(tmp_path / "b.jsonl.gz", changed(HISTORY, 2, op="peek"))
    same = write(tmp_path / "s.jsonl.gz", HISTORY)
    missing = tmp_path / "m.jsonl.gz"
    reports, errors = verify_files([broken, same, missing])
    assert [report.file for report in reports] == [str(same)]
    assert [error.file for error in errors if isinstance(error, TranscriptError)] == [
        str(broken),
        str(missing),
    ]
    assert str(errors[0]).startswith(f"{broken}: line 2: unknown op 'peek'")


def test_a_file_that_breaks_after_a_difference_is_broken(tmp_path: Path) -> None:
    records = changed(changed(HISTORY, 3, free=7), 7, ok="yes")
    with pytest.raises(TranscriptError, match="line 7: reset ok: 'yes' is not true or false"):
        verify_file(write(tmp_path / "a.jsonl.gz", records))
