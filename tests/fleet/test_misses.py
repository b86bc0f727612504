"""Why prompt tokens were missed in a fleet: each once, on whatever replica it was looked up."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.fleet.simulation import simulate_fleet
from kvsim.metrics.misses import EVICTIONS, MISS_REASONS, column_of
from kvsim.metrics.summary import summarize
from kvsim.scenario import Scenario
from tests.fleet.small import frame_of, scenario
from tests.fleet.test_handoff import GROUPS, KINDS, LINK, split

REASONS = {"output": {"reasons": True}}


def summary_of(made: Scenario) -> dict[str, Any]:
    """The summary, whose reasons add up to what was missed, request by request."""
    run = simulate_fleet(made)
    frame = frame_of(run)
    summary = summarize(frame, run.counters, wall_s=1.0)
    missed = summary["missed_tokens"]
    assert list(missed) == list(MISS_REASONS) and min(missed.values()) >= 0
    if not frame["resent"].any():
        assert sum(missed.values()) == summary["queried_tokens"] - summary["hit_tokens"]
    ran = frame[frame["refused"].isna()]
    told = ran[[column_of(reason) for reason in MISS_REASONS]].sum(axis="columns")
    assert (told == ran["prompt_tokens"] - ran["hit_tokens"]).all()
    by_group = summary["missed_by_group"]
    assert sum(by_group["evicted"]) == sum(missed[reason] for reason in EVICTIONS)
    assert sum(by_group["not_retained"]) == missed["not_retained"]
    return summary


def test_what_only_another_replica_had_is_told_apart() -> None:
    requests = [
        {"prompt": [["A", 160], [f"q{n}", 20]], "output": 2, "at_s": float(n)} for n in range(4)
    ]
    missed = summary_of(scenario(requests, fleet={"nodes": 3}, **REASONS))["missed_tokens"]
    # Two requests find the prefix on another replica only; one is the first of all.
    assert missed["elsewhere"] == 2 * 160
    assert missed["never_seen"] == 160 + 4 * 20


@pytest.mark.parametrize("num_blocks", [100, 400])
def test_reasons_of_all_replicas_sum_up(num_blocks: int) -> None:
    node = {"node": {"num_blocks": num_blocks}}
    missed = summary_of(scenario(fleet={"nodes": 3, "router": "random"}, **node, **REASONS))
    assert missed["missed_tokens"]["elsewhere"] > 0
    assert bool(missed["evicted_blocks"]) == (num_blocks == 100)


def test_a_request_that_is_sent_again_has_the_reasons_of_where_it_ran() -> None:
    events = [{"at": 2.0, "lose": 1}, {"at": 4.0, "add": 1}]
    made = scenario(fleet={"nodes": 2, "events": events}, **REASONS)
    missed = summary_of(made)["missed_tokens"]
    assert frame_of(simulate_fleet(made))["resent"].any() and missed["elsewhere"] > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rules", [{}, {"uncached_tokens": 64}])
def test_a_prompt_that_is_handed_over_is_missed_once(kind: str, rules: dict[str, Any]) -> None:
    pools = {"prefill": {"nodes": 2}, "decode": {"nodes": 1}}
    summary_of(split(None, pools=pools, split=rules, transfer={"kind": kind}, **REASONS))


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_lease_counts_no_token_twice(kind: str) -> None:
    """The decode pool holds one request: the second waits for it longer than its lease."""
    requests = [{"prompt": [[f"p{n}", 160]], "output": 60, "at_s": 0.1 * n} for n in range(2)]
    pools = {"prefill": {}, "decode": {"node": {"num_blocks": 18}}}
    transfer = {"kind": kind, "lease": 0.3, "kv_load_failure_policy": "recompute"}
    if kind == "nixl-pull":
        transfer["renew_every"] = None
    made = split(requests, model={"groups": GROUPS[:1]}, pools=pools, transfer=transfer, **REASONS)
    summary_of(made)
    assert frame_of(simulate_fleet(made))["lease_lost"].sum() == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_reasons_add_up_where_nodes_of_pools_are_lost(kind: str, policy: str) -> None:
    events = [
        {"at": at, "pool": pool, what: 0}
        for pool in ("prefill", "decode")
        for at, what in ((2.0, "lose"), (2.5, "add"))
    ]
    slow = {**LINK, "bandwidth": 1e8}
    made = split(
        None,
        pools={"prefill": {"nodes": 2}, "decode": {"nodes": 2}},
        transfer={"kind": kind, "link": slow, "kv_load_failure_policy": policy},
        events=events,
        **REASONS,
    )
    summary_of(made)
    assert frame_of(simulate_fleet(made))["resent"].any()
