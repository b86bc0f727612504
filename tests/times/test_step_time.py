"""Step times against loops, by hand, in their limits, and for plausibility."""

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
from kvsim.times.roofline import overrides, roofline, roofline_notes
from kvsim.times.step_time import (
    EXPERTS,
    KV_BYTE,
    UNCAPPED_TOKENS,
    Ints,
    StepTimeParams,
    capped_context_tokens,
    compose,
    constant_step_time,
    request_seconds,
    step_parts,
    step_seconds,
)
from kvsim.times.work import Layout, attention_work, work_of

PRO = catalog.model("deepseek-v4-pro")
B300 = catalog.gpu("b300")
TOY_GPU = Gpu(
    "toy", hbm_bytes=1, hbm_bytes_per_s=1000.0, bf16_flops_per_s=1e6, nvlink_bytes_per_s=100.0
)
TOY = Model(
    "toy",
    (KVGroup("full", 4, bytes_per_block=80), KVGroup("sliding_window", 2, 6, bytes_per_block=20)),
    active_parameters=50.0,
    weight_bytes=700.0,
    expert_bytes=400.0,
    num_experts=8,
    experts_per_token=2,
    num_layers=2,
    attention=(AttentionTerm("full", 3.0, 2), AttentionTerm("window", 5.0, 1, 6, False)),
)


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def quick_start() -> StepTimeParams:
    return roofline(PRO, B300, Layout(8))


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
    assert request_seconds(params, 1000) == 0.0


def test_toy_is_counted_by_hand() -> None:
    params = roofline(TOY, TOY_GPU, Layout(2))
    held = compose(params, ints(3, 1), ints(4, 10), 2)
    # full at L = 5, 6, 7 of the prompt and 11 of the decode; window at 5, 6, 6 and 6
    assert (held.tokens, held.prompt_tokens, held.sequences) == (4, 3, 2)
    # a rank: 3 x 2 layers / 2 for full, 5 for window, which is not split
    assert held.prompt_flops == 3 * 18 + 5 * 17
    assert held.decode_flops == 3 * 11 + 5 * 6
    # 20 bytes a token of 7 + 11, 10 a token of 6 + 6, KV halved
    assert held.kv_bytes == 10 * 18 + 5 * 12
    work = work_of(TOY, TOY_GPU, Layout(2))
    assert (work.dense_bytes, work.expert_bytes) == (150, 200)
    # experts hold 200 parameters of 2 bytes, a quarter of which a token goes through
    assert (work.expert_flops, work.dense_flops) == (2 * 200 / 4 / 2, 2 * (50 - 50) / 2)


def test_toy_by_hand_in_seconds() -> None:
    given = overrides(0.5, 0.25, 0.125)
    zero = ("sequence_s", "sequence_layer_s", "expert_padding_tokens", "request_s")
    params = roofline(TOY, TOY_GPU, Layout(2), override=given | dict.fromkeys(zero, 0.0))
    parts = step_parts(params, ints(3, 1), ints(4, 10), 2)
    read_s, computed_s = 200 * (1 - 0.75**4) / 250, 50 * 4 / 5e5
    assert parts["launches"] == 0.125
    assert parts["dense"] == pytest.approx(150 / (1000 * 0.25))
    assert parts["experts"] == pytest.approx((read_s**3 + computed_s**3) ** (1 / 3))
    assert parts["attention"] == pytest.approx(240 / 250, rel=1e-6)
    assert parts["prompt_attention"] == pytest.approx(139 / 5e5)
    assert parts["host"] == 0.0
    seconds = step_seconds(params, ints(3, 1), ints(4, 10), 2)
    assert seconds == pytest.approx(sum(parts.values()), rel=1e-12)


def test_host_is_hidden_beside_the_gpu_where_scheduling_is_asynchronous() -> None:
    host = {"host_step_s": 5.0, "host_sequence_s": 1.0}
    step = (ints(1, 1), ints(4, 10), 2)
    hidden = roofline(TOY, TOY_GPU, override=host)
    waits = roofline(TOY, TOY_GPU, asynchronous=False, override=host)
    gpu_s = step_seconds(roofline(TOY, TOY_GPU, override=dict.fromkeys(host, 0.0)), *step)
    assert 0 < gpu_s < 7.0
    assert step_seconds(hidden, *step) == pytest.approx(7.0)
    assert step_seconds(waits, *step) == pytest.approx(gpu_s + 7.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 10**6)), min_size=1, max_size=40))
