"""Every scenario shipped runs, at a small size."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.run import run_variant
from kvsim.scenario import expand_variants, load_scenario

SCENARIOS = Path(__file__).parent.parent / "scenarios"
SHIPPED = sorted(path for path in SCENARIOS.glob("*.yaml") if path.name != "reference.yaml")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_it_runs(path: Path) -> None:
    scenario = load_scenario(path)
    variants = expand_variants(scenario)
    if scenario.workload.kind == "trace":
        variants = {
            name: variant.replace({"workload.limit": 60}) for name, variant in variants.items()
        }
    results = [run_variant(variant, name) for name, variant in variants.items()]
    assert [result.variant for result in results] == list(variants)
    for result in results:
        assert result.summary["num_finished"] == result.summary["num_requests"] > 0
        assert result.summary["token_hit_rate"] is not None
    # In a closed loop a turn comes when the one before has ended; what comes is the same.
    columns = ["request_id", "prompt_tokens", "output_tokens"]
    asked = [result.requests[columns].sort_values("request_id").to_numpy() for result in results]
    assert all((rows == asked[0]).all() for rows in asked), "the same requests everywhere"


def test_the_quick_start_has_the_policies_it_promises() -> None:
    variants = expand_variants(load_scenario(SCENARIOS / "b300_conversation.yaml"))
    policies = {(v.free_queue, v.retention_interval) for v in variants.values()}
    assert {
        ("append", None),
        ("prepend-uncached", None),
        ("prepend-uncached", 4096),
        ("prepend-uncached", 0),
    } <= policies
