"""Nodes of either pool that are lost, drained and added: by hand, and conserved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import Problems
from kvsim.fleet.simulation import simulate_fleet
from kvsim.metrics.fleet import fleet_summary
from kvsim.metrics.handoff import PARTS
from kvsim.metrics.summary import summarize
from kvsim.results.fleet_tables import fleet_lines
from kvsim.scenario import Scenario
from tests.fleet.small import EXPERTS, frame_of
from tests.fleet.test_handoff import (
    ARRIVALS,
    FULL_BYTES,
    GROUPS,
    KINDS,
    LINK,
    WINDOW_BYTES,
    run,
    split,
)

TWO: dict[str, Any] = {"prefill": {"nodes": 2}, "decode": {"nodes": 2}}
SLOW = {**LINK, "bandwidth": 1e8}
"""A prompt of 200 tokens takes 136 ms of it with full attention alone."""


def event(at: float, pool: str, **what: Any) -> dict[str, Any]:
    return {"at": at, "pool": pool, **what}


def prompts(num: int, *, gap_s: float = 0.001, output: int = 10) -> list[dict[str, Any]]:
    return [{"prompt": [[f"p{n}", 200]], "output": output, "at_s": gap_s * n} for n in range(num)]


def with_events(
    requests: Any, *events: dict[str, Any], kind: str = "nixl-pull", **parts: Any
) -> Scenario:
    given = {"kind": kind, "link": SLOW, **parts.pop("transfer", {})}
    data = {"pools": TWO, "model": {"groups": GROUPS[:1]}, **parts}
    return split(requests, events=list(events), transfer=given, **data)


def test_prompts_of_a_lost_prefill_node_are_sent_to_another_one() -> None:
    """Both nodes compute a prompt up to 12 ms; the first one fails at 5 ms."""
    lost = event(0.005, "prefill", lose=0)
    frame = frame_of(run(with_events(prompts(2), lost))[0])
    assert frame["refused"].isna().all()
    assert frame["resent"].tolist() == [1, 0]
    assert frame["prefill_replica"].tolist() == [1, 1]
    # Its prompt is begun when that of the other request is over, at 1 + 12 ms.
    assert frame["prefill_queue_s"][0] == pytest.approx(0.013)
    refused = frame_of(run(with_events(prompts(2), lost, lost_requests="refuse"))[0])
    assert refused["refused"].dropna().tolist() == ["its node was lost at 0.005 s"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("policy", "lost_requests"),
    [("fail", "resend"), ("fail", "refuse"), ("recompute", "resend")],
)
def test_what_a_lost_prefill_node_kept(kind: str, policy: str, lost_requests: str) -> None:
    """It fails in the middle of the transfer: nothing was moved, and the policy says what now."""
    made = with_events(
        prompts(1),
        event(0.05, "prefill", lose=0),
        kind=kind,
        transfer={"kv_load_failure_policy": policy},
        lost_requests=lost_requests,
    )
    if lost_requests == "refuse":
        with pytest.raises(Problems, match=r"its KV could not be loaded at 0\.05 s"):
            run(made)
        return
    result, handoffs = run(made)
    (row,) = frame_of(result).to_dict("records")
    assert handoffs.num_failed == 1
    if policy == "recompute":
        assert row["replica"] == 2
        assert row["prefill_replica"] == 0
        assert row["resent"] == 0
        assert pd.isna(row["moved_bytes"])
        assert row["ttft_s"] == pytest.approx(0.05 + 0.012)
        assert sum(handoffs.group_bytes) == 0
    else:  # begins anew on the nodes whose turn it is
        assert (row["resent"], row["prefill_replica"], row["replica"]) == (1, 1, 3)
        assert row["moved_bytes"] == sum(handoffs.group_bytes) == 13 * FULL_BYTES
        assert row["ttft_s"] == pytest.approx(0.05 + 0.012 + 13 * FULL_BYTES / 1e8 + 0.01001)
    assert result.counters.queried_tokens == (1 + row["resent"]) * 200


def test_who_has_a_hit_of_its_own_keeps_its_blocks_as_the_engine_does() -> None:
    """Full attention alone: what lies beyond the hit is computed, and the hit is not lost."""
    requests = [
        {"prompt": [["a", 160]], "output": 2},
        {"prompt": [["a", 160], ["b", 40]], "output": 2, "at_s": 5},
    ]
    pools = {"prefill": {"nodes": 1}, "decode": {"nodes": 1}}
    made = with_events(
        requests,
        event(5.02, "prefill", lose=0),
        pools=pools,
        transfer={"kv_load_failure_policy": "recompute"},
    )
    result, handoffs = run(made)
    row = frame_of(result).to_dict("records")[1]
    assert (row["hit_tokens"], handoffs.num_failed) == (160, 1)
    assert row["end_s"] == pytest.approx(5.02 + 0.0104 + 0.01001)
    assert result.counters.queried_tokens == 360
    assert result.counters.hit_tokens == 160


@pytest.mark.parametrize("kind", KINDS)
def test_requests_of_a_lost_decode_node_begin_anew(kind: str) -> None:
    """The first is answered when its node fails; its prompt is found where it was computed."""
    made = with_events(
        prompts(1, output=40),
        event(0.3, "decode", lose=0),
        kind=kind,
        pools={"prefill": {"nodes": 1}, "decode": {"nodes": 2}},
    )
    result, handoffs = run(made)
    (row,) = frame_of(result).to_dict("records")
    assert (row["resent"], row["replica"]) == (1, 2)
    assert pd.isna(row["refused"])
    assert row["hit_tokens"] == 192
    assert row["moved_bytes"] == 13 * FULL_BYTES
    assert sum(handoffs.group_bytes) == 2 * 13 * FULL_BYTES  # once to each
    assert row["ttft_s"] < 0.3  # the user has seen it
    assert pd.isna(row["transfer_s"])
    with pytest.raises(Problems, match=r"its node was lost at 0\.3 s"):
        run(made.replace({"fleet.lost_requests": "refuse"}))


def test_blocks_for_a_lost_decode_node_are_kept_to_the_end_of_their_lease() -> None:
    """Nobody renews it; the next prompt finds no room before."""
    requests = [
        {"prompt": [["a", 200]], "output": 2},
        {"prompt": [["b", 200]], "output": 2, "at_s": 0.06},
    ]
    pools = {"prefill": {"node": {"num_blocks": 16}}, "decode": {"nodes": 2}}
    made = with_events(
        requests,
        event(0.05, "decode", lose=0),
        pools=pools,
        transfer={"lease": 1.0, "renew_every": 0.1, "renew_to": 5.0},
        lost_requests="refuse",
    )
    result, handoffs = run(made)
    frame = frame_of(result)
    assert frame["refused"].notna().tolist() == [True, False]
    assert handoffs.num_lost == 1
    assert 1.0 < frame["prefill_queue_s"][1] + 0.06 < 1.05


def test_a_decode_node_that_is_gone_when_the_prompt_is_computed_is_not_waited_for() -> None:
    for what in ("lose", "drain"):
        made = with_events(prompts(1), event(0.005, "decode", **{what: 0}))
        (row,) = frame_of(run(made)[0]).to_dict("records")
        assert (row["replica"], row["resent"]) == (3, 0)
        assert pd.isna(row["refused"])


def test_a_drained_node_of_either_pool_finishes_what_it_has() -> None:
    """The prefill node stays until its blocks were read."""
    events = (event(0.02, "prefill", drain=0), event(0.02, "decode", drain=0))
    result, _ = run(with_events(prompts(4), *events))
    frame = frame_of(result)
    assert frame["refused"].isna().all()
    assert frame["resent"].sum() == 0
    up_s = [one.up_s for one in result.figures.replicas]
    arrived_s = frame[["prefill_queue_s", "prefill_s", "decode_queue_s", "transfer_s"]].sum(axis=1)
    arrived_s += frame["arrival_s"]
    assert up_s[0] == pytest.approx(arrived_s[frame["prefill_replica"] == 0].max())
    assert up_s[2] == pytest.approx(frame["end_s"][frame["replica"] == 2].max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pool", ["prefill", "decode"])
def test_without_a_node_left_in_a_pool_everybody_is_refused_and_the_run_ends(
    pool: str, kind: str
) -> None:
    events = (event(0.1, pool, lose=0), event(0.35, pool, lose=1))
    requests = [{"prompt": [[f"p{n}", 200]], "output": 2, "at_s": 0.2 * n} for n in range(5)]
    frame = frame_of(run(with_events(requests, *events, kind=kind))[0])
    reason = "no node is left (the last one was lost at 0.35 s)"
    assert (frame["end_s"].notna() ^ frame["refused"].notna()).all()
    assert pd.isna(frame["refused"][0])
    assert frame["refused"].tolist()[2:] == [reason] * 3
    everybody = (event(0.0, pool, lose=0), event(0.0, pool, lose=1))
    with pytest.raises(Problems, match="none of its 5 requests can run"):
        simulate_fleet(with_events(requests, *everybody, kind=kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pool", ["prefill", "decode"])
def test_requests_wait_for_a_node_that_will_come(pool: str, kind: str) -> None:
    lost = [event(0.02, pool, lose=0), event(0.02, pool, lose=1)]
    come = event(0.5, pool, add=2, ready_after=0.5)
    result, _ = run(with_events(prompts(3), *lost, come, kind=kind))
    frame = frame_of(result)
    assert frame["refused"].isna().all()
    assert (frame["end_s"] > 1.0).all()
    # Replicas of the decode pool are counted from the most that the prefill pool ever has.
    assert set(frame["replica"]) == ({3} if pool == "prefill" else {4}) | (
        {4} if pool == "prefill" else set()
    )


def test_the_summary_counts_what_was_lost() -> None:
    events = (event(0.05, "prefill", lose=0), event(1.0, "prefill", add=2))
    result, _ = run(with_events(prompts(3), *events))
    frame = frame_of(result)
    told = fleet_summary(result.figures, frame, summarize(frame, result.counters, wall_s=1.0))
    assert told["num_lost"] == 1
    assert told["num_resent"] == frame["resent"].sum() > 0
    assert told["pools"]["loads_failed"] == 2
    assert [(row["pool"], row["node"], row["replica"]) for row in told["replicas"]] == [
        ("prefill", 0, 0),
        ("prefill", 1, 1),
        ("prefill", 2, 2),
        ("decode", 3, 3),
        ("decode", 4, 4),
    ]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.011, 0.013, 0.02, 0.031, 0.05, 0.08]),
        st.sampled_from(["prefill", "decode"]),
        st.sampled_from(["lose", "drain", "add"]),
        st.integers(0, 2),
    ),
    max_size=5,
)


def sound(drawn: list[tuple[float, str, str, int]]) -> list[dict[str, Any]]:
    """Those of the events that are about nodes that are there, or may come."""
    there = {"prefill": {0, 1}, "decode": {0, 1}}
    known = {"prefill": 2, "decode": 2}
    drained: set[tuple[str, int]] = set()
    events = []
    for at, pool, what, node in sorted(drawn, key=lambda one: one[0]):
        nodes = there[pool]
        if what == "add":
            if node in nodes or node > known[pool] or (pool, node) in drained:
                continue
            nodes.add(node)
            known[pool] = max(known[pool], node + 1)
        elif node not in nodes:
            continue
        else:
            nodes.remove(node)
            if what == "drain":  # it may be there for a while
                drained.add((pool, node))
        events.append(event(at, pool, **{what: node}))
    return events


@settings(max_examples=40, deadline=None)
@given(
    arrivals=ARRIVALS,
    drawn=EVENTS,
    kind=st.sampled_from(KINDS),
    asynchronous=st.booleans(),
    num_blocks=st.sampled_from([60, 200]),
    lease=st.sampled_from([0.02, 30.0]),
    bandwidth=st.sampled_from([1e9, 1e11]),
    policy=st.sampled_from(["fail", "recompute"]),
    lost_requests=st.sampled_from(["resend", "refuse"]),
    groups=st.sampled_from([1, 2]),
)
def test_everybody_ends_once_and_nothing_is_lost_on_the_way(
    arrivals: Any,
    drawn: Any,
    kind: str,
    asynchronous: bool,
    num_blocks: int,
    lease: float,
    bandwidth: float,
    policy: str,
    lost_requests: str,
    groups: int,
) -> None:
    at_s, requests = 0.0, []
    for spans, output, gap_s in arrivals:
        at_s += gap_s
        prompt = [list(span) for span in spans]
        requests.append({"prompt": prompt, "output": output, "at_s": at_s})
    # One that runs whatever happens: a run of refused requests alone is refused itself.
    requests.append({"prompt": [["z", 30]], "output": 1, "at_s": at_s + 100})
    last = [event(at_s + 99, pool, add=3, ready_after=0.5) for pool in ("prefill", "decode")]
    fill = [event(at_s + 98, pool, add=2) for pool in ("prefill", "decode")]
    events = sound(drawn)
    for one in fill:
        if not any(other["pool"] == one["pool"] and other.get("add") == 2 for other in events):
            events.append(one)
    transfer: dict[str, Any] = {"kind": kind, "lease": lease, "kv_load_failure_policy": policy}
    transfer["link"] = {**LINK, "bandwidth": bandwidth}
    if kind == "nixl-pull":
        transfer["renew_every"] = None
    made = split(
        requests,
        engine={
            "max_model_len": 512,
            "max_num_batched_tokens": 128,
            "max_num_seqs": 4,
            "async_scheduling": asynchronous,
        },
        model={"groups": GROUPS[:groups]},
        node={"num_blocks": num_blocks},
        pools=TWO,
        transfer=transfer,
        events=[*events, *last],
        lost_requests=lost_requests,
    )
    result, handoffs = run(made)
    frame = frame_of(result)
    assert len(frame) == len(requests)
    assert frame["request_id"].is_unique
    assert (frame["end_s"].notna() ^ frame["refused"].notna()).all()
    if lost_requests == "resend":
        assert frame["refused"].isna().all()
    else:
        assert frame["resent"].sum() == 0
    assert not handoffs.under_way
    # What was moved in whole is the same on both sides, by group and by request.
    sent = sum(side.num_bytes for side in handoffs.prefill_sides)
    received = sum(side.num_bytes for side in handoffs.decode_sides)
    assert sent == received == sum(handoffs.group_bytes)
    moved = frame[frame["moved_bytes"].notna()]
    assert moved["moved_bytes"].sum() <= sent
    gone = [side for side in handoffs.decode_sides if side.is_gone]
    if not gone and not frame["resent"].any() and frame["refused"].isna().all():
        assert moved["moved_bytes"].sum() == sent
        counts = [side.filler.blocks_received for side in handoffs.decode_sides]
        sizes = [FULL_BYTES, WINDOW_BYTES][:groups]
        assert list(np.sum(counts, axis=0) * sizes) == handoffs.group_bytes
    # Links carried that, and parts of what was given up.
    for sides, direction in ((handoffs.prefill_sides, "store"), (handoffs.decode_sides, "load")):
        for side in sides:
            carried = side.nic.carried_bytes(direction)
            assert carried >= side.num_bytes - 1e-3
            if not any(other.is_gone for other in (*handoffs.prefill_sides, *gone)):
                assert carried == pytest.approx(side.num_bytes)
    timed = moved[moved["transfer_s"].notna()]
    assert (timed[list(PARTS)] >= -1e-12).all().all()
    assert (timed["transfer_s"] >= timed["moved_bytes"] / bandwidth - 1e-12).all()
    np.testing.assert_allclose(timed[list(PARTS)].sum(axis=1), timed["ttft_s"])
    # Who is still there has all its blocks back.
    for side in [*handoffs.prefill_sides, *handoffs.decode_sides]:
        if side.is_gone:
            continue
        if side in handoffs.prefill_sides:
            side.keeper.complete(side.take_done())
            assert not side.keeper.held
        assert not side.connector.in_flight
        assert side.cache.num_free == num_blocks - 1
    attempts = 1 + frame["resent"]
    if frame["refused"].isna().all():
        assert result.counters.queried_tokens <= (attempts * frame["prompt_tokens"]).sum()
        assert result.counters.queried_tokens >= frame["prompt_tokens"].sum()


def test_lines_tell_of_loads_that_failed() -> None:
    result, _ = run(with_events(prompts(3), event(0.05, "prefill", lose=0)))
    frame = frame_of(result)
    told = fleet_summary(result.figures, frame, summarize(frame, result.counters, wall_s=1.0))
    assert any(line.endswith("; loads failed: 2") for line in fleet_lines(told))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("balancing", ["internal", "external"])
def test_ranks_of_experts_that_step_together_are_lost_together(balancing: str, kind: str) -> None:
    node = {"gpus": 2, "tensor_parallel": 1, "data_parallel": 2, "num_blocks": 120}
    made = with_events(
        None,
        *(
            event(at, pool, **what)
            for pool in ("prefill", "decode")
            for at, what in ((1.0, {"lose": 0}), (1.7, {"add": 0}), (3.0, {"drain": 1}))
        ),
        kind=kind,
        model={"groups": GROUPS, **EXPERTS},
        node={**node, "expert_parallel": True},
        pools={"prefill": {"nodes": 2}, "decode": {"nodes": 2, "router": "dynamo-kv"}},
    )
    result, handoffs = run(made.replace({"fleet.balancing": balancing}))
    frame = frame_of(result)
    assert frame["end_s"].notna().all()
    assert frame["resent"].sum() > 0
    sent = sum(side.num_bytes for side in handoffs.prefill_sides)
    assert sent == sum(side.num_bytes for side in handoffs.decode_sides)
