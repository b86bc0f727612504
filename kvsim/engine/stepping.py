"""The parts of a step that touch every running request, compiled.

A step is planned (blocks are taken for the running requests in order), put in flight, takes its
time, and is processed at its end: requests whose tokens are all computed get new ones. One step is
in flight at a time, or two with asynchronous scheduling: then a step is planned before the one
ahead of it has ended, with placeholders for the tokens that one will make. While all requests
decode and nobody can join, steps differ in nothing but their time, and ``decode_run`` takes them
one after another without coming back.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.cache.block_pool import FREE, NOTED, log_fills, stamp, tell_time
from kvsim.cache.content import Ints
from kvsim.cache.coordinator import (
    NOT_FIRST,
    NUM_ARRAYS,
    TAKEN,
    Arrays,
    allocate,
    assemble,
    cache_up_to,
    extend,
)
from kvsim.cache.ledger import has_room
from kvsim.cache.state_blocks import allocate_hybrid
from kvsim.cache.state_entry import cache_hybrid, next_chunk
from kvsim.cache.state_tables import begin_step, let_go_of_copies
from kvsim.jit import njit
from kvsim.times.step_time import StepTimeParams, step_seconds

Floats = npt.NDArray[np.float64]

# What became of a request at the end of a step: nothing to tell, or these bits. `GONE`: it has lost
# its blocks meanwhile, or is finished.
COMPUTED, FIRST_TOKEN, FINISHED, GONE = 0, 1, 2, 4

# Entries of `Batch.meter`: tokens left in the budget of the step being planned; steps and tokens so
# far; place of the oldest step in flight, and how many there are; the numbers of the step planned
# last and of the one processed last; plans so far, those that compute nothing included.
BUDGET, NUM_STEPS, NUM_TOKENS, OLDEST, IN_FLIGHT, PLANNED, PROCESSED, PLANS, METER_SIZE = range(9)

# Entries of `Batch.settings`: steps in flight at most; tokens of a step; draft tokens a request and
# step, and the key of their random numbers; tokens of a chunk of a prompt; 1 where steps overlap in
# planning; plans from one decode of a request to the next.
DEPTH, MOST_TOKENS, NUM_DRAFTS, DRAW_KEY, MOST_CHUNK, AHEAD, STAGGER = range(7)

# Rows of a step in flight: the slot of each request and the serial number of its stay there, tokens
# computed, how many of these are drafts, whether it makes a token, and how many drafts are accepted
# (-1: to be drawn). The first entry of the last row is how many requests there are.
SLOT, SERIAL, SCHEDULED, DRAFTS, MAKES, ACCEPTED, LENGTH, FLIGHT_ROWS = range(8)


class Batch(NamedTuple):
    """The running requests, in their order, and the steps in flight.

    Attributes:
        slots: int64, the slot of each in the cache's tables.
        scheduled: int64, tokens each computes in the step being planned; 0 where it has to wait.
        contexts: int64, tokens each had computed before it.
        drafts: int64, how many of its scheduled tokens are drafts.
        outcomes: int64, what became of each request of the step that was processed last.
        meter: int64 [`METER_SIZE`].
        settings: int64 [7].
        packed: int64 [2, requests], scratch: scheduled and contexts of those that compute.
        flights: int64 [steps in flight, `FLIGHT_ROWS`, requests].
        seconds: float64 [steps in flight], how long each takes.
        acceptance: float64 [drafts], the chance of each draft where those before it are accepted.
    """

    slots: Ints
    scheduled: Ints
    contexts: Ints
    drafts: Ints
    outcomes: Ints
    meter: Ints
    settings: Ints
    packed: Ints
    flights: Ints
    seconds: Floats
    acceptance: Floats


def make_batch(
    max_num_seqs: int,
    *,
    depth: int,
    ahead: bool,
    stages: int,
    max_num_batched_tokens: int,
    acceptance: tuple[float, ...],
    draw_key: int,
    most_chunk: int,
) -> Batch:
    """Room for ``max_num_seqs`` running requests.

    Args:
        max_num_seqs: requests.
        depth: steps in flight at most.
        ahead: steps are planned before those ahead of them have ended.
        stages: of a pipeline.
        max_num_batched_tokens: tokens of a step.
        acceptance: the chance of each draft token where those before it are accepted; empty for no
            drafts.
        draw_key: what the draws of accepted drafts depend on, below 2**63.
        most_chunk: tokens of a chunk of a prompt.
    """
    slots, scheduled, contexts, drafts, outcomes = np.zeros((5, max_num_seqs), dtype=np.int64)
    return Batch(
        slots,
        scheduled,
        contexts,
        drafts,
        outcomes,
        np.zeros(METER_SIZE, dtype=np.int64),
        np.array(
            [depth, max_num_batched_tokens, len(acceptance), draw_key, most_chunk, ahead, stages],
            dtype=np.int64,
        ),
        np.zeros((2, max_num_seqs), dtype=np.int64),
        np.zeros((depth, FLIGHT_ROWS, max_num_seqs), dtype=np.int64),
        np.zeros(depth),
        np.array(acceptance, dtype=np.float64),
    )


@njit
def schedule_running(
    arrays: Arrays,
    batch: Batch,
    start: int,
    num_running: int,
    threshold: int,
    max_model_len: int,
    defer_prefills: bool,
) -> int:
    """Schedule running requests in order, each as many tokens as it lacks and the budget allows.

    A request whose steps in flight must bring it to its end gets no further one.

    Args:
        arrays: the cache.
        batch: its ``scheduled``, ``contexts``, ``drafts`` and the budget are written.
        start: index of the first request to schedule.
        num_running: requests in the batch.
        threshold: most tokens of a chunk; 0 for no limit.
        max_model_len: tokens.
        defer_prefills: requests that lack more than new tokens have to wait.

    Returns:
        The index of the first request for which there was no room; ``num_running`` if none.
    """
    core = assemble(arrays)
    for i in range(start, num_running):
        sequence = core.tables.sequences[batch.slots[i]]
        batch.scheduled[i] = 0
        batch.drafts[i] = 0
        computed = sequence.num_computed
        batch.contexts[i] = computed
        placeholders = sequence.placeholders
        if placeholders > 0 and computed + 2 - placeholders >= sequence.end_tokens:
            continue
        if batch.meter[PLANS] < sequence.eligible:
            continue
        known = sequence.num_tokens + placeholders
        if defer_prefills and computed < known - 1:
            continue
        num_new = known + sequence.drafts - computed
        if 0 < threshold < num_new:
            num_new = threshold
        num_new = min(num_new, batch.meter[BUDGET])
        num_new = min(num_new, max_model_len - 1 - computed)
        if num_new <= 0:
            continue
        lookahead = batch.settings[NUM_DRAFTS]
        slot = batch.slots[i]
        if len(arrays) == NUM_ARRAYS:
            answer = allocate(arrays, slot, num_new, NOT_FIRST, lookahead, False, 0, 0)
        else:
            num_new = next_chunk(arrays, slot, num_new, batch.settings[MOST_CHUNK])
            if num_new <= 0:
                continue
            answer = allocate_hybrid(arrays, slot, num_new, NOT_FIRST, lookahead, False, 0, 0)
        if answer != TAKEN:
            return i
        batch.scheduled[i] = num_new
        batch.meter[BUDGET] -= num_new
        if sequence.drafts > 0:
            batch.drafts[i] = max(0, min(sequence.drafts, computed + num_new - known))
            sequence.drafts = 0
    return num_running


@njit
def launch(arrays: Arrays, batch: Batch, num_running: int) -> int:
    """Put the planned step in flight, if it computes anything.

    Returns:
        How many requests compute something in it.
    """
    core = assemble(arrays)
    overlapping = batch.settings[AHEAD] != 0
    place = (batch.meter[OLDEST] + batch.meter[IN_FLIGHT]) % batch.settings[DEPTH]
    flight = batch.flights[place]
    num = 0
    for i in range(num_running):
        sequence = core.tables.sequences[batch.slots[i]]
        scheduled = batch.scheduled[i]
        if scheduled == 0:
            continue
        sequence.in_flight += scheduled
        sequence.planned = batch.meter[PLANNED] + 1
        makes = sequence.num_computed >= sequence.num_tokens + sequence.placeholders
        flight[SLOT, num] = batch.slots[i]
        flight[SERIAL, num] = sequence.serial
        flight[SCHEDULED, num] = scheduled
        flight[DRAFTS, num] = batch.drafts[i]
        flight[MAKES, num] = makes
        flight[ACCEPTED, num] = -1
        num += 1
        if overlapping and makes:
            sequence.placeholders += 1 + batch.drafts[i]
            sequence.drafts = batch.settings[NUM_DRAFTS]
            if batch.settings[STAGGER] > 1:
                sequence.eligible = batch.meter[PLANS] + batch.settings[STAGGER]
    if num > 0:
        flight[LENGTH, 0] = num
        batch.meter[IN_FLIGHT] += 1
        batch.meter[PLANNED] += 1
    return num


@njit
def step_duration(params: StepTimeParams, batch: Batch, num_running: int) -> float:
    """Seconds of the step that was put in flight last; its tokens are counted."""
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
def _chance(key: int, uid: int, position: int) -> float:
    """A number from 0 to below 1 that depends on nothing but these (SplitMix64's finalizer)."""
    bits = np.uint64(key) ^ (np.uint64(uid) * np.uint64(0x9E3779B97F4A7C15))
    bits += np.uint64(position) * np.uint64(0xD1B54A32D192ED03)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = bits ^ (bits >> np.uint64(31))
    return float(bits >> np.uint64(11)) * 2.0**-53


@njit
def draw_accepted(batch: Batch, uid: int, position: int, num_drafts: int) -> int:
    """How many drafts of an answer are accepted, the first of them at a token position.

    The draw belongs to the answer and the position: how steps are cut does not move it.
    """
    accepted = 0
    while accepted < num_drafts and (
        _chance(batch.settings[DRAW_KEY], uid, position + accepted) < batch.acceptance[accepted]
    ):
        accepted += 1
    return accepted


@njit
def end_step(arrays: Arrays, batch: Batch) -> int:
    """Process the oldest step in flight: tokens for every request it completes.

    What became of each is in ``outcomes``, in the order of the step's requests.

    Returns:
        How many requests have an outcome other than ``COMPUTED``.
    """
    core = assemble(arrays)
    overlapping = batch.settings[AHEAD] != 0
    flight = batch.flights[batch.meter[OLDEST]]
    batch.meter[OLDEST] = (batch.meter[OLDEST] + 1) % batch.settings[DEPTH]
    batch.meter[IN_FLIGHT] -= 1
    batch.meter[PROCESSED] += 1
    num_outcomes = 0
    for i in range(flight[LENGTH, 0]):
        batch.outcomes[i] = COMPUTED
        slot = flight[SLOT, i]
        sequence = core.tables.sequences[slot]
        if sequence.serial != flight[SERIAL, i]:
            batch.outcomes[i] = GONE
            num_outcomes += 1
            continue
        sequence.in_flight -= flight[SCHEDULED, i]
        if flight[MAKES, i] == 0:
            continue
        before = sequence.num_tokens
        drafts = flight[DRAFTS, i]
        accepted = 0
        if drafts > 0:
            accepted = flight[ACCEPTED, i]
            if accepted < 0:
                accepted = draw_accepted(batch, sequence.output_uid, before, drafts)
            sequence.num_computed -= drafts - accepted
        outcome = FIRST_TOKEN if before == sequence.num_prompt else COMPUTED
        end = min(before + 1 + accepted, sequence.end_tokens)
        sequence.num_computed -= before + 1 + accepted - end  # accepted beyond the end
        extend(arrays, slot, sequence.output_uid, end)
        if overlapping:
            sequence.placeholders -= 1 + drafts
        else:
            sequence.drafts = batch.settings[NUM_DRAFTS]
        if core.rules[0].caching != 0 and (overlapping or drafts > 0):
            known = sequence.num_computed - sequence.placeholders
            if len(arrays) == NUM_ARRAYS:
                cache_up_to(arrays, slot, known)
            else:
                cache_hybrid(arrays, slot, known, sequence.num_computed)
        if end >= sequence.end_tokens:
            outcome |= FINISHED
        batch.outcomes[i] = outcome
        if outcome != COMPUTED:
            num_outcomes += 1
    return num_outcomes


@njit
def any_prefill(arrays: Arrays, batch: Batch, num_running: int) -> bool:
    """Whether a running request has more than new tokens to compute, or no output yet."""
    core = assemble(arrays)
    for i in range(num_running):
        sequence = core.tables.sequences[batch.slots[i]]
        behind = sequence.num_computed + 1 < sequence.num_tokens + sequence.placeholders
        if behind or sequence.num_tokens == sequence.num_prompt:
            return True
    return False


@njit
def decode_horizon(
    arrays: Arrays,
    params: StepTimeParams,
    batch: Batch,
    num_running: int,
    now_s: float,
    limit_s: float,
) -> float:
    """When a ``decode_run`` from now on would end if nobody came; nothing is changed.

    It ends at the first finished request, at the first end of a step at or after ``limit_s``, or
    where room could run short. Without draft tokens: how many are accepted is seen when steps are
    taken.

    Returns:
        The time, the very one at which that step will end; ``now_s`` where no step can be taken.
    """
    core, settings, meter = assemble(arrays), batch.settings, batch.meter
    num_steps = np.int64(1) << 40
    for i in range(num_running):
        sequence = core.tables.sequences[batch.slots[i]]
        num_steps = min(num_steps, sequence.end_tokens - sequence.num_tokens)
        batch.packed[0, i] = 1
        batch.packed[1, i] = sequence.num_computed
    most_blocks = 0  # as `decode_run` wants them free
    for group in core.tables.groups:
        most_blocks += num_running * (1 if group.states == 0 else 3 + group.num_drafts)
    free = core.pool.totals[FREE]
    ahead = meter[IN_FLIGHT]
    for step in range(num_steps):
        # Before a step runs, so many are planned that all that may be are in flight behind it.
        planned = step + settings[DEPTH] - ahead - 1
        taken = 0
        for group in core.tables.groups:
            blocks = planned // group.block_size + min(planned, 1)
            taken += num_running * (blocks if group.states == 0 else 3 * blocks)
        if free - taken < most_blocks:
            return now_s
        if step < ahead:
            now_s += batch.seconds[(meter[OLDEST] + step) % settings[DEPTH]]
        else:
            now_s += step_seconds(params, batch.packed[0], batch.packed[1], num_running)
            for i in range(num_running):
                batch.packed[1, i] += 1
        if now_s >= limit_s:
            break
    return now_s


@njit
def decode_run(
    arrays: Arrays,
    params: StepTimeParams,
    batch: Batch,
    num_running: int,
    max_model_len: int,
    now_s: float,
    until_s: float,
) -> tuple[float, int]:
    """Take decode steps until time ``until_s``, a request is finished, or room could run short.

    All running requests decode, within the budget, and nobody can be admitted.

    Returns:
        The time at which the last step ends, which is ``now_s`` where not one was taken, and how
        many outcomes it has; what each is stands in ``outcomes``.
    """
    core = assemble(arrays)
    settings, meter = batch.settings, batch.meter
    # New tokens, and slots for drafts, which the step after a prompt takes as well.
    growth = 1 + 2 * settings[NUM_DRAFTS]
    most_blocks = 0
    for group in core.tables.groups:
        most_blocks += num_running * -(-growth // group.block_size)
        if group.states != 0:  # a copy and a checkpoint besides
            most_blocks += num_running * (2 + group.num_drafts)
    num_outcomes = 0
    noted = core.pool.totals[NOTED]
    while num_outcomes == 0:
        while meter[IN_FLIGHT] < settings[DEPTH]:
            if core.pool.totals[FREE] < most_blocks:
                return now_s, 0
            if noted != 0 and not has_room(noted):
                return now_s, 0
            meter[BUDGET] = settings[MOST_TOKENS]
            if len(arrays) > NUM_ARRAYS:
                begin_step(core.states)
            schedule_running(arrays, batch, 0, num_running, 0, max_model_len, False)
            if len(arrays) > NUM_ARRAYS:
                let_go_of_copies(core.pool, core.states, core.tables.groups)
            place = (meter[OLDEST] + meter[IN_FLIGHT]) % settings[DEPTH]
            if launch(arrays, batch, num_running) == 0:
                break
            batch.seconds[place] = step_duration(params, batch, num_running)
        if meter[IN_FLIGHT] == 0:
            return now_s, 0
        now_s += batch.seconds[meter[OLDEST]]
        num_outcomes = end_step(arrays, batch)
        stamp(core.pool.totals, int(now_s * 1e9))
        tell_time(core.pool, now_s)
        if now_s >= until_s or log_fills(core.pool.totals):
            break
    return now_s, num_outcomes
