from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from kvsim.metrics.records import REQUEST_COLUMNS, TIMELINE_COLUMNS
from kvsim.metrics.summary import SUMMARY_KEYS
from tests.cli.conftest import Kvsim

SMALL = """\
name: small
model: {groups: [{kind: full, block_size: 16}, {kind: sliding_window, block_size: 16,
                 sliding_window: 64}]}
node: {num_blocks: 400}
engine: {max_model_len: 8192, max_num_batched_tokens: 1024}
step_time: {kind: constant, step_s: 0.01}
workload:
  kind: script
  concurrency: 1
  requests:
    - {prompt: [[A, 640], [x, 100]], output: 3}
    - {prompt: [[A, 640], [y, 100]], output: 3}
    - {prompt: [[A, 640], [z, 100]], output: 1}
variants:
  dense: {cache.retention_interval: null}
  boundary: {cache.retention_interval: 0}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def test_a_table_and_results_for_every_variant(kvsim: Kvsim, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    answer = kvsim("run", small, "--out", out)
    assert answer.code == 0, answer.err
    assert answer.err == ""
    lines = answer.out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("dense", "boundary"))] == [
        "dense",
        "boundary",
    ]
    assert max(map(len, lines)) <= 120
    assert lines[-1] == f"Results: {out}"
    for variant in ("dense", "boundary"):
        assert sorted(path.name for path in (out / variant).iterdir()) == [
            "provenance.json",
            "requests.parquet",
            "scenario.yaml",
            "summary.json",
            "timeline.parquet",
        ]
    requests = pd.read_parquet(out / "boundary" / "requests.parquet")
    assert list(requests.columns) == list(REQUEST_COLUMNS)
    assert requests["hit_tokens"].tolist() == [0, 0, 640]
    assert list(pd.read_parquet(out / "dense" / "timeline.parquet").columns) == list(
        TIMELINE_COLUMNS
    )
    written = yaml.safe_load((out / "dense" / "scenario.yaml").read_text())
    assert written["cache"]["retention_interval"] is None


def test_a_written_scenario_runs_again_with_the_same_figures(
    kvsim: Kvsim, small: Path, tmp_path: Path
) -> None:
    kvsim("run", small, "--out", tmp_path / "one")
    again = kvsim(
        "run", tmp_path / "one" / "boundary" / "scenario.yaml", "--out", tmp_path / "two", "--json"
    )
    first = json.loads((tmp_path / "one" / "boundary" / "summary.json").read_text())
    second = json.loads(again.out)["variants"]["default"]
    first.pop("wall_s"), second.pop("wall_s")
    assert first == second


def test_json_is_all_that_is_printed(kvsim: Kvsim, small: Path, tmp_path: Path) -> None:
    answer = kvsim("run", small, "--json", "--out", tmp_path / "out")
    assert answer.code == 0
    variants = json.loads(answer.out)["variants"]
    assert list(variants) == ["dense", "boundary"]
    assert list(variants["dense"]) == list(SUMMARY_KEYS)
    assert variants["dense"]["hit_tokens"] == 1280
    assert variants["boundary"]["hit_tokens"] == 640
    assert variants["boundary"]["queried_tokens"] == 3 * 740
    assert variants["boundary"]["request_hit_rate"] == pytest.approx(1 / 3)
    assert variants["boundary"]["goodput"] is None
    assert variants["boundary"]["bytes_stored"] == 0


def test_set_changes_the_base_before_variants(kvsim: Kvsim, small: Path, tmp_path: Path) -> None:
    answer = kvsim(
        "run", small, "--json", "--out", tmp_path / "out", "--only", "boundary",
        "--set", "cache.retention_interval=null", "--set", "objective.ttft_s=0.5",
    )  # fmt: skip
    variants = json.loads(answer.out)["variants"]
    assert list(variants) == ["boundary"]
    assert variants["boundary"]["hit_tokens"] == 640, "the variant has the last word"
    assert variants["boundary"]["goodput"] == 1.0


def test_the_default_place_is_under_results(
    kvsim: Kvsim, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert kvsim("run", small, "--only", "dense").code == 0
    assert (tmp_path / "results" / "small" / "dense" / "summary.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "dens"], "{path}: --only: unknown variant 'dens'. Did you mean 'dense'?\n"),
        (
            ["--set", "cache.retention_interval=10"],
            "{path}: 1 problem\n  cache.retention_interval: 10 is not a multiple of the scheduler "
            "block (16). Use 0, 16, 32, ... or null.\n",
        ),
        (
            ["--set", "nod.num_blocks=10"],
            "{path}: 1 problem\n  nod: unknown key. Did you mean 'node'?\n",
        ),
        (
            ["--set", "node.num_blocks=3"],
            "scenario small: 1 problem\n  workload: none of its 3 requests can run. "
            "The first one needs 94 blocks, and the pool has 2.\n",
        ),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    kvsim: Kvsim, small: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    answer = kvsim("run", small, "--out", tmp_path / "out", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == message.format(path=small)
    assert not (tmp_path / "out").exists()


def test_a_variant_that_cannot_run_does_not_keep_the_others_from_it(
    kvsim: Kvsim, small: Path, tmp_path: Path
) -> None:
    text = small.read_text() + "  tiny: {node.num_blocks: 3}\n"
    small.write_text(text)
    answer = kvsim("run", small, "--out", tmp_path / "out", "--json")
    assert answer.code == 2
    assert list(json.loads(answer.out)["variants"]) == ["dense", "boundary"]
    assert answer.err == (
        "variants.tiny: scenario small: 1 problem\n  workload: none of its 3 requests can run. "
        "The first one needs 94 blocks, and the pool has 2.\n"
    )
    assert not (tmp_path / "out" / "tiny").exists()


def test_foreign_files_are_not_overwritten(kvsim: Kvsim, small: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "dense").mkdir(parents=True)
    (tmp_path / "out" / "dense" / "thesis.txt").write_text("two years")
    answer = kvsim("run", small, "--out", tmp_path / "out")
    assert answer.code == 2
    assert "thesis.txt" in answer.err
    assert (tmp_path / "out" / "dense" / "thesis.txt").read_text() == "two years"


def test_validate_prints_the_resolved_scenario_and_the_derivation(kvsim: Kvsim) -> None:
    quick_start = Path(__file__).parents[2] / "scenarios" / "b300_conversation.yaml"
    answer = kvsim("validate", quick_start)
    assert answer.code == 0, answer.err
    assert yaml.safe_load(answer.out.split("\nKV cache groups")[0])["model"] == "deepseek-v4-pro"
    for text in (
        "268.00 GiB HBM of a b300",
        "x 0.92 gpu_memory_utilization = 246.56 GiB",
        "- 100.70 GiB weights",
        "GiB reserve beside weights and KV (derived: ",
        "= 138.67 GiB KV of a GPU",
        "/ 1,435,968 bytes a block",
        "= 103,687 blocks, block 0 included",
        "units of 256 tokens",
    ):
        assert text in answer.out


def test_validate_says_what_will_not_run(kvsim: Kvsim, tmp_path: Path) -> None:
    file = tmp_path / "hybrid.yaml"
    file.write_text(
        "model: qwen3-next-80b-a3b\nnode: {gpu: h200, gpus: 2}\n"
        "offload: {kind: cpu, capacity: 1 TiB}\ncache: {enable_prefix_caching: false}\n"
        "workload: {kind: script, requests: [{prompt: [[a, 100]]}]}\n"
    )
    answer = kvsim("validate", file)
    assert answer.code == 0, answer.err
    assert "`kvsim run` refuses it. offload: takes a model's states only where" in answer.out


def test_validate_lists_all_problems(kvsim: Kvsim, tmp_path: Path) -> None:
    path = tmp_path / "agentic.yaml"
    path.write_text(
        "model: deepseek-v4-por\nnode: {gpu: b300, gpus: 8}\n"
        "cache: {retention_interval: 100}\nworkload: {kind: trace, path: trace.jsonl}\n"
    )
    answer = kvsim("validate", path)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith(f"{path}: 3 problems\n")
    assert (
        "  model: unknown model 'deepseek-v4-por'. Did you mean 'deepseek-v4-pro'?\n" in answer.err
    )
    assert (
        "  cache.retention_interval: 100 is not a multiple of the scheduler block (256). "
        "Use 0, 256, 512, ... or null.\n"
    ) in answer.err
    assert "trace.jsonl does not exist" in answer.err


def test_a_bad_line_of_a_trace_is_named(kvsim: Kvsim, tmp_path: Path) -> None:
    good = '{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}'
    back = '{"timestamp": -5, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}'
    (tmp_path / "t.jsonl").write_text(f"{good}\n{good}\n{back}\nnot json\n")
    (tmp_path / "s.yaml").write_text(
        SMALL.split("workload:")[0] + "workload: {kind: trace, format: mooncake, path: t.jsonl}\n"
    )
    answer = kvsim("run", tmp_path / "s.yaml", "--out", tmp_path / "out")
    assert answer.code == 2
    assert "line 3" in answer.err
    assert "line 4" in answer.err
    assert "Traceback" not in answer.err
    assert not (tmp_path / "out").exists()


def test_as_a_process_help_and_errors(tmp_path: Path) -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kvsim.cli", *arguments], capture_output=True, text=True
        )

    shown = call("--help")
    assert shown.returncode == 0
    assert all(verb in shown.stdout for verb in ("run", "validate", "verify", "bench"))
    missing = call("run", str(tmp_path / "none.yaml"))
    assert missing.returncode == 2
    assert missing.stderr == (
        f"{tmp_path / 'none.yaml'}: there is no such scenario file. Give the path of one.\n"
    )
    assert call("run").returncode == 2
    assert call("walk").returncode == 2
    assert call("--version").stdout.startswith("kvsim ")


def test_why_shows_the_reasons_and_explain_one_request(
    kvsim: Kvsim, small: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    answer = kvsim("run", small, "--out", out, "--why")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert "Prompt tokens found, or why not (kvsim describe reasons):" in lines
    assert sum(line.startswith("boundary") for line in lines) == 2
    told = kvsim("explain", out / "boundary", "2")
    assert told.code == 0 and "640 not_retained" in told.out
    as_json = json.loads(kvsim("explain", out / "boundary", "2", "--json").out)
    assert as_json["missed_not_retained_tokens"] == 640
    assert kvsim("explain", out / "boundary", "9").code == 2


@pytest.mark.parametrize("compares", [True, False])
def test_a_fleet_says_why_it_ran_on_one_core(
    compares: bool, kvsim: Kvsim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvsim.study.parallel.num_cores", lambda: 2)
    path = tmp_path / "fleet.yaml"
    fleet = "fleet: {nodes: 2, router: round-robin}\n"
    path.write_text(SMALL[: SMALL.index("variants:")].replace("  concurrency: 1\n", "") + fleet)
    options = ("--set", f"output.compare_caches={compares}".lower(), "--out", tmp_path / "out")
    note = "All replicas ran in one process: output.compare_caches looks at them all."
    for jobs in ("1", "2"):
        answer = kvsim("run", path, *options, "--jobs", jobs)
        assert answer.code == 0, answer.err
        assert (note in answer.out) == (compares and jobs == "2")
