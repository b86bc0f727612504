"""Every place where a scenario names a file: checked, moved, hashed and told of alike."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvsim.errors import Problems
from kvsim.results.variants import run_variant, write_variant
from kvsim.scenario.files import named_files
from kvsim.scenario.reading import load_scenario, parse_axes, resolved_yaml, shareable_yaml
from kvsim.study.sweep_points import run_hash

LENGTHS = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:00:{second:02d},{100 + second},{5 + second}\n" for second in range(20)
)
SYNTHETIC = {
    "kind": "synthetic",
    "num_sessions": 10,
    "sessions": {"starts": "recorded"},
    "path": "data/lengths.csv",
    "content": [
        {"kind": "chat", "weight": 3, "first_tokens": "recorded-prompt"},
        {"kind": "one-off", "prompt_tokens": "recorded-prompt"},
    ],
}
TEXT = {
    "kind": "trace",
    "format": "openai",
    "path": "data/log.jsonl",
    "tokenizer": "data/tokenizer.json",
}


def written(directory: Path, workload: dict[str, Any], **more: Any) -> Path:
    """A scenario file with its data beside it."""
    (directory / "data").mkdir(parents=True, exist_ok=True)
    (directory / "data" / "lengths.csv").write_text(LENGTHS)
    (directory / "data" / "log.jsonl").write_text("{}\n")
    (directory / "data" / "tokenizer.json").write_text("{}\n")
    data = {
        "model": {"groups": [{"kind": "full", "block_size": 16}]},
        "node": {"num_blocks": 500},
        "step_time": {"kind": "constant", "step_s": 0.01},
        "workload": workload,
        **more,
    }
    path = directory / "s.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def test_all_files_are_known(tmp_path: Path) -> None:
    text = load_scenario(written(tmp_path, TEXT))
    assert named_files(text) == {
        "workload.path": tmp_path / "data/log.jsonl",
        "workload.tokenizer": tmp_path / "data/tokenizer.json",
    }
    by_characters = text.replace({"workload.tokenizer": "characters"})
    assert list(named_files(by_characters)) == ["workload.path"]
    synthetic = load_scenario(written(tmp_path, SYNTHETIC))
    assert named_files(synthetic) == {"workload.path": tmp_path / "data/lengths.csv"}


def test_all_that_are_missing_are_said_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, {**TEXT, "path": "gone.jsonl", "tokenizer": "data"})
    with pytest.raises(Problems) as caught:
        load_scenario(path)
    assert caught.value.problems == [
        f"workload.path: 'gone.jsonl': {tmp_path}/gone.jsonl does not exist. Give a path relative "
        "to the scenario file.",
        f"workload.tokenizer: 'data': {tmp_path}/data is not a file. Give a path relative to the "
        "scenario file, or characters.",
    ]


def test_paths_are_written_relative_to_where_the_file_will_be(tmp_path: Path) -> None:
    variants = {"b": {"cache.retention_interval": 0}, "c": {"workload": TEXT}}
    scenario = load_scenario(written(tmp_path / "a", TEXT, variants=variants))
    moved = yaml.safe_load(resolved_yaml(scenario, tmp_path / "results" / "run"))
    tokenizer = "../../a/data/tokenizer.json"
    assert moved["workload"]["tokenizer"] == tokenizer
    assert moved["workload"]["path"] == "../../a/data/log.jsonl"
    assert moved["variants"]["c"]["workload"]["tokenizer"] == tokenizer
    sweep = {"grid": {"workload.tokenizer": ["data/tokenizer.json", "characters"]}}
    scenario = load_scenario(written(tmp_path / "a", TEXT, sweep=sweep))
    moved = yaml.safe_load(resolved_yaml(scenario, tmp_path / "results" / "run"))
    assert moved["sweep"]["grid"] == {"workload.tokenizer": [tokenizer, "characters"]}


def test_paths_on_the_command_line_are_relative_to_where_one_is(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = written(tmp_path / "a", TEXT)
    (tmp_path / "mine.json").write_text("{}")
    (tmp_path / "characters").write_text("a file of this name changes nothing")
    monkeypatch.chdir(tmp_path)
    for value in ("mine.json", "characters"):
        scenario = load_scenario(path, [f"workload.tokenizer={value}"])
        file = named_files(scenario).get("workload.tokenizer")
        assert (None if file is None else file.resolve()) == (
            None if value == "characters" else tmp_path / "mine.json"
        )
    axes = parse_axes(["workload.tokenizer=[mine.json, characters, data/tokenizer.json]"], path)
    assert axes == {"workload.tokenizer": ["../mine.json", "characters", "data/tokenizer.json"]}


@pytest.mark.parametrize("workload", [TEXT, SYNTHETIC], ids=["trace", "synthetic"])
def test_hashes_follow_what_is_in_files_and_not_where_they_are(
    tmp_path: Path, workload: dict[str, Any]
) -> None:
    scenarios = [
        load_scenario(written(tmp_path / name, workload)) for name in ("here", "there/and/deeper")
    ]
    absolute = {key: str(file) for key, file in named_files(scenarios[0]).items()}
    scenarios.append(scenarios[0].replace(absolute))
    assert len({run_hash(scenario) for scenario in scenarios}) == 1
    assert len({shareable_yaml(scenario) for scenario in scenarios}) == 1
    assert str(tmp_path) not in shareable_yaml(scenarios[2])
    for file in named_files(scenarios[0]).values():
        before = run_hash(scenarios[0])
        file.write_text(file.read_text() + "\n")
        assert run_hash(scenarios[0]) != before


def test_a_run_of_recorded_lengths_can_be_moved_and_repeated(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path / "a", SYNTHETIC))
    first = run_variant(scenario)
    assert first.provenance["inputs_sha256"] == {
        "lengths.csv": hashlib.sha256(LENGTHS.encode()).hexdigest()
    }
    directory = write_variant(tmp_path / "results", first)
    again = run_variant(load_scenario(directory / "scenario.yaml"))
    del first.summary["wall_s"], again.summary["wall_s"]
    assert again.summary == first.summary
    assert again.provenance["scenario_sha256"] == first.provenance["scenario_sha256"]
    assert str(tmp_path) not in json.dumps([first.provenance, first.summary])


def test_a_tokenizer_is_among_what_a_run_has_read(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = written(tmp_path, TEXT)
    vocabulary = tokenizers.models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]")
    tokenizers.Tokenizer(vocabulary).save(str(tmp_path / "data/tokenizer.json"))
    messages = {"messages": [{"role": "user", "content": "a b a"}], "response": "b"}
    (tmp_path / "data/log.jsonl").write_text(json.dumps({"timestamp": 0, **messages}) + "\n")
    result = run_variant(load_scenario(path))
    assert list(result.provenance["inputs_sha256"]) == ["log.jsonl", "tokenizer.json"]
