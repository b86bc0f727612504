"""`kvsim capacity`, `kvsim model` and `kvsim catalog` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvsim import catalog
from kvsim.cli import app
from kvsim.errors import KvsimError

SCENARIO = {
    "model": "qwen3-next-80b-a3b",
    "node": {"gpu": "h100", "gpus": 4},
    "workload": {"kind": "script", "requests": [{"prompt": [["A", 100]]}]},
}


def output(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_hybrid_that_cannot_run_yet_is_sized(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(SCENARIO))
    words = ("capacity", str(path), "--length", "65536", "--sessions", "10")
    (found,) = json.loads(output(*words, "--json")).values()
    assert [group["kind"] for group in found["groups"]] == ["mamba"] * 3 + ["full"]
    assert found["lengths"][0]["num_tokens"] == 65_536
    assert found["needed"]["num_sessions"] == 10
    shown = output(*words)
    assert all(len(line) <= 120 for line in shown.splitlines() if "state" in line)
    assert "The same GPUs otherwise" in shown
    with pytest.raises(KvsimError, match="--interval: 'x' is no number of tokens"):
        output(*words, "--interval", "x")


def test_a_model_is_shown_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = catalog.model_source("gpt-oss-20b")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(KvsimError, match="--save: KVSIM_CATALOG names no file"):
        output("model", str(path), "--save", "mine")
    monkeypatch.setenv("KVSIM_CATALOG", str(tmp_path / "own.yaml"))
    shown = output("model", str(path), "--save", "mine", "--tensor-parallel", "2")
    assert "0  window: 12 layers, blocks of 16 tokens, window 128" in shown
    assert json.loads(output("catalog", "mine", "--json"))["groups"][1]["kind"] == "full"
    assert "mine" in json.loads(output("catalog", "--json"))["models"]


def test_the_catalog_is_listed_with_sources() -> None:
    listed = json.loads(output("catalog", "--json"))
    assert len(listed["models"]) >= 30
    assert len(listed["gpus"]) >= 16
    assert "AWS Neuron documentation" in output("catalog", "trainium2")
    with pytest.raises(KvsimError, match="unknown entry 'h1000'.*'h100'"):
        output("catalog", "h1000")
