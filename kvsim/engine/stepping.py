"""The parts of a step that touch every running request, compiled.

A step allocates for the running requests in order, takes its time, and gives every request whose
tokens are all computed one more. While all of them decode and nobody can join, steps differ in
nothing but their time, and ``decode_run`` takes them one after another without coming back.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvsim.cache.block_pool import FREE
from kvsim.cache.content import Ints
from kvsim.cache.coordinator import NOT_FIRST, TAKEN, Arrays, allocate, assemble, extend
from kvsim.jit import njit
from kvsim.times.step_time import StepTimeParams, step_seconds

# What a request did at the end of a step: nothing to tell, or these bits.
COMPUTED, FIRST_TOKEN, FINISHED = 0, 1, 2

# Entries of `Batch.meter`.
BUDGET, NUM_STEPS, NUM_TOKENS = 0, 1, 2


class Batch(NamedTuple):
    """The running requests, in their order.

    Attributes:
        slots: int64, the slot of each in the cache's tables.
        scheduled: int64, tokens each computes in this step; 0 where it has to wait.
        contexts: int64, tokens each had computed before the step.
        outcomes: int64, what each did at the end of the step.
        meter: int64 [3]: tokens left in the step's budget; steps and tokens so far.
        packed: int64 [2, requests], scratch: scheduled and contexts of those that compute.
    """

    slots: Ints
    scheduled: Ints
    contexts: Ints
    outcomes: Ints
    meter: Ints
    packed: Ints


def make_batch(max_num_seqs: int) -> Batch:
    """Room for ``max_num_seqs`` running requests."""
    slots, scheduled, contexts, outcomes = np.zeros((4, max_num_seqs), dtype=np.int64)
    packed = np.zeros((2, max_num_seqs), dtype=np.int64)
    return Batch(slots, scheduled, contexts, outcomes, np.zeros(3, dtype=np.int64), packed)


@njit
def schedule_running(
    arrays: Arrays, batch: Batch, start: int, num_running: int, threshold: int, max_model_len: int
) -> int:
    """Schedule running requests in order, each as many tokens as it lacks and the budget allows.

    Args:
        arrays: the cache.
        batch: its ``scheduled``, ``contexts`` and the budget are written.
        start: index of the first request to schedule.
        num_running: requests in the batch.
        threshold: most tokens of a chunk; 0 for no limit.
        max_model_len: tokens.

    Returns:
        The index of the first request for which there was no room; ``num_running`` if none.
    """
    core = assemble(arrays)
    for i in range(start, num_running):
        sequence = core.tables.sequences[batch.slots[i]]
        num_new = sequence.num_tokens - sequence.num_computed
        if 0 < threshold < num_new:
            num_new = threshold
        num_new = min(num_new, batch.meter[BUDGET])
        num_new = min(num_new, max_model_len - 1 - sequence.num_computed)
        batch.scheduled[i] = 0
        batch.contexts[i] = sequence.num_computed
        if num_new <= 0:
            continue
        if allocate(arrays, batch.slots[i], num_new, NOT_FIRST, 0, False, 0) != TAKEN:
            return i
        batch.scheduled[i] = num_new
        batch.meter[BUDGET] -= num_new
    return num_running


@njit
def step_duration(params: StepTimeParams, batch: Batch, num_running: int) -> float:
    """Seconds of the step that was scheduled; its tokens are counted."""
    num = 0
    for i in range(num_running):
        if batch.scheduled[i] > 0:
            batch.packed[0, num] = batch.scheduled[i]
            batch.packed[1, num] = batch.contexts[i]
            batch.meter[NUM_TOKENS] += batch.scheduled[i]
            num += 1
    if num > 0:
        batch.meter[NUM_STEPS] += 1
    return step_seconds(params, batch.packed[0], batch.packed[1], num)


@njit
def end_step(arrays: Arrays, batch: Batch, num_running: int) -> int:
    """A token for every request whose tokens are all computed; what each did in ``outcomes``.

    Returns:
        How many requests have an outcome other than ``COMPUTED``.
    """
    core = assemble(arrays)
    num_outcomes = 0
    for i in range(num_running):
        batch.outcomes[i] = COMPUTED
        slot = batch.slots[i]
        sequence = core.tables.sequences[slot]
        if batch.scheduled[i] == 0 or sequence.num_computed < sequence.num_tokens:
            continue
        outcome = FIRST_TOKEN if sequence.num_tokens == sequence.num_prompt else COMPUTED
        extend(arrays, slot, sequence.output_uid, sequence.num_tokens + 1)
        if sequence.num_tokens >= sequence.end_tokens:
            outcome |= FINISHED
        batch.outcomes[i] = outcome
        if outcome != COMPUTED:
            num_outcomes += 1
    return num_outcomes


@njit
def any_prefill(arrays: Arrays, batch: Batch, num_running: int) -> bool:
    """Whether a running request has more than its latest token to compute, or no output yet."""
    core = assemble(arrays)
    for i in range(num_running):
        sequence = core.tables.sequences[batch.slots[i]]
        behind = sequence.num_computed + 1 < sequence.num_tokens
        if behind or sequence.num_tokens == sequence.num_prompt:
            return True
    return False


@njit
def decode_run(
    arrays: Arrays,
    params: StepTimeParams,
    batch: Batch,
    num_running: int,
    now_s: float,
    until_s: float,
) -> tuple[float, int]:
    """Take decode steps until time ``until_s``, a request is finished, or room could run short.

    All running requests decode, one token each a step, and nobody can be admitted.

    Returns:
        The time at which the last step ends, which is ``now_s`` where not one was taken, and how
        many requests it finished; what each did is in ``outcomes``.
    """
    core = assemble(arrays)
    num_finished = 0
    # A token takes at most one block of every group.
    most_blocks = num_running * len(core.tables.groups)
    while num_finished == 0 and core.pool.totals[FREE] >= most_blocks:
        for i in range(num_running):
            batch.scheduled[i] = 1
            batch.contexts[i] = core.tables.sequences[batch.slots[i]].num_computed
            allocate(arrays, batch.slots[i], 1, NOT_FIRST, 0, False, 0)
        now_s += step_duration(params, batch, num_running)
        num_finished = end_step(arrays, batch, num_running)
        if now_s >= until_s:
            break
    return now_s, num_finished
