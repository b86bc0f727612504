"""Survival of a prefix: device and tier, and the requests behind each point."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from kvsim import plots
from kvsim.results.store import RunResult


def offered() -> pd.DataFrame:
    """24 requests with 100 tokens to reuse: 12 idle for 2 s, 12 for 1,000 s; two more for 60 s."""
    idle_s = [2.0] * 12 + [1000.0] * 12 + [60.0] * 2
    return pd.DataFrame(
        {
            "request_id": [f"r{number}" for number in range(26)],
            "reusable_tokens": 100,
            "idle_s": idle_s,
        }
    )


def run(result: RunResult, hit: int, loaded: int, *, tier: bool, num: int = 26) -> RunResult:
    requests = pd.DataFrame(
        {
            "request_id": [f"r{number}" for number in range(num)],
            "hit_tokens": pd.array([hit] * num, dtype="Int64"),
            "external_hit_tokens": pd.array([loaded] * num, dtype="Int64"),
        }
    )
    tiers: dict[str, Any] = {"cpu": {}} if tier else {}
    return replace(result, requests=requests, summary={**result.summary, "tiers": tiers})


def shown(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_a_run_without_a_tier(results: dict[str, RunResult]) -> None:
    ax = plots.prefix_survival({"one": run(results["dense"], 40, 0, tier=False)}, offered())
    assert ax.get_ylabel() == "Reusable tokens found on the device (%)"
    (line,) = ax.get_lines()
    assert list(line.get_ydata()) == [0.4, 0.4]
    assert shown(ax) == ["12", "12"]  # bins of two requests say nothing
    assert ax.get_xlabel() == "Idle time of the prefix (s); at the top: requests behind a point"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one"]


def test_a_tiered_run_counts_what_its_tier_had(results: dict[str, RunResult]) -> None:
    ax = plots.prefix_survival({"one": run(results["dense"], 40, 35, tier=True)}, offered())
    assert ax.get_ylabel() == "Reusable tokens found on\ndevice and tier (%)"
    both, device = ax.get_lines()
    assert np.allclose(both.get_ydata(), 0.75)
    assert np.allclose(device.get_ydata(), 0.4)
    assert device.get_linewidth() < both.get_linewidth()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["one", "thin: on the device alone"]


def test_runs_with_and_without_say_so(results: dict[str, RunResult]) -> None:
    runs = {
        "with": run(results["dense"], 40, 80, tier=True),
        "without": run(results["boundary"], 30, 0, tier=False, num=23),
    }
    ax = plots.prefix_survival(runs, offered())
    assert ax.get_ylabel() == "Reusable tokens found on\ndevice and, where there is one, tier (%)"
    assert shown(ax) == ["12", "11–12"]  # a request of the other run was refused
    assert max(ax.get_lines()[0].get_ydata()) == 1.0  # no more than all of it is found
