from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest

from kvsim.verify import Difference, TranscriptError, verify_file
from kvsim.verify.cache_ops import runs
from tests.verify.writing import CACHE_CONFIG, HISTORY, Record, changed, write


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], []),
        ([5, 6, 7, 2], [[5, 3], [2, 1]]),
        ([0, 0, 1, 2], [[0, 2], [1, 2]]),
        ([0, 3, 0], [[0, 1], [3, 1], [0, 1]]),
        ([3, 2, 1, 0], [[3, 1], [2, 1], [1, 1], [0, 1]]),
        ([7, 7], [[7, 1], [7, 1]]),
    ],
)
def test_runs_of_block_ids(ids: list[int], expected: list[list[int]]) -> None:
    assert runs(ids) == expected


@pytest.mark.parametrize(
    ("line", "fields", "difference"),
    [
        (2, {"hit": 4}, ("hit", 4, 0)),
        (2, {"shared_prefix_boundary": 4}, ("shared_prefix_boundary", 4, 0)),
        (2, {"hit_blocks": [[[1, 1]]]}, ("hit_blocks", [[[1, 1]]], [[]])),
        (2, {"hit_blocks": []}, ("hit_blocks", [], [[]])),
        (3, {"blocks": [[[1, 2]]]}, ("blocks", [[[1, 2]]], [[[1, 3]]])),
        (3, {"free": 5}, ("free", 5, 6)),
        (3, {"ok": False}, ("ok", False, True)),
        (3, {"blocks": None}, ("blocks", None, [[[1, 3]]])),
        (5, {"free": -1}, ("free", -1, 6)),
        (7, {"ok": False}, ("ok", False, True)),
    ],
)
def test_every_answer_is_compared(
    tmp_path: Path, line: int, fields: Record, difference: tuple[str, object, object]
) -> None:
    report = verify_file(write(tmp_path / "a.gz", changed(HISTORY, line, **fields)))
    op = HISTORY[line - 1]["op"]
    assert report.first_difference == Difference(line, op, *difference)


def test_an_allocation_that_the_core_would_not_refuse(tmp_path: Path) -> None:
    records = changed(HISTORY, 5, ok=False, blocks=None)
    report = verify_file(write(tmp_path / "a.gz", records))
    assert report.first_difference == Difference(5, "allocate", "ok", False, True)


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("free", 8),
        ("queue_head", [1]),
        ("queue_sha256", "0" * 64),
        ("cached", 1),
        ("cached_sha256", ""),
    ],
)
def test_the_state_is_compared(tmp_path: Path, what: str, value: object) -> None:
    queue = [3, 4, 5, 6, 7, 8, 9, 2, 1]  # block 3 was not full: it is taken first
    state = {
        "op": "state",
        "free": 9,
        "queue_head": queue,
        "queue_sha256": digest(queue),
        "cached": 2,
        "cached_sha256": digest([1, 2]),
    }
    history = [*HISTORY[:-1], state]
    assert verify_file(write(tmp_path / "a.gz", history)).identical
    report = verify_file(write(tmp_path / "b.gz", changed(history, 7, **{what: value})))
    assert report.first_difference == Difference(7, "state", what, value, state[what])


def digest(ids: list[int]) -> str:
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()


@pytest.mark.parametrize(
    ("line", "fields", "text"),
    [
        (3, {"req": "b"}, "allocate: request 'b' is not there"),
        (4, {"req": "b"}, "append: request 'b' is not there"),
        (6, {"req": "b"}, "free: request 'b' is not there"),
        (2, {"num_prompt": 10}, "lookup: num_prompt 10 is more than the spans hold"),
        (2, {"spans": [[1, 65]]}, "lookup: 65 tokens are more than max_model_len, 64"),
        (4, {"span": [2, 60]}, "append: 69 tokens are more than max_model_len, 64"),
        (3, {"new": 10}, "allocate: new 10 is more than the request has left to compute, 9"),
        (3, {"lookahead": 300}, "allocate: 300 draft tokens are not in 0 .. 256"),
    ],
)
def test_an_operation_that_makes_no_sense(
    tmp_path: Path, line: int, fields: Record, text: str
) -> None:
    path = write(tmp_path / "a.gz", changed(HISTORY, line, **fields))
    with pytest.raises(TranscriptError) as caught:
        verify_file(path)
    assert str(caught.value) == f"{path}: line {line}: {text}"


def test_a_request_that_comes_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gz", [*HISTORY[:3], HISTORY[1]])
    with pytest.raises(TranscriptError, match="line 4: lookup: request 'a' is there already"):
        verify_file(path)


def test_a_request_that_never_got_room_is_forgotten(tmp_path: Path) -> None:
    refused = {"op": "allocate", "req": "a", "new": 9, "ok": False, "free": 1}
    config = {**CACHE_CONFIG, "num_blocks": 2}
    records = [{**HISTORY[0], "config": config}, HISTORY[1], refused, HISTORY[1], refused]
    assert verify_file(write(tmp_path / "a.gz", records)).identical
    path = write(tmp_path / "b.gz", [*records, {"op": "free", "req": "a"}])
    with pytest.raises(TranscriptError, match="line 6: free: request 'a' is not there"):
        verify_file(path)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"hash_block_size": 2}, "config.hash_block_size: 2 is not the groups' greatest common"),
        ({"scheduler_block_size": 8}, "config.scheduler_block_size: 8 is not the groups' least"),
        ({"groups": []}, "config: a model has 1 to 64 groups, not 0"),
        (
            {"groups": [{"kind": "full", "block_size": 4, "sliding_window": 8}]},
            "config: sliding_window belongs to",
        ),
        ({"retention_interval": 8}, "config: "),
        ({"retention_interval": -4}, "config: "),
        ({"max_model_len": 2**40}, "config: max_model_len"),
    ],
)
def test_a_configuration_that_no_engine_accepts(tmp_path: Path, config: Record, text: str) -> None:
    path = write(tmp_path / "a.gz", changed(HISTORY, 1, config={**CACHE_CONFIG, **config}))
    with pytest.raises(TranscriptError) as caught:
        verify_file(path)
    assert caught.value.line == 1
    assert caught.value.problem.startswith(text)
