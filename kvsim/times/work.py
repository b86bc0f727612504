"""What one rank reads and computes in a step, from a model, a GPU and how ranks share the model.

Numbers of the hardware and the model alone; how much of the peaks is reached is said in
``constants.py``, and both come together in ``roofline.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.catalog import PRECISIONS, Gpu, KVRead, Model
from kvsim.errors import KvsimError, Problems, unknown_name
from kvsim.times.step_time import UNCAPPED_TOKENS

ENGINES = ("vllm", "sglang", "tensorrt-llm")
_HEAD_BYTES = 2.0  # embedding and output head stay in BF16


@dataclass(frozen=True)
class Layout:
    """How GPUs share a model, and what a sequence computes in a step.

    Attributes:
        tensor_parallel: ranks over which attention and the dense weights are split.
        data_parallel: ranks with requests of their own (attention data parallelism).
        expert_parallel: ranks over which whole experts are split; 1 splits each of them.
        num_gpus: GPUs that share the experts; None: tensor_parallel x data_parallel.
        draft_tokens: tokens a draft layer guesses and the model checks in a step; 0 for none.
    """

    tensor_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: int = 1
    num_gpus: int | None = None
    draft_tokens: int = 0

    @property
    def gpus(self) -> int:
        """GPUs that share the experts."""
        return self.num_gpus or self.tensor_parallel * self.data_parallel


@dataclass(frozen=True)
class Work:
    """Bytes, FLOPs and peaks of one rank; floats, or arrays with an entry for each set-up.

    Attributes:
        layers: of the transformer.
        drafts: draft layers that run in a step.
        dense_bytes: weights every step reads, without the output head.
        dense_flops: of a token in them.
        head_bytes: the output head.
        head_flops: of a sequence in it.
        expert_bytes: all routed experts of the rank.
        expert_flops: of a token of all ranks in the experts of this rank.
        num_experts: routed experts of a layer; 1 where there are none.
        experts_per_token: routed experts a token goes through; 1 where there are none.
        activation_bytes: one pass over the residual stream of a token, all layers.
        all_reduce_bytes: what a token puts on the links in all-reduces, all layers.
        all_to_all_bytes: the same to and from the experts of other data-parallel ranks.
        several_gpus: 1 where GPUs wait for each other in every layer, else 0.
        num_ranks: data-parallel ranks.
        hbm_bytes_per_s: peak.
        link_bytes_per_s: peak, one way.
        dense_flops_per_s: peak at the precision of the dense weights.
        expert_flops_per_s: peak at that of the experts.
        attention_flops_per_s: peak at BF16.
    """

    layers: Any
    drafts: Any
    dense_bytes: Any
    dense_flops: Any
    head_bytes: Any
    head_flops: Any
    expert_bytes: Any
    expert_flops: Any
    num_experts: Any
    experts_per_token: Any
    activation_bytes: Any
    all_reduce_bytes: Any
    all_to_all_bytes: Any
    several_gpus: Any
    num_ranks: Any
    hbm_bytes_per_s: Any
    link_bytes_per_s: Any
    dense_flops_per_s: Any
    expert_flops_per_s: Any
    attention_flops_per_s: Any


def stacked(works: list[Work]) -> Work:
    """One ``Work`` with an array for each number, an entry for each of ``works``."""
    return Work(
        **{
            field.name: np.array([getattr(work, field.name) for work in works], np.float64)
            for field in fields(Work)
        }
    )


def work_of(model: Model, gpu: Gpu, layout: Layout) -> Work:
    """What a rank reads and computes.

    Args:
        model: needs active_parameters and weight_bytes; num_layers and hidden_size for the time a
            layer and for collectives.
        gpu: every rank has one.
        layout: how they share the model.

    Raises:
        Problems: the model lacks something; names every missing key.
        KvsimError: a precision the GPU does not have.
    """
    active, weight_bytes = checked(model)
    ranks, gpus = layout.tensor_parallel, layout.gpus
    hidden = float(model.hidden_size or 0)
    layers = float(layer_count(model))
    head = float(model.vocab_size or 0) * hidden
    experts = model.num_experts > 0
    per_token = model.experts_per_token / model.num_experts if experts else 0.0
    expert_parameters = model.expert_parameters or _parameters_of(model)
    # The embedding is looked up: neither read nor computed.
    dense = max(active - expert_parameters * per_token - 2 * head, 0.0)
    dense_bytes = max(weight_bytes - model.expert_bytes - 2 * head * _HEAD_BYTES, 0.0)
    token_bytes = layers * hidden * 2.0
    # Both all-reduces of a layer send 2 (n - 1) / n of it; to and from the experts, once each.
    all_reduce = 2 * token_bytes * 2 * (ranks - 1) / ranks
    all_to_all = token_bytes * 2 * (gpus - 1) / gpus if layout.data_parallel > 1 else 0.0
    return Work(
        layers=layers,
        drafts=float(layout.draft_tokens),
        dense_bytes=dense_bytes / ranks,
        dense_flops=2.0 * dense / ranks,
        head_bytes=head * _HEAD_BYTES / ranks,
        head_flops=2.0 * head / ranks,
        expert_bytes=model.expert_bytes / gpus,
        expert_flops=2.0 * expert_parameters * per_token / gpus,
        num_experts=float(model.num_experts) if experts else 1.0,
        experts_per_token=float(model.experts_per_token) if experts else 1.0,
        activation_bytes=token_bytes,
        all_reduce_bytes=all_reduce,
        all_to_all_bytes=all_to_all,
        several_gpus=1.0 if gpus > 1 else 0.0,
        num_ranks=float(layout.data_parallel),
        hbm_bytes_per_s=gpu.hbm_bytes_per_s,
        link_bytes_per_s=gpu.nvlink_bytes_per_s or gpu.hbm_bytes_per_s / 9,
        dense_flops_per_s=peak_flops_per_s(model, gpu),
        expert_flops_per_s=_expert_peak(model, gpu),
        attention_flops_per_s=gpu.bf16_flops_per_s or peak_flops_per_s(model, gpu),
    )


def layer_count(model: Model) -> int:
    """Layers of the transformer; those of its KV groups where the model does not say."""
    if model.num_layers is not None:
        return model.num_layers
    return max((group.num_layers or 0 for group in model.groups), default=0) or 32


@dataclass(frozen=True)
class AttentionWork:
    """What attention reads and computes, by the context from which on it no longer grows.

    Attributes:
        cap: int64 [terms], tokens of context.
        kv_bytes: float64 [terms], for a sequence per token of context.
        decode_flops: float64 [terms], of a decoded token per token of context.
        prompt_flops: float64 [terms], of a token of a prompt per token of context.
    """

    cap: npt.NDArray[np.int64]
    kv_bytes: npt.NDArray[np.float64]
    decode_flops: npt.NDArray[np.float64]
    prompt_flops: npt.NDArray[np.float64]


def attention_work(model: Model, layout: Layout) -> AttentionWork:
    """What attention of one rank reads and computes.

    Raises:
        KvsimError: the KV heads cannot be split over this many ranks.
    """
    ranks = layout.tensor_parallel
    share = model.kv_share(ranks)
    terms: dict[int, list[float]] = {}
    for read in kv_reads(model):
        part = 1 / ranks if read.split_over_ranks else share
        row = terms.setdefault(_cap(read.max_context_tokens), [0.0, 0.0, 0.0])
        row[0] += read.num_layers * read.bytes_per_context_token * part
    for term in model.attention or ():
        part = 1 / ranks if term.split_over_ranks else 1.0
        row = terms.setdefault(_cap(term.max_context_tokens), [0.0, 0.0, 0.0])
        row[1] += term.num_layers * term.flops_per_context_token * part
        prompt = term.prompt_flops_per_context_token or term.flops_per_context_token
        row[2] += term.num_layers * prompt * part
    caps = sorted(terms)
    columns = np.array([terms[cap] for cap in caps]).reshape(len(caps), 3).T.copy()
    return AttentionWork(np.array(caps, np.int64), columns[0], columns[1], columns[2])


def kv_reads(model: Model) -> tuple[KVRead, ...]:
    """What the model says, or all that its groups hold of a sequence."""
    if model.kv_reads is not None:
        return model.kv_reads
    return tuple(
        KVRead(
            name=group.name or f"group {place}",
            bytes_per_context_token=group.bytes_per_block / group.block_size,
            max_context_tokens=group.block_size
            if group.kind == "mamba"
            else group.sliding_window or group.attention_chunk_size,
        )
        for place, group in enumerate(model.groups)
        if group.bytes_per_block is not None
    )


def checked(model: Model) -> tuple[float, float]:
    """Active parameters and weight bytes, or every missing key at once.

    Raises:
        Problems: names every missing key and every number that contradicts another.
    """
    needs = {
        "active_parameters": model.active_parameters,
        "weight_bytes": model.weight_bytes,
    }
    missing = [key for key, value in needs.items() if value is None]
    if model.kv_reads is None:
        missing += [
            f"groups[{place}].bytes_per_block"
            for place, group in enumerate(model.groups)
            if group.bytes_per_block is None
        ]
    problems = [
        f"{key}: is missing. step_time.kind roofline needs it; give it, or use kind constant."
        for key in missing
    ]
    problems += _expert_problems(model)
    if model.precision not in PRECISIONS:
        problems.append(f"precision: {unknown_name('precision', model.precision, PRECISIONS)}")
    if problems or model.active_parameters is None or model.weight_bytes is None:
        raise Problems(f"model {model.name}", problems)
    return model.active_parameters, model.weight_bytes


def peak_flops_per_s(model: Model, gpu: Gpu) -> float:
    """Peak of the GPU at the model's precision.

    Raises:
        KvsimError: the GPU has none.
    """
    peak = gpu.flops_per_s(model.precision)
    if peak is None:
        has = ", ".join(name for name in PRECISIONS if gpu.flops_per_s(name) is not None)
        raise KvsimError(
            f"model.precision: {gpu.name} has no peak for {model.precision!r}. Use one of {has}."
        )
    return peak


def _expert_peak(model: Model, gpu: Gpu) -> float:
    """Peak for the experts: 4-bit weights need FP4 tensor cores to run at another rate."""
    if model.expert_precision is None or gpu.fp4_flops_per_s is None:
        return peak_flops_per_s(model, gpu)
    return gpu.flops_per_s(model.expert_precision) or peak_flops_per_s(model, gpu)


def _parameters_of(model: Model) -> float:
    """Parameters of the experts where the model does not say, from their bytes."""
    each = {"fp4": 0.5625, "fp8": 1.0, "bf16": 2.0}[model.expert_precision or model.precision]
    return model.expert_bytes / each


def _expert_problems(model: Model) -> list[str]:
    if model.num_experts == 0 and model.experts_per_token == 0 and model.expert_bytes == 0:
        return []
    problems = []
    if model.expert_bytes <= 0:
        problems.append(
            f"expert_bytes: {model.expert_bytes:g} is not above 0. Give the bytes of all routed "
            "experts, or no experts at all."
        )
    if not 0 < model.experts_per_token <= model.num_experts:
        problems.append(
            f"experts_per_token: {model.experts_per_token} is not between 1 and num_experts "
            f"({model.num_experts}). Give both, or no experts at all."
        )
    if model.weight_bytes is not None and model.expert_bytes > model.weight_bytes:
        problems.append(
            f"expert_bytes: {model.expert_bytes:g} is above weight_bytes ({model.weight_bytes:g}), "
            "which counts the experts too. Correct one of them."
        )
    return problems


def _cap(max_context_tokens: int | None) -> int:
    return UNCAPPED_TOKENS if max_context_tokens is None else max_context_tokens
