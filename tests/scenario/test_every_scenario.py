"""Every scenario shipped runs, at a small size."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.results.store import load_result
from kvsim.results.variants import run_variant, write_variant
from kvsim.scenario import Scenario
from kvsim.scenario.reading import expand_variants, load_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SHIPPED = sorted(path for path in SCENARIOS.glob("*.yaml") if path.name != "reference.yaml")


def small(scenario: Scenario) -> Scenario:
    """The beginning of it."""
    size = {"trace": {"workload.limit": 60}, "synthetic": {"workload.num_sessions": 40}}
    return scenario.replace(size.get(scenario.workload.kind, {}))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_it_runs(path: Path) -> None:
    scenario = load_scenario(path)
    variants = expand_variants(scenario)
    variants = {name: small(variant) for name, variant in variants.items()}
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


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_scenario_beside_a_result_gives_it_again(path: Path, tmp_path: Path) -> None:
    name, variant = list(expand_variants(load_scenario(path)).items())[-1]
    result = run_variant(small(variant), name)
    written = write_variant(tmp_path / "results", result)
    again = run_variant(load_scenario(written / "scenario.yaml"), name)
    for run in (result, again):
        del run.summary["wall_s"]
    assert again.summary == result.summary
    assert again.requests.equals(result.requests)
    assert load_result(written).summary.keys() == {*result.summary, "wall_s"}
    origins = [dict(run.provenance, started=None) for run in (result, again)]
    assert origins[0] == origins[1]
    trace = getattr(variant.workload, "path", None)
    assert list(origins[0]["inputs_sha256"]) == ([] if trace is None else [Path(trace).name])


def test_the_quick_start_has_the_policies_it_promises() -> None:
    variants = expand_variants(load_scenario(SCENARIOS / "b300_conversation.yaml"))
    policies = {(v.free_queue, v.retention_interval) for v in variants.values()}
    assert {
        ("append", None),
        ("prepend-uncached", None),
        ("prepend-uncached", 4096),
        ("prepend-uncached", 0),
    } <= policies
