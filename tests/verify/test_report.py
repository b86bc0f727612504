from __future__ import annotations

import json

import pytest

from kvsim.verify.report import Answer, Difference, FileReport


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        (8, 8, True),
        (8, 0, False),
        ([[1, 3]], [[1, 3]], True),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ({}, None, False),
        (None, None, True),
    ],
)
def test_answers_are_the_same_by_value_and_order(expected: object, got: object, same: bool) -> None:
    assert Answer(2, "step", "scheduled", expected, got).same is same


def test_a_report_as_json() -> None:
    report = FileReport("a.gz", False, 3, 0, Difference(2, "lookup", "hit", 8, 0))
    assert json.loads(json.dumps(report.as_json())) == {
        "file": "a.gz",
        "identical": False,
        "checked": 3,
        "skipped": 0,
        "first_difference": {
            "line": 2,
            "op": "lookup",
            "what": "hit",
            "expected": 8,
            "got": 0,
        },
    }
    assert FileReport("a.gz", None, 0, 5, None).as_json()["identical"] is None


def test_a_report_in_a_sentence() -> None:
    assert FileReport("a.gz", True, 1234, 0, None).sentence == "a.gz: same (1,234 answers checked)"
    assert (
        FileReport("a.gz", True, 2, 1, None).sentence == "a.gz: same (2 answers checked, 1 skipped)"
    )
    assert (
        FileReport("a.gz", None, 0, 21, None).sentence
        == "a.gz: nothing to check (21 answers skipped)"
    )
    first = Difference(7, "allocate", "blocks", [[[1, 3]]], [[]])
    assert FileReport("a.gz", False, 9, 0, first).sentence == (
        "a.gz: differs at line 7, allocate blocks: expected [[[1, 3]]], got [[]] "
        "(9 answers checked)"
    )


def test_a_long_value_is_cut_in_the_sentence_alone() -> None:
    first = Difference(7, "mask", "kept", list(range(900)), None)
    report = FileReport("a.gz", False, 1, 0, first)
    assert len(report.sentence) < 300
    assert "..., got null" in report.sentence
    assert report.as_json()["first_difference"]["expected"] == list(range(900))
