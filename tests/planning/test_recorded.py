"""What the engine's planning chose for published models and random layers, answer by answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.verify import verify_file

FOLDER = Path(__file__).parents[1] / "data" / "transcripts" / "groups"


@pytest.mark.parametrize(
    ("name", "answers"), [("hopper", 5785), ("blackwell", 3199), ("layers-s1", 2760)]
)
def test_every_recorded_answer_is_the_same(name: str, answers: int) -> None:
    report = verify_file(FOLDER / f"groups-{name}.jsonl.gz")
    assert report.identical, report.sentence
    assert (report.checked, report.skipped) == (answers, 0)
