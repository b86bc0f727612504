"""The default provider: work over what is reached of the peaks, and what is paid beside it.

What each term stands for:

- launches: a time a step (what of planning and sampling the GPU waits for) and a time a layer (its
  kernels one after another, and the wait of GPUs for each other); more where a step holds a prompt,
  which runs without whole-model CUDA graphs.
- tokens: two all-reduces a layer, or the way to the experts of other ranks and back; elementwise
  kernels, which pass over the residual stream several times and are not split over ranks.
- dense, head, experts: reading the weights and computing at once. ``1 - (1 - k / E) ** tokens`` of
  the experts are read: a token misses one with probability 1 - k / E, tokens choosing
  independently. Tokens of an expert fill up tiles, so that its products cost a few tokens more
  than it has.
- attention: KV read and the products of decodes at once, and the products of prompts.
- sequences: sampling, and what attention does for a sequence whatever its length.
- drafts: a draft layer is one more layer, and the output head once more.
- host: planning, inputs and sampling's end. Beside the GPU where scheduling is asynchronous.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvsim.catalog import Gpu, Model
from kvsim.errors import KvsimError, unknown_name
from kvsim.planning.plan import layers_of_stages
from kvsim.times import step_time as entry
from kvsim.times.constants import Constants, catalog_constants, conditions
from kvsim.times.stages import RESIDUAL_TENSORS, stage_times
from kvsim.times.step_time import StepTimeParams
from kvsim.times.tables import no_tables
from kvsim.times.work import (
    ENGINES,
    Layout,
    Work,
    attention_work,
    layer_count,
    peak_flops_per_s,
    work_of,
)


def scalars(work: Work, values: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The scalars of ``StepTimeParams``.

    Args:
        work: of one set-up, or stacked.
        values: each constant for it, or for each set-up.

    Returns:
        float64 [NUM_SCALARS], or [set-ups, NUM_SCALARS].
    """
    c = values
    hbm, layers = work.hbm_bytes_per_s, work.layers
    # A draft layer is one more layer; the head runs for each draft.
    again = 1 + work.drafts / np.maximum(layers, 1)
    heads = 1 + work.drafts
    reached = work.expert_flops_per_s * c["peak_experts"]
    padding = work.expert_flops / reached * work.num_experts / work.experts_per_token
    a = {
        entry.STEP: c["step_s"]
        + again * layers * (c["layer_s"] + work.several_gpus * c["all_reduce_s"]),
        entry.PROMPT_STEP: layers * c["prompt_layer_s"],
        entry.TOKEN: again
        * (
            work.all_reduce_bytes / (work.link_bytes_per_s * c["link_all_reduce"])
            + work.activation_bytes * c["activation_passes"] / hbm
        ),
        entry.SHARED_TOKEN: again
        * work.all_to_all_bytes
        / (work.link_bytes_per_s * c["link_all_to_all"]),
        entry.DENSE: again * work.dense_bytes / (hbm * c["hbm_dense"]),
        entry.DENSE_TOKEN: again * work.dense_flops / (work.dense_flops_per_s * c["peak_dense"]),
        entry.HEAD: heads * work.head_bytes / (hbm * c["hbm_dense"]),
        entry.HEAD_SEQUENCE: heads * work.head_flops / (work.attention_flops_per_s * 0.5),
        entry.EXPERTS: again * work.expert_bytes / (hbm * c["hbm_experts"]),
        entry.EXPERT_TOKEN: again * work.expert_flops / reached,
        entry.EXPERT_PADDING: again * padding * c["expert_padding_tokens"],
        entry.EXPERT_MISS: 1 - work.experts_per_token / work.num_experts,
        entry.KV_BYTE: again / (hbm * c["hbm_kv"]),
        entry.DECODE_FLOP: again / (work.attention_flops_per_s * c["peak_decode_attention"]),
        entry.PROMPT_FLOP: again / (work.attention_flops_per_s * c["peak_prompt_attention"]),
        entry.SEQUENCE: c["sequence_s"] + layers * c["sequence_layer_s"],
        entry.HOST: c["host_step_s"],
        entry.HOST_SEQUENCE: c["host_sequence_s"],
        entry.SYNCHRONOUS: c.get("synchronous", 0.0),
        entry.NUM_RANKS: work.num_ranks,
        entry.REQUEST: c["request_s"],
        entry.REQUEST_TOKEN: c["request_token_s"],
    }
    rows = [np.asarray(a[number], np.float64) for number in range(entry.NUM_SCALARS)]
    return np.stack(np.broadcast_arrays(*rows), axis=-1)


