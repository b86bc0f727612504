"""Writes tables of step times that another package computes; run once, read by many simulations.

AISimulate (PyPI ``aisimulate``, Apache-2.0) holds kernel times measured on GPUs. It is asked for
decodes over batches and contexts and for prompts over tokens and KV read. What it gives is off in
ways that differ by engine; `CORRECTIONS` are factors that public measurements of servers led to.
"""

from __future__ import annotations

import csv
import importlib
import importlib.metadata
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvsim.errors import KvsimError
from kvsim.times.tables import COLUMNS

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
DECODE_CONTEXTS = (128, 1024, 4096, 16384, 65536, 131072)
PROMPT_TOKENS = (16, 128, 512, 1024, 2048, 4096, 8192, 16384)
PROMPT_READ = (0, 4096, 16384, 65536)


@dataclass(frozen=True)
class Correction:
    """Factors on what AISimulate gives for an engine.

    Attributes:
        prompt: of steps with prompts.
        decode: of steps that decode.
        source: where they are from.
    """

    prompt: float
    decode: float
    source: str


CORRECTIONS = {
    "vllm": Correction(
        1.27, 1.08, "fit of its tables to public measurements of vLLM, TPOT 14 % off in the median"
    )
}
"""By engine; others are written as they are, which the table's head says."""

Seconds = Callable[[int, int], float]


def export_aisimulate(
    *,
    model: str,
    system: str,
    engine: str,
    tensor_parallel: int = 1,
    data_parallel: int = 1,
    expert_parallel: int = 1,
) -> str:
    """A table of step times, as CSV.

    Args:
        model: as AISimulate names it.
        system: its name of the GPU, as in ``b200_sxm``.
        engine: ``vllm``, ``sglang`` or ``tensorrt-llm``.
        tensor_parallel: ranks that split attention.
        data_parallel: ranks with requests of their own.
        expert_parallel: ranks that hold whole experts.

    Raises:
        KvsimError: the package is not installed, or does not know the set-up.
    """
    try:
        sdk: Any = importlib.import_module("aisimulate_core.sdk")
        version = importlib.metadata.version("aisimulate")
    except ImportError:
        raise KvsimError(
            "aisimulate is not installed. Install it: pip install --pre 'kvsim[aisimulate]'."
        ) from None
    backend = {"tensorrt-llm": "trtllm"}.get(engine, engine)
    try:
        made = sdk.RustForwardPassPerfModel.best_available(
            sdk.ForwardPassPerfModelConfig(
                model=model,
                system=system,
                backend=backend,
                tp=tensor_parallel,
                attention_dp=data_parallel,
                moe_tp_size=tensor_parallel * data_parallel // expert_parallel,
                moe_ep_size=expert_parallel,
                worker_type="aggregated",
            )
        )
    except Exception as error:
        raise KvsimError(
            f"aisimulate {version} has no times for {model} on {system} with {backend}: {error}"
        ) from None
    correction = CORRECTIONS.get(engine)
    factors = (1.0, 1.0) if correction is None else (correction.prompt, correction.decode)
    told = "as they are" if correction is None else (
        f"prompts x {factors[0]:g}, decodes x {factors[1]:g} ({correction.source})"
    )  # fmt: skip
    head = (
        f"# aisimulate {version} (PyPI, Apache-2.0): {model}, {system}, {backend}, "
        f"tp {tensor_parallel}, dp {data_parallel}, ep {expert_parallel}\n# times {told}\n"
    )
    try:
        # The package counts the context of all sequences of a decode together.
        rows = table_csv(
            lambda batch, context: (
                factors[1] * 1e-3 * float(made.predict_decode_latency_total(batch, batch * context))
            ),
            lambda tokens, read: (
                factors[0] * 1e-3 * float(made.predict_prefill_latency_total(1, tokens, read))
            ),
        )
    except Exception as error:
        raise KvsimError(
            f"aisimulate {version} knows {model} on {system} with {backend}, but has measured no "
            f"kernels of it: {error}. Try a model of the same layers that it has measured."
        ) from None
    return head + rows


def table_csv(decode_s: Seconds, prompt_s: Seconds) -> str:
    """Rows of a table of steps over the grids of this module.

    Args:
        decode_s: seconds of a step of so many sequences at so many tokens of context each.
        prompt_s: seconds of a step of so many tokens after so many computed before.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for batch in BATCHES:
        for context in DECODE_CONTEXTS:
            rows.writerow(["decode", batch, "", context, f"{decode_s(batch, context):.6g}"])
    for tokens in PROMPT_TOKENS:
        for read in PROMPT_READ:
            rows.writerow(["prompt", "", tokens, read, f"{prompt_s(tokens, read):.6g}"])
    return text.getvalue()
