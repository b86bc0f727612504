from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Kvsim

CLIENTS = Path(__file__).parents[1] / "data" / "clients"
SERVED = ("--set", "gpu=h100", "--set", "precision=bf16", "--set", "engine=vllm", "--set", "tp=1")
SCRIPT = """\
name: own
model: llama-3.1-8b
node: {{gpu: h100, gpus: 1, num_blocks: 4000}}
step_time: {{kind: roofline, constants: {constants}}}
workload:
  kind: script
  requests:
    - {{prompt: [[a, {tokens}]], output: 8}}
"""


@pytest.fixture
def constants(kvsim: Kvsim, tmp_path: Path) -> Path:
    path = tmp_path / "own" / "mine.yaml"
    files = [CLIENTS / name for name in ("vllm.json", "guidellm.json", "aiperf.json")]
    answer = kvsim("calibrate", *files, *SERVED, "--out", path)
    assert answer.code == 0, answer.err
    assert "llama-3.1-8b bf16, h100, vllm, TP1" in answer.out
    assert (
        "Held: held back, one of 3 parts in turn, by load point (there is one set-up)."
        in answer.out
    )
    assert "Left out: guidellm.json, benchmark 3: requests arrive by themselves" in answer.out
    assert "Not told by these points:" in answer.out
    assert max(len(line) for line in answer.out.splitlines()[:8]) <= 80
    return path


def test_json_has_every_point_before_and_after(kvsim: Kvsim) -> None:
    answer = kvsim("calibrate", CLIENTS / "guidellm.json", *SERVED, "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert [point["concurrency"] for point in found["points"]] == [1, 8]
    assert set(found["points"][0]) >= {"measured", "before", "after", "held_back"}
    assert [part["id"] for part in found["left_out"]] == ["guidellm.json, benchmark 3"]
    assert found["parts"] == 2
    assert "acceptance" in found["not_identified"]


def test_a_scenario_names_the_constants(kvsim: Kvsim, tmp_path: Path, constants: Path) -> None:
    scenario = tmp_path / "own.yaml"
    short = SCRIPT.format(constants="own/mine.yaml", tokens=500)
    scenario.write_text(short, encoding="utf-8")
    out = tmp_path / "results"
    answer = kvsim("run", scenario, "--out", out, "--json")
    assert answer.code == 0, answer.err
    summary = json.loads(answer.out)["variants"]["default"]
    assert summary["warnings"] == []
    assert "in 1 set-up near this one" in summary["step_times"]["says"]
    origin = json.loads((out / "default" / "provenance.json").read_text(encoding="utf-8"))
    assert "mine.yaml" in origin["inputs_sha256"]
    plain = kvsim("run", scenario, "--set", "step_time.constants=null", "--out", out, "--json")
    before = json.loads(plain.out)["variants"]["default"]
    assert before["ttft_s"]["p50"] != summary["ttft_s"]["p50"]
    # The resolved scenario runs again from where it lies.
    again = kvsim("run", out / "default" / "scenario.yaml", "--out", tmp_path / "again", "--json")
    assert again.code == 0, again.err


def test_a_run_warns_where_it_leaves_the_fitted_range(
    kvsim: Kvsim, tmp_path: Path, constants: Path
) -> None:
    scenario = tmp_path / "own.yaml"
    scenario.write_text(SCRIPT.format(constants="own/mine.yaml", tokens=30_000), encoding="utf-8")
    answer = kvsim("run", scenario, "--set", "node.gpu=h200", "--out", tmp_path / "r", "--json")
    said = json.loads(answer.out)["variants"]["default"]["warnings"]
    assert "30,008 tokens of context (fitted to 1,1" in said[0]
    assert "requests at once" not in said[0]
    assert "other set-ups than this one: GPU h200 (fitted to h100)" in said[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.json", *SERVED], "none.json: there is no such file"),
        ([CLIENTS / "vllm.json"], "gpu (name of the catalog): is missing: no point says it."),
        ([CLIENTS / "vllm.json", *SERVED], "has one point"),
        ([CLIENTS / "vllm.json", "--set", "gpu=x100"], "unknown GPU 'x100'"),
        ([CLIENTS / "vllm.json", "--scenario", "none.yaml"], "no such scenario file"),
    ],
)
def test_what_cannot_be_calibrated(kvsim: Kvsim, arguments: list[object], message: str) -> None:
    answer = kvsim("calibrate", *arguments)
    assert answer.code == 2
    assert message in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "step_time.constants: 'own.constants.yaml': "),
        ("constants: {hbm_dnse: {value: 1}}", "unknown constant 'hbm_dnse'"),
        ("constants: {layer_s: {value: -1}}", "constants.layer_s.value: -1 is not above 0"),
        ("- 1", "Use a file that kvsim calibrate wrote"),
    ],
)
def test_constants_that_cannot_be_used(
    kvsim: Kvsim, tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "own.constants.yaml").write_text(text, encoding="utf-8")
    scenario = tmp_path / "own.yaml"
    named = SCRIPT.format(constants="own.constants.yaml", tokens=100)
    scenario.write_text(named, encoding="utf-8")
    answer = kvsim("run", scenario, "--out", tmp_path / "results")
    assert answer.code == 2
    assert message in answer.err
