"""What a node holds, in whole: rows that agree with each other and with published figures."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.errors import KvsimError
from kvsim.scenario import Scenario
from kvsim.study.layouts import layouts
from kvsim.study.node_capacity import node_capacity

ONE_STEP = {"max_num_batched_tokens": 8192, "async_scheduling": False}


def scenario(model: str, engine: dict[str, Any] | None = None, **node: Any) -> Scenario:
    workload = {"kind": "script", "requests": [{"prompt": [["A", 100]]}]}
    data = {"name": "s", "model": model, "node": node, "workload": workload}
    return Scenario.from_data({**data, "engine": engine or {}})


def test_splits_and_what_is_needed_agree_with_the_rows() -> None:
    found = node_capacity(
        scenario("qwen3-32b", gpu="h200", gpus=4), lengths=[8192, 40_960], num_sessions=50
    )
    row = found.lengths[-1]
    assert row.at_once == pytest.approx(found.concurrency["vllm-0.33"])
    assert found.kv_cache_tokens == int(row.at_once * 40_960)
    (whole, *others) = found.splits
    assert (whole.tensor_parallel, whole.data_parallel) == (4, 1)
    assert whole.num_blocks == found.num_blocks
    assert whole.sessions == row.intervals[-1].sessions
    assert {(split.tensor_parallel, split.data_parallel) for split in others} == {(2, 2), (1, 4)}
    needed = found.needed
    assert needed is not None
    assert needed.gpus is not None
    enough = node_capacity(
        scenario("qwen3-32b", gpu="h200", gpus=needed.gpus), lengths=[40_960], splits=False
    )
    assert enough.num_blocks >= needed.num_blocks
    assert enough.lengths[0].intervals[-1].sessions >= 50


def test_p5_flash_on_eight_b200() -> None:
    """Published: 20.43x at 1,048,576 tokens (vLLM #51454, v0.25)."""
    found = node_capacity(
        scenario("deepseek-v4-flash", ONE_STEP, gpu="b200", gpus=8, gpu_memory_utilization=0.95),
        splits=False,
    )
    assert found.concurrency["vllm-0.33"] == pytest.approx(20.43, rel=0.05)


def test_p1_pro_on_eight_b300() -> None:
    """Published: about 14.5x (vLLM #43447, June 2026, the pages of that time); 2.6 % below."""
    found = node_capacity(scenario("deepseek-v4-pro", ONE_STEP, gpu="b300", gpus=8), splits=False)
    assert found.concurrency["vllm-0.33"] == pytest.approx(14.5, rel=0.03)


def test_lengths_and_intervals_that_cannot_be() -> None:
    made = scenario("deepseek-v4-flash", gpu="b200", gpus=8)
    with pytest.raises(KvsimError, match="length: 2000000 is not between 1 and max_model_len"):
        node_capacity(made, lengths=[2_000_000])
    with pytest.raises(KvsimError, match="interval: 100 is not a multiple of the scheduler block"):
        node_capacity(made, intervals=[100])


@pytest.mark.parametrize(
    ("sizes", "measured_tokens", "error"),
    [
        ({"tensor_parallel": 8}, 21_419_891, 0.035),
        ({"data_parallel": 8, "expert_parallel": True}, 20_571_235, 0.029),
    ],
)
def test_tokens_of_kv_of_a_rank_follow_from_the_layout(
    sizes: dict[str, Any], measured_tokens: int, error: float
) -> None:
    """Measured: V4-Flash, 8 x B200, utilization 0.95, longest 1,048,576 (vLLM #51454)."""
    made = scenario(
        "deepseek-v4-flash", ONE_STEP, gpu="b200", gpus=8, gpu_memory_utilization=0.95, **sizes
    )
    found = node_capacity(made, splits=False)
    assert found.kv_cache_tokens / measured_tokens - 1 == pytest.approx(error, abs=0.005)


def test_eight_ranks_of_one_gpu_hold_nearly_eight_times_the_tokens_of_one_of_eight() -> None:
    """Measured in the same place: 7.68 times. Weights and reserve are in both, so ratios agree."""
    made = scenario("deepseek-v4-flash", ONE_STEP, gpu="b200", gpus=8, gpu_memory_utilization=0.95)
    rows = {(x.tensor_parallel, x.data_parallel): x for x in layouts(made)}
    whole, apart = rows[8, 1], rows[1, 8]
    assert whole.node_tokens is not None
    assert apart.node_tokens is not None
    assert apart.node_tokens / whole.node_tokens == pytest.approx(7.68, rel=0.006)
    # Attention and dense weights are on every rank, experts once (bytes as derived for the model).
    model = made.model_spec
    assert model.weight_bytes is not None
    dense = model.weight_bytes - model.expert_bytes
    assert whole.weight_bytes is not None
    assert apart.weight_bytes is not None
    assert apart.weight_bytes - whole.weight_bytes == pytest.approx(7 / 8 * dense)
    assert rows[2, 4].rank_tokens is not None


def test_decode_context_parallelism_spreads_heads_that_would_be_copied() -> None:
    """Four KV heads on eight GPUs: two of each hold the same, or half of the tokens each."""
    made = scenario("qwen3-30b-a3b", gpu="h200", gpus=8)
    rows = {
        (x.tensor_parallel, x.decode_context_parallel): x for x in layouts(made) if not x.problem
    }
    plain, spread = rows[8, 1].rank_tokens, rows[8, 2].rank_tokens
    assert plain is not None
    assert spread is not None
    assert spread / plain == pytest.approx(2, rel=0.01)
