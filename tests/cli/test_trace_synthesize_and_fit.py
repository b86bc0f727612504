"""`kvsim trace synthesize` and `kvsim trace fit`: what they write, say and refuse."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from kvsim.cli.trace_fit import fit
from kvsim.cli.trace_synthesize import synthesize
from kvsim.errors import KvsimError
from kvsim.scenario import TraceWorkload
from kvsim.scenario.reading import load_scenario
from kvsim.workload import open_workload

SCENARIO = """\
model: {groups: [{kind: full, block_size: 16}]}
node: {num_blocks: 1000}
step_time: {kind: constant, step_s: 10 ms}
workload:
  kind: synthetic
  num_sessions: 40
  sessions: {starts: constant(per_s=1)}
  content:
    - {kind: chat, turns: 3, system_tokens: 100, user_tokens: 30, output_tokens: 50, think_s: 4}
"""


def run(command: Callable[..., None], *arguments: object) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "chat.yaml"
    path.write_text(SCENARIO)
    return path


def test_a_synthetic_trace_is_written_and_read_again(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "chat.jsonl.gz"
    result = run(synthesize, scenario, out)
    assert result.exit_code == 0, result.output
    expected = "120 requests of 40 sessions over 47.0 s, ids of 16 tokens\n"
    assert result.output == f"{out}: {expected}"
    rows = [json.loads(line) for line in gzip.decompress(out.read_bytes()).splitlines()]
    first = [row for row in rows if row["session_id"] == "0000001"]
    assert [row["timestamp"] for row in first] == [0, 4000, 8000]
    assert [row["input_length"] for row in first] == [130, 210, 290]
    # What was said stays, whole blocks of it.
    assert first[1]["hash_ids"][:8] == first[0]["hash_ids"][:8]
    # Another session shares the system prompt's six whole blocks, and nothing else.
    other = next(row for row in rows if row["session_id"] == "0000002")
    assert other["hash_ids"][:6] == first[0]["hash_ids"][:6]
    assert not set(other["hash_ids"][6:]) & set(first[0]["hash_ids"])
    config = TraceWorkload.model_validate({"kind": "trace", "path": str(out)})
    made = open_workload(
        load_scenario(scenario, ["workload.sessions.loop=open"]).workload, 16
    ).requests
    read = open_workload(config, 16).requests
    assert [(r.arrival_s, r.num_prompt_tokens, r.num_output_tokens) for r in made] == [
        (r.arrival_s, r.num_prompt_tokens, r.num_output_tokens) for r in read
    ]


def test_a_limit_and_other_blocks(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    result = run(synthesize, scenario, out, "--limit", 5, "--block-tokens", 64)
    assert result.output.endswith("5 requests of 4 sessions over 4.0 s, ids of 64 tokens\n")
    assert [len(json.loads(line)["hash_ids"]) for line in out.read_text().splitlines()][0] == 3


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        (
            "workload.sessions={starts: null, concurrency: 4}",
            "workload.sessions.concurrency: with it, sessions start when answers end, and there "
            "are none here. Give workload.sessions.starts.",
        ),
        (
            "workload={kind: script, requests: [{prompt: [[A, 9]]}]}",
            "workload.kind: is script. Give a scenario whose workload is synthetic.",
        ),
    ],
)
def test_what_cannot_be_written_down(
    scenario: Path, tmp_path: Path, setting: str, problem: str
) -> None:
    result = run(synthesize, scenario, tmp_path / "t.jsonl", "--set", setting)
    assert isinstance(result.exception, KvsimError)
    assert str(result.exception) == f"{scenario}: 1 problem\n  {problem}"
    assert not (tmp_path / "t.jsonl").exists()


@pytest.fixture
def trace(scenario: Path, tmp_path: Path) -> Path:
    path = tmp_path / "chat.jsonl"
    assert run(synthesize, scenario, path).exit_code == 0
    return path


def test_a_fit_is_shown_and_can_be_run(scenario: Path, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "fitted.yaml"
    result = run(fit, trace, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("workload:\n  kind: synthetic\n  num_sessions: 40\n")
    assert "120 requests in 40 sessions" in result.output
    assert "Largest difference: " in result.output
    head = SCENARIO[: SCENARIO.index("workload:")]
    out.write_text(head + out.read_text())
    workload = load_scenario(out).workload
    assert workload.kind == "synthetic"
    content: Any = workload.content[0]
    assert (content.kind, content.system_tokens) == ("chat", 96)


def test_a_fit_as_json(trace: Path) -> None:
    found = json.loads(run(fit, trace, "--json").output)
    assert list(found) == [
        "workload",
        "block_tokens",
        "requests",
        "synthetic_requests",
        "sessions",
        "largest_difference",
        "capacities",
    ]
    assert (found["requests"], found["sessions"], found["block_tokens"]) == (120, 40, 16)
    largest = max(
        abs(point["token_hit_rate"] - point["synthetic_token_hit_rate"])
        for point in found["capacities"]
    )
    assert found["largest_difference"] == largest < 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "moonkake"], "--format: unknown format 'moonkake'. Did you mean 'mooncake'?"),
        (
            ["--starts", "poisson"],
            "--starts: 'poisson' lacks per_s. Write poisson(per_s=...).",
        ),
        (["--out", "no/such/x.yaml"], "no/such/x.yaml: cannot be written: No such file or "),
    ],
)
def test_what_fit_refuses(trace: Path, arguments: list[str], message: str) -> None:
    result = run(fit, trace, *arguments)
    assert isinstance(result.exception, KvsimError)
    assert str(result.exception).startswith(message)


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    result = run(fit, tmp_path / "gone.jsonl")
    assert isinstance(result.exception, KvsimError)
    assert "gone.jsonl: 1 problem\n  path: there is no such file" in str(result.exception)
