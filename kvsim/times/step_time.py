"""Seconds for one scheduler step, from what it schedules: the compiled form of every provider.

A step's composition is counted first (`Composition`), then turned into seconds (`composed_parts`)::

    time = max(gpu, host)   where the host plans the next step beside the GPU (asynchronous)
    time = gpu + host       where the GPU waits for it

    gpu  = step + prompts?             launches, a time a layer; more where the step holds a prompt
         + tokens                      collectives and activations, which grow with the tokens
         + products(dense) + products(output head) + products(experts)
         + attention of decodes + attention of prompts
         + sequences                   what each sequence costs beside its bytes

    products(x) = (read**3 + computed**3) ** (1/3)    reading weights and computing overlap

What the terms are made of is said in ``roofline.py``. A table of measured steps answers instead of
the sum where one is given (``tables.py``). All counts are whole numbers and therefore exact: the
result does not depend on the order of the sequences. Everything is counted for one rank; ranks are
alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.jit import njit
from kvsim.times.tables import StepTables, mixed_seconds, no_tables, read_tables

UNCAPPED_TOKENS = 1 << 40  # above any context; sums of it stay far from 2**63

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Entries of `StepTimeParams.scalars`, seconds unless said.
STEP = 0  # of every step
PROMPT_STEP = 1  # more, where a prompt is in it
TOKEN = 2  # a token of the rank: all-reduces, activations
SHARED_TOKEN = 3  # a token of all ranks that share the experts: all-to-all
DENSE, DENSE_TOKEN = 4, 5  # reading the dense weights; computing a token
HEAD, HEAD_SEQUENCE = 6, 7  # the same of the output head, a sequence
EXPERTS, EXPERT_TOKEN = 8, 9  # reading all experts of the rank; computing a token of all ranks
EXPERT_PADDING = 10  # computing the tokens that fill up the tiles of all experts
EXPERT_MISS = 11  # part of the experts that one token does not go through
KV_BYTE, DECODE_FLOP, PROMPT_FLOP = 12, 13, 14  # attention
SEQUENCE = 15  # a sequence
HOST, HOST_SEQUENCE = 16, 17  # the host, of a step and a sequence
SYNCHRONOUS = 18  # 1: the GPU waits for the host; 0: the host works beside it
NUM_RANKS = 19  # data-parallel ranks that share the experts
REQUEST, REQUEST_TOKEN = 20, 21  # outside of steps: a request, a token of its prompt
NUM_SCALARS = 22

PARTS = (
    "launches",
    "tokens",
    "dense",
    "head",
    "experts",
    "attention",
    "prompt_attention",
    "sequences",
    "host",
)
"""Names of what ``step_parts`` returns, in order."""


class StepTimeParams(NamedTuple):
    """What a step's time depends on, for one rank; floats and arrays alone, for compiled code.

    Attributes:
        scalars: float64 [NUM_SCALARS], see the entries above.
        decode_tokens: most tokens a sequence computes in a step that decodes: 1, and its drafts.
        cap: int64 [terms], tokens of context from which on a term no longer grows.
        kv_bytes: float64 [terms], bytes read for a sequence per token of its context.
        decode_flops: float64 [terms], FLOPs of a decoded token per token of its context.
        prompt_flops: float64 [terms], FLOPs of a prompt's token per token of its context.
        tables: measured steps that answer instead; empty without.
    """

    scalars: Floats
    decode_tokens: int
    cap: Ints
    kv_bytes: Floats
    decode_flops: Floats
    prompt_flops: Floats
    tables: StepTables


class Composition(NamedTuple):
    """What a step holds.

    Attributes:
        tokens: of the rank, or of the fullest rank.
        all_tokens: of all ranks that share the experts.
        prompt_tokens: the part of ``tokens`` that belongs to prompts.
        sequences: of the rank, or of the fullest rank.
        kv_bytes: read for all of them.
        decode_flops: attention of those that decode.
        prompt_flops: attention of those that compute a prompt.
        decode_context: tokens of context of those that decode, together.
        prompt_context: tokens computed before of those that compute a prompt, together.
    """

    tokens: float
    all_tokens: float
    prompt_tokens: float
    sequences: float
    kv_bytes: float
    decode_flops: float
    prompt_flops: float
    decode_context: float
    prompt_context: float


@njit
def capped_context_tokens(context: int, new_tokens: int, cap: int) -> int:
    """Sum of ``min(L, cap)`` over the new tokens of a chunk, at L = context + 1, + 2, ..."""
    below = min(max(cap - context, 0), new_tokens)
    return below * context + below * (below + 1) // 2 + (new_tokens - below) * cap


@njit
def compose(params: StepTimeParams, new_tokens: Ints, context: Ints, n: int) -> Composition:
    """Count what a step holds; arguments as for ``step_seconds``."""
    tokens, prompt_tokens, decode_context, prompt_context = 0, 0, 0, 0
    for i in range(n):
        tokens += new_tokens[i]
        if new_tokens[i] > params.decode_tokens:
            prompt_tokens += new_tokens[i]
            prompt_context += context[i]
        else:
            decode_context += context[i] + new_tokens[i]
    kv_bytes, decode_flops, prompt_flops = 0.0, 0.0, 0.0
    for term in range(params.cap.size):
        cap = params.cap[term]
        seen, decoded, prompted = 0, 0, 0
        for i in range(n):
            new, before = new_tokens[i], context[i]
            last = min(before + new, cap)
            seen += last
            if new == 1:
                decoded += last
            elif new > params.decode_tokens:
                prompted += capped_context_tokens(before, new, cap)
            else:
                decoded += capped_context_tokens(before, new, cap)
        kv_bytes += params.kv_bytes[term] * seen
        decode_flops += params.decode_flops[term] * decoded
        prompt_flops += params.prompt_flops[term] * prompted
    return Composition(
        float(tokens),
        tokens * params.scalars[NUM_RANKS],
        float(prompt_tokens),
        float(n),
        kv_bytes,
        decode_flops,
        prompt_flops,
        float(decode_context),
        float(prompt_context),
    )


@njit
def _products(read_s: float, computed_s: float) -> float:
    """Reading and computing at once: the longer of the two, and more where they are alike."""
    cubed: float = read_s**3 + computed_s**3
    seconds: float = cubed ** (1.0 / 3.0)
    return seconds


@njit
def composed_parts(
    c: Floats, held: Composition
) -> tuple[float, float, float, float, float, float, float, float, float]:
    """Seconds of a step's parts, in the order of ``PARTS``; those of the host hidden or not.

    Args:
        c: the scalars of ``StepTimeParams``.
        held: what the step holds.
    """
    launches = c[STEP]
    if held.prompt_tokens > 0:
        launches += c[PROMPT_STEP]
    tokens = c[TOKEN] * held.tokens + c[SHARED_TOKEN] * held.all_tokens
    dense = _products(c[DENSE], c[DENSE_TOKEN] * held.tokens)
    head = _products(c[HEAD], c[HEAD_SEQUENCE] * held.sequences)
    experts = 0.0
    if c[EXPERTS] > 0.0:
        touched = 1.0 - c[EXPERT_MISS] ** held.all_tokens
        computed = c[EXPERT_TOKEN] * held.all_tokens + c[EXPERT_PADDING] * touched
        experts = _products(c[EXPERTS] * touched, computed)
    attention = _products(c[KV_BYTE] * held.kv_bytes, c[DECODE_FLOP] * held.decode_flops)
    prompt_attention = c[PROMPT_FLOP] * held.prompt_flops
    sequences = c[SEQUENCE] * held.sequences
    gpu = launches + tokens + dense + head + experts + attention + prompt_attention + sequences
    host = c[HOST] + c[HOST_SEQUENCE] * held.sequences
    if c[SYNCHRONOUS] == 0.0:
        host = max(host - gpu, 0.0)
    return launches, tokens, dense, head, experts, attention, prompt_attention, sequences, host


@njit
def composed_seconds(params: StepTimeParams, held: Composition) -> float:
    """Seconds of a step of which it is counted what it holds."""
    if params.tables.decode_batch.size > 0:
        return mixed_seconds(
            params.tables,
            held.sequences if held.prompt_tokens == 0 else max(held.tokens - held.prompt_tokens, 0),
            held.decode_context,
            held.prompt_tokens,
            held.prompt_context,
        )
    a, b, d, e, f, g, h, i, j = composed_parts(params.scalars, held)
    return a + b + d + e + f + g + h + i + j


@njit
def step_seconds(params: StepTimeParams, new_tokens: Ints, context: Ints, n: int) -> float:
    """Seconds of a step that schedules ``n`` sequences.

    Args:
        params: from ``roofline``, ``constant_step_time`` or ``table_step_time``.
        new_tokens: tokens scheduled for each sequence, at least ``n`` entries.
        context: tokens of each sequence computed before the step, at least ``n`` entries.
        n: number of sequences, counted from the start of the arrays.
    """
    return composed_seconds(params, compose(params, new_tokens, context, n))


@njit
def count_step(
    params: StepTimeParams, new_tokens: Ints, context: Ints, n: int, row: Floats
) -> None:
    """Write what a step holds, a field of `Composition` each; arguments as for ``step_seconds``."""
    held = compose(params, new_tokens, context, n)
    row[0], row[1], row[2], row[3] = held.tokens, held.tokens, held.prompt_tokens, held.sequences
    row[4], row[5], row[6] = held.kv_bytes, held.decode_flops, held.prompt_flops
    row[7], row[8] = held.decode_context, held.prompt_context


@njit
def together_seconds(params: StepTimeParams, rows: Floats, graph_tokens: int) -> float:
    """Seconds of a step that ranks take together: as long as the slowest of them.

    Where every rank's tokens fit a CUDA graph all of them compute as many as the fullest one has;
    else each its own (vLLM 0.33.0, ``sync_cudagraph_and_dp_padding``).

    Args:
        params: of one rank.
        rows: float64 [ranks, 9], what each holds, from ``count_step``.
        graph_tokens: tokens of the largest CUDA graph.
    """
    most, total = 0.0, 0.0
    for rank in range(len(rows)):
        most = max(most, rows[rank, 0])
        total += rows[rank, 0]
    padded = most <= graph_tokens
    longest = 0.0
    for rank in range(len(rows)):
        a = rows[rank]
        tokens = most if padded else a[0]
        together = most * len(rows) if padded else total
        held = Composition(tokens, together, a[2], a[3], a[4], a[5], a[6], a[7], a[8])
        longest = max(longest, composed_seconds(params, held))
    return longest


def request_seconds(params: StepTimeParams, prompt_tokens: int) -> float:
    """Seconds a request spends outside of steps before it is scheduled: HTTP, tokenizing."""
    return float(params.scalars[REQUEST] + params.scalars[REQUEST_TOKEN] * prompt_tokens)


def step_parts(params: StepTimeParams, new_tokens: Ints, context: Ints, n: int) -> dict[str, float]:
    """The same by part; seconds, which add up to ``step_seconds``. A table has one part.

    Args:
        params: as for ``step_seconds``.
        new_tokens: as for ``step_seconds``.
        context: as for ``step_seconds``.
        n: as for ``step_seconds``.
    """
    held = compose(params, new_tokens, context, n)
    if params.tables.decode_batch.size:
        return {"table": float(composed_seconds(params, held))}
    return {
        name: float(value)
        for name, value in zip(PARTS, composed_parts(params.scalars, held), strict=True)
    }


def constant_step_time(step_s: float, token_s: float = 0.0) -> StepTimeParams:
    """``step_s`` seconds a step and ``token_s`` for each scheduled token, whatever the model."""
    scalars = np.zeros(NUM_SCALARS)
    scalars[STEP], scalars[TOKEN], scalars[NUM_RANKS] = step_s, token_s, 1.0
    none = np.zeros(0)
    return StepTimeParams(scalars, 1, np.zeros(0, np.int64), none, none, none, no_tables())


def table_step_time(path: Path) -> StepTimeParams:
    """Measured steps answer.

    Args:
        path: a CSV file with the columns of ``tables.COLUMNS``.

    Raises:
        Problems: the file cannot be used; says why.
    """
    scalars, none = np.zeros(NUM_SCALARS), np.zeros(0)
    scalars[NUM_RANKS] = 1.0
    no_cap = np.zeros(0, np.int64)
    return StepTimeParams(scalars, 1, no_cap, none, none, none, read_tables(path))
