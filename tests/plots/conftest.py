"""Runs to draw, and figures closed behind every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from kvsim.results.store import RunResult
from kvsim.results.variants import run_variant
from kvsim.scenario import Scenario

ROOT = Path(__file__).parents[2]
POLICIES = {
    "append": {"cache.free_queue": "append", "cache.retention_interval": None},
    "dense": {"cache.retention_interval": None},
    "boundary": {"cache.retention_interval": 0},
}


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    mpl.use("Agg")
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def scenario() -> Scenario:
    return Scenario.from_data(
        {
            "name": "plots",
            "model": "deepseek-v4-pro",
            "node": {"gpu": "b300", "gpus": 8, "num_blocks": 12_000},
            "workload": {
                "kind": "trace",
                "path": "mooncake_conversation.jsonl.gz",
                "limit": 150,
            },
        },
        directory=ROOT / "scenarios" / "traces",
    )


@pytest.fixture(scope="session")
def results(scenario: Scenario) -> dict[str, RunResult]:
    return {name: run_variant(scenario.replace(keys), name) for name, keys in POLICIES.items()}