def roofline(
    model: Model,
    gpu: Gpu,
    layout: Layout | None = None,
    *,
    engine: str = "vllm",
    asynchronous: bool = True,
    constants: Constants | None = None,
    override: Mapping[str, float] | None = None,
) -> StepTimeParams:
    """What ``step_seconds`` needs, for a model on GPUs.

    Args:
        model: see ``work_of`` for what it has to say.
        gpu: every rank has one.
        layout: how GPUs share the model; None: one GPU.
        engine: one of ``ENGINES``; timing alone.
        asynchronous: the host plans the next step beside the GPU.
        constants: None for those of the catalog.
        override: constants by name that stand in place of those.

    Raises:
        Problems: the model lacks something the roofline needs; names every missing key.
        KvsimError: an unknown engine, or a precision the GPU does not have.
    """
    if engine not in ENGINES:
        raise KvsimError(f"step_time.engine: {unknown_name('engine', engine, ENGINES)}")
    layout = layout or Layout()
    work = work_of(model, gpu, layout)
    met = conditions(model, gpu, layout, engine, asynchronous=asynchronous)
    values = {**(constants or catalog_constants()).of(met), **(override or {})}
    values["synchronous"] = 0.0 if asynchronous else 1.0
    attention = attention_work(model, layout)
    return StepTimeParams(
        scalars=scalars(work, values),
        decode_tokens=1 + layout.draft_tokens,
        cap=attention.cap,
        kv_bytes=attention.kv_bytes,
        decode_flops=attention.decode_flops,
        prompt_flops=attention.prompt_flops,
        tables=no_tables(),
    )


def roofline_stages(
    model: Model,
    gpu: Gpu,
    layout: Layout,
    whole: StepTimeParams,
    num_stages: int,
    *,
    engine: str,
    asynchronous: bool,
    constants: Constants | None,
    override: Mapping[str, float],
) -> tuple[StepTimeParams, ...]:
    """What the step of each stage of a pipeline depends on; see ``stage_times``.

    Args:
        model: as for ``roofline``, likewise the rest.
        gpu: see there.
        layout: see there.
        whole: its answer.
        num_stages: of the pipeline.
        engine: see there.
        asynchronous: see there.
        constants: see there.
        override: see there.
    """
    met = conditions(model, gpu, layout, engine, asynchronous=asynchronous)
    c = {**(constants or catalog_constants()).of(met), **override}
    work = work_of(model, gpu, layout)
    token_bytes = 2.0 * RESIDUAL_TENSORS * (model.hidden_size or 0)
    return stage_times(
        whole,
        layers_of_stages(layer_count(model), num_stages),
        step_s=c["step_s"],
        sequence_s=c["sequence_s"],
        transfer_token_s=token_bytes / float(work.link_bytes_per_s * c["link_all_reduce"]),
    )


def overrides(
    compute_efficiency: float | None, memory_efficiency: float | None, overhead_s: float | None
) -> dict[str, float]:
    """Constants that coarse settings stand for: one number for all products, reads, or launches."""
    given: dict[str, float] = {}
    if compute_efficiency is not None:
        given |= {"peak_dense": compute_efficiency, "peak_experts": compute_efficiency}
        given |= {"peak_prompt_attention": compute_efficiency}
    if memory_efficiency is not None:
        given |= dict.fromkeys(("hbm_dense", "hbm_experts", "hbm_kv"), memory_efficiency)
    if overhead_s is not None:
        given |= {"step_s": overhead_s, "layer_s": 0.0, "all_reduce_s": 0.0, "prompt_layer_s": 0.0}
    return given


def roofline_notes(
    model: Model,
    gpu: Gpu,
    layout: Layout,
    *,
    engine: str = "vllm",
    asynchronous: bool = True,
    constants: Constants | None = None,
    override: Mapping[str, float] | None = None,
) -> tuple[str, ...]:
    """What the step time is made of, one line each with its source, for people.

    Args:
        model: as for ``roofline``, likewise the rest.
        gpu: see there.
        layout: see there.
        engine: see there.
        asynchronous: see there.
        constants: see there.
        override: see there.
    """
    constants = constants or catalog_constants()
    met = conditions(model, gpu, layout, engine, asynchronous=asynchronous)
    peak = peak_flops_per_s(model, gpu)
    notes = [
        f"engine {engine}, {'a' if asynchronous else ''}synchronous scheduling",
        f"peak {model.precision} {peak / 1e15:g} PFLOP/s a GPU: "
        + gpu.origins.get(f"{model.precision}_flops_per_s", "as given"),
        f"peak bandwidth {gpu.hbm_bytes_per_s / 1e12:g} TB/s a GPU: "
        + gpu.origins.get("hbm_bytes_per_s", "as given"),
        f"precision {model.precision}: " + model.origins.get("precision", "as given or default"),
    ]
    values = constants.of(met)
    reasons = {entry.name: entry.reason for entry in constants.entries if not entry.condition}
    for name, value in values.items():
        if override is not None and name in override:
            notes.append(f"{name} {override[name]:g}: as set")
        elif name != "acceptance" or layout.draft_tokens:
            notes.append(f"{name} {value:.3g}: {reasons[name]}")
    if model.attention is None:
        notes.append("attention FLOPs: the model gives none, so they are left out")
    if model.kv_reads is None:
        notes.append("KV read: all that the groups hold of a sequence, once a step")
    if model.hidden_size is None:
        notes.append("collectives and activations: the model gives no hidden_size: left out")
    return tuple(notes)