def test_order_of_the_sequences_changes_no_bit(step: list[tuple[int, int]]) -> None:
    params = quick_start()
    forth, back = np.array(step, np.int64), np.array(step[::-1], np.int64)
    one = step_seconds(params, forth[:, 0].copy(), forth[:, 1].copy(), len(step))
    assert one == step_seconds(params, back[:, 0].copy(), back[:, 1].copy(), len(step))
    plain = step_seconds.py_func  # type: ignore[attr-defined]
    assert plain(params, forth[:, 0], forth[:, 1], len(step)) == pytest.approx(one, rel=1e-12)


SIZES = {name: catalog.model(name).weight_bytes or 0 for name in catalog.model_names()}
TIMED = [
    name for name in SIZES if catalog.model(name).precision != "fp4" and name != "phi-4"
]  # on every GPU here, on eight ranks


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(TIMED),
    gpu=st.sampled_from(("h100", "h200", "b200", "b300")),
    tokens=st.integers(1, 4000),
    context=st.integers(0, 30_000),
    more=st.integers(1, 4000),
    batch=st.integers(1, 60),
)
def test_more_work_is_never_faster(
    name: str, gpu: str, tokens: int, context: int, more: int, batch: int
) -> None:
    params = roofline(catalog.model(name), catalog.gpu(gpu), Layout(8))
    new, before = np.full(batch, 1), np.full(batch, context)
    base = step_seconds(params, new, before, batch)
    assert step_seconds(params, new, before + more, batch) >= base
    wider = np.append(new, tokens), np.append(before, context)
    assert step_seconds(params, *wider, batch + 1) > base
    longer = np.append(new, tokens + more), np.append(before, context)
    assert step_seconds(params, *longer, batch + 1) >= step_seconds(params, *wider, batch + 1)


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from(TIMED),
    tokens=st.sampled_from((1, 64, 8192)),
    faster=st.floats(1.0, 4.0),
)
def test_faster_hardware_is_never_slower(name: str, tokens: int, faster: float) -> None:
    gpu, model = catalog.gpu("b200"), catalog.model(name)
    step = ints(tokens), ints(5000), 1
    base = step_seconds(roofline(model, gpu, Layout(8)), *step)
    for key in ("hbm_bytes_per_s", "nvlink_bytes_per_s"):
        quick = dataclasses.replace(gpu, **{key: getattr(gpu, key) * faster})
        assert step_seconds(roofline(model, quick, Layout(8)), *step) <= base * (1 + 1e-12)


