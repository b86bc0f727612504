"""What is taken from each run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pandas as pd

from kvsim.results.variants import run_variant
from kvsim.scenario import Scenario
from tests.published import set_ups

FILE = set_ups.DATA / "fleets.json"


def run(scenario: Scenario) -> tuple[pd.DataFrame, dict[str, Any]]:
    result = run_variant(scenario)
    return result.requests, result.summary


def hit_rate(requests: pd.DataFrame) -> float:
    """Tokens found on the device or in a tier, of all prompt tokens."""
    found = requests["hit_tokens"] + requests["external_hit_tokens"].fillna(0)
    return float(found.sum() / requests["prompt_tokens"].sum())


def span_s(requests: pd.DataFrame) -> float:
    return float(requests["end_s"].max() - requests["arrival_s"].min())


def of_ladder(
    scenario: Scenario, stages: tuple[tuple[float, float], ...] = set_ups.LADDER
) -> dict[str, float]:
    """Means over the stages after the warm-up, as the report's own; the hit rate of them all."""
    requests, _ = run(scenario)
    begins, begin_s = [], 0.0
    for _, duration_s in stages:
        begins.append(begin_s)
        begin_s += duration_s + set_ups.STAGE_APART_S
    number = pd.Series(begins).searchsorted(requests["arrival_s"], side="right") - 1
    parts = [part for stage, part in requests.groupby(number) if stage]
    for stage, part in enumerate(parts, 1):
        assert part["end_s"].max() < [*begins, begin_s][stage + 1], "a stage is not drained"
    return {
        "hit_rate": hit_rate(pd.concat(parts)),
        "output_tokens_per_s": mean(part["output_tokens"].sum() / span_s(part) for part in parts),
        "ttft_mean_s": mean(part["ttft_s"].mean() for part in parts),
        "ttft_p90_s": mean(part["ttft_s"].quantile(0.9) for part in parts),
    }


def of_burst(scenario: Scenario) -> dict[str, float]:
    """Hit rate, throughput and mean TTFT of a run taken as a whole."""
    requests, summary = run(scenario)
    spent_s = span_s(requests)
    return {
        "hit_rate": hit_rate(requests),
        "input_tokens_per_s": float(requests["prompt_tokens"].sum() / spent_s),
        "tokens_per_s": float(
            (requests["prompt_tokens"].sum() + requests["output_tokens"].sum()) / spent_s
        ),
        "requests_per_s": len(requests) / spent_s,
        "ttft_mean_s": float(requests["ttft_s"].mean()),
        "imbalance": float(summary["fleet"]["imbalance"]["requests"]),
    }


def mean(values: Any) -> float:
    listed = list(values)
    return float(sum(listed) / len(listed))


RUNS: dict[str, dict[str, Callable[[], dict[str, float]]]] = {
    "ladder": {
        name: lambda router=router: of_ladder(set_ups.ladder(router))
        for name, router in set_ups.LLM_D.items()
    },
    "shared-prefix": {
        name: lambda router=router: of_burst(set_ups.shared_prefix(router))
        for name, router in set_ups.SGLANG.items()
    },
    "prefix-repetition": {
        f"{name}, {suffix} + {output}": lambda router=router, suffix=suffix, output=output: (
            of_burst(set_ups.prefix_repetition(router, suffix_tokens=suffix, output_tokens=output))
        )
        for suffix, output in ((256, 128), (1024, 512))
        for name, router in set_ups.SMG.items()
    },
    "agents": {
        f"{12 * scale} GPUs, {scale * each} sessions": lambda scale=scale, each=each: of_burst(
            set_ups.agents(scale, each)
        )
        for scale, each in ((1, 75), (5, 5))
    },
}


def saved() -> dict[str, dict[str, dict[str, float]]]:
    loaded: dict[str, dict[str, dict[str, float]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return loaded
