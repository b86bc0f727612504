from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.verify import TranscriptError, verify_file

BUNDLED = sorted((Path(__file__).parent / "offload").glob("*.jsonl.gz"))
"""Recorded with vLLM 0.33.0's own scheduler and connector, beyond the shared transcripts."""
SHARED = sorted(
    (Path(__file__).parents[3] / "shared" / "oracle" / "transcripts").glob("offload-*.jsonl.gz")
)


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.name)
def test_every_answer_is_the_engine_s(path: Path) -> None:
    report = verify_file(path)
    assert report.first_difference is None
    assert report.checked > 4000
    assert report.skipped == 0


@pytest.mark.skipif(not SHARED, reason="the shared transcripts are not here")
def test_every_shared_transcript_is_the_same() -> None:
    reports = [verify_file(path) for path in SHARED]
    assert [report.file for report in reports if not report.identical] == []
    assert all(report.skipped == 0 for report in reports)


def records(name: str = "small-hybrid-boundary-arc.jsonl.gz") -> list[dict[str, Any]]:
    with gzip.open(Path(__file__).parent / "offload" / name) as f:
        return [json.loads(line) for line in f]


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    with gzip.open(path, "wt") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)
    return path


@pytest.mark.parametrize(
    "what", ["external", "waiting", "loads", "stores", "refused", "flushed", "free", "admitted"]
)
def test_every_answer_of_a_step_is_compared(tmp_path: Path, what: str) -> None:
    """The first step that has such an answer is changed, and found."""
    lines = records("gpt-oss-arc-decode-too-refused.jsonl.gz")
    number = next(n for n, line in enumerate(lines) if line.get("op") == "step" and what in line)
    value = lines[number][what]
    if isinstance(value, int):
        lines[number][what] = value + 1
    else:
        del lines[number][what]
        lines[number][what] = {} if isinstance(value, dict) else value[:-1]
    report = verify_file(write(tmp_path / "a.gz", lines))
    assert report.first_difference is not None
    assert (report.first_difference.line, report.first_difference.what) == (number + 1, what)


@pytest.mark.parametrize("part", ["offered", "stored", "evicted"])
def test_every_part_of_a_store_is_compared(tmp_path: Path, part: str) -> None:
    lines = records()
    number, store = next(
        (n, store)
        for n, line in enumerate(lines)
        for store in line.get("stores", [])
        if store["evicted"]
    )
    store[part].reverse()
    store[part][0][2] += 8
    report = verify_file(write(tmp_path / "a.gz", lines))
    assert report.first_difference is not None
    assert (report.first_difference.line, report.first_difference.what) == (number + 1, "stores")


@pytest.mark.parametrize(
    "what",
    [
        "steps",
        "stored",
        "loaded",
        "evicted",
        "refused",
        "external_queries",
        "external_hits",
        "queries",
        "hits",
    ],
)
def test_every_total_is_compared(tmp_path: Path, what: str) -> None:
    lines = records()
    lines[-1][what] += 1
    report = verify_file(write(tmp_path / "a.gz", lines))
    assert report.first_difference is not None
    assert (report.first_difference.op, report.first_difference.what) == ("totals", what)


def test_a_recording_that_ends_too_soon(tmp_path: Path) -> None:
    lines = records()
    report = verify_file(write(tmp_path / "a.gz", [*lines[:-2], lines[-1]]))
    assert report.first_difference is not None
    assert (report.first_difference.op, report.first_difference.what) == ("totals", "step")


def test_a_recording_that_goes_on(tmp_path: Path) -> None:
    lines = records()
    more = {"op": "step", "step": 100_000, "scheduled": {}, "free": 1, "external": {"r1": 0}}
    report = verify_file(write(tmp_path / "a.gz", [*lines[:-1], more, lines[-1]]))
    assert report.first_difference is not None
    assert (report.first_difference.op, report.first_difference.what) == ("step", "step")


def test_a_tier_that_no_engine_accepts(tmp_path: Path) -> None:
    lines = records()
    lines[0]["config"]["blocks_per_chunk"] = 8
    lines[0]["config"]["retention_interval"] = 32
    with pytest.raises(TranscriptError) as caught:
        verify_file(write(tmp_path / "a.gz", lines))
    assert str(caught.value) == (
        f"{tmp_path / 'a.gz'}: line 1: config: retention_interval: 32 is not a multiple of the "
        "chunk of group 1 (sliding-window: 64 tokens). Use 0, 64, 128, ... or null, or fewer "
        "blocks a chunk."
    )
