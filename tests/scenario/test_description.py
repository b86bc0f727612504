"""What `kvsim validate` says of workloads, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.scenario.description import describe
from kvsim.scenario.reading import expand_variants, load_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SHIPPED = sorted(set(SCENARIOS.glob("*.yaml")) - {SCENARIOS / "reference.yaml"})
CLOSED = "turns wait for answers (closed loop)"


@pytest.mark.parametrize(
    ("name", "overrides", "lines"),
    [
        (
            "b300_offload_cpu",
            ["workload.limit=1500", "workload.time_scale=0.5", "workload.partial_tail=shared"],
            [
                "the first 1,500 requests of the trace mooncake_conversation.jsonl.gz "
                "(format mooncake)",
                "each at its recorded time, whether or not those before have ended, all times "
                "x 0.5",
                "tails of prompts inside an id count as shared: an upper bound",
            ],
        ),
        (
            "claude_code",
            [],
            [
                "the first 4,000 requests of the trace weka_claude_code_710.jsonl.gz (format "
                "recognised)",
                f"sessions: starting uniform(span_s=2 h); {CLOSED}",
            ],
        ),
        (
            "flush",
            [],
            [
                f"1,000 sessions made at random, starting gamma(per_s=1.5, cv=3); {CLOSED}",
                "97.0% of the sessions: chat",
                "3.0% of the sessions: one-off",
            ],
        ),
        (
            "azure_conversation",
            [],
            [
                f"4,000 sessions made at random, starting recorded; {CLOSED}",
                "chat",
                "recorded lengths or starts are those of azure_2023_conv.csv.gz",
            ],
        ),
        (
            "samples",
            [],
            [
                "200 sessions made at random, 8 alive at once, the next starting as one ends; "
                f"{CLOSED}",
                "samples",
            ],
        ),
        (
            "azure_code",
            [],
            [
                "all requests of the trace azure_2023_code.csv.gz (format recognised)",
                "each at its recorded time, whether or not those before have ended",
                "a trace of lengths gets 50 shared prefixes of 1,024 tokens (Zipf exponent 1)",
            ],
        ),
        ("flash_gsm8k_offload", [], ["400 requests written down, at the times given"]),
    ],
)
def test_workloads_in_words(name: str, overrides: list[str], lines: list[str]) -> None:
    text = describe(expand_variants(load_scenario(SCENARIOS / f"{name}.yaml", overrides)))
    assert "Workload:\n" + "".join(f"  {line}\n" for line in lines) + "Step time:" in text


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_scenario_is_described(path: Path) -> None:
    scenario = load_scenario(path)
    text = describe(expand_variants(scenario))
    parts = ["KV cache groups of ", "Blocks of the pool:", "Workload:", "Step time:"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert ("Tiers:\n" in text) is (scenario.offload is not None)
