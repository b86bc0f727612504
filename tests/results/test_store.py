"""Results on disk: whole or not at all, never over foreign files, and refused when damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from kvsim.errors import KvsimError
from kvsim.metrics.records import (
    REQUEST_COLUMNS,
    TIMELINE_COLUMNS,
    RequestLog,
    RequestRecord,
    TimelineLog,
)
from kvsim.metrics.summary import RunCounters, summarize
from kvsim.results import store as results
from kvsim.results.store import RESULT_FILES, RunResult, check_destination, load_result, write_run
from kvsim.scenario.reading import load_scenario

SCENARIO = """\
name: small
model: {groups: [{kind: full, block_size: 16}]}
node: {num_blocks: 100}
step_time: {kind: constant, step_s: 0.01}
workload: {kind: script, requests: [{prompt: [[A, 100]], output: 2}]}
"""


@pytest.fixture
def make_result(tmp_path: Path) -> Callable[..., RunResult]:
    """Makes a result with one request that ran and one that was refused."""
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    scenario = load_scenario(path)

    def make(variant: str = "dense", wall_s: float = 0.5) -> RunResult:
        requests, timeline = RequestLog(), TimelineLog()
        record = RequestRecord(0, "a", 0.0, 100, 2, 0.0, 0.01, 0.02, 16, 32, (32, 16), "window")
        requests.add(record)
        requests.add(RequestRecord(1, "b", 1.0, 10**6, 2, refused="longer than the pool"))
        timeline.add(0.0, 7, 3, 92, 1, 0, free_cached_blocks=2, group_cached_blocks=[3])
        frame = requests.frame()
        counters = RunCounters(num_blocks=100, queried_tokens=100, hit_tokens=16, simulated_s=1.0)
        summary = summarize(frame, counters, wall_s=wall_s, warnings=["größer"])
        return RunResult(variant, summary, frame, timeline.frame(), scenario, {"seed": 0})

    return make


@pytest.fixture
def out_dir(tmp_path: Path) -> Path:
    return tmp_path / "out"


def message(call: Callable[[], object], path: Path) -> str:
    with pytest.raises(KvsimError) as caught:
        call()
    return str(caught.value).replace(str(path), "out")


def test_what_is_written_is_read_again(make_result: Any, out_dir: Path) -> None:
    result = make_result()
    path = write_run(out_dir, result, SCENARIO)
    assert path == out_dir / "dense"
    assert sorted(entry.name for entry in path.iterdir()) == sorted(RESULT_FILES)
    assert [entry.name for entry in out_dir.iterdir()] == ["dense"]

    read = load_result(str(path))
    assert read.variant == "dense"
    assert read.summary == result.summary
    assert read.provenance == {"variant": "dense", "seed": 0}
    assert read.scenario.name == "small"
    lists = ["group_hit_tokens"]
    pd.testing.assert_frame_equal(
        read.requests.drop(columns=lists), result.requests.drop(columns=lists)
    )
    assert list(read.requests["group_hit_tokens"][0]) == [32, 16]
    assert read.requests["group_hit_tokens"][1] is None
    blocks = ["group_cached_blocks"]
    pd.testing.assert_frame_equal(
        read.timeline.drop(columns=blocks), result.timeline.drop(columns=blocks)
    )
    assert [list(row) for row in read.timeline["group_cached_blocks"]] == [[3]]


def test_the_files_can_be_read_without_kvsim(make_result: Any, out_dir: Path) -> None:
    path = write_run(out_dir, make_result(), SCENARIO)
    requests = pq.read_table(path / "requests.parquet")
    assert requests.column_names == list(REQUEST_COLUMNS)
    ran, refused = requests.to_pylist()
    assert ran["hit_tokens"] == 16
    assert ran["group_hit_tokens"] == [32, 16]
    assert ran["refused"] is None
    assert refused["refused"] == "longer than the pool"
    for name in ("first_token_s", "end_s", "hit_tokens", "ttft_s", "tpot_s", "group_hit_tokens"):
        assert refused[name] is None
    assert pq.read_table(path / "timeline.parquet").column_names == list(TIMELINE_COLUMNS)
    assert json.loads((path / "summary.json").read_text())["warnings"] == ["größer"]
    assert (path / "scenario.yaml").read_text() == SCENARIO


def test_columns_have_their_types_even_where_all_is_null(make_result: Any, out_dir: Path) -> None:
    result = make_result()
    requests = result.requests.iloc[1:].reset_index(drop=True)
    empty = RunResult("x", result.summary, requests, result.timeline.iloc[:0], result.scenario)
    path = write_run(out_dir, empty, SCENARIO)
    types = {field.name: str(field.type) for field in pq.read_schema(path / "requests.parquet")}
    assert types["group_hit_tokens"] == "list<element: int64>"
    assert types["hit_tokens"] == types["full_hit_tokens"] == types["prompt_tokens"] == "int64"
    assert types["request_id"] == types["hit_ended"] == types["refused"] == "string"
    assert {kind for name, kind in types.items() if name.endswith("_s")} == {"double"}
    assert load_result(path).requests["hit_tokens"].isna().all()


def test_an_older_result_is_replaced(make_result: Any, out_dir: Path) -> None:
    write_run(out_dir, make_result(wall_s=1.0), SCENARIO)
    write_run(out_dir, make_result(wall_s=2.0), SCENARIO)
    write_run(out_dir, make_result("other"), SCENARIO)
    assert load_result(out_dir / "dense").summary["wall_s"] == 2.0
    assert sorted(entry.name for entry in out_dir.iterdir()) == ["dense", "other"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_what_was_there(
    make_result: Any, out_dir: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def write_half(directory: Path, *_: object) -> None:
        (directory / "summary.json").write_text("{")
        raise error

    write_run(out_dir, make_result(wall_s=1.0), SCENARIO)
    monkeypatch.setattr(results, "_write_files", write_half)
    for variant in ("dense", "other"):
        with pytest.raises((KvsimError, KeyboardInterrupt)) as caught:
            write_run(out_dir, make_result(variant), SCENARIO)
        if isinstance(error, OSError):
            assert str(caught.value) == (
                f"{out_dir}: 1 problem\n"
                f"  {variant}: cannot be written: No space left on device. Give another --out."
            )
    assert [entry.name for entry in out_dir.iterdir()] == ["dense"]
    assert load_result(out_dir / "dense").summary["wall_s"] == 1.0


def test_the_older_result_comes_back_when_the_new_cannot_take_its_place(
    make_result: Any, out_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(out_dir, make_result(wall_s=1.0), SCENARIO)
    rename = Path.rename

    def fail_for_new(path: Path, target: Path) -> Path:
        if ".new-" in path.name:
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_for_new)
    with pytest.raises(KvsimError, match="dense: cannot be written: Input/output error"):
        write_run(out_dir, make_result(wall_s=2.0), SCENARIO)
    assert [entry.name for entry in out_dir.iterdir()] == ["dense"]
    assert load_result(out_dir / "dense").summary["wall_s"] == 1.0


def test_nan_never_reaches_a_file(make_result: Any, out_dir: Path) -> None:
    result = make_result()
    result.summary["goodput"] = float("nan")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_run(out_dir, result, SCENARIO)
    assert not list(out_dir.iterdir())


def test_foreign_files_are_never_replaced(make_result: Any, out_dir: Path) -> None:
    kept = out_dir / "dense" / "thesis.tex"
    kept.parent.mkdir(parents=True)
    kept.write_text("years of work")
    expected = (
        "out: 1 problem\n"
        "  dense: holds files that are not a result's (thesis.tex), and is not replaced. "
        "Move them away or give another --out."
    )
    assert message(lambda: write_run(out_dir, make_result(), SCENARIO), out_dir) == expected
    assert message(lambda: check_destination(out_dir, ["dense"]), out_dir) == expected
    assert kept.read_text() == "years of work"


def test_all_problems_of_a_destination_at_once(out_dir: Path) -> None:
    for name in "abcd":
        (out_dir / "full" / name).mkdir(parents=True)
    (out_dir / "file").write_text("")
    names = ["file", "full", "fine", "../up", ".hidden", "a/b", ""]
    assert message(lambda: check_destination(out_dir, names), out_dir).splitlines() == [
        "out: 6 problems",
        "  file: is a file, not a result. Move it away or give another --out.",
        "  full: holds files that are not a result's (a, b, c, ...), and is not replaced. "
        "Move them away or give another --out.",
        *(
            f"  variants.{name}: {name!r} is no name for a directory. "
            "Use a name without / and \\ that does not start with a dot."
            for name in names[3:]
        ),
    ]


def test_a_destination_inside_a_file(make_result: Any, out_dir: Path) -> None:
    out_dir.write_text("")
    inside = out_dir / "deep" / "er"
    assert message(lambda: check_destination(inside, ["dense"]), out_dir) == (
        "out/deep/er: 1 problem\n  out: is a file, not a directory. Give another --out."
    )
    with pytest.raises(KvsimError):
        write_run(out_dir, make_result(), SCENARIO)


def test_a_destination_that_cannot_be_written(
    make_result: Any, out_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out_dir.mkdir()
    monkeypatch.setattr("os.access", lambda *_: False)
    assert message(lambda: write_run(out_dir, make_result(), SCENARIO), out_dir) == (
        "out: 1 problem\n  out: cannot be written to. Give another --out."
    )


def test_a_linked_directory_stays_a_link(make_result: Any, out_dir: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    out_dir.symlink_to(real)
    write_run(out_dir, make_result(), SCENARIO)
    assert out_dir.is_symlink()
    assert (real / "dense" / "summary.json").is_file()


def test_no_result_to_load(make_result: Any, out_dir: Path) -> None:
    assert message(lambda: load_result(out_dir), out_dir) == (
        "out: 1 problem\n  path: there is no such directory. Give the directory of a result."
    )
    out_dir.mkdir()
    assert message(lambda: load_result(out_dir), out_dir) == (
        "out: 1 problem\n  path: this directory is not a result. Run it first."
    )
    for variant in ("dense", "boundary"):
        write_run(out_dir, make_result(variant), SCENARIO)
    assert message(lambda: load_result(out_dir), out_dir) == (
        "out: 1 problem\n"
        "  path: this directory is not a result. Give one of those in it: boundary, dense."
    )
    file = out_dir / "dense" / "summary.json"
    assert "path: it is a file. Give the directory of a result." in message(
        lambda: load_result(file), out_dir
    )


def test_a_damaged_result_names_every_file(make_result: Any, out_dir: Path) -> None:
    path = write_run(out_dir, make_result(), SCENARIO)
    (path / "summary.json").write_text('{"token_hit_rate": ')
    (path / "provenance.json").write_text("[]")
    (path / "requests.parquet").write_bytes((path / "requests.parquet").read_bytes()[:100])
    (path / "timeline.parquet").write_bytes(b"")
    lines = message(lambda: load_result(path), path).splitlines()
    assert lines[0] == "out: 4 problems"
    assert lines[1].startswith("  summary.json: damaged (Expecting value: line 1 column 20")
    assert lines[2] == "  provenance.json: damaged (not a JSON object). Run it again."
    assert lines[3].startswith("  requests.parquet: damaged (")
    assert "Parquet magic bytes not found" in lines[3]
    assert lines[4].startswith("  timeline.parquet: damaged (")
    assert all(line.endswith("). Run it again.") for line in lines[1:])


def test_a_result_of_another_shape(make_result: Any, out_dir: Path) -> None:
    result = make_result()
    path = write_run(out_dir, result, SCENARIO)
    (path / "summary.json").write_text(json.dumps({**result.summary, "more": 1}))
    assert load_result(path).summary["more"] == 1
    del result.summary["goodput"]
    (path / "summary.json").write_text(json.dumps(result.summary))
    result.timeline.drop(columns="waiting").to_parquet(path / "timeline.parquet")
    assert message(lambda: load_result(path), path) == (
        "out: 2 problems\n"
        "  summary.json: lacks goodput. Run it again.\n"
        "  timeline.parquet: lacks waiting. Run it again."
    )


def test_missing_files(make_result: Any, out_dir: Path) -> None:
    path = write_run(out_dir, make_result(), SCENARIO)
    (path / "scenario.yaml").unlink()
    (path / "requests.parquet").unlink()
    assert message(lambda: load_result(path), path) == (
        "out: 2 problems\n"
        "  requests.parquet: missing, so the result is damaged. Run it again.\n"
        "  scenario.yaml: missing, so the result is damaged. Run it again."
    )


def test_a_result_says_what_it_is(make_result: Any) -> None:
    assert repr(make_result()) == (
        "RunResult('dense': 1 requests, token hit rate 16.0%, TTFT p50 10.0 ms)"
    )
