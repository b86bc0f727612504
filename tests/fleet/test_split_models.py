"""Drafts, and models with states, beside pools: what is handed over, and what is computed again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvsim.metrics.misses import MISS_REASONS, column_of
from kvsim.scenario import Scenario
from kvsim.scenario.pool_rules import SIDES, left_tokens, pool_scenario
from tests.fleet.small import frame_of
from tests.fleet.test_handoff import FULL_BYTES, GROUPS, KINDS, LINK, run, split

SLOW = {**LINK, "bandwidth": 1e8}
STATE_BYTES = 1 << 21
HYBRID = {
    "groups": [
        {"kind": "full", "block_size": 64, "bytes_per_block": FULL_BYTES},
        {
            "kind": "mamba",
            "block_size": 64,
            "checkpoint_alignment": 1,
            "bytes_per_block": STATE_BYTES,
        },
    ]
}


def drafts(layers: int = 1, tokens: int = 2) -> dict[str, Any]:
    return {
        "max_model_len": 4096,
        "max_num_batched_tokens": 256,
        "max_num_seqs": 8,
        "speculative": {"tokens": tokens, "acceptance": 1.0, "mtp_layers": layers},
    }


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_checked_on_the_decode_side(kind: str) -> None:
    """All are accepted: after its first token, 9 more in 3 steps; the prefill side makes one."""
    requests = [{"prompt": [["a", 200]], "output": 10}]
    engine = {**drafts(), "async_scheduling": False}  # which would plan a step too many
    result, _ = run(split(requests, engine=engine, transfer={"kind": kind}))
    (row,) = frame_of(result).to_dict("records")
    assert row["moved_bytes"] == 13 * FULL_BYTES + 5 * (FULL_BYTES // 2)
    assert row["pulled_tokens"] == 200
    pools = result.figures.pools
    assert pools is not None
    assert pools.prefill.counters.scheduled_tokens == 200
    assert pools.decode.counters.scheduled_tokens == 1 + 3 * 3
    assert pools.decode.counters.num_steps == 4


def test_a_block_is_dropped_for_the_drafter_on_both_sides() -> None:
    """As wherever something carries KV: keys do not cover what the drafter reads."""
    requests = [{"prompt": [["a", 200]], "output": 2, "at_s": 5.0 * n} for n in range(2)]
    made = split(requests, model={"groups": GROUPS[:1]}, engine=drafts())
    assert made.drops_lookahead_block
    assert all(pool_scenario(made, side).drops_lookahead_block for side in SIDES)
    frame = frame_of(run(made)[0])
    assert frame["hit_tokens"].tolist() == [0, 176]
    assert frame["decode_hit_tokens"].tolist() == [0, 176]


def test_the_last_tokens_of_a_prompt_are_left_out_for_several_draft_layers() -> None:
    """NIXL: three layers read up to three tokens on; two are computed by the decode side."""
    requests = [{"prompt": [["a", 200]], "output": 10}, {"prompt": [["b", 2]], "output": 1}]
    made = split(requests, model={"groups": GROUPS[:1]}, engine=drafts(3, 3))
    assert left_tokens(made) == 2
    assert left_tokens(made.replace({"fleet.transfer": {"kind": "mooncake-push"}})) == 0
    result, handoffs = run(made)
    frame = frame_of(result)
    assert frame["pulled_tokens"].tolist() == [198, 2]  # of two tokens none can be left
    pools = result.figures.pools
    assert pools is not None
    assert pools.prefill.counters.scheduled_tokens == 198 + 2
    assert handoffs.num_left_tokens == 2
    assert result.counters.queried_tokens == 202


@pytest.mark.parametrize("kind", KINDS)
def test_of_states_the_last_one_is_handed_over(kind: str) -> None:
    """200 tokens: 4 blocks of attention, and the state before the last token."""
    requests = [{"prompt": [["a", 200]], "output": 3}]
    made = split(requests, model=HYBRID, transfer={"kind": kind})
    assert left_tokens(made) == 1
    result, handoffs = run(made)
    (row,) = frame_of(result).to_dict("records")
    assert row["moved_bytes"] == 4 * FULL_BYTES + STATE_BYTES
    assert row["pulled_tokens"] == 199
    pools = result.figures.pools
    assert pools is not None
    assert pools.prefill.counters.scheduled_tokens == 199
    assert pools.decode.counters.scheduled_tokens == 3  # the last token of the prompt, two more
    assert result.counters.queried_tokens == 200
    (side,) = handoffs.decode_sides
    assert side.filler.blocks_received == [4, 1]


def test_a_state_is_handed_over_beside_a_hit_of_its_own() -> None:
    """The decode side has a state at a boundary; what it lacks is the tail and the last state."""
    requests = [
        {"prompt": [["a", 200]], "output": 80},
        {"prompt": [["a", 200], ["b", 120]], "output": 2, "at_s": 5},
    ]
    frame = frame_of(run(split(requests, model=HYBRID))[0])
    second = frame.to_dict("records")[1]
    hit = int(second["decode_hit_tokens"])
    assert second["pulled_tokens"] == 319 - hit
    assert second["moved_bytes"] == (5 - hit // 64) * FULL_BYTES + STATE_BYTES


def test_who_has_all_of_it_asks_for_nothing_and_says_so() -> None:
    """The decode side has all but the last token: its prefill blocks are given up at once."""
    requests = [
        {"prompt": [["a", 193]], "output": 2},
        {"prompt": [["a", 193]], "output": 2, "at_s": 5},
    ]
    for kind in KINDS:
        made = split(requests, model=HYBRID, transfer={"kind": kind})
        result, handoffs = run(made)
        second = frame_of(result).to_dict("records")[1]
        if second["hit_tokens"] == 192:
            assert second["moved_bytes"] is None or np.isnan(second["moved_bytes"])
        assert handoffs.num_lost == 0
        for side in handoffs.prefill_sides:
            side.keeper.complete(side.take_done())
            assert not side.keeper.held
        assert result.counters.queried_tokens == 386


def hybrids(requests: Any = None, **parts: Any) -> Scenario:
    engine = {"max_model_len": 4096, "max_num_batched_tokens": 256, "max_num_seqs": 8}
    pools = {"prefill": {"nodes": 2}, "decode": {"nodes": 2}}
    engine |= parts.pop("engine", {})
    return split(requests, model=HYBRID, pools=pools, engine=engine, **parts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_blocks", [60, 300])
@pytest.mark.parametrize("with_drafts", [False, True])
def test_conversations_of_a_hybrid_are_conserved(
    kind: str, num_blocks: int, with_drafts: bool
) -> None:
    engine = {"speculative": {"tokens": 2, "acceptance": 0.6}} if with_drafts else {}
    made = hybrids(
        transfer={"kind": kind},
        node={"num_blocks": num_blocks},
        engine=engine,
        output={"reasons": True},
    )
    result, handoffs = run(made)
    frame = frame_of(result)
    assert frame["end_s"].notna().all()
    moved = frame[frame["moved_bytes"].notna()]
    sent = sum(side.num_bytes for side in handoffs.prefill_sides)
    received = np.sum([side.filler.blocks_received for side in handoffs.decode_sides], axis=0)
    assert sent == moved["moved_bytes"].sum() == (received * [FULL_BYTES, STATE_BYTES]).sum()
    assert received[1] == len(moved)  # a state each
    for side in [*handoffs.prefill_sides, *handoffs.decode_sides]:
        if side in handoffs.prefill_sides:
            side.keeper.complete(side.take_done())
            assert not side.keeper.held
        assert side.cache.num_free == num_blocks - 1
    assert (moved["pulled_tokens"] + moved["decode_hit_tokens"] == moved["prompt_tokens"] - 1).all()
    assert result.counters.queried_tokens == frame["prompt_tokens"].sum()
    assert result.counters.hit_tokens == frame["hit_tokens"].sum()
    told = frame[[column_of(reason) for reason in MISS_REASONS]].sum(axis="columns")
    assert (told == frame["prompt_tokens"] - frame["hit_tokens"]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_hybrids_and_drafts_outlive_lost_nodes(kind: str, policy: str) -> None:
    """On the first prefill node a prompt is being read when it fails."""
    events = [
        {"at": 0.12, "pool": "prefill", "lose": 0},
        {"at": 0.3, "pool": "prefill", "add": 0},
        {"at": 0.5, "pool": "decode", "lose": 1},
        {"at": 0.6, "pool": "decode", "add": 1},
        {"at": 0.7, "pool": "prefill", "drain": 1},
    ]
    made = hybrids(
        [{"prompt": [[f"p{n}", 200]], "output": 20, "at_s": 0.05 * n} for n in range(20)],
        transfer={"kind": kind, "link": SLOW, "kv_load_failure_policy": policy},
        engine={"speculative": {"tokens": 2, "acceptance": 0.6}},
        events=events,
    )
    result, handoffs = run(made)
    frame = frame_of(result)
    assert frame["refused"].isna().all()
    assert frame["end_s"].notna().all()
    assert frame["resent"].sum() > 0
    assert handoffs.num_failed > 0
    sent = sum(side.num_bytes for side in handoffs.prefill_sides)
    assert sent == sum(side.num_bytes for side in handoffs.decode_sides)