# Where all GPUs together have less to do than to tell each other, more of them are slower.
@pytest.mark.parametrize("name", [name for name in TIMED if SIZES[name] > 10e9])
def test_more_gpus_are_never_slower_on_a_large_chunk(name: str) -> None:
    model, chunk = catalog.model(name), (ints(8192), ints(0), 1)
    times = [step_seconds(roofline(model, B300, Layout(ranks)), *chunk) for ranks in (2, 4, 8)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("name", TIMED[::7])
def test_dimensions(name: str) -> None:
    """Work over peaks is a time: with every peak twice as high, half of it; fixed times stay."""
    model, gpu = catalog.model(name), catalog.gpu("b200")
    peaks = [field.name for field in dataclasses.fields(gpu) if field.name.endswith("_per_s")]
    given = {key: getattr(gpu, key) for key in peaks if getattr(gpu, key) is not None}
    twice = dataclasses.replace(gpu, **{key: 2 * value for key, value in given.items()})
    step = (ints(700, 1, 1), ints(0, 5000, 90), 3)
    slow, quick = (
        step_parts(roofline(model, each, Layout(4, data_parallel=2)), *step)
        for each in (gpu, twice)
    )
    fixed = ("launches", "sequences", "host")
    for part, seconds in slow.items():
        if part == "host":
            continue  # what of it stays visible depends on the others
        assert quick[part] == pytest.approx(seconds if part in fixed else seconds / 2)


def test_limits() -> None:
    free = dict.fromkeys(
        ("step_s", "layer_s", "all_reduce_s", "sequence_s", "sequence_layer_s", "host_step_s"), 0.0
    )
    llama = catalog.model("llama-3.1-8b")
    params = roofline(llama, catalog.gpu("h200"), override=free | {"hbm_dense": 1.0, "hbm_kv": 1.0})
    # one token: the weights once, without the embedding, and its KV
    read = 16.06e9 - 2 * 128_256 * 4096 + 131_072 * 1001
    assert step_seconds(params, ints(1), ints(1000), 1) == pytest.approx(read / 4.8e12, rel=0.02)
    # all experts are read by many tokens
    experts = roofline(PRO, B300, Layout(8))
    parts = step_parts(experts, np.full(1000, 1), np.full(1000, 100), 1000)
    assert parts["experts"] >= experts.scalars[EXPERTS] * 0.99


def test_data_parallel_ranks_share_the_experts() -> None:
    alone, shared = Layout(1, num_gpus=8), Layout(1, data_parallel=8)
    assert work_of(PRO, B300, shared).expert_bytes == work_of(PRO, B300, alone).expert_bytes
    tp = attention_work(PRO, Layout(8))
    dp = attention_work(PRO, shared)
    # every rank holds the same KV with TP; its own with DP, at all heads
    assert (tp.kv_bytes == dp.kv_bytes).all()
    assert dp.decode_flops.sum() > tp.decode_flops.sum()
    step = (ints(1), ints(8000), 1)
    several = step_parts(roofline(PRO, B300, shared), *step)
    assert several["experts"] > step_parts(roofline(PRO, B300, alone), *step)["experts"]


def test_drafts_cost_a_layer_each_and_are_checked_in_one_step() -> None:
    plain, drafted = roofline(PRO, B300, Layout(8)), roofline(PRO, B300, Layout(8, draft_tokens=3))
    assert drafted.decode_tokens == 4
    held = compose(drafted, ints(4, 4), ints(1000, 1000), 2)
    assert held.prompt_tokens == 0 and held.tokens == 8
    one = step_seconds(plain, ints(1), ints(8000), 1)
    assert one < step_seconds(drafted, ints(4), ints(8000), 1) < 2.5 * one


def test_pro_attention_flops_at_a_million_tokens() -> None:
    """Indexer 129 GFLOP on every rank; compress-4 9.1 and compress-128 67.6 over eight."""
    held = compose(quick_start(), ints(1), ints(1_048_575), 1)
    assert held.decode_flops == pytest.approx(129e9 + (9.1e9 + 67.6e9) / 8, rel=0.005)


@pytest.mark.parametrize("name", TIMED)
def test_every_model_of_the_catalog_has_step_times(name: str) -> None:
    ranks = 5 if name == "phi-4" else 8  # it has ten KV heads
    model = catalog.model(name)
    gpu = catalog.gpu("b200" if model.precision == "fp4" else "h200")
    params = roofline(model, gpu, Layout(ranks))
    assert 0.0005 < step_seconds(params, ints(1), ints(1000), 1) < 0.05
    assert params.scalars[KV_BYTE] > 0


def test_missing_keys_are_named_all_at_once() -> None:
    bare = Model("bare", (KVGroup("full", 16), KVGroup("sliding_window", 16, 64)))
    with pytest.raises(Problems) as e:
        roofline(bare, B300)
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
        roofline(dataclasses.replace(TOY, experts_per_token=9), TOY_GPU)
    with pytest.raises(Problems, match="expert_bytes: 0 is not above 0"):
        roofline(dataclasses.replace(TOY, expert_bytes=0), TOY_GPU)
    with pytest.raises(Problems, match="expert_bytes: 800 is above weight_bytes"):
        roofline(dataclasses.replace(TOY, expert_bytes=800), TOY_GPU)


def test_precision_and_engine_are_checked() -> None:
    with pytest.raises(KvsimError, match="toy has no peak for 'fp8'. Use one of bf16"):
        roofline(dataclasses.replace(TOY, precision="fp8"), TOY_GPU)
    with pytest.raises(Problems, match="unknown precision 'fp9'"):
        roofline(dataclasses.replace(TOY, precision="fp9"), TOY_GPU)
    with pytest.raises(KvsimError, match="step_time.engine: .*'vlm'.*Did you mean 'vllm'"):
        roofline(TOY, TOY_GPU, engine="vlm")


def test_notes_say_where_the_constants_come_from() -> None:
    notes = roofline_notes(PRO, B300, Layout(8), override=overrides(0.3, None, None))
    assert "peak_dense 0.3: as set" in notes
    assert any(note.startswith("hbm_kv ") and "paged KV" in note for note in notes)
    bare = Model("m", (KVGroup("full", 16),))
    assert any("left out" in note for note in roofline_notes(bare, B300, Layout()))


def test_params_can_be_pickled() -> None:
    params = pickle.loads(pickle.dumps(quick_start()))
    step = (ints(1), ints(5), 1)
    assert step_seconds(params, *step) == step_seconds(quick_start(), *step)
