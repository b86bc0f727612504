"""Tiers beside pools: the connector of a side is a hand-off and a tier, asked in that order."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.metrics.fleet import fleet_summary
from kvsim.metrics.summary import summarize
from kvsim.scenario import Scenario
from kvsim.scenario.pool_rules import pool_scenario
from tests.fleet.small import frame_of
from tests.fleet.test_handoff import ARRIVALS, FULL_BYTES, GROUPS, KINDS, LINK, run, split

FULL = {"groups": GROUPS[:1]}
CPU = {"kind": "cpu", "num_chunks": 400}
STORE = {"kind": "mooncake", "capacity": 400 * FULL_BYTES}
TIERS = {"cpu": CPU, "cpu of the node": {**CPU, "shared_by": "node"}, "mooncake": STORE}


def again(offload: dict[str, Any], **parts: Any) -> Scenario:
    """One prompt, others that push it out of a node's 16 blocks, and the first again."""
    names = ["a", "b", "c", "a"]
    requests = [
        {"prompt": [[name, 192], [f"q{n}", 8]], "output": 2, "at_s": 5.0 * n}
        for n, name in enumerate(names)
    ]
    node = {"num_blocks": 16}
    pools = {"prefill": {"node": node}, "decode": {"node": node}}
    return split(requests, **{"model": FULL, "pools": pools, "offload": offload, **parts})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tier", list(TIERS))
def test_the_prefill_side_finds_in_its_tier_what_it_has_evicted(tier: str, kind: str) -> None:
    result, handoffs = run(again(TIERS[tier], transfer={"kind": kind}))
    frame = frame_of(result)
    assert frame["hit_tokens"].tolist() == [0, 0, 0, 0]
    assert frame["external_hit_tokens"].tolist() == [0, 0, 0, 192]
    pools = result.figures.pools
    assert pools is not None
    assert pools.prefill.counters.scheduled_tokens == 3 * 200 + 8
    # All of each is handed over: the decode side has evicted it as well, and pulls, not loads.
    assert frame["pulled_tokens"].tolist() == [200] * 4
    assert frame["moved_bytes"].tolist() == [13 * FULL_BYTES] * 4
    assert [side.filler.blocks_received for side in handoffs.decode_sides] == [[4 * 13]]
    assert result.counters.external_hit_tokens == 192
    summary = summarize(frame, result.counters, wall_s=1.0)
    assert set(summary["tiers"]) == {TIERS[tier]["kind"]}
    told = fleet_summary(result.figures, frame, summary)
    name = TIERS[tier]["kind"]
    sides = ["prefill", "decode"] if name == "cpu" else ["prefill"]
    assert [link["node"] for link in told["links"] if link["to"] == name] == [
        ["prefill", "decode"].index(side) for side in sides
    ]


def test_a_store_is_for_the_prefill_side_and_all_its_nodes() -> None:
    """Who only decodes neither stores nor loads, as the engine's published set-ups have it."""
    made = again(STORE, pools={"prefill": {"nodes": 2}, "decode": {}})
    assert pool_scenario(made, "decode").offload is None
    frame = frame_of(run(made)[0])
    # Round robin: the fourth is computed on the second node, the first was on the first.
    assert frame["prefill_replica"].tolist() == [0, 1, 0, 1]
    assert frame["external_hit_tokens"].tolist() == [0, 0, 0, 192]


def test_the_decode_side_stores_what_it_pulls_and_loads_it_where_it_computes_alone() -> None:
    """Whether none is split, or one whose prefix was pulled before for another request."""
    made = again(CPU, split={"uncached_tokens": 500})
    apart = frame_of(run(made)[0])
    assert apart["prefill_replica"].isna().all()
    assert apart["external_hit_tokens"].tolist() == [0, 0, 0, 192]
    requests = [
        {"prompt": [["a", 192], ["q", 8]], "output": 2},
        {"prompt": [["b", 400]], "output": 2, "at_s": 5.0},
        {"prompt": [["a", 192], ["r", 60]], "output": 2, "at_s": 9.995},
    ]
    # The prefill node is busy with another prompt when the last one comes.
    busy = {"prompt": [["z", 100]], "output": 2, "at_s": 9.99}
    pools = {"prefill": {"node": {"num_blocks": 60}}, "decode": {"node": {"num_blocks": 34}}}
    made = split(
        [*requests[:2], busy, requests[2]],
        model=FULL,
        pools=pools,
        offload=CPU,
        split={"prefill_busy": 50},
    )
    last = frame_of(run(made)[0]).to_dict("records")[-1]
    assert pd.isna(last["pulled_tokens"])
    # Of what was pulled for the first request, the blocks that were pushed out meanwhile.
    assert last["hit_tokens"] + last["external_hit_tokens"] == 192
    assert last["external_hit_tokens"] > 0


@settings(max_examples=25, deadline=None)
@given(
    arrivals=ARRIVALS,
    kind=st.sampled_from(KINDS),
    tier=st.sampled_from(sorted(TIERS)),
    asynchronous=st.booleans(),
    num_blocks=st.sampled_from([60, 200]),
    chunks=st.sampled_from([20, 400]),
    lose=st.sampled_from([None, "prefill", "decode"]),
    policy=st.sampled_from(["fail", "recompute"]),
)
def test_with_tiers_what_is_sent_arrives_and_everybody_ends_once(
    arrivals: Any,
    kind: str,
    tier: str,
    asynchronous: bool,
    num_blocks: int,
    chunks: int,
    lose: str | None,
    policy: str,
) -> None:
    at_s, requests = 0.0, []
    for spans, output, gap_s in arrivals:
        at_s += gap_s
        prompt = [list(span) for span in spans]
        requests.append({"prompt": prompt, "output": output, "at_s": at_s})
    engine = {"max_model_len": 512, "max_num_batched_tokens": 128, "max_num_seqs": 4}
    size = {"num_chunks": chunks} if "cpu" in tier else {"capacity": chunks * FULL_BYTES * 1.5}
    events = [] if lose is None else [{"at": 0.03, "pool": lose, "lose": 0}]
    made = split(
        requests,
        engine={**engine, "async_scheduling": asynchronous},
        node={"num_blocks": num_blocks},
        pools={"prefill": {"nodes": 2}, "decode": {"nodes": 2}},
        transfer={"kind": kind, "kv_load_failure_policy": policy, "link": {**LINK}},
        offload={**TIERS[tier], **size},
        events=events,
    )
    result, handoffs = run(made)
    frame = frame_of(result)
    assert frame["end_s"].notna().all()
    assert frame["refused"].isna().all()
    assert not handoffs.under_way
    sent = sum(side.num_bytes for side in handoffs.prefill_sides)
    received = sum(side.num_bytes for side in handoffs.decode_sides)
    assert sent == received == sum(handoffs.group_bytes)
    for side in handoffs.decode_sides:
        assert side.is_gone or not side.connector.in_flight
    for side in handoffs.prefill_sides:
        assert side.is_gone or not side.keeper.num_kept
    moved = frame[frame["moved_bytes"].notna()]
    if lose is None:
        assert moved["moved_bytes"].sum() == sent
        assert (moved["pulled_tokens"] + moved["decode_hit_tokens"] == moved["prompt_tokens"]).all()
        assert result.counters.queried_tokens == frame["prompt_tokens"].sum()
    assert (frame["hit_tokens"] + frame["external_hit_tokens"] < frame["prompt_tokens"]).all()
