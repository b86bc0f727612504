"""Recordings of routers: all the same, and what differs or breaks is seen."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.verify import TranscriptError, verify_file
from tests.verify.writing import write

OWN = Path(__file__).parents[1] / "data" / "transcripts" / "routing"
SHARED = Path(__file__).parents[3] / "shared" / "oracle" / "transcripts" / "routing"


def _recordings() -> list[Path]:
    """The whole ones where they are; those kept here are their first lines."""
    return sorted(SHARED.glob("*.gz")) or sorted(OWN.glob("*.gz"))


def _lines(name: str) -> list[dict[str, Any]]:
    [path] = OWN.glob(f"{name}*.gz")
    with gzip.open(path, "rt") as stream:
        return [json.loads(line) for line in stream]


@pytest.mark.parametrize(
    "path", _recordings(), ids=lambda path: path.name.removesuffix(".jsonl.gz")
)
def test_every_answer_is_the_same(path: Path) -> None:
    report = verify_file(path)
    assert report.identical, report.sentence
    assert report.checked > 100


def _first(lines: list[dict[str, Any]], op: str, after: int = 0) -> int:
    return next(n for n, line in enumerate(lines) if n > after and line.get("op") == op)


@pytest.mark.parametrize(
    ("name", "op", "field", "other"),
    [
        ("routing-vllm-dp", "arrive", "rank", 3),
        ("routing-vllm-dp", "state", "scan_start", 9),
        ("routing-vllm-closed-r4", "publish", "t", 101),
        ("routing-vllm-closed-r2", "publish", "running", False),
        ("routing-vllm-closed-r2", "wave", "wave", 7),
        ("routing-dynamo", "arrive", "decode_blocks", [0, 0, 0, 0, 0]),
        ("routing-sglang", "arrive", "worker", 2),
    ],
)
def test_another_answer_is_a_difference(
    tmp_path: Path, name: str, op: str, field: str, other: object
) -> None:
    lines = _lines(name)
    number = _first(lines, op)
    assert lines[number][field] != other
    lines[number][field] = other
    report = verify_file(write(tmp_path / "a.jsonl.gz", lines))
    assert report.identical is False
    assert report.first_difference is not None
    assert (report.first_difference.line, report.first_difference.what) == (number + 1, field)


def test_a_wave_that_is_left_out_is_a_difference(tmp_path: Path) -> None:
    lines = _lines("routing-vllm-closed-r2")
    del lines[_first(lines, "wave")]
    report = verify_file(write(tmp_path / "a.jsonl.gz", lines))
    assert report.first_difference is not None
    assert report.first_difference.what == "wave t"


def test_a_publication_that_is_left_out_is_a_difference(tmp_path: Path) -> None:
    lines = _lines("routing-vllm-closed-r4")
    number = _first(lines, "publish", after=60)
    del lines[number : number + 2]
    report = verify_file(write(tmp_path / "a.jsonl.gz", lines))
    assert report.first_difference is not None
    assert report.first_difference.what == "publish t"


def test_dynamo_is_held_to_its_settings(tmp_path: Path) -> None:
    lines = _lines("routing-dynamo")
    del lines[0]["config"]["settings"]["DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY"]
    lines[0]["config"]["settings"]["DYN_ROUTER_PREFILL_LOAD_SCALE"] = "0"
    report = verify_file(write(tmp_path / "a.jsonl.gz", lines))
    assert report.first_difference is not None
    assert report.first_difference.what == "worker"


@pytest.mark.parametrize(
    ("name", "line", "change", "problem"),
    [
        ("routing-vllm-dp", 0, {"policy": "vllm-pd"}, "line 1: unknown policy 'vllm-pd'. Did you"),
        ("routing-vllm-dp", 0, {"publications": "some"}, "line 1: publications: 'some' is not one"),
        ("routing-vllm-dp", 0, {"engine": "sglang 1"}, "line 1: engine: 'sglang 1' is not known."),
        ("routing-dynamo", 0, {"engine": "vllm 0.33.0"}, "line 1: engine: 'vllm 0.33.0' is not"),
        ("routing-dynamo", 0, {"config": {"workers": 2}}, "line 1: config.block_size is missing"),
        ("routing-dynamo", 1, {"worker": 77}, "line 2: arrive worker: 77 is not there. Use 0 to"),
        ("routing-dynamo", 3, {"request": "r0"}, "line 4: arrive request: 'r0' stands twice"),
        ("routing-vllm-dp", 2, {"client": 5}, "line 3: arrive client: 5 is not there. Use 0 to"),
        ("routing-sglang", 2, {"op": "fnish"}, "line 3: unknown op 'fnish'. Did you mean"),
        ("routing-vllm-dp", 1, {"counts": [[0, 0, 0.0]]}, "line 2: snapshot: is not for 4 ranks"),
    ],
)  # fmt: skip
def test_a_broken_recording_is_refused_with_its_line(
    tmp_path: Path, name: str, line: int, change: dict[str, Any], problem: str
) -> None:
    lines = _lines(name)
    lines[line] |= change
    path = write(tmp_path / "a.jsonl.gz", lines)
    with pytest.raises(TranscriptError) as caught:
        verify_file(path)
    assert str(caught.value).startswith(f"{path}: {problem}")


def test_settings_that_are_not_followed_are_named(tmp_path: Path) -> None:
    lines = _lines("routing-dynamo")
    lines[0]["config"]["settings"]["DYN_ROUTER_TEMPERATURE"] = "1"
    with pytest.raises(TranscriptError, match="DYN_ROUTER_TEMPERATURE: only 0 can be followed"):
        verify_file(write(tmp_path / "a.jsonl.gz", lines))
    lines[0]["config"]["settings"]["DYN_ROUTER_TEMPERATURE"] = "0"
    lines[0]["config"]["settings"]["DYN_ROUTER_NEW"] = "0"
    with pytest.raises(TranscriptError, match="DYN_ROUTER_NEW: '0' is not followed"):
        verify_file(write(tmp_path / "a.jsonl.gz", lines))
