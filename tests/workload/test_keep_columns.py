"""Retention priorities in tables of requests."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from kvsim.errors import KvsimError
from kvsim.scenario import Scenario
from kvsim.workload import open_workload
from kvsim.workload.request import Request


def opened(directory: Path, text: str, **keys: object) -> list[Request]:
    (directory / "t.csv").write_text(text)
    workload = {"kind": "trace", "path": "t.csv", "format": "table", **keys}
    scenario = Scenario.from_data(
        {"name": "t", "model": {"groups": [{"kind": "full", "block_size": 16}]},
         "node": {"num_blocks": 10}, "step_time": {"kind": "constant", "step_s": 0.01},
         "workload": workload},
        directory=directory,
    )  # fmt: skip
    return list(open_workload(scenario.workload, 16).requests)


def test_what_rows_say_about_keeping(tmp_path: Path) -> None:
    rows = "time,prompt_tokens,retention_priority,keep_tokens,keep_s\n"
    first, second, third = opened(tmp_path, rows + "0,100,80,64,2.5\n1,100,,,\n2,100,0,,\n")
    assert (first.keep_priority, first.keep_tokens, first.keep_s) == (80, 64, 2.5)
    assert (second.keep_priority, second.keep_s) == (-1, math.inf)
    assert second.keep_tokens >= 100
    assert third.keep_priority == 0


def test_columns_of_other_names(tmp_path: Path) -> None:
    rows = "time,prompt_tokens,worth\n0,100,7\n"
    (request,) = opened(tmp_path, rows, columns={"keep_priority": "worth"})
    assert request.keep_priority == 7
    with pytest.raises(KvsimError, match="unknown column 'wroth'"):
        opened(tmp_path, rows, columns={"keep_priority": "wroth"})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,100,101,,", "retention_priority: \"101\" is not a whole number from 0 to 100"),
        ("0,100,1.5,,", "retention_priority: \"1.5\" is not a whole number"),
        ("0,100,5,0,", "keep_tokens: \"0\" is not a whole number from 1"),
        ("0,100,5,,-1", "keep_s: \"-1\" is not seconds from 0"),
    ],
)  # fmt: skip
def test_values_that_are_none(tmp_path: Path, row: str, message: str) -> None:
    rows = "time,prompt_tokens,retention_priority,keep_tokens,keep_s\n"
    with pytest.raises(KvsimError) as caught:
        opened(tmp_path, rows + row + "\n")
    assert message in str(caught.value)
