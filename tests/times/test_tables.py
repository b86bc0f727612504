"""Tables of measured steps: at their points, between them, outside, and bad files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import Problems
from kvsim.times.step_time import step_parts, step_seconds, table_step_time
from kvsim.times.tables import COLUMNS, mixed_seconds, read_tables

HEAD = ",".join(COLUMNS)


def decode_s(batch: float, context: float) -> float:
    return 0.004 + batch * (1e-5 + context * 2e-9)


def prompt_s(tokens: float, read: float) -> float:
    return 0.006 + tokens * (1e-5 + read * 1e-10)


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["# made by hand", HEAD, *lines]) + "\n")
    return path


def grid(path: Path) -> Path:
    lines = [f"decode,{b},,{c},{decode_s(b, c)!r}" for b in (1, 8, 64) for c in (128, 4096, 32768)]
    lines += [f"prompt,,{t},{k},{prompt_s(t, k)!r}" for t in (16, 1024, 8192) for k in (0, 16384)]
    return write(path, *lines)


def test_steps_of_one_kind_are_those_of_the_table(tmp_path: Path) -> None:
    params = table_step_time(grid(tmp_path / "t.csv"))
    for batch, context in ((1, 128), (8, 4096), (30, 9000), (64, 32768)):
        step = np.full(batch, 1), np.full(batch, context - 1), batch
        # bilinear in both: the table's own function is, too
        assert step_seconds(params, *step) == pytest.approx(decode_s(batch, context), rel=1e-9)
    step = np.array([5000]), np.array([1000]), 1
    assert step_seconds(params, *step) == pytest.approx(prompt_s(5000, 1000), rel=1e-9)
    assert list(step_parts(params, *step)) == ["table"]
    assert params.tables.outside[1] == 0


def test_a_mixed_step_adds_what_contexts_cost(tmp_path: Path) -> None:
    params = table_step_time(grid(tmp_path / "t.csv"))
    step = np.array([1, 1, 2000]), np.array([9999, 9999, 0]), 3
    expected = prompt_s(2002, 0) + decode_s(2, 10_000) - decode_s(2, 128)
    assert step_seconds(params, *step) == pytest.approx(expected, rel=1e-9)


def test_steps_outside_are_counted(tmp_path: Path) -> None:
    params = table_step_time(grid(tmp_path / "t.csv"))
    step = np.full(100, 1), np.full(100, 999), 100
    assert step_seconds(params, *step) == pytest.approx(decode_s(100, 1000), rel=1e-9)
    step_seconds(params, np.full(2, 1), np.full(2, 999), 2)
    assert params.tables.outside.tolist() == [2, 1]
    assert mixed_seconds(params.tables, 1.0, 1.0, 0.0, 0.0) > 0


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["decoding,1,,128,0.1"], "line 2, kind: 'decoding' is neither decode nor prompt."),
        (["decode,x,,128,0.1"], "line 2, batch: 'x' is not a number of at least 1."),
        (["decode,1,,128,0"], "line 2, seconds: '0' is not a number above 0 s."),
        (["decode,1,,128,0.1"], "kind decode: needs at least two different batches."),
        (
            [
                "decode,1,,128,0.1",
                "decode,2,,128,0.1",
                "decode,2,,256,0.1",
                "prompt,,1,0,0.1",
                "prompt,,2,0,0.1",
            ],
            "kind decode: 1 points of the grid are missing, the first at batch 1, context_tokens",
        ),
    ],
)
def test_bad_tables(tmp_path: Path, lines: list[str], text: str) -> None:
    with pytest.raises(Problems) as e:
        read_tables(write(tmp_path / "t.csv", *lines))
    assert any(problem.startswith(text) for problem in e.value.problems), e.value.problems


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(Problems, match="cannot be read: No such file"):
        read_tables(tmp_path / "none.csv")
    (tmp_path / "t.csv").write_text("kind,batch\n")
    with pytest.raises(Problems, match="column tokens: is missing. A table of steps has kind"):
        read_tables(tmp_path / "t.csv")
