"""Whole runs of random small configurations: no access outside an array, no block lost.

What is computed from a configuration is tight where the configuration is odd: budgets below a
window or a block, blocks wider than a step, tiers of a chunk or two. With ``KVSIM_BOUNDSCHECK=1``
an access outside an array is an error; without, what it breaks.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine import simulation
from kvsim.scenario import Scenario
from tests.properties.strategies import bounded

pytestmark = pytest.mark.bounds

SIZES = (1, 2, 4, 8, 16, 64)
LINK = {"bandwidth": 100_000, "latency_s": 0.003}


@st.composite
def groups(draw: st.DrawFn) -> list[dict[str, Any]]:
    """One to four groups; windows of one token to many steps."""
    found: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 4))):
        group: dict[str, Any] = {"kind": "full", "block_size": draw(st.sampled_from(SIZES))}
        if draw(st.booleans()):
            group["kind"] = "sliding_window"
            group["sliding_window"] = draw(st.sampled_from((1, 2, 7, 16, 33, 100, 700)))
        if draw(st.integers(0, 5)) == 0:
            group["eagle"] = True
        found.append({**group, "bytes_per_block": 1000})
    return found


@st.composite
def tiers(draw: st.DrawFn, interval: int | None, sizes: list[int]) -> dict[str, Any] | None:
    """None, a CPU tier, one with a disk below it, or a store."""
    kind = draw(st.sampled_from((None, "cpu", "cpu", "disk", "mooncake")))
    overlap = draw(st.booleans())
    if kind is None:
        return None
    if kind == "mooncake":
        capacity = 4096 * draw(st.integers(1, 3000))
        return {"kind": kind, "capacity": capacity, "link": LINK, "overlap_loads": overlap}
    per_chunk = draw(st.integers(1, 4))
    if interval and any(interval % (size * per_chunk) for size in sizes):
        per_chunk = 1
    tier = {
        "kind": "cpu",
        "num_chunks": draw(st.sampled_from((1, 3, 20, 200, 4000))),
        "blocks_per_chunk": per_chunk,
        "eviction": draw(st.sampled_from(("lru", "arc"))),
        "prompt_only": draw(st.booleans()),
        "link": LINK,
        "overlap_loads": overlap,
    }
    if kind == "disk":
        tier["below"] = {"capacity": 4096 * per_chunk * draw(st.integers(1, 500)), "link": LINK}
    return tier


@st.composite
def requests(draw: st.DrawFn, most_tokens: int) -> list[dict[str, Any]]:
    """Fresh prompts, resends, extensions and branches, close together or far apart."""
    found: list[dict[str, Any]] = []
    at_s = 0.0
    for number in range(draw(st.integers(1, 12))):
        spans = []
        if found and draw(st.booleans()):
            spans = [*draw(st.sampled_from(found))["prompt"]]
            spans = spans[: draw(st.integers(1, len(spans)))]
        if not spans or draw(st.booleans()):
            spans.append([f"s{number}", draw(st.integers(1, most_tokens))])
        at_s += draw(st.sampled_from((0.0, 0.0, 0.01, 0.5, 3.0)))
        output = draw(st.sampled_from((1, 2, 9, 70)))
        found.append({"prompt": spans, "output": output, "at_s": at_s})
    return found


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """A small scenario of any kind."""
    model = draw(groups())
    unit = math.lcm(*(group["block_size"] for group in model))
    windows = [g["block_size"] for g in model if g["kind"] == "sliding_window"]
    tier_first = draw(st.booleans())
    profile = "vllm-0.33"
    if not tier_first:
        profile = draw(st.sampled_from(("vllm-0.22", "vllm-0.23", "vllm-0.32", "vllm-0.33")))
    intervals: list[int | None] = [None]
    if profile in ("vllm-0.32", "vllm-0.33") or windows:
        intervals.append(0)
    if windows:
        intervals += [unit, 3 * unit]
    interval = None if profile == "vllm-0.22" else draw(st.sampled_from(intervals))
    offload = draw(tiers(interval, windows)) if tier_first else None
    max_model_len = draw(st.sampled_from((100, 333, 2048)))
    return Scenario.from_data(
        {
            "name": "small",
            "model": {"groups": model},
            "node": {"num_blocks": draw(st.sampled_from((40, 130, 400, 1500)))},
            "engine": {
                "profile": profile,
                "max_model_len": max_model_len,
                "max_num_batched_tokens": draw(st.sampled_from((1, 5, 16, 64, 300))),
                "max_num_seqs": draw(st.sampled_from((1, 2, 8))),
                "long_prefill_token_threshold": draw(st.sampled_from((0, 0, 3, 40))),
            },
            "cache": {
                "retention_interval": interval,
                "enable_prefix_caching": draw(st.integers(0, 7)) > 0,
            },
            "offload": offload,
            "step_time": {"kind": "constant", "step_s": 0.01},
            "workload": {
                "kind": "script",
                "requests": [
                    *draw(requests(max_model_len)),
                    {"prompt": [["last", 1]], "output": 1, "at_s": 100.0},
                ],
            },
        }
    )


@bounded(60)
@given(scenarios())
def test_a_run_of_any_small_configuration_ends_with_all_blocks_free(scenario: Scenario) -> None:
    caches = []

    def make_cache(given_scenario: Scenario, log_entries: int) -> Any:
        caches.append(make(given_scenario, log_entries))
        return caches[0]

    make = simulation.make_cache
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "make_cache", make_cache)
        run = simulation.simulate(scenario)
    (cache,) = caches
    frame = run.requests.frame()
    assert len(frame) == len(scenario.workload.requests)
    served = frame[frame["refused"].isna()]
    assert len(served)
    assert (served["end_s"] >= served["first_token_s"]).all()
    assert (served["hit_tokens"] + served["external_hit_tokens"] <= served["prompt_tokens"]).all()
    assert cache.num_free == cache.config.num_blocks - 1
    queue = cache.free_queue()
    assert sorted(queue.tolist()) == list(range(1, cache.config.num_blocks))
    assert not cache.core.pool.blocks["num_refs"].any()
    assert cache.num_cached == len(cache.cached_blocks()) == cache.num_free_cached


def test_a_step_that_computes_nothing_behind_one_that_does_is_no_endless_loop() -> None:
    """Steps overlap, and a tier is told of what finished when all else is done."""
    windows = [
        {"kind": "sliding_window", "block_size": 16, "sliding_window": 16, "bytes_per_block": 1000},
        {"kind": "full", "block_size": 64, "bytes_per_block": 1000},
    ]
    scenario = Scenario.from_data(
        {
            "name": "end",
            "model": {"groups": windows},
            "node": {"num_blocks": 400},
            "engine": {"max_model_len": 2048, "max_num_batched_tokens": 300, "max_num_seqs": 1},
            "cache": {"retention_interval": 0},
            "offload": {"kind": "cpu", "num_chunks": 3, "blocks_per_chunk": 3, "link": LINK},
            "step_time": {"kind": "constant", "step_s": 0.01},
            "workload": {
                "kind": "script",
                "requests": [
                    {"prompt": [["a", 504]], "output": 70},
                    {"prompt": [["b", 308]], "output": 70, "at_s": 0.5},
                ],
            },
        }
    )
    run = simulation.simulate(scenario)
    assert run.requests.frame()["end_s"].notna().all()
