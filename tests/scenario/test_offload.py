"""The shipped scenarios with tiers: valid, and what the second source's set-up stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvsim.engine.simulation import simulate
from kvsim.metrics.tiers import TierFigures
from kvsim.scenario import Scenario
from kvsim.scenario.description import describe
from kvsim.scenario.reading import expand_variants, load_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
GSM8K = load_scenario(SCENARIOS / "flash_gsm8k_offload.yaml")
# Chunks by group that the engine's own connector stored, recorded on a CPU with its scheduler.
RECORDED = {
    "dense": [483, 483, 203, 806, 3294],
    "interval-512": [205, 205, 203, 404, 645],
    "boundary": [203, 203, 203, 402, 629],
}


def stored(scenario: Scenario) -> TierFigures:
    (tier,) = simulate(scenario).counters.tiers
    return tier


def first_round(scenario: Scenario) -> Scenario:
    data: dict[str, Any] = scenario.written()
    data["workload"]["requests"] = data["workload"]["requests"][:200]
    return Scenario.from_data(data)


@pytest.mark.parametrize("variant", RECORDED)
def test_gsm8k_stores_what_the_connector_stored(variant: str) -> None:
    scenario = expand_variants(GSM8K)[variant]
    fresh, again = stored(first_round(scenario)), stored(scenario)
    assert fresh.chunks_stored == RECORDED[variant]
    assert fresh.chunks_evicted == fresh.stores_refused == 0
    # The same again brings nothing new.
    assert again.chunks_stored == RECORDED[variant]


def test_gsm8k_in_bytes() -> None:
    sizes = [823_680, 786_240, 1_002_240, 870_912, 656_640]
    variants = expand_variants(GSM8K)
    figures = {name: stored(first_round(scenario)) for name, scenario in variants.items()}
    for name, tier in figures.items():
        assert tier.bytes_stored == [
            chunks * size for chunks, size in zip(RECORDED[name], sizes, strict=True)
        ]
        assert tier.capacity_bytes == 17_119 * 1_003_520  # of 16 GiB, in pages of 4,096 bytes
        assert tier.used_bytes_max == sum(RECORDED[name]) * 1_003_520
    in_all = {name: sum(tier.bytes_stored) for name, tier in figures.items()}
    assert in_all["dense"] == 3_845_973_312
    assert 1 - in_all["interval-512"] / in_all["dense"] == pytest.approx(0.660, abs=5e-4)
    assert 1 - in_all["boundary"] / in_all["dense"] == pytest.approx(0.664, abs=5e-4)


def test_the_limit_for_long_unique_prompts() -> None:
    """Of 256 tokens dense stores the run of every group at a boundary, 0 the full block alone."""
    requests = [{"prompt": [[f"document {n}", 16_128]]} for n in range(4)]
    data = {
        **GSM8K.written(),
        "variants": {},
        "engine": {"max_model_len": 16384},
        "workload": {"kind": "script", "requests": requests, "concurrency": 1},
    }
    dense = stored(Scenario.from_data(data))
    boundary = stored(Scenario.from_data({**data, "cache": {"retention_interval": 0}}))
    num_units = 4 * 63
    assert dense.chunks_stored == [num_units * blocks for blocks in (2, 2, 1, 2, 16)]
    assert boundary.chunks_stored == [8, 8, num_units, 8, 64]
    run = sum(dense.bytes_stored) // num_units
    assert run == 1_002_240 + 2 * 823_680 + 2 * 786_240 + 2 * 870_912 + 16 * 656_640
    assert 1 - 1_002_240 / run == pytest.approx(0.939, abs=5e-4)
    # Prompts of 16,128 tokens are not endless: each keeps one run of every group as well.
    assert 1 - sum(boundary.bytes_stored) / sum(dense.bytes_stored) == pytest.approx(
        0.924, abs=5e-4
    )


@pytest.mark.parametrize("name", ["b300_offload_cpu", "b300_mooncake"])
def test_scenarios_on_the_trace(name: str) -> None:
    scenario = load_scenario(SCENARIOS / f"{name}.yaml", ["workload.limit=60"])
    results = {}
    for variant, one in expand_variants(scenario).items():
        counters = simulate(one).counters
        results[variant] = counters.tiers
        assert counters.queried_tokens > 0
    without, *others = results
    assert results[without] == ()
    assert all(sum(results[variant][0].chunks_stored) > 0 for variant in others)
    dense, boundary = results["dense"][0], results["boundary"][0]
    assert sum(dense.bytes_stored) > 5 * sum(boundary.bytes_stored)


def test_validate_says_how_large_the_tiers_are() -> None:
    scenario = load_scenario(SCENARIOS / "b300_offload_cpu.yaml", ["offload.link_efficiency=0.7"])
    text = describe(expand_variants(scenario))
    assert "  cpu: 764,773 chunks of 1,437,696 bytes, blocks of any group\n" in text
    link = "    link pcie-gen6-x16, one for each rank: 128 GB/s out, 128 in, "
    assert f"{link}0.7 of that reached (as set)\n" in text
    assert "    link nvme-gen5-x4, one for the node: 6.6 GB/s out, 13 in, 0.9 of that" in text
