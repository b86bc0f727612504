"""Sweeps are worth their processes: `pytest --benchmark-enable -m benchmark tests/benchmarks`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import kvsim
from kvsim.study.parallel import num_cores

SCENARIO = Path(__file__).parents[2] / "scenarios" / "b300_conversation.yaml"
SHARE_MAX = 0.6
"""Most time that a sweep may take on two cores, as a share of its runs' own times."""
AGAIN_S_MAX = 2.0
"""Most seconds that a finished sweep may take when it is called again."""


@pytest.fixture
def scenario() -> kvsim.Scenario:
    """30 runs of 2,000 requests."""
    loaded = kvsim.load_scenario(SCENARIO, ["workload.limit=2000"])
    grid = {"workload.time_scale": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]}
    return loaded.replace({"sweep": {"grid": grid}})


@pytest.mark.benchmark
def test_a_sweep_against_its_runs(scenario: Any, tmp_path: Path, benchmark: Any) -> None:
    if not benchmark.enabled:
        pytest.skip("measures speed; run with --benchmark-enable")
    if num_cores() < 2:
        pytest.skip("needs two cores")
    kvsim.run(scenario, "prepend-boundary")  # compiles, if nothing has been compiled yet
    start_s = time.perf_counter()
    result = benchmark.pedantic(
        kvsim.sweep, (scenario,), {"out": tmp_path, "jobs": 2}, rounds=1, iterations=1
    )
    took_s = time.perf_counter() - start_s
    own_s = float(result.table["wall_s"].sum())
    benchmark.extra_info |= {"took_s": took_s, "own_s": own_s, "share": took_s / own_s}
    assert (result.table["status"] == "done").all()
    assert took_s <= SHARE_MAX * own_s


@pytest.mark.benchmark
def test_a_finished_sweep_again(scenario: Any, tmp_path: Path, benchmark: Any) -> None:
    if not benchmark.enabled:
        pytest.skip("measures speed; run with --benchmark-enable")
    import subprocess
    import sys

    import yaml

    path = tmp_path / "s.yaml"
    data = scenario.written()
    data["workload"]["path"] = str(scenario.workload.file.resolve())
    path.write_text(yaml.safe_dump(data))
    command = [sys.executable, "-m", "kvsim.cli", "sweep", str(path), "--out", str(tmp_path / "o")]
    subprocess.run(command, check=True, capture_output=True)

    def again() -> None:
        subprocess.run(command, check=True, capture_output=True)

    benchmark.pedantic(again, rounds=3, iterations=1)
    assert benchmark.stats.stats.min < AGAIN_S_MAX
