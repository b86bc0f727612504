"""Step times against loops, by hand, and for plausibility on the quick start's node."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim import catalog
from kvsim.catalog import AttentionTerm, Gpu, KVGroup, Model
from kvsim.errors import KvsimError, Problems
from kvsim.times.step_time import (
    UNCAPPED_TOKENS,
    Ints,
    StepTimeParams,
    capped_context_tokens,
    constant_step_time,
    step_bytes,
    step_flops,
    step_seconds,
    step_time_notes,
    step_time_params,
)

PRO = catalog.model("deepseek-v4-pro")
B300 = catalog.gpu("b300")
TOY_GPU = Gpu("toy", hbm_bytes=1, hbm_bytes_per_s=1000.0, bf16_flops_per_s=1e6)
TOY = Model(
    "toy",
    (KVGroup("full", 4, bytes_per_block=80), KVGroup("sliding_window", 2, 6, bytes_per_block=20)),
    active_parameters=50.0,
    weight_bytes=700.0,
    expert_bytes=400.0,
    num_experts=8,
    experts_per_token=2,
    attention=(AttentionTerm("full", 3.0, 2), AttentionTerm("window", 5.0, 1, 6, False)),
)


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def quick_start() -> StepTimeParams:
    return step_time_params(model=PRO, gpu=B300, tensor_parallel=8)


@settings(deadline=None)  # the first call may compile
@given(
    context=st.integers(0, 500),
    new_tokens=st.integers(0, 200),
    cap=st.one_of(st.integers(1, 700), st.just(UNCAPPED_TOKENS)),
)
def test_closed_form_is_the_sum_over_the_tokens(context: int, new_tokens: int, cap: int) -> None:
    expected = sum(min(length, cap) for length in range(context + 1, context + new_tokens + 1))
    assert capped_context_tokens(context, new_tokens, cap) == expected


def test_closed_form_at_a_million_tokens() -> None:
    lengths = np.arange(1_000_001, 1_008_193)
    assert capped_context_tokens(1_000_000, 8192, UNCAPPED_TOKENS) == lengths.sum()
    assert capped_context_tokens(1_000_000, 8192, 4096) == 4096 * 8192


def test_constant_counts_steps_and_tokens() -> None:
    params = constant_step_time(0.01, 0.002)
    assert step_seconds(params, ints(3, 1), ints(0, 900), 2) == 0.01 + 0.002 * 4
    assert step_seconds(params, ints(3, 1), ints(0, 900), 1) == 0.01 + 0.002 * 3
    assert step_time_params("constant", step_s=0.01, token_s=0.002).overhead_s == params.overhead_s


def test_toy_by_hand() -> None:
    params = step_time_params(
        model=TOY,
        gpu=TOY_GPU,
        tensor_parallel=2,
        compute_efficiency=0.5,
        memory_efficiency=0.25,
        overhead_s=0.125,
    )
    new_tokens, context = ints(3, 1), ints(4, 10)
    # a rank: 2 x 50 / 2 a token; full at L = 5, 6, 7 and 11, split; window at 5, 6, 6 and 6, whole
    assert step_flops(params, new_tokens, context, 2) == 50 * 4 + 3 * (18 + 11) + 5 * (17 + 6)
    # dense 300 / 2, experts 400 / 2, KV halved: 20 a token of 7 + 11, 10 a token of 6 + 6
    touched = 200 * (1 - 0.75**4)
    expected_bytes = 150 + touched + 10 * 18 + 5 * 12
    assert step_bytes(params, new_tokens, context, 2) == pytest.approx(expected_bytes, rel=1e-12)
    compute_s, memory_s = 402 / 5e5, expected_bytes / 250
    assert step_seconds(params, new_tokens, context, 2) == pytest.approx(
        0.125 + max(compute_s, memory_s), rel=1e-12
    )


def test_the_larger_of_compute_and_memory_counts() -> None:
    slow_memory = step_time_params(model=TOY, gpu=TOY_GPU, overhead_s=0.0)
    fast = dataclasses.replace(TOY_GPU, hbm_bytes_per_s=1e12)
    slow_compute = step_time_params(model=TOY, gpu=fast, overhead_s=0.0)
    step = (ints(100), ints(0), 1)
    assert step_seconds(slow_memory, *step) == step_bytes(slow_memory, *step) / 750.0
    assert step_seconds(slow_compute, *step) == step_flops(slow_compute, *step) / 4.5e5


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 10**6)), min_size=1, max_size=40))
def test_order_of_the_sequences_changes_no_bit(step: list[tuple[int, int]]) -> None:
    params = quick_start()
    forth, back = np.array(step, np.int64), np.array(step[::-1], np.int64)
    one = step_seconds(params, forth[:, 0].copy(), forth[:, 1].copy(), len(step))
    assert one == step_seconds(params, back[:, 0].copy(), back[:, 1].copy(), len(step))
    plain = step_seconds.py_func  # type: ignore[attr-defined]
    assert plain(params, forth[:, 0], forth[:, 1], len(step)) == pytest.approx(one, rel=1e-12)


def test_time_grows_with_tokens_and_context() -> None:
    params = quick_start()
    chunks = [step_seconds(params, ints(n), ints(0), 1) for n in (256, 2048, 8192)]
    contexts = [step_seconds(params, ints(8192), ints(c), 1) for c in (0, 100_000, 1_000_000)]
    assert chunks == sorted(chunks)
    assert contexts == sorted(contexts)
    assert contexts[0] < contexts[1] < contexts[2]


def test_pro_attention_flops_at_a_million_tokens() -> None:
    """Indexer 129 GFLOP on every rank; compress-4 9.1 and compress-128 67.6 over eight."""
    params = quick_start()._replace(flops_per_token=0.0)
    flops = step_flops(params, ints(1), ints(1_048_575), 1)
    assert flops == pytest.approx(129e9 + (9.1e9 + 67.6e9) / 8, rel=0.005)


def test_plausible_on_the_quick_start_node() -> None:
    params = quick_start()
    batch = np.ones(30, np.int64), np.full(30, 12_000, np.int64), 30
    assert 0.010 < step_seconds(params, *batch) < 0.025
    assert 0.030 < step_seconds(params, ints(8192), ints(0), 1) < 0.100
    # a large chunk is bound by compute, a decode step by memory
    chunk = ints(8192), ints(0), 1
    assert step_flops(params, *chunk) / params.flops_per_s > (
        step_bytes(params, *chunk) / params.bytes_per_s
    )
    assert step_flops(params, *batch) / params.flops_per_s < (
        step_bytes(params, *batch) / params.bytes_per_s
    )


@pytest.mark.parametrize("name", catalog.model_names())
def test_every_model_of_the_catalog_has_step_times(name: str) -> None:
    params = step_time_params(model=catalog.model(name), gpu=catalog.gpu("h200"), tensor_parallel=8)
    assert 0.005 < step_seconds(params, ints(1), ints(1000), 1) < 0.05
    assert step_bytes(params, ints(1), ints(1000), 1) < 865e9 / 8


def test_a_dense_model_reads_all_its_weights() -> None:
    llama = catalog.model("llama-3.1-8b")
    params = step_time_params(model=llama, gpu=catalog.gpu("h200"))
    kv_bytes = 131_072 * 1001
    assert step_bytes(params, ints(1), ints(1000), 1) == 16.06e9 + kv_bytes


def test_missing_keys_are_named_all_at_once() -> None:
    bare = Model("bare", (KVGroup("full", 16), KVGroup("sliding_window", 16, 64)))
    with pytest.raises(Problems) as e:
        step_time_params(model=bare, gpu=B300)
    keys = [problem.split(":")[0] for problem in e.value.problems]
    assert keys == [
        "active_parameters",
        "weight_bytes",
        "groups[0].bytes_per_block",
        "groups[1].bytes_per_block",
    ]
    assert "kind constant" in str(e.value)


def test_contradictory_experts_are_refused() -> None:
    with pytest.raises(Problems, match="experts_per_token: 9 is not between 1 and num_experts"):
        step_time_params(model=dataclasses.replace(TOY, experts_per_token=9), gpu=TOY_GPU)
    with pytest.raises(Problems, match="expert_bytes: 0 is not above 0"):
        step_time_params(model=dataclasses.replace(TOY, expert_bytes=0), gpu=TOY_GPU)
    with pytest.raises(Problems, match="expert_bytes: 800 is above weight_bytes"):
        step_time_params(model=dataclasses.replace(TOY, expert_bytes=800), gpu=TOY_GPU)


def test_precision_and_kind_are_checked() -> None:
    with pytest.raises(KvsimError, match="toy has no peak for 'fp8'. Use one of bf16"):
        step_time_params(model=dataclasses.replace(TOY, precision="fp8"), gpu=TOY_GPU)
    with pytest.raises(Problems, match="unknown precision 'fp9'"):
        step_time_params(model=dataclasses.replace(TOY, precision="fp9"), gpu=TOY_GPU)
    with pytest.raises(KvsimError, match="'roof'.*Did you mean 'roofline'"):
        step_time_params("roof")


def test_notes_say_where_the_constants_come_from() -> None:
    notes = step_time_notes(PRO, B300, compute_efficiency=0.3)
    assert any(note.startswith("compute_efficiency 0.3: as set") for note in notes)
    assert any(note.startswith("memory_efficiency 0.75: assumption: ") for note in notes)
    bare = Model("m", (KVGroup("full", 16),))
    assert any("left out" in note for note in step_time_notes(bare, B300))


def test_params_can_be_pickled() -> None:
    params = pickle.loads(pickle.dumps(quick_start()))
    step = (ints(1), ints(5), 1)
    assert step_seconds(params, *step) == step_seconds(quick_start(), *step)
