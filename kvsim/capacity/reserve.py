"""What a GPU needs besides weights and KV: libraries, sampling, activations, graphs.

The engine runs the largest step once before it sizes its pool and takes what that needed from the
memory for KV. The terms and their constants are read from start-up logs of vLLM 0.15 to 0.31 on
H100, H200, A100, B300 and others: starts of 0.19 on H100 that split memory by cause gave them,
later releases moved three. `tests/data/memory/servers.csv` has those of models of the catalog, with
sources; what was not used is held against in `tests/capacity/test_reserve.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.catalog import Model

GIB = 1024**3

LIBRARIES_ALONE_BYTES = 0.25 * GIB
"""Beyond weights and tensors on one GPU: 0.24 to 0.27 GiB in 33 of 38 starts of 0.19."""
LIBRARIES_TOGETHER_BYTES = {"vllm-0.22": 2.1 * GIB, "vllm-0.23": 2.1 * GIB}
"""With buffers of the collectives: 2.06 to 2.21 GiB in 15 starts of 0.19."""
LIBRARIES_TOGETHER_LATER_BYTES = 1.7 * GIB
"""The same from 0.26 on: 1.63 to 1.74 GiB on H200, B300 and RTX PRO 6000."""
LOGIT_BYTES = {"vllm-0.22": 14.0, "vllm-0.23": 14.0}
"""Of a logit of the vocabulary, for each of ``max_num_seqs``, in the sampler's trial run."""
LOGIT_LATER_BYTES = 8.0
"""The same from 0.26 on: 8.4 in the one start (0.31) that shows it, rounded."""
COPIES = 3
"""Copies of a step's residual stream in BF16 that are alive at once: 2.0 to 3.6 in starts of 0.19
of dense models but for Gemma and CodeLlama (3.4 to 10)."""
STREAMS = {"deepseek-v4": 4}
"""Residual streams of models with hyper-connections (DeepSeek V4's config.json, hc_mult)."""
GRAPHS_BYTES = 0.5 * GIB
"""CUDA graphs as the engine estimates them: 0.1 to 1.2 GiB in 7 of 9 starts from 0.26 on,
3.1 and 8.6 in the others."""


@dataclass(frozen=True)
class Reserve:
    """What is kept free of KV on a GPU.

    Attributes:
        total_bytes: all of it.
        reason: its parts, for people.
    """

    total_bytes: float
    reason: str


def derive_reserve(
    model: Model,
    tensor_parallel: int,
    num_gpus: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    profile: str,
) -> Reserve | None:
    """What one GPU needs besides weights and KV.

    Args:
        model: its widths; `Model.hidden_size` and `Model.vocab_size` are needed.
        tensor_parallel: GPUs that split a layer.
        num_gpus: of the engine; more than one need buffers to talk.
        max_num_batched_tokens: tokens of the largest step.
        max_num_seqs: sequences of which the sampler holds logits, whole on every rank.
        profile: the engine's release.

    Returns:
        The reserve, or None where the model does not say how wide it is.
    """
    if model.hidden_size is None or model.vocab_size is None:
        return None
    libraries = LIBRARIES_ALONE_BYTES
    if num_gpus > 1:
        libraries = LIBRARIES_TOGETHER_BYTES.get(profile, LIBRARIES_TOGETHER_LATER_BYTES)
    logit = LOGIT_BYTES.get(profile, LOGIT_LATER_BYTES)
    sampling = logit * max_num_seqs * model.vocab_size
    width = model.hidden_size * STREAMS.get(model.family or "", 1)
    step = 2.0 * max_num_batched_tokens * (COPIES * width + _expert_width(model, tensor_parallel))
    total = libraries + sampling + step + GRAPHS_BYTES
    reason = (
        f"derived: {_gib(libraries)} libraries, {_gib(sampling)} sampling of {max_num_seqs:,} "
        f"sequences, {_gib(step)} activations of {max_num_batched_tokens:,} tokens, "
        f"{_gib(GRAPHS_BYTES)} graphs"
    )
    return Reserve(total, reason)


def _expert_width(model: Model, tensor_parallel: int) -> float:
    """Numbers a token needs in the buffers of the experts' two products."""
    if not (model.num_experts and model.expert_parameters and model.num_layers):
        return 0.0
    hidden = model.hidden_size or 0
    of_layer = model.expert_parameters / (model.num_experts * model.num_layers)
    inner = of_layer / (3 * hidden) / tensor_parallel
    return model.experts_per_token * (max(2 * inner, hidden) + inner)


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
