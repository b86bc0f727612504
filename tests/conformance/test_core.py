"""The core gives every answer of every recorded transcript."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.verify import verify_file
from tests.conformance.transcripts import (
    OWN,
    label,
    lines,
    overlapping,
    recorded_faults,
    transcripts,
    with_states,
)

pytestmark = pytest.mark.bounds

OF_TIERS = ("offload-", "mooncake-", "async-")
FOLLOWED = [path for path in transcripts() if not path.name.startswith(OF_TIERS)]


def recorded_answers(path: Path) -> int:
    """The answers in a file, counted apart from the code under test."""
    counts = {
        "lookup": 3,
        "reset": 1,
        "state": 5,
        "mask": 1,
        "store_mask": 1,
        "replay_boundaries": 1,
        "step": 6,
        "totals": 6,
    }
    return sum(
        2 + record["ok"] if record.get("op") == "allocate" else counts.get(record.get("op"), 0)
        for record in lines(path)
    )


@pytest.mark.parametrize("path", FOLLOWED, ids=label)
def test_every_answer_is_the_same(path: Path) -> None:
    report = verify_file(path)
    assert report.first_difference is None
    assert report.identical is True
    assert report.checked == recorded_answers(path)
    assert report.skipped == 0


@pytest.mark.parametrize("path", transcripts("offload-"), ids=label)
def test_every_answer_about_the_tier_is_the_same(path: Path) -> None:
    report = verify_file(path)
    assert report.first_difference is None
    assert (report.identical, report.skipped) == (True, 0)
    num_steps = sum(record.get("op") == "step" for record in lines(path))
    assert report.checked == 12 * num_steps + 9


@pytest.mark.parametrize("path", overlapping(), ids=label)
def test_every_answer_about_overlapping_steps_is_the_same(path: Path) -> None:
    report = verify_file(path)
    assert report.first_difference is None
    assert (report.identical, report.skipped) == (True, 0)
    records = lines(path)
    ops = [record.get("op") for record in records]
    num_totals = len(records[-1]) - 1
    assert report.checked == 6 * ops.count("step") + 4 * ops.count("output") + num_totals


def recorded_answers_about_states(path: Path) -> int:
    """The same for models with groups of states."""
    records = lines(path)
    in_steps = records[0]["format"] == "kvsim-steps/1"
    counts = {"lookup": 3, "reset": 1, "state": 5, "totals": 6}
    total = 0
    for record in records:
        if record.get("op") == "allocate":
            total += 2 + 2 * record["ok"]
        elif record.get("op") == "step":
            total += 6 if in_steps else "copies" in record
        else:
            total += counts.get(record.get("op"), 0)
    return total


@pytest.mark.parametrize("path", with_states(), ids=label)
def test_every_answer_about_states_is_the_same(path: Path) -> None:
    report = verify_file(path)
    assert report.first_difference is None
    assert (report.identical, report.skipped) == (True, 0)
    assert report.checked == recorded_answers_about_states(path)


@pytest.mark.parametrize("path", transcripts("mooncake-"), ids=label)
def test_every_answer_about_the_store_is_the_same(path: Path) -> None:
    report = verify_file(path)
    assert report.first_difference is None
    assert (report.identical, report.skipped) == (True, 0)
    num_steps = sum(record.get("op") == "step" for record in lines(path))
    assert report.checked == 11 * num_steps + 7


@pytest.mark.parametrize("path", recorded_faults(), ids=label)
def test_what_was_wrong_once_is_the_same(path: Path) -> None:
    report = verify_file(path)
    assert report.first_difference is None
    assert (report.identical, report.skipped) == (True, 0)
    assert report.checked >= len(lines(path)) - 3


def test_all_kinds_of_recordings_are_part_of_the_project() -> None:
    heads = [lines(path)[0] for path in sorted(OWN.glob("**/*.jsonl.gz"))]
    assert {head["format"] for head in heads} == {
        "kvsim-transcript/1",
        "kvsim-steps/1",
        "kvsim-masks/1",
        "kvsim-offload/1",
        "kvsim-async/1",
        "kvsim-mooncake/1",
        "kvsim-groups/1",
        "kvsim-routing/1",
    }
    assert {head["engine"].partition("+")[0] for head in heads} == {
        "vllm 0.22.1",
        "vllm 0.23.0",
        "vllm 0.32.0",
        "vllm 0.33.0",
        "ai-dynamo-runtime 1.6.1",
        "sglang-router 0.3.2",
    }
    assert sum(path.stat().st_size for path in OWN.glob("**/*.gz")) < 5 * 2**18
