"""Every scenario shipped runs, at a small size."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.scenario import expand_variants, load_scenario
from kvsim.variants import run_variant

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
    first, *others = (result.requests[columns].sort_values("request_id") for result in results)
    same_workload = [v.workload == results[0].scenario.workload for v in variants.values()]
    for rows, same in zip(others, same_workload[1:], strict=True):
        assert not same or rows.to_numpy().tolist() == first.to_numpy().tolist()


def test_the_quick_start_has_the_policies_it_promises() -> None:
    variants = expand_variants(load_scenario(SCENARIOS / "b300_conversation.yaml"))
    policies = {(v.free_queue, v.retention_interval) for v in variants.values()}
    assert {
        ("append", None),
        ("prepend-uncached", None),
        ("prepend-uncached", 4096),
        ("prepend-uncached", 0),
    } <= policies
