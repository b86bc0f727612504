from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.verify import Difference, TranscriptError, verify_file
from tests.verify.writing import STEPS, Record, changed, write


@pytest.mark.parametrize(
    ("line", "fields", "difference"),
    [
        (4, {"step": 2}, ("step", 2, 1)),
        (4, {"scheduled": {"a": 8}}, ("scheduled", {"a": 8}, {"a": 9})),
        (5, {"scheduled": {"b": 1, "a": 1}}, ("scheduled", {"b": 1, "a": 1}, {"a": 1, "b": 1})),
        (4, {"admitted": {"a": 4}}, ("admitted", {"a": 4}, {"a": 0})),
        (4, {"admitted": None}, ("admitted", {}, {"a": 0})),
        (4, {"preempted": ["a"]}, ("preempted", ["a"], [])),
        (4, {"finished": ["a"]}, ("finished", ["a"], [])),
        (5, {"finished": None}, ("finished", [], ["a", "b"])),
        (5, {"finished": ["b", "a"]}, ("finished", ["b", "a"], ["a", "b"])),
        (4, {"free": 7}, ("free", 7, 6)),
        (6, {"steps": 4}, ("steps", 4, 3)),
        (6, {"queries": 9}, ("queries", 9, 18)),
        (6, {"hits": 9}, ("hits", 9, 8)),
        (6, {"preempted_requests": 1}, ("preempted_requests", 1, 0)),
        (6, {"preempted_queries": 1}, ("preempted_queries", 1, 0)),
        (6, {"preempted_hits": 1}, ("preempted_hits", 1, 0)),
    ],
)
def test_every_answer_is_compared(
    tmp_path: Path, line: int, fields: Record, difference: tuple[str, object, object]
) -> None:
    report = verify_file(write(tmp_path / "a.gz", changed(STEPS, line, **fields)))
    op = STEPS[line - 1]["op"]
    assert report.first_difference == Difference(line, op, *difference)


def test_a_recording_that_ends_too_soon(tmp_path: Path) -> None:
    report = verify_file(write(tmp_path / "a.gz", [*STEPS[:4], STEPS[5]]))
    assert report.first_difference == Difference(5, "totals", "step", None, 2)


def test_a_recording_that_goes_on(tmp_path: Path) -> None:
    more = {"op": "step", "step": 3, "scheduled": {"b": 1}, "free": 9}
    report = verify_file(write(tmp_path / "a.gz", [*STEPS[:5], more, STEPS[5]]))
    assert report.first_difference == Difference(6, "step", "step", 3, None)


def test_idle_steps_count(tmp_path: Path) -> None:
    records = changed(changed(STEPS, 3, arrives_before_step=10**9), 5, step=10**9)
    records[4] = {
        "op": "step",
        "step": 2,
        "scheduled": {"a": 1},
        "finished": ["a"],
        "free": 9,
    }
    records.insert(
        5,
        {
            "op": "step",
            "step": 10**9,
            "scheduled": {"b": 1},
            "admitted": {"b": 8},
            "finished": ["b"],
            "free": 9,
        },
    )
    records[6]["steps"] = 10**9 + 1
    assert verify_file(write(tmp_path / "a.gz", records)).identical


def test_a_request_that_can_never_run_is_a_difference_and_no_hang(tmp_path: Path) -> None:
    config = {**STEPS[0]["config"], "num_blocks": 3}
    report = verify_file(write(tmp_path / "a.gz", changed(STEPS, 1, config=config)))
    assert report.first_difference == Difference(4, "step", "step", 1, None)
    only_totals = [changed(STEPS, 1, config=config)[0], *STEPS[1:3], STEPS[5]]
    report = verify_file(write(tmp_path / "b.gz", only_totals))
    assert report.first_difference == Difference(4, "totals", "steps", 3, None)


def test_requests_that_make_no_sense(tmp_path: Path) -> None:
    twice = write(tmp_path / "a.gz", changed(STEPS, 3, req="a"))
    with pytest.raises(TranscriptError, match="line 3: request 'a' stands there twice"):
        verify_file(twice)
    long = write(tmp_path / "b.gz", changed(STEPS, 2, spans=[[1, 64]]))
    with pytest.raises(TranscriptError) as caught:
        verify_file(long)
    assert caught.value.line == 2
    assert caught.value.problem == (
        "request 'a': a prompt of 64 tokens leaves no room for an answer in max_model_len, 64"
    )
