"""Keys about how the engine is started: defaults with their reasons, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.errors import Problems
from kvsim.scenario import Scenario
from kvsim.scenario.description import describe
from kvsim.scenario.keys import derive_blocks

WORKLOAD = {"kind": "script", "requests": [{"prompt": [["a", 100]]}]}


def made(gpu: str | None = "b300", **engine: Any) -> Scenario:
    node: dict[str, Any] = {"gpus": 8, "gpu": gpu}
    return Scenario.from_data(
        {
            "name": "s",
            "model": "deepseek-v4-pro",
            "node": node if gpu else {"num_blocks": 1000},
            "engine": engine,
            "workload": WORKLOAD,
            "step_time": {"kind": "constant", "step_s": 0.01},
        }
    )


@pytest.mark.parametrize(
    ("gpu", "tokens", "seqs"),
    [("b300", 16384, 1024), ("h200", 8192, 1024), (None, 8192, 1024)],
)
def test_a_steps_size_follows_the_gpu(gpu: str | None, tokens: int, seqs: int) -> None:
    scenario = made(gpu)
    assert (scenario.max_num_batched_tokens, scenario.max_num_seqs) == (tokens, seqs)
    assert scenario.resolved()["engine"]["max_num_batched_tokens"] == tokens
    assert f"{tokens:,} tokens a step (the engine's default" in describe({"s": scenario})
    assert "(as set)" in describe({"s": made(gpu, max_num_batched_tokens=512)})


def test_asynchronous_scheduling_is_what_the_release_does() -> None:
    assert made().async_scheduling
    assert made().max_in_flight_tokens == 2 * 16384
    assert not made(profile="vllm-0.23").async_scheduling
    assert not made(async_scheduling=False).async_scheduling
    text = describe({"s": made()})
    assert "asynchronous scheduling on: two steps in flight" in text
    # Known for 106,524 blocks: 9.9 requests of 1,048,576 tokens at 8,192 a step, 6.1 at the B300's
    # own default, 14.3 without overlap; the derived reserve leaves 3 % fewer blocks.
    assert "5.95 requests" in text
    assert "9.76 requests" in describe({"s": made(max_num_batched_tokens=8192)})
    assert "14.12 requests" in describe(
        {"s": made(max_num_batched_tokens=8192, async_scheduling=False)}
    )


def test_the_draft_layer_joins_its_group() -> None:
    drafts = {"tokens": 1, "acceptance": 0.7}
    before, after = made().model_spec.groups, made(speculative=drafts).model_spec.groups
    (place,) = [number for number, group in enumerate(after) if group.eagle]
    plain, drafting = before[place], after[place]
    assert not plain.eagle
    assert drafting.eagle
    assert drafting.bytes_per_block - plain.bytes_per_block == 37_440
    assert drafting.num_layers == plain.num_layers + 1


def test_a_drafter_drops_no_block_but_where_the_engine_does() -> None:
    drafts = {"tokens": 1, "acceptance": 0.7}
    scenario = made(speculative=drafts)
    assert (scenario.drops_lookahead_block, scenario.key_lookahead_tokens) == (False, 1)
    dropping = [
        scenario.replace({"engine.speculative.disable_lookahead_block_hashes": True}),
        scenario.replace({"offload": {"kind": "cpu", "capacity": "10 GB"}}),
        scenario.replace({"engine.profile": "vllm-0.23", "cache.retention_interval": None}),
    ]
    for one in dropping:
        assert (one.drops_lookahead_block, one.key_lookahead_tokens) == (True, 0)


def test_rates_by_position_are_shares_of_steps() -> None:
    scenario = made(speculative={"tokens": 3, "acceptance": [0.8, 0.4, 0.0]})
    assert scenario.engine.speculative is not None
    assert scenario.engine.speculative.chances == (0.8, 0.5, 0.0)


def test_memory_for_kv_can_be_given() -> None:
    derived = derive_blocks(made(kv_cache_memory="100 GiB"))
    assert derived.num_blocks == 100 * 2**30 // 1_435_968
    assert "engine.kv_cache_memory" in derived.lines[0]


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        (
            {"profile": "vllm-0.23", "async_scheduling": True},
            "engine.async_scheduling: true is set, and how steps of vllm-0.23 overlap is not "
            "known. Use a later profile, or false.",
        ),
        (
            {"max_num_active_seqs": 20, "max_num_seqs": 10},
            "engine.max_num_active_seqs: 20 is above max_num_seqs (10). Use 10 or less.",
        ),
        (
            {"speculative": {"tokens": 2, "acceptance": [0.5]}},
            "engine.speculative.acceptance: 1 rates for 2 draft tokens. Give one for each, or one "
            "number.",
        ),
        (
            {"speculative": {"tokens": 2, "acceptance": [0.5, 0.6]}},
            "engine.speculative.acceptance: [0.5, 0.6] rises. Give for each position the share of "
            "steps whose draft there is accepted, as engines log it, as in [0.8, 0.6].",
        ),
        (
            {"speculative": {"tokens": 8, "acceptance": 0.5}, "max_num_batched_tokens": 8},
            "engine.speculative.tokens: 8 drafts and a token do not fit a step of 8 tokens. Use "
            "fewer.",
        ),
        ({"speculative": {"tokens": 1}}, "engine.speculative.acceptance: is missing."),
        ({"watermark": 1.0}, "engine.watermark: 1.0 is not below 1."),
        ({"policy": "lifo"}, "engine.policy: unknown policy 'lifo'. Known: fcfs, priority."),
    ],
)
def test_what_cannot_be_is_refused(engine: dict[str, Any], problem: str) -> None:
    with pytest.raises(Problems) as refused:
        made(**engine)
    assert problem in str(refused.value)


def test_a_pool_has_one_size() -> None:
    with pytest.raises(Problems, match="engine.kv_cache_memory: is set, and so is node.num_blocks"):
        made(None, kv_cache_memory="1 GB")
