"""Replicas with tiers: when loads and stores happen, what they bring, and what they count."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.results.variants import run_variant
from kvsim.scenario import Scenario

FULL = {"groups": [{"kind": "full", "block_size": 16, "bytes_per_block": 1000}]}
HYBRID = {
    "groups": [
        {"kind": "full", "block_size": 32, "bytes_per_block": 1000},
        {
            "kind": "sliding_window",
            "block_size": 8,
            "sliding_window": 8,
            "bytes_per_block": 400,
        },
    ]
}
INSTANT = {"bandwidth": 1e18}
CPU = {"kind": "cpu", "num_chunks": 1000, "link": INSTANT}
STORE = {"kind": "mooncake", "capacity": "1 GB", "link": INSTANT}
# 100 blocks of 1000 bytes in a second, each way.
SLOW = {"bandwidth": 100_000}


def scenario(requests: list[dict[str, Any]], offload: Any = None, **changes: Any) -> Scenario:
    data = {
        "name": "test",
        "model": FULL,
        "node": {"num_blocks": 65},
        "engine": {"max_num_batched_tokens": 512, "max_model_len": 4096},
        "cache": {"retention_interval": None},
        "step_time": {"kind": "constant", "step_s": 1.0},
        "workload": {"kind": "script", "requests": requests, "concurrency": 1},
        "offload": offload,
    }
    return Scenario.from_data({**data, **changes})


def run(*args: Any, **changes: Any) -> tuple[dict[str, Any], pd.DataFrame]:
    result = run_variant(scenario(*args, **changes))
    return result.summary, result.requests


def prompt(name: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt": [[name, tokens]], **more}


@pytest.mark.parametrize(("offload", "name"), [(CPU, "cpu"), (STORE, "mooncake")])
def test_what_left_the_device_comes_back(offload: dict[str, Any], name: str) -> None:
    # 64 blocks: B takes all of A's.
    requests = [prompt("A", 800), prompt("B", 1024), prompt("A", 800)]
    summary, frame = run(requests, offload)
    tier = summary["tiers"][name]
    assert frame["hit_tokens"].tolist() == [0, 0, 0]
    assert tier["by_group"][0]["chunks_stored"] == 50 + 64
    assert tier["bytes_stored"] == summary["bytes_stored"] == 114_000
    assert summary["external_queried_tokens"] == 2624
    # The connector of the CPU tier loads the whole prompt, the store's leaves the last block.
    loaded = {"cpu": 800, "mooncake": 784}[name]
    assert frame["external_hit_tokens"].tolist() == [0, 0, loaded]
    assert summary["external_hit_tokens"] == loaded
    assert summary["bytes_loaded"] == loaded // 16 * 1000
    source = {"cpu": "cpu", "mooncake": "remote"}[name]
    split = {"device": 0.0, "cpu": 0.0, "remote": 0.0, source: loaded / 2624}
    assert summary["hit_split"] == {**split, "missed": 1 - loaded / 2624}
    assert tier["loaded_share"] == (loaded // 16) / 114
    assert tier["used_bytes_max"] == 114 * 4096
    without, _ = run(requests)
    assert without["tiers"] == {}
    assert without["bytes_stored"] == without["external_hit_tokens"] == 0
    assert without["hit_split"]["missed"] == 1.0


def test_a_load_takes_the_time_of_the_link() -> None:
    requests = [prompt("A", 800), prompt("B", 1024), prompt("A", 800)]
    summary, frame = run(requests, {**CPU, "link": SLOW})
    # A: 2 steps; the store of its last 18 blocks begins then, and B, which takes these blocks,
    # waits for it. B: 2 steps. The load of 50 blocks takes half a second, then one step computes
    # the last token.
    assert frame["first_token_s"].tolist() == pytest.approx([2.0, 4.18, 5.68])
    assert frame["queue_s"].tolist() == pytest.approx([0.0, 0.0, 0.5])
    tier = summary["tiers"]["cpu"]
    assert tier["load_utilization"] == pytest.approx(0.5 / 5.68)
    # To compute the 800 tokens again takes 2 steps of a second; one is needed in any case.
    assert tier["break_even_bytes_per_s"] == pytest.approx(50_000)


def test_latency_comes_on_top_once_a_transfer() -> None:
    requests = [prompt("A", 800), prompt("B", 1024), prompt("A", 800)]
    _, frame = run(requests, {**CPU, "link": {**SLOW, "latency_s": 0.25}})
    assert frame["queue_s"].tolist() == pytest.approx([0.0, 0.0, 0.75])


@pytest.mark.parametrize(
    ("bandwidth", "overlap", "ttft_s"),
    [(100_000, False, 1.5), (100_000, True, 1.0), (10_000, False, 6.0), (10_000, True, 5.0)],
)
def test_a_step_can_run_while_its_loads_are_under_way(
    bandwidth: int, overlap: bool, ttft_s: float
) -> None:
    requests = [prompt("A", 800), prompt("B", 1024, at_s=50), prompt("A", 800, at_s=100)]
    offload = {**CPU, "link": {"bandwidth": bandwidth}, "overlap_loads": overlap}
    _, frame = run(requests, offload, workload={"kind": "script", "requests": requests})
    assert frame["external_hit_tokens"].tolist() == [0, 0, 800]
    assert frame["ttft_s"][2] == pytest.approx(ttft_s)


def test_a_link_for_the_node_carries_the_loads_of_all_ranks() -> None:
    requests = [prompt("A", 800), prompt("B", 1024), prompt("A", 800)]
    node = {"num_blocks": 65, "gpus": 4}
    model = {**FULL, "kv_replicated": True}
    link = {**SLOW, "span": "node"}
    summary, frame = run(requests, {**CPU, "link": link}, node=node, model=model)
    assert frame["queue_s"][2] == 4 * 0.5
    assert summary["bytes_loaded"] == 50_000  # counted once
    summary, frame = run(requests, {**CPU, "link": SLOW}, node=node, model=model)
    assert frame["queue_s"][2] == 0.5


def test_stores_whose_blocks_are_handed_out_again_hold_up_the_step() -> None:
    requests = [prompt("A", 1024), prompt("B", 1024)]
    fast, frame = run(requests, CPU)
    assert frame["first_token_s"].tolist() == pytest.approx([2.0, 4.0])
    slow, frame = run(requests, {**CPU, "link": {"bandwidth": 1000}})
    # 32 blocks are stored from 1 s on, 32 more behind them, done at 65 s; B takes all of these.
    assert frame["first_token_s"].tolist() == pytest.approx([2.0, 67.0])
    assert slow["bytes_stored"] == fast["bytes_stored"] == 128_000


def test_many_waiters_on_one_prefix_load_it_once() -> None:
    requests = [prompt("A", 800, at_s=0.0), prompt("B", 2880, at_s=10.0)]
    requests += [
        {"prompt": [["A", 800], [f"own {n}", 8]], "at_s": 20.0, "output": 2} for n in range(50)
    ]
    workload = {"kind": "script", "requests": requests}
    summary, frame = run(
        requests, {**CPU, "link": SLOW}, workload=workload, node={"num_blocks": 181}
    )
    assert summary["tiers"]["cpu"]["chunks_loaded"] == 50
    waiters = frame[2:]
    assert waiters["external_hit_tokens"].tolist().count(800) == 1
    assert waiters["hit_tokens"].tolist().count(800) == 49
    assert summary["num_finished"] == 52


@pytest.mark.parametrize(("num_chunks", "hits"), [(149, [0, 0, 0]), (150, [800, 800, 800])])
def test_a_cyclic_working_set_fits_or_gives_nothing(num_chunks: int, hits: list[int]) -> None:
    cycle = [prompt(name, 800) for name in "ABC"]
    offload = {**CPU, "num_chunks": num_chunks - 50 if hits[0] == 0 else num_chunks}
    _, frame = run(2 * cycle, offload, node={"num_blocks": 55})
    assert frame["external_hit_tokens"].tolist() == [0, 0, 0, *hits]


def test_a_full_tier_keeps_the_device_side_whole() -> None:
    requests = [prompt("A", 480), prompt("A", 480), prompt("B", 480), prompt("B", 480)]
    summary, frame = run(requests, {**CPU, "num_chunks": 3})
    assert summary["tiers"]["cpu"]["chunks_stored"] == 0
    assert summary["tiers"]["cpu"]["stores_refused"] >= 2
    assert frame["hit_tokens"].tolist() == [0, 464, 0, 464]


def test_a_disk_brings_back_what_left_the_tier() -> None:
    offload = {**CPU, "num_chunks": 100, "below": {"link": SLOW, "capacity": "1 GB"}}
    requests = [prompt("A", 800), prompt("B", 1024), prompt("C", 1024), prompt("A", 800)]
    summary, frame = run(requests, offload)
    disk, cpu = summary["tiers"]["disk"], summary["tiers"]["cpu"]
    assert frame["external_hit_tokens"].tolist() == [0, 0, 0, 800]
    assert disk["chunks_stored"] == 50 + 64 + 64
    assert (disk["chunks_loaded"], disk["bytes_loaded"]) == (50, 50_000)
    assert cpu["chunks_loaded"] == 50
    assert summary["bytes_loaded"] == 50_000  # of the tier next to the device
    assert frame["queue_s"][3] == pytest.approx(0.5)
    without = {key: value for key, value in offload.items() if key != "below"}
    _, frame = run(requests, without)
    assert frame["external_hit_tokens"].tolist() == [0, 0, 0, 0]


def test_utilization_over_time() -> None:
    offload = {**CPU, "link": SLOW, "below": {"link": SLOW, "capacity": "1 GB"}}
    timeline = run_variant(
        scenario([prompt("A", 1600)], offload, node={"num_blocks": 201})
    ).timeline
    shares = timeline[timeline["time_s"] > 0]
    assert shares["time_s"].tolist() == pytest.approx([1.0, 2.0, 3.0, 4.0, 4.04])
    # 32 blocks from 1, 2 and 3 s on, and 4 from 4 s on.
    assert shares["store_utilization"].tolist() == pytest.approx([0, 0.32, 0.32, 0.32, 1])
    # What has arrived is written on once the step is over.
    assert shares["disk_store_utilization"].tolist() == pytest.approx([0, 0, 0.32, 0.32, 1])
    assert (shares[["load_utilization", "disk_load_utilization"]] == 0.0).all(axis=None)
    bare = run_variant(scenario([prompt("A", 800)])).timeline
    assert bare["store_utilization"].isna().all()


def test_groups_without_bytes_take_a_mebibyte_and_the_run_says_so() -> None:
    model = {"groups": [{"kind": "full", "block_size": 16}]}
    summary, _ = run([prompt("A", 160)], CPU, model=model)
    assert summary["bytes_stored"] == 10 * 2**20
    assert summary["warnings"] == [
        "model.groups: bytes_per_block is not given for group 0; 1,048,576 bytes (1 MiB) are taken "
        "for tiers and links."
    ]


def test_the_same_step_by_step() -> None:
    rng = random.Random(3)
    requests = [
        {"prompt": [["S", 320], [f"q{n % 5}", 200]], "output": rng.randrange(1, 60), "at_s": n / 3}
        for n in range(30)
    ]
    workload = {"kind": "script", "requests": requests}
    from kvsim.engine.simulation import simulate

    for offload in ({**CPU, "link": SLOW}, {**STORE, "link": SLOW}):
        made = scenario(requests, offload, workload=workload)
        frames = [
            simulate(made, one_by_one=one_by_one).requests.frame() for one_by_one in (False, True)
        ]
        pd.testing.assert_frame_equal(*frames)


histories = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 700), st.integers(0, 3), st.integers(1, 300)),
    min_size=2,
    max_size=12,
)


def branching(history: list[tuple[int, int, int, int]]) -> list[dict[str, Any]]:
    """Documents of which requests share parts of any length, with ends of their own."""
    return [
        {"prompt": [[f"doc {doc}", shared], [f"end {doc} {end}", own]], "output": 3}
        for doc, shared, end, own in history
    ]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(histories)
def test_device_hits_do_not_fall_because_a_tier_is_added(
    history: list[tuple[int, int, int, int]],
) -> None:
    """At equal timing, with full attention; where windows are loaded only their ends are."""
    requests = branching(history)
    _, without = run(requests)
    for offload in (CPU, STORE):
        _, frame = run(requests, offload)
        assert (frame["hit_tokens"] >= without["hit_tokens"]).all()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(histories)
def test_hits_do_not_fall_because_a_tier_is_added(
    history: list[tuple[int, int, int, int]],
) -> None:
    # Only where runs are dense: what a request loads it does not compute, so that it leaves fewer
    # runs behind than without a tier, and a later request that wants one between those may find
    # less.
    requests = branching(history)
    changes: dict[str, Any] = {
        "model": HYBRID,
        "cache": {"retention_interval": None},
        "node": {"num_blocks": 129},
    }
    _, without = run(requests, **changes)
    _, frame = run(requests, {**CPU, "num_chunks": 5000}, **changes)
    both = frame["hit_tokens"] + frame["external_hit_tokens"]
    assert (both >= without["hit_tokens"]).all()


@settings(max_examples=15, deadline=None, derandomize=True)
@given(histories, st.integers(1, 40), st.sampled_from([1, 2]))
def test_what_is_loaded_was_stored_and_tiers_hold_no_more_than_they_can(
    history: list[tuple[int, int, int, int]], num_chunks: int, blocks_per_chunk: int
) -> None:
    cpu = {**CPU, "num_chunks": num_chunks, "blocks_per_chunk": blocks_per_chunk}
    tiers = [
        cpu,
        {**cpu, "eviction": "arc", "prompt_only": False},
        {**cpu, "below": {"capacity": 60 * 8192, "link": INSTANT}},
        {**STORE, "capacity": num_chunks * 4096},
    ]
    for offload in tiers:
        summary, frame = run(
            branching(history),
            offload,
            model=HYBRID,
            cache={"retention_interval": 0},
            node={"num_blocks": 161},
        )
        assert frame["refused"].isna().all()
        assert summary["num_finished"] == len(history)
        for tier in summary["tiers"].values():
            assert tier["used_bytes_max"] <= tier["capacity_bytes"]
            assert tier["loaded_share"] is None or 0 <= tier["loaded_share"] <= 1
            for group in tier["by_group"]:
                assert group["chunks_stored"] > 0 or group["chunks_loaded"] == 0
