"""A model of the catalog at another precision, as published checkpoints have it.

FP8 checkpoints hold every matrix of the layers in 8 bits. FP4 ones hold dense models in 4 bits and
a scale for 16 weights (4.5 bits each), of mixtures of experts the experts alone, attention in FP8.
The embedding and the output head stay in BF16. KV is held in 8 bits where the weights are. Models
that were released in 4 bits (DeepSeek V4, gpt-oss) stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

from kvsim.catalog import Model
from kvsim.errors import KvsimError

BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625}
"""Bytes of a weight, its share of the scales included."""
_NATIVE = ("deepseek-v4", "gpt-oss")


def at_precision(model: Model, precision: str) -> Model:
    """The model with weights and KV in ``bf16``, ``fp8`` or ``fp4`` (also ``nvfp4``).

    Raises:
        KvsimError: no such precision, or the model does not say how many parameters it has.
    """
    precision = precision.removeprefix("nv")
    if precision not in BYTES:
        raise KvsimError(f"precision: {precision!r} is none of {', '.join(BYTES)}.")
    if model.family in _NATIVE:
        return model
    if model.total_parameters is None or model.active_parameters is None:
        raise KvsimError(f"model {model.name}: total_parameters and active_parameters are needed.")
    head = float(model.vocab_size or 0) * float(model.hidden_size or 0)
    dense = model.total_parameters - model.expert_parameters - 2 * head
    of_dense = precision
    if precision == "fp4" and model.num_experts:
        of_dense = "fp8"
    expert_bytes = model.expert_parameters * BYTES[precision]
    dtype = (
        ""
        if model.plan is None or model.plan.backend is None
        else model.plan.backend.kv_cache_dtype
    )
    now = 1.0 if dtype.startswith("fp8") else 2.0
    kv = (2.0 if precision == "bf16" else 1.0) / now
    return replace(
        model,
        precision=of_dense,
        expert_precision=precision if model.num_experts else None,
        expert_bytes=expert_bytes,
        weight_bytes=dense * BYTES[of_dense] + expert_bytes + 2 * head * 2.0,
        groups=tuple(
            group
            if group.bytes_per_block is None or group.kind == "mamba"
            else replace(group, bytes_per_block=round(group.bytes_per_block * kv))
            for group in model.groups
        ),
        kv_reads=None
        if model.kv_reads is None
        else tuple(
            read
            if read.max_context_tokens == 1
            else replace(read, bytes_per_context_token=read.bytes_per_context_token * kv)
            for read in model.kv_reads
        ),
    )
