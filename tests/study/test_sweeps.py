"""Sweeps: what is run, what is kept, what is refused, and the table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import kvsim
from kvsim.errors import KvsimError, Problems
from kvsim.metrics.summary import SUMMARY_KEYS
from kvsim.scenario import Scenario
from kvsim.study import parallel, sweeps
from kvsim.study.runs import read_runs
from kvsim.study.sweep_points import expand_sweep, run_hash
from kvsim.study.sweep_table import RUN_COLUMNS, SWEEP_FILE, load_sweep
from kvsim.study.sweeps import Progress


def data(**changes: Any) -> dict[str, Any]:
    """Two long prompts and one that returns to the first, in a pool where that matters."""
    return {
        "name": "small",
        "model": {
            "groups": [
                {"kind": "full", "block_size": 16},
                {"kind": "sliding_window", "block_size": 16, "sliding_window": 64},
            ]
        },
        "node": {"num_blocks": 400},
        "step_time": {"kind": "constant", "step_s": 0.01},
        "workload": {
            "kind": "script",
            "requests": [
                {"prompt": [["A", 1000]], "output": 2},
                {"prompt": [["B", 1500]], "output": 2, "at_s": 1},
                {"prompt": [["A", 1000], ["C", 50]], "output": 2, "at_s": 2},
            ],
        },
        **changes,
    }


def made(**changes: Any) -> Scenario:
    return Scenario.from_data(data(**changes))


DRAWN = {
    "kind": "synthetic",
    "num_sessions": 3,
    "sessions": {"starts": "poisson(per_s=1)"},
    "content": [
        {
            "kind": "samples",
            "prompt_tokens": "lognormal(median=1000, sigma=0.1)",
            "num_samples": 2,
            "output_tokens": 4,
        }
    ],
}
"""A workload whose prompts and starts are drawn, so that seeds differ."""


def problems(call: Callable[[], object]) -> list[str]:
    with pytest.raises(Problems) as caught:
        call()
    return caught.value.problems


VARIANTS = {
    "dense": {"cache.retention_interval": None},
    "boundary": {"cache.retention_interval": 0},
}


def test_every_combination_is_a_point() -> None:
    scenario = made(
        seed=7,
        variants=VARIANTS,
        workload=DRAWN,
        sweep={
            "grid": {"node.num_blocks": [200, 400]},
            "zip": {"engine.max_num_seqs": [1, 2], "step_time.step_s": ["5 ms", "10 ms"]},
            "list": [{"cache.free_queue": "append"}, {"engine.max_num_batched_tokens": 4096}],
            "seeds": 3,
        },
    )
    points = expand_sweep(scenario)
    assert len(points) == 2 * 2 * 2 * 2 * 3
    assert [point.seed for point in points[:3]] == [7, 8, 9]
    assert points[0].variant == "dense"
    assert points[0].axes == {
        "node.num_blocks": 200,
        "engine.max_num_seqs": 1,
        "step_time.step_s": 0.005,
        "cache.free_queue": "append",
        "engine.max_num_batched_tokens": 8192,  # resolved, where the point does not set it
    }
    assert points[3].axes["cache.free_queue"] == "prepend-uncached"
    zipped = {(p.axes["engine.max_num_seqs"], p.axes["step_time.step_s"]) for p in points}
    assert zipped == {(1, 0.005), (2, 0.01)}
    assert len({point.run for point in points}) == len(points)
    for point in points:
        assert point.scenario is not None
        assert point.scenario.variants == {}
        assert point.scenario.sweep is None
        assert point.scenario.seed == point.seed


def test_without_a_sweep_the_variants_are_run() -> None:
    points = expand_sweep(made(variants=VARIANTS))
    assert [(point.variant, point.seed) for point in points] == [("dense", 0), ("boundary", 0)]
    assert expand_sweep(made())[0].variant == "default"


@pytest.mark.parametrize(
    ("sweep", "texts"),
    [
        (
            {"grid": {"node.num_blocks": 5}},
            ["sweep.grid.node.num_blocks: 5 is not a list. Write one as in [a, b]."],
        ),
        (
            {"grid": {"node.num_blocks": []}},
            ["sweep.grid.node.num_blocks: has 0 entries. Give at least 1."],
        ),
        ({"axes": {}}, ["sweep.axes: unknown key. Known: grid, zip, list, seeds."]),
        (
            {"seeds": 0},
            ["sweep.seeds: 0 is no number of seeds. Use 1 to 1000."],
        ),
        (
            {"seeds": [1, 1]},
            ["sweep.seeds: 1 is given twice. A run is the same for the same seed."],
        ),
        (
            {"seeds": "three"},
            [
                "sweep.seeds: 'three' is no seed. Use a number of seeds, or a list of seeds from "
                "0 up."
            ],
        ),
        (
            {"grid": {"seed": [1, 2]}, "zip": {"name": ["a"]}, "list": [{}]},
            [
                "sweep.grid.seed: cannot stand here. Use seeds.",
                "sweep.zip.name: cannot vary. Leave it out.",
                "sweep.list.0: sets nothing. Give keys, or take it out.",
            ],
        ),
        (
            {"zip": {"node.num_blocks": [1, 2], "engine.max_num_seqs": [1, 2, 3]}},
            [
                "sweep.zip: its keys have different numbers of values (node.num_blocks 2, "
                "engine.max_num_seqs 3). Align."
            ],
        ),
        (
            {"grid": {"step_time.step_s": [1, 2]}, "list": [{"step_time": {"step_s": 1}}]},
            [
                "sweep.list.step_time: is also set by sweep.grid.step_time.step_s. Vary it in one "
                "place."
            ],
        ),
        (
            {"grid": {"cache": [{"free_queue": "append"}]}},
            ["sweep: cache is also set by variants dense, boundary. Vary it in one place."],
        ),
    ],
)
def test_axes_that_are_refused(sweep: dict[str, Any], texts: list[str]) -> None:
    assert problems(lambda: made(variants=VARIANTS, sweep=sweep)) == texts


def test_values_that_are_wrong_everywhere_are_refused_before_anything_runs() -> None:
    scenario = made(
        sweep={
            "grid": {"node.num_block": [1, 2], "cache.free_queue": ["append", "prepnd"]},
            "zip": {"engine.max_num_seqs": [1, 0]},
        }
    )
    found = problems(lambda: expand_sweep(scenario))
    assert found[0] == ("sweep.grid.node.num_block.0: unknown key. Did you mean 'num_blocks'?")
    scenario = made(sweep={"grid": {"cache.free_queue": ["append", "prepnd"]}})
    assert problems(lambda: expand_sweep(scenario)) == [
        "sweep.grid.cache.free_queue.1: unknown free_queue 'prepnd'. Known: profile, append, "
        "prepend-uncached-window, prepend-uncached, lru, lfu, hit-first, earned, tail-first, "
        "gdsf, priority, ttl, pinned, 2q, sieve, s3-fifo, arc."
    ]


def test_a_hash_follows_what_a_run_follows_from(tmp_path: Path) -> None:
    trace = {"kind": "trace", "path": "t.jsonl"}
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
        (place / "t.jsonl").write_text("{}\n")
    first, second = (Scenario.from_data(data(workload=trace), directory=place) for place in places)
    assert run_hash(first) == run_hash(second)  # the same content elsewhere
    assert run_hash(first) != run_hash(first.replace({"seed": 1}))
    assert run_hash(first) == run_hash(first.replace({"cache.retention_interval": 0}))  # as it was
    (places[1] / "t.jsonl").write_text("{} \n")
    assert run_hash(first) != run_hash(second)


def test_a_sweep_is_run_kept_and_read_again(tmp_path: Path) -> None:
    scenario = made(
        variants=VARIANTS,
        workload=DRAWN,
        sweep={"grid": {"node.num_blocks": [10, 11, 400]}, "seeds": [3, 4]},
    )
    told: list[Progress] = []
    result = kvsim.sweep(scenario, out=tmp_path, jobs=1, on_progress=told.append)
    assert told[0] == Progress(0, 12, 0)
    assert told[-1] == Progress(12, 12, 8)
    table = result.table
    assert list(table.columns[:6]) == [*RUN_COLUMNS, "node.num_blocks"]
    assert set(table.columns) >= (
        SUMMARY_KEYS.keys()
        - {"warnings", "ttft_s", "tpot_s", "queue_s", "evicted_by_group", "hit_split", "tiers"}
        - {"step_times"}
    )
    assert list(table["node.num_blocks"]) == [10, 10, 11, 11, 400, 400] * 2
    assert list(table["seed"]) == [3, 4] * 6
    failed = table[table["status"] == "failed"]
    assert set(failed["node.num_blocks"]) == {10, 11}
    assert failed["token_hit_rate"].isna().all()
    assert failed["message"].iloc[0].startswith("workload: none of its 6 requests can run. The ")
    done = table[table["status"] == "done"]
    assert done["message"].isna().all()
    for row in done.to_dict(orient="records"):
        run = result.result(row["run"])
        assert run.summary["token_hit_rate"] == row["token_hit_rate"]
        assert run.summary["ttft_s"]["p99"] == row["ttft_s.p99"]
        assert run.scenario.seed == row["seed"]
        assert run.variant == row["variant"]

    again = load_sweep(tmp_path)
    assert again.table.equals(table)
    assert again.axes == ("node.num_blocks",)
    assert again.scenario.variants.keys() == VARIANTS.keys()
    assert repr(again) == "SweepResult('small': 12 runs over node.num_blocks, 8 failed)"
    assert "<table" in again._repr_html_()
    assert [run.variant for run in again.results()] == ["dense"] * 2 + ["boundary"] * 2
    inside = {entry.name for entry in tmp_path.iterdir()}
    assert inside == {*done["run"], SWEEP_FILE, "scenario.yaml", ".lock"}


def test_only_what_is_not_there_is_run(tmp_path: Path, monkeypatch: Any) -> None:
    scenario = made(sweep={"grid": {"node.num_blocks": [300, 400]}})
    first = kvsim.sweep(scenario, out=tmp_path, jobs=1)

    def refuse(*_: object) -> None:
        raise AssertionError("a finished run is run again")

    with monkeypatch.context() as patched:
        patched.setattr(sweeps, "_simulate", refuse)
        assert kvsim.sweep(scenario, out=tmp_path, jobs=1).table.equals(first.table)

    (tmp_path / first.table["run"][1] / "summary.json").write_text("{")  # damaged
    more = scenario.replace({"sweep.grid": {"node.num_blocks": [300, 400, 500]}})
    told: list[Progress] = []
    second = kvsim.sweep(more, out=tmp_path, jobs=1, on_progress=told.append)
    assert told[0].num_to_do == 2
    timed = ["wall_s"]
    assert second.table.drop(columns=timed)[:2].equals(first.table.drop(columns=timed))


def test_combinations_that_are_wrong_are_rows(tmp_path: Path) -> None:
    scenario = made(
        sweep={
            "grid": {
                "engine.profile": ["vllm-0.22", "vllm-0.33"],
                "cache.retention_interval": [0, None],
            }
        }
    )
    table = kvsim.sweep(scenario, out=tmp_path, jobs=1).table
    assert list(table["status"]) == ["failed", "done", "done", "done"]
    assert table["message"][0] == (
        "cache.retention_interval: 0 is set, and engine.profile vllm-0.22 has no retention "
        "interval: it is dense. Use null, or a later profile."
    )
    assert list(table["cache.retention_interval"].isna()) == [False, True, False, True]


def test_a_defect_fails_its_run_alone(tmp_path: Path, monkeypatch: Any) -> None:
    from kvsim.engine import simulation

    simulate = simulation.simulate

    def broken(scenario: Scenario, **options: Any) -> Any:
        if scenario.node.num_blocks == 300:
            raise ZeroDivisionError("division by zero")
        return simulate(scenario, **options)

    monkeypatch.setattr(simulation, "simulate", broken)
    table = kvsim.sweep(made(), {"node.num_blocks": [300, 400]}, out=tmp_path, jobs=1).table
    assert list(table["status"]) == ["failed", "done"]
    assert table["message"][0] == (
        "ZeroDivisionError: division by zero. This is a defect of kvsim."
    )


def test_axes_of_the_call_join_those_of_the_scenario(tmp_path: Path) -> None:
    scenario = made(sweep={"grid": {"node.num_blocks": [400]}})
    found = problems(lambda: kvsim.sweep(scenario, {"node.num_blocks": [1]}, out=tmp_path))
    assert found == ["sweep.grid.node.num_blocks: is an axis already. Vary it in one place."]
    result = kvsim.sweep(scenario, {"engine.max_num_seqs": [1, 2]}, out=tmp_path, jobs=1)
    assert result.axes == ("node.num_blocks", "engine.max_num_seqs")
    assert len(result) == 2
    with pytest.raises(KvsimError, match="2 runs have variant 'default'. Choose one by its run"):
        result["default"]
    with pytest.raises(KvsimError, match="run 'x' is not in its table"):
        result.result("x")


def test_a_variant_is_found_by_name(tmp_path: Path) -> None:
    result = kvsim.sweep(made(variants=VARIANTS), out=tmp_path, jobs=1)
    assert result["boundary"].variant == "boundary"
    assert result["dense"].scenario.retention_interval is None
    with pytest.raises(KvsimError, match="0 runs have variant 'x'. Known: dense, boundary."):
        result["x"]


def test_places_that_hold_no_sweep(tmp_path: Path) -> None:
    assert problems(lambda: load_sweep(tmp_path)) == [
        "path: holds no sweep.parquet. Run kvsim sweep first."
    ]
    (tmp_path / SWEEP_FILE).write_bytes(b"PAR1")
    assert problems(lambda: load_sweep(tmp_path))[0].startswith("sweep.parquet: damaged (")
    file = tmp_path / "file"
    file.touch()
    assert problems(lambda: kvsim.sweep(made(), out=file)) == [
        "out: cannot be written to: File exists. Give another --out."
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="locks are those of POSIX")
def test_two_sweeps_do_not_write_to_one_place(tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert problems(lambda: kvsim.sweep(made(), out=tmp_path)) == [
            "out: another sweep is writing there. Wait for it, or give another --out."
        ]


def test_backends_and_jobs_are_checked(tmp_path: Path, monkeypatch: Any) -> None:
    def message(**options: Any) -> str:
        with pytest.raises(KvsimError) as caught:
            kvsim.sweep(made(), out=tmp_path, **options)
        return str(caught.value)

    assert message(jobs=0) == "jobs: 0 is below 1. Use 1 or more."
    assert message(backend="rays") == "backend: unknown backend 'rays'. Did you mean 'ray'?"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert message(backend="ray") == (
        "backend: ray is not installed. Install it: pip install 'kvsim[ray]'."
    )


def _rows(backend: str, out: Path) -> Any:
    scenario = made(variants=VARIANTS, sweep={"grid": {"node.num_blocks": [10, 300, 400]}})
    jobs = 1 if backend == "here" else 2
    result = kvsim.sweep(
        scenario, out=out, jobs=jobs, backend="loky" if backend == "here" else backend
    )
    return result.table.drop(columns="wall_s")


@pytest.mark.parametrize(
    ("backend", "package"), [("loky", "joblib"), ("dask", "distributed"), ("ray", "ray")]
)
def test_every_backend_gives_the_same_rows(backend: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    here = _rows("here", tmp_path / "here")
    there = _rows(backend, tmp_path / "there")
    assert there.equals(here)
    assert (here["status"] == "done").any()
    assert (here["status"] == "failed").any()


def _killed(task: int) -> int:
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_a_worker_that_is_killed_is_an_error() -> None:
    with pytest.raises(KvsimError, match="a worker process was killed, as happens when memory"):
        list(parallel.each(_killed, [0, 1, 2], jobs=2))


SLOW = """\
name: slow
model: {groups: [{kind: full, block_size: 16}]}
node: {num_blocks: 4000}
step_time: {kind: constant, step_s: 0.01}
workload: {kind: trace, path: t.jsonl}
sweep: {grid: {engine.max_num_seqs: [1, 2, 3, 4, 5, 6, 7, 8]}}
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_an_interrupted_sweep_leaves_nothing_half_done(tmp_path: Path) -> None:
    times = {"input_length": 900, "output_length": 9}
    lines = [{"timestamp": 1000 * n, **times, "hash_ids": [2 * n, 2 * n + 1]} for n in range(6000)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = tmp_path / "slow.yaml"
    path.write_text(SLOW)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "kvsim.cli", "sweep", str(path), "--out", str(out)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # Tests that a shell runs in the background ignore it, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s and not list(out.glob("[!.]*/summary.json")):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    kept = [entry for entry in out.iterdir() if entry.is_dir()]
    assert 1 <= len(kept) < 8
    for directory in kept:
        kvsim.load_result(directory)

    cut = load_sweep(out)  # there from the start, and knows what was finished since
    assert list(cut.table["status"]).count("done") == len(kept)
    assert list(cut.table["status"]).count("not run") == 8 - len(kept)
    done = cut.table[cut.table["status"] == "done"]
    assert done["token_hit_rate"].notna().all()
    with pytest.raises(KvsimError, match="was not run. Run kvsim sweep again."):
        cut.result(cut.table[cut.table["status"] == "not run"]["run"].iloc[0])
    told_first = read_runs(out).told_first
    assert told_first == [
        f"{len(kept)} of 8 runs ({8 - len(kept)} not run). The sweep was cut short: kvsim sweep "
        "again runs what is missing."
    ]

    stale = out / f".{kept[0].name}.new-12345678"  # as one that was killed outright leaves it
    stale.mkdir()
    told: list[Progress] = []
    result = kvsim.sweep(path, out=out, jobs=2, on_progress=told.append)
    assert told[0].num_to_do == 8 - len(kept)
    assert (result.table["status"] == "done").all()
    assert not stale.exists()


def test_the_command_prints_the_table_and_json(tmp_path: Path) -> None:
    from kvsim.cli import app

    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(data(sweep={"grid": {"node.num_blocks": [10, 400]}})))
    common = ["sweep", str(path), "--out", str(tmp_path / "out"), "--jobs", "1"]
    shown = CliRunner().invoke(app, common)
    assert shown.exit_code == 1
    assert "num_blocks" in shown.output
    assert "1 run failed: workload: none of its 3 requests can run." in shown.output
    printed = CliRunner().invoke(app, [*common, "--json", "--vary", "engine.max_num_seqs=[1, 2]"])
    rows = json.loads(printed.stdout)["runs"]
    assert [row["engine.max_num_seqs"] for row in rows] == [1, 2, 1, 2]
    assert rows[0]["token_hit_rate"] is None
    assert rows[3]["status"] == "done"
    wrong = CliRunner().invoke(app, [*common, "--vary", "a", "--vary", "b=1", "--vary", "c=[1"])
    assert str(wrong.exception) == (
        f"{path}: 3 problems\n"
        "  --vary a: is no key=[values]. Write it as in node.gpus=[4, 8].\n"
        "  --vary b: 1 is not a list of values. Write [a, b].\n"
        "  --vary c: line 1, column 3: expected ',' or ']', but got '<stream end>'."
    )


