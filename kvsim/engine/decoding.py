"""Runs of decode steps, compiled: while all requests decode and nobody can join.

Such steps differ in little but their time. ``decode_run`` takes them one after another without
coming back, ``decode_horizon`` says when it would come back. Most steps change nothing of most
sequences but their counts; where that is so, only those are looked at for which a block becomes
full, is needed, or is left by a window.
"""

from __future__ import annotations

import numpy as np

from kvsim.cache.block_pool import (
    FREE,
    NOTED,
    ORDERED,
    RETAINED,
    log_fills,
    stamp,
    tell_time,
)
from kvsim.cache.coordinator import (
    NOT_FIRST,
    NUM_ARRAYS,
    Arrays,
    Core,
    allocate,
    assemble,
    cache_up_to,
    extend,
)
from kvsim.cache.ledger import has_room
from kvsim.cache.state_tables import begin_step, let_go_of_copies
from kvsim.engine.stepping import (
    AHEAD,
    BUDGET,
    DEPTH,
    DRAFTS,
    ENDS_S,
    FORESEEN,
    FORESEEN_MAX,
    IN_FLIGHT,
    LENGTH,
    MAKES,
    MOST_TOKENS,
    NUM_DRAFTS,
    NUM_STEPS,
    NUM_TOKENS,
    OLDEST,
    PLANNED,
    PROCESSED,
    SCHEDULED,
    SERIAL,
    SLOT,
    STAGGER,
    TAKES_S,
    Batch,
    end_step,
    launch,
    schedule_running,
    step_duration,
)
from kvsim.jit import njit, njit_apart
from kvsim.times.step_time import StepTimeParams, step_seconds

# Rows of `Batch.due`: which of the steps of a run is the first whose plan changes more of a request
# than its counts, and the first whose end does; its computed and its known tokens before the run.
PLAN, END, COMPUTED_BEFORE, KNOWN_BEFORE = range(4)

