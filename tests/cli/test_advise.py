"""`kvsim advise`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.policies import table
from kvsim.study import advice_field
from tests.cli.conftest import Kvsim

SCENARIO = """\
name: small
model:
  groups:
    - {kind: full, block_size: 16}
    - {kind: sliding_window, block_size: 16, sliding_window: 32}
node: {num_blocks: 60}
step_time: {kind: constant, step_s: 0.01}
engine: {max_num_batched_tokens: 256}
workload:
  kind: synthetic
  num_sessions: 40
  sessions: {starts: poisson(per_s=2)}
  content:
    - {kind: chat, system_tokens: 64, user_tokens: 30, output_tokens: 20}
"""


def test_advice_is_shown_and_kept(
    kvsim: Kvsim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {**table.TABLE, "free_queue": {}, "retention": {}}
    monkeypatch.setattr(advice_field, "TABLE", few)
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    out = tmp_path / "advice"
    arguments = ("advise", path, "--seeds", "2", "--jobs", "1", "--out", out)
    shown = kvsim(*arguments)
    assert shown.code == 0, shown.err
    assert "judged on 2 seeds" in shown.out.lower()
    assert "Ceiling, on the device over the" in shown.out
    assert "settings were tried" in shown.out
    kept = json.loads((out / "advice.json").read_text())
    again = kvsim(*arguments, "--json")
    assert json.loads(again.out) == kept
    assert not list(tmp_path.glob(".advice*"))


def test_one_variant_is_asked_about(kvsim: Kvsim, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO + "variants: {a: {seed: 1}, b: {seed: 2}}\n")
    refused = kvsim("advise", path)
    assert refused.code == 2
    assert "has variants (a, b). Name the one that is set now: --only a." in refused.err