def test_seeds_that_draw_nothing_are_one_run_and_a_note(tmp_path: Path) -> None:
    told: list[Progress] = []
    result = kvsim.sweep(
        made(variants=VARIANTS), seeds=5, out=tmp_path, jobs=1, on_progress=told.append
    )
    assert told[-1] == Progress(2, 2, 0)
    assert list(result.table["seed"]) == [0, 0]
    assert result.notes == (
        "Nothing is drawn at random in scenario small: all 5 seeds would give the same run, so one "
        "is run, with seed 0.",
    )


def test_only_the_points_that_draw_are_run_with_every_seed() -> None:
    constant = {**DRAWN, "sessions": {"starts": "constant(per_s=1)"}}
    constant["content"] = [{**DRAWN["content"][0], "prompt_tokens": 1000}]  # type: ignore[index]
    scenario = made(
        workload=constant,
        sweep={
            "grid": {"workload.sessions.starts": ["constant(per_s=1)", "poisson(per_s=1)"]},
            "seeds": 3,
        },
    )
    points = expand_sweep(scenario)
    assert [point.seed for point in points] == [0, 0, 1, 2]
    assert points[0].other_seeds == (1, 2)
    (note,) = sweeps.seeds_note(scenario, points)
    assert note.startswith("Nothing is drawn at random in 1 of the 4 runs: all 3 seeds would ")


