"""Seconds for one scheduler step: a roofline over compute and memory traffic, or constants.

Both kinds are one formula, so that compiled code can call one function::

    time    = overhead + token_s x tokens + max(compute, memory)
    compute = (flops_per_token x tokens + attention) / flops_per_s
    memory  = (dense weights + experts touched + KV read) / bytes_per_s

A new token that stands at context L (itself included) does ``slope x min(L, cap)`` attention FLOPs
for every term; a sequence has ``slope x min(L, cap)`` bytes of KV read once a step, L being its
length at the end of the step. All sums over tokens are whole numbers and therefore exact: the
result does not depend on the order of the sequences. Everything is counted for one
tensor-parallel rank; ranks are alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.catalog import PRECISIONS, AttentionTerm, Gpu, KVRead, Model
from kvsim.errors import KvsimError, Problems, unknown_name
from kvsim.jit import njit

COMPUTE_EFFICIENCY = 0.45
COMPUTE_EFFICIENCY_REASON = (
    "assumption: large prompt chunks reach 0.4 to 0.5 of the peak once collectives, quantization "
    "and small kernels between the matrix products are counted"
)
MEMORY_EFFICIENCY = 0.75
MEMORY_EFFICIENCY_REASON = (
    "assumption: streaming kernels reach 0.8 to 0.9 of the peak bandwidth, paged KV and small "
    "expert matrices less"
)
OVERHEAD_S = 0.005
OVERHEAD_REASON = (
    "assumption: about 2 ms for scheduling, inputs and sampling, and two collectives a layer of "
    "some 25 us each over about 60 layers; less for small models and one GPU"
)
UNCAPPED_TOKENS = 1 << 40  # above any context; sums of it stay far from 2**63

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class StepTimeParams(NamedTuple):
    """What a step's time depends on, for one rank; floats and arrays alone, for compiled code.

    Attributes:
        overhead_s: seconds of every step.
        token_s: further seconds for each scheduled token.
        flops_per_token: FLOPs of a token apart from attention.
        flops_per_s: compute that is reached.
        attn_slope: FLOPs of a new token per token of its context, one entry a term.
        attn_cap: tokens of context from which on a term no longer grows, same length.
        dense_bytes: weights every step reads.
        expert_bytes: weights of all routed experts.
        num_experts: routed experts of a layer; 1 where there are none.
        experts_per_token: routed experts a token goes through.
        bytes_per_s: memory bandwidth that is reached.
        kv_slope: bytes of KV read for a sequence per token of its context, one entry a term.
        kv_cap: tokens of context from which on a term no longer grows, same length.
    """

    overhead_s: float
    token_s: float
    flops_per_token: float
    flops_per_s: float
    attn_slope: Floats
    attn_cap: Ints
    dense_bytes: float
    expert_bytes: float
    num_experts: float
    experts_per_token: float
    bytes_per_s: float
    kv_slope: Floats
    kv_cap: Ints


@njit
def capped_context_tokens(context: int, new_tokens: int, cap: int) -> int:
    """Sum of ``min(L, cap)`` over the new tokens of a chunk, at L = context + 1, + 2, ..."""
    below = min(max(cap - context, 0), new_tokens)
    return below * context + below * (below + 1) // 2 + (new_tokens - below) * cap


@njit
def step_flops(params: StepTimeParams, new_tokens: Ints, context: Ints, n: int) -> float:
    """FLOPs of one rank in a step; arguments as for ``step_seconds``."""
    tokens = 0
    for i in range(n):
        tokens += new_tokens[i]
    flops: float = params.flops_per_token * tokens
    for term in range(params.attn_slope.size):
        seen = 0
        for i in range(n):
            seen += capped_context_tokens(context[i], new_tokens[i], params.attn_cap[term])
        flops += params.attn_slope[term] * seen
    return flops


@njit
def step_bytes(params: StepTimeParams, new_tokens: Ints, context: Ints, n: int) -> float:
    """Bytes one rank reads in a step; arguments as for ``step_seconds``.

    A token misses an expert with probability 1 - k / E, tokens choosing independently, so
    ``1 - (1 - k / E) ** tokens`` of the experts are read.
    """
    tokens = 0
    for i in range(n):
        tokens += new_tokens[i]
    missed = (1.0 - params.experts_per_token / params.num_experts) ** float(tokens)
    read: float = params.dense_bytes + params.expert_bytes * (1.0 - missed)
    for term in range(params.kv_slope.size):
        seen = 0
        for i in range(n):
            seen += min(context[i] + new_tokens[i], params.kv_cap[term])
        read += params.kv_slope[term] * seen
    return read


@njit
def step_seconds(params: StepTimeParams, new_tokens: Ints, context: Ints, n: int) -> float:
    """Seconds of a step that schedules ``n`` sequences.

    Args:
        params: from ``step_time_params`` or ``constant_step_time``.
        new_tokens: tokens scheduled for each sequence, at least ``n`` entries.
        context: tokens of each sequence computed before the step, at least ``n`` entries.
        n: number of sequences, counted from the start of the arrays.
    """
    tokens = 0
    for i in range(n):
        tokens += new_tokens[i]
    compute_s = step_flops(params, new_tokens, context, n) / params.flops_per_s
    memory_s = step_bytes(params, new_tokens, context, n) / params.bytes_per_s
    return params.overhead_s + params.token_s * tokens + max(compute_s, memory_s)


def constant_step_time(step_s: float, token_s: float = 0.0) -> StepTimeParams:
    """``step_s`` seconds a step and ``token_s`` for each scheduled token, whatever the model."""
    none, no_cap = np.zeros(0), np.zeros(0, np.int64)
    return StepTimeParams(
        overhead_s=float(step_s),
        token_s=float(token_s),
        flops_per_token=0.0,
        flops_per_s=1.0,
        attn_slope=none,
        attn_cap=no_cap,
        dense_bytes=0.0,
        expert_bytes=0.0,
        num_experts=1.0,
        experts_per_token=1.0,
        bytes_per_s=1.0,
        kv_slope=none,
        kv_cap=no_cap,
    )


def step_time_params(
    kind: str = "roofline",
    *,
    model: Model | None = None,
    gpu: Gpu | None = None,
    tensor_parallel: int = 1,
    compute_efficiency: float | None = None,
    memory_efficiency: float | None = None,
    overhead_s: float | None = None,
    step_s: float = 0.0,
    token_s: float = 0.0,
) -> StepTimeParams:
    """What ``step_seconds`` needs, for a model on tensor-parallel GPUs or from constants.

    Args:
        kind: ``roofline``, or ``constant``, which looks at ``step_s`` and ``token_s`` alone.
        model: with the roofline, needs active_parameters, weight_bytes, and for the KV read
            bytes_per_block of every group or kv_reads.
        gpu: every rank has one.
        tensor_parallel: ranks over which weights, matrix products and attention are split.
        compute_efficiency: part of the peak FLOPs that is reached; None: COMPUTE_EFFICIENCY.
        memory_efficiency: part of the peak bandwidth that is reached; None: MEMORY_EFFICIENCY.
        overhead_s: seconds of a step that neither explains; None: OVERHEAD_S.
        step_s: constant seconds a step.
        token_s: constant seconds a token.

    Raises:
        Problems: the model lacks something the roofline needs; names every missing key.
        KvsimError: an unknown kind, or a precision the GPU does not have.
    """
    if kind == "constant":
        return constant_step_time(step_s, token_s)
    if kind != "roofline":
        raise KvsimError(unknown_name("step_time.kind", kind, ("roofline", "constant")))
    if model is None or gpu is None:
        raise TypeError("a roofline needs a model and a gpu")
    active_parameters, weight_bytes = _checked(model)
    attention = _attention_terms(model)
    reads = _kv_reads(model)
    share = model.kv_share(tensor_parallel)
    ranks = [tensor_parallel if term.split_over_ranks else 1 for term in attention]
    attn_slope = [
        term.num_layers * term.flops_per_context_token / split
        for term, split in zip(attention, ranks, strict=True)
    ]
    kv_slope = [read.num_layers * read.bytes_per_context_token * share for read in reads]
    dense = model.num_experts == 0
    return StepTimeParams(
        overhead_s=float(OVERHEAD_S if overhead_s is None else overhead_s),
        token_s=0.0,
        flops_per_token=2.0 * active_parameters / tensor_parallel,
        flops_per_s=_peak_flops_per_s(model, gpu) * _or(compute_efficiency, COMPUTE_EFFICIENCY),
        attn_slope=np.array(attn_slope, np.float64),
        attn_cap=np.array([_cap(term.max_context_tokens) for term in attention], np.int64),
        dense_bytes=(weight_bytes - model.expert_bytes) / tensor_parallel,
        expert_bytes=model.expert_bytes / tensor_parallel,
        num_experts=1.0 if dense else float(model.num_experts),
        experts_per_token=1.0 if dense else float(model.experts_per_token),
        bytes_per_s=gpu.hbm_bytes_per_s * _or(memory_efficiency, MEMORY_EFFICIENCY),
        kv_slope=np.array(kv_slope, np.float64),
        kv_cap=np.array([_cap(read.max_context_tokens) for read in reads], np.int64),
    )


def step_time_notes(
    model: Model,
    gpu: Gpu,
    compute_efficiency: float | None = None,
    memory_efficiency: float | None = None,
    overhead_s: float | None = None,
) -> tuple[str, ...]:
    """The constants of the roofline, one a line, each with its source, for people."""
    peak = _peak_flops_per_s(model, gpu)
    notes = [
        f"peak {model.precision} {peak / 1e15:g} PFLOP/s a GPU: "
        + gpu.origins.get(f"{model.precision}_flops_per_s", "as given"),
        f"peak bandwidth {gpu.hbm_bytes_per_s / 1e12:g} TB/s a GPU: "
        + gpu.origins.get("hbm_bytes_per_s", "as given"),
        _setting(
            "compute_efficiency",
            compute_efficiency,
            COMPUTE_EFFICIENCY,
            COMPUTE_EFFICIENCY_REASON,
        ),
        _setting(
            "memory_efficiency",
            memory_efficiency,
            MEMORY_EFFICIENCY,
            MEMORY_EFFICIENCY_REASON,
        ),
        _setting("overhead_s", overhead_s, OVERHEAD_S, OVERHEAD_REASON),
        f"precision {model.precision}: " + model.origins.get("precision", "as given or default"),
    ]
    if model.attention is None:
        notes.append("attention FLOPs: the model gives none, so they are left out")
    if model.kv_reads is None:
        notes.append("KV read: all that the groups hold of a sequence, once a step")
    return tuple(notes)


def _checked(model: Model) -> tuple[float, float]:
    """Active parameters and weight bytes, or every missing key at once."""
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


def _attention_terms(model: Model) -> tuple[AttentionTerm, ...]:
    return () if model.attention is None else model.attention


def _kv_reads(model: Model) -> tuple[KVRead, ...]:
    """What the model says, or all that its groups hold of a sequence."""
    if model.kv_reads is not None:
        return model.kv_reads
    return tuple(
        KVRead(
            name=group.name or f"group {place}",
            bytes_per_context_token=group.bytes_per_block / group.block_size,
            max_context_tokens=group.block_size if group.kind == "mamba" else group.sliding_window,
        )
        for place, group in enumerate(model.groups)
        if group.bytes_per_block is not None
    )


def _peak_flops_per_s(model: Model, gpu: Gpu) -> float:
    peak = gpu.flops_per_s(model.precision)
    if peak is None:
        has = ", ".join(name for name in PRECISIONS if gpu.flops_per_s(name) is not None)
        raise KvsimError(
            f"model.precision: {gpu.name} has no peak for {model.precision!r}. Use one of {has}."
        )
    return peak


def _setting(key: str, given: float | None, default: float, reason: str) -> str:
    return f"{key} {default:g}: {reason}" if given is None else f"{key} {given:g}: as set"


def _or(given: float | None, default: float) -> float:
    return default if given is None else float(given)


def _cap(max_context_tokens: int | None) -> int:
    return UNCAPPED_TOKENS if max_context_tokens is None else max_context_tokens
