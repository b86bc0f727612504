"""`kvsim policies`, `--trust` and `--ceiling`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Kvsim

OWN = '''\
"""Blocks that were found often stay; of equals, the deeper one leaves first."""

from kvsim.policies.contract import count, free_queue


@free_queue(
    "blocks found again most often stay, of equals the deeper ones leave first",
    source="README of kvsim",
    most=count(8, "hits that count", low=1),
)
def often(block, most):
    return min(block.num_hits, most) - block.end_tokens / 2**24
'''
SCENARIO = """\
name: own
model: {groups: [{kind: full, block_size: 4}]}
node: {num_blocks: 12}
step_time: {kind: constant, step_s: 0.01}
cache: {free_queue: {name: "often.py:often", most: 3}}
workload:
  kind: script
  concurrency: 1
  requests:
    - {prompt: [[A, 16]]}
    - {prompt: [[A, 16], [B, 8]]}
    - {prompt: [[C, 20]]}
    - {prompt: [[A, 16], [D, 4]]}
"""


def test_lists(kvsim: Kvsim) -> None:
    listed = json.loads(kvsim("policies", "--json").out)
    by_key: dict[str, list[str]] = {}
    for one in listed:
        by_key.setdefault(one["key"], []).append(one["name"])
        assert one["description"]
    assert by_key["cache.free_queue"][:3] == [
        "append",
        "prepend-uncached-window",
        "prepend-uncached",
    ]
    assert {"lfu", "sieve", "gdsf"} <= set(by_key["cache.free_queue"])
    assert by_key["offload.eviction"] == ["lru", "arc"]
    shown = kvsim("policies", "lfu").out
    assert "half_life: time in which a use loses half its weight (default 600 s" in shown
    assert "def lfu(block" in shown
    assert "source: Lee et al." in shown


def test_an_own_policy(kvsim: Kvsim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVSIM_TRUST", raising=False)
    (tmp_path / "often.py").write_text(OWN)
    path = tmp_path / "own.yaml"
    path.write_text(SCENARIO)
    out = tmp_path / "out"
    refused = kvsim("run", path, "--out", out)
    assert refused.code == 2
    assert "cache.free_queue: 'often.py:often' would run the code in " in refused.err
    assert "give --trust" in refused.err
    monkeypatch.setenv("KVSIM_TRUST", "")  # so that what --trust sets is undone
    done = kvsim("run", path, "--trust", "--ceiling", "--out", out)
    assert done.code == 0, done.err
    assert "ceiling" in done.out
    (result,) = out.iterdir()
    summary = json.loads((result / "summary.json").read_text())
    assert summary["hit_tokens"] == 32
    ceiling = summary["ceiling"]
    assert ceiling["infinite"] == pytest.approx(32 / 80)
    assert ceiling["share_of_optimum"] == 1.0
    inputs = json.loads((result / "provenance.json").read_text())["inputs_sha256"]
    assert len(inputs["often.py"]) == 64