def test_some_variants_alone(tmp_path: Path) -> None:
    from kvsim.cli import app

    result = kvsim.sweep(made(variants=VARIANTS), only=["boundary"], out=tmp_path, jobs=1)
    assert list(result.table["variant"]) == ["boundary"]
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(data(variants={"base": {}, **VARIANTS})))
    command = ["sweep", str(path), "--out", str(tmp_path / "out"), "--jobs", "1"]
    shown = CliRunner().invoke(app, [*command, "--only", "base", "--only", "dense"])
    assert shown.exit_code == 0
    assert list(load_sweep(tmp_path / "out").table["variant"]) == ["base", "dense"]
    wrong = CliRunner().invoke(app, [*command, "--only", "dens"])
    assert str(wrong.exception) == f"{path}: --only: unknown variant 'dens'. Did you mean 'dense'?"


def test_the_table_stays_within_80_columns(tmp_path: Path, monkeypatch: Any) -> None:
    from kvsim.cli import app, sweep

    monkeypatch.setattr(sweep, "make_console", lambda: Console(width=80))
    many = data(
        objective={"ttft_s": 0.1},
        variants={"a-variant-with-quite-a-name": {}, "dense": {"cache.retention_interval": None}},
        offload={"kind": "cpu", "capacity": "8 GiB", "link": "pcie-gen5-x16"},
        sweep={"grid": {"offload.capacity": ["8 GiB", "1.5 TB"], "node.num_blocks": [200, 400]}},
    )
    many["model"]["groups"] = [
        {**group, "bytes_per_block": 4096} for group in many["model"]["groups"]
    ]
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(many))
    command = ["sweep", str(path), "--out", str(tmp_path / "out"), "--jobs", "1"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert max(len(line.rstrip()) for line in lines[:-1]) <= 80
    assert any("1.5 TB" in line for line in lines)
    assert any("8 GiB" in line and "200" in line and "100.0%" in line for line in lines)
    assert any("more columns with --wide" in line for line in lines)
    wide = CliRunner().invoke(app, [*command, "--wide"]).output
    assert "more columns" not in wide
    assert load_sweep(tmp_path / "out").table["run"][0] in wide
