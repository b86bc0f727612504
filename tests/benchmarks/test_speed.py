"""How fast kvsim is, as ratios against something timed in the same run.

Run with ``pytest -n 0 -m benchmark``. The engine's own times are those of its KVCacheManager for
the first 3,000 requests of the conversation trace, where the plain loop takes 0.89 s.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from kvsim.engine.simulation import simulate
from kvsim.scenario.reading import expand_variants, load_scenario
from kvsim.study.bench import CoreTiming, time_core

pytestmark = pytest.mark.benchmark

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "scenarios" / "traces" / "mooncake_conversation.jsonl.gz"
ENGINE_LOOP_S = 0.89
PLAIN_LOOP = "s=0\nfor i in range(10_000_000): s+=i"


@pytest.mark.parametrize(
    ("groups", "interval", "engine_ms", "at_least"),
    [("dsv4", 0, 7.7, 30), ("dsv4", None, 13.9, 40), ("full", None, 1.8, 20)],
)
def test_the_core_against_the_engine(
    benchmark: Any, groups: str, interval: int | None, engine_ms: float, at_least: float
) -> None:
    timings: list[CoreTiming] = []

    def once() -> None:
        timings.append(time_core(TRACE, groups=groups, retention_interval=interval, limit=3000))

    benchmark.pedantic(once, rounds=3)
    times_faster = max(
        engine_ms * t.loop_seconds / ENGINE_LOOP_S / t.ms_per_request for t in timings
    )
    benchmark.extra_info["times_faster_than_the_engine"] = round(times_faster, 1)
    assert times_faster >= at_least


def test_cost_does_not_grow_with_the_pool(benchmark: Any) -> None:
    def once(num_blocks: int) -> float:
        return min(
            time_core(TRACE, num_blocks=num_blocks, limit=1000).ms_per_request for _ in range(3)
        )

    small = once(100_000)
    large = benchmark.pedantic(once, args=(1_600_000,), rounds=1)
    benchmark.extra_info["times_as_much_with_16_times_the_blocks"] = round(large / small, 2)
    assert large < 2.5 * small


def test_an_hour_of_chat(benchmark: Any) -> None:
    variants = expand_variants(load_scenario(ROOT / "scenarios" / "b300_conversation.yaml"))
    variant = variants["prepend-boundary"]
    simulate(variant.replace({"workload.limit": 50}))  # loads the compiled code
    start_s = time.perf_counter()
    exec(PLAIN_LOOP, {})
    loop_s = time.perf_counter() - start_s
    start_s = time.perf_counter()
    benchmark.pedantic(simulate, args=(variant,), rounds=1)
    loops = (time.perf_counter() - start_s) / loop_s
    benchmark.extra_info["plain_loops"] = round(loops, 1)
    assert loops < 30 / ENGINE_LOOP_S


def test_runs_of_steps_against_single_steps(benchmark: Any) -> None:
    variants = expand_variants(load_scenario(ROOT / "scenarios" / "b300_conversation.yaml"))
    variant = variants["prepend-boundary"].replace({"workload.limit": 2000})
    simulate(variant)
    start_s = time.perf_counter()
    simulate(variant, one_by_one=True)
    single_s = time.perf_counter() - start_s
    start_s = time.perf_counter()
    benchmark.pedantic(simulate, args=(variant,), rounds=1)
    ratio = (time.perf_counter() - start_s) / single_s
    benchmark.extra_info["share_of_the_time_of_single_steps"] = round(ratio, 2)
    assert ratio < 0.7