_WORTH_STEPS = 2
"""Fewer steps than these are not worth preparing a run for."""


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
def most_decode_blocks(core: Core, batch: Batch, num_running: int) -> int:
    """Blocks that a step of decodes can take at most."""
    # New tokens, and slots for drafts, which the step after a prompt takes as well.
    growth = 1 + 2 * batch.settings[NUM_DRAFTS]
    most = 0
    for group in core.tables.groups:
        most += num_running * -(-growth // group.block_size)
        if group.states != 0:  # a copy and a checkpoint besides
            most += num_running * (2 + group.num_drafts)
    return most


@njit_apart
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
    taken. What is foreseen stands in ``batch.foreseen``.

    Returns:
        The time, the very one at which that step will end; ``now_s`` where no step can be taken.
    """
    core = assemble(arrays)
    settings, meter, foreseen = batch.settings, batch.meter, batch.foreseen
    meter[FORESEEN] = 0
    outside = params.tables.outside
    answered, beyond = outside[0], outside[1]
    num_steps = np.int64(FORESEEN_MAX)
    for i in range(num_running):
        sequence = core.tables.sequences[batch.slots[i]]
        num_steps = min(num_steps, sequence.end_tokens - sequence.num_tokens)
        batch.packed[0, i] = 1
        batch.packed[1, i] = sequence.num_computed
    most_blocks = most_decode_blocks(core, batch, num_running)
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
            break
        if step < ahead:
            seconds = batch.seconds[(meter[OLDEST] + step) % settings[DEPTH]]
        else:
            seconds = step_seconds(params, batch.packed[0], batch.packed[1], num_running)
            for i in range(num_running):
                batch.packed[1, i] += 1
        now_s += seconds
        foreseen[ENDS_S, step] = now_s
        foreseen[TAKES_S, step] = seconds
        meter[FORESEEN] = step + 1
        if now_s >= limit_s:
            break
    outside[0], outside[1] = answered, beyond  # who takes a step has it counted
    return now_s


@njit_apart
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

    All running requests decode, within the budget, and nobody can be admitted. What was foreseen
    since the last step holds.

    Returns:
        The time at which the last step ends, which is ``now_s`` where not one was taken, and how
        many outcomes it has; what each is stands in ``outcomes``.
    """
    core = assemble(arrays)
    settings, meter = batch.settings, batch.meter
    most_blocks = most_decode_blocks(core, batch, num_running)
    num_outcomes = 0
    noted = core.pool.totals[NOTED]
    step = meter[IN_FLIGHT]  # number of the one planned next, as it is foreseen
    while num_outcomes == 0:
        if len(arrays) == NUM_ARRAYS:
            num_steps = _alike(core, batch, num_running)
            if num_steps > _WORTH_STEPS:
                now_s, taken = _glide(
                    arrays,
                    params,
                    batch,
                    num_running,
                    most_blocks,
                    num_steps,
                    step,
                    now_s,
                    until_s,
                )
                step += taken
                if taken > 0 and (now_s >= until_s or log_fills(core.pool.totals)):
                    break
        while meter[IN_FLIGHT] < settings[DEPTH]:
            if core.pool.totals[FREE] < most_blocks:
                meter[FORESEEN] = 0
                return now_s, 0
            if noted != 0 and not has_room(noted):
                meter[FORESEEN] = 0
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
            step += 1
        if meter[IN_FLIGHT] == 0:
            break
        now_s += batch.seconds[meter[OLDEST]]
        num_outcomes = end_step(arrays, batch)
        stamp(core.pool.totals, int(now_s * 1e9))
        tell_time(core.pool, now_s)
        if now_s >= until_s or log_fills(core.pool.totals):
            break
    meter[FORESEEN] = 0
    return now_s, num_outcomes


@njit
def _alike(core: Core, batch: Batch, num_running: int) -> int:
    """How many steps take a token of every running request and end none; 0 if that is not known.

    The steps in flight have to be such steps already, and nobody may go by the time of a step.
    """
    settings, meter, totals = batch.settings, batch.meter, core.pool.totals
    depth = settings[DEPTH]
    if totals[ORDERED] != 0 or totals[RETAINED] != 0 or totals[NOTED] != 0:
        return 0
    if settings[NUM_DRAFTS] != 0 or settings[STAGGER] > 1 or meter[IN_FLIGHT] != depth - 1:
        return 0
    num_steps = np.int64(1) << 40
    for i in range(num_running):
        sequence = core.tables.sequences[batch.slots[i]]
        num_steps = min(num_steps, sequence.end_tokens - sequence.num_tokens - depth - 1)
    if num_steps <= _WORTH_STEPS:
        return 0
    for ahead in range(meter[IN_FLIGHT]):
        flight = batch.flights[(meter[OLDEST] + ahead) % depth]
        if flight[LENGTH, 0] != num_running:
            return 0
        for i in range(num_running):
            slot = batch.slots[i]
            if (
                flight[SLOT, i] != slot
                or flight[SERIAL, i] != core.tables.sequences[slot].serial
                or flight[SCHEDULED, i] != 1
                or flight[DRAFTS, i] != 0
                or flight[MAKES, i] != 1
            ):
                return 0
    return int(num_steps)


@njit
def _next_plan(core: Core, batch: Batch, i: int) -> int:
    """The first step of the run whose plan takes, enters or gives back a block of a request."""
    rules = core.rules[0]
    slot = batch.slots[i]
    sequence = core.tables.sequences[slot]
    computed, known = batch.due[COMPUTED_BEFORE, i], batch.due[KNOWN_BEFORE, i]
    step = np.int64(1) << 40
    for group in range(len(core.tables.groups)):
        row, table = core.tables.groups[group], core.tables.tables[slot, group]
        size, window = row.block_size, row.sliding_window
        step = min(step, table.length * size - computed)
        if window != 0:
            left = (table.first + 1) * size  # tokens that are no longer attended to
            if row.chunked != 0:
                left = -(-left // window) * window
            else:
                left += window - 1
            step = min(step, left + sequence.in_flight - computed)
    if rules.caching != 0:
        entered = min(computed + 1, known - rules.key_lookahead)
        step = min(step, (sequence.num_entered + 1) * rules.entry_unit - entered)
    return int(step)


@njit
def _next_end(core: Core, batch: Batch, i: int) -> int:
    """The first step of the run whose end enters a block of a request."""
    rules = core.rules[0]
    if rules.caching == 0 or batch.settings[AHEAD] == 0:
        return 1 << 40
    sequence = core.tables.sequences[batch.slots[i]]
    computed = batch.due[COMPUTED_BEFORE, i] + 1 - sequence.placeholders
    known = batch.due[KNOWN_BEFORE, i] + 1 - rules.key_lookahead
    return (sequence.num_entered + 1) * rules.entry_unit - min(computed, known)  # type: ignore[no-any-return]


@njit_apart
def _take_token(arrays: Arrays, batch: Batch, i: int, num_taken: int) -> None:
    """A request of a run has taken so many tokens; let it have room for one more."""
    _catch_up(arrays, assemble(arrays), batch, i, num_taken)
    allocate(arrays, batch.slots[i], 1, NOT_FIRST, 0, False, 0, 0)


@njit_apart
def _enter(arrays: Arrays, batch: Batch, i: int, num_taken: int) -> None:
    """A request of a run has taken so many tokens; its full blocks are entered."""
    core = assemble(arrays)
    _catch_up(arrays, core, batch, i, num_taken)
    sequence = core.tables.sequences[batch.slots[i]]
    cache_up_to(arrays, batch.slots[i], sequence.num_computed - sequence.placeholders)


@njit_apart
def _decode_seconds(params: StepTimeParams, batch: Batch, num_running: int, taken: int) -> float:
    """Seconds of a step of a run in which all have taken so many tokens before."""
    for i in range(num_running):
        batch.packed[0, i] = 1
        batch.packed[1, i] = batch.due[COMPUTED_BEFORE, i] + taken
    return step_seconds(params, batch.packed[0], batch.packed[1], num_running)


@njit
def _catch_up(arrays: Arrays, core: Core, batch: Batch, i: int, num_computed: int) -> None:
    """Write how far a request has come after so many tokens of the run, and as many known ones."""
    slot = batch.slots[i]
    sequence = core.tables.sequences[slot]
    sequence.num_computed = batch.due[COMPUTED_BEFORE, i] + num_computed
    known = batch.due[KNOWN_BEFORE, i] + num_computed
    if known > sequence.num_tokens:
        extend(arrays, slot, sequence.output_uid, known)


@njit
def _glide(
    arrays: Arrays,
    params: StepTimeParams,
    batch: Batch,
    num_running: int,
    most_blocks: int,
    num_steps: int,
    number: int,
    now_s: float,
    until_s: float,
) -> tuple[float, int]:
    """Take steps that are ``_alike``, looking only at requests for which something happens.

    Args:
        arrays: the cache.
        params: what a step's time depends on.
        batch: with such steps in flight.
        num_running: requests.
        most_blocks: that a step can take.
        num_steps: most steps.
        number: of the first one to be planned, as it is foreseen.
        now_s: when the oldest in flight begins.
        until_s: the first that ends then or later is the last.

    Returns:
        When the last step ends, and how many have ended.
    """
    core = assemble(arrays)
    settings, meter, due = batch.settings, batch.meter, batch.due
    depth, totals = settings[DEPTH], core.pool.totals
    counts_steps = params.tables.decode_batch.size > 0
    for i in range(num_running):
        sequence = core.tables.sequences[batch.slots[i]]
        due[COMPUTED_BEFORE, i] = sequence.num_computed
        due[KNOWN_BEFORE, i] = sequence.num_tokens
        due[PLAN, i] = _next_plan(core, batch, i)
        due[END, i] = _next_end(core, batch, i)
    if depth > 1:
        for place in range(depth):
            if place != meter[OLDEST]:
                for row in range(LENGTH):
                    for i in range(num_running):
                        batch.flights[place, row, i] = batch.flights[meter[OLDEST], row, i]
                batch.flights[place, LENGTH, 0] = num_running
    taken = int(np.int64(0))  # of a literal what takes it would be compiled twice
    while taken < num_steps and totals[FREE] >= most_blocks:
        for i in range(num_running):
            if due[PLAN, i] <= taken:
                _take_token(arrays, batch, i, taken)
                due[PLAN, i] = _next_plan(core, batch, i)
                due[END, i] = _next_end(core, batch, i)
        if number + taken < meter[FORESEEN] and not counts_steps:
            seconds = batch.foreseen[TAKES_S, number + taken]
        else:
            seconds = _decode_seconds(params, batch, num_running, taken)
        batch.seconds[(meter[OLDEST] + meter[IN_FLIGHT]) % depth] = seconds
        now_s += batch.seconds[meter[OLDEST]]
        meter[OLDEST] = (meter[OLDEST] + 1) % depth
        taken += 1
        for i in range(num_running):
            if due[END, i] < taken:
                _enter(arrays, batch, i, taken)
                due[PLAN, i] = _next_plan(core, batch, i)
                due[END, i] = _next_end(core, batch, i)
        stamp(totals, int(now_s * 1e9))
        if now_s >= until_s or log_fills(totals):
            break
    meter[PLANNED] += taken
    meter[PROCESSED] += taken
    meter[NUM_STEPS] += taken
    meter[NUM_TOKENS] += taken * num_running
    for i in range(num_running if taken > 0 else 0):
        _catch_up(arrays, core, batch, i, taken)
        core.tables.sequences[batch.slots[i]].planned = meter[PLANNED]
        batch.scheduled[i] = 1
        batch.drafts[i] = 0
    return now_s, taken
