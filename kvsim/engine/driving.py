"""Replicas side by side, step after step, compiled, as long as nobody else has to be asked.

``advance`` does what the scheduler and the replica do for the plainest of engines: without a tier,
policies of one's own, priorities, pipelines, groups of states, or a ledger of misses. It plans
steps, admits who waits, ends steps, each at its time, and puts on a tape what others have to hear:
who was admitted, has a first token, is finished, and how full the pool is. Where more has to be
done than it knows, it stops, and the scheduler does that, in the same order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvsim.bundles import unbundle
from kvsim.cache.block_pool import (
    CACHED_BY_GROUP,
    FREE,
    FREE_CACHED,
    LOG_LENGTH,
    log_fills,
    stamp,
)
from kvsim.cache.content import Ints
from kvsim.cache.coordinator import (
    HIT,
    JUNCTION,
    TAKEN,
    Arrays,
    allocate_first,
    assemble,
    longest_hit,
    release,
)
from kvsim.engine.decoding import any_prefill, decode_horizon, decode_run, most_decode_blocks
from kvsim.engine.lanes import (
    END_TOKENS,
    HEAD,
    KNOWN,
    LANE_KIND,
    MODEL_LEN,
    MOST_RUNNING,
    NUM_PROMPT,
    NUM_RUNNING,
    NUM_SPANS,
    NUM_WAITING,
    OUTPUT_UID,
    ROOM,
    SEAT,
    SPARES_LONE,
    START,
    THRESHOLD,
    WATERMARK,
    WHOLE_PROMPT,
    LaneArrays,
)
from kvsim.engine.stepping import (
    BUDGET,
    COMPUTED,
    DEPTH,
    FINISHED,
    FORESEEN,
    GONE,
    IN_FLIGHT,
    LENGTH,
    MOST_TOKENS,
    NUM_DRAFTS,
    OLDEST,
    PLANS,
    SLOT,
    Batch,
    Floats,
    end_step,
    launch,
    schedule_running,
    step_duration,
)
from kvsim.jit import njit, njit_apart
from kvsim.times.step_time import StepTimeParams

# What a replica is about: it has nothing to do; it has again; it is between two steps; its oldest
# step in flight runs, until it is due; its requests decode, until it is due or somebody comes.
ASLEEP, WAKING, BETWEEN, ENDING, MEANWHILE = range(5)

# Rows of `Replicas.states`: what each is about; 1 where the scheduler has to do it; 1 where its log
# holds something that is on the tape.
PHASE, BY_HAND, LOGGED, STATE_ROWS = range(4)

# Rows of `Replicas.times`: when something is to be done; when the decodes began; when the next
# entry of the timeline is due, and what lies between two; when its last step ended; what they took.
DUE, BEGUN, ENTRY, INTERVAL, ENDED, BUSY, TIME_ROWS = range(7)

# Entries of `Replicas.meter`: rows on the tape; the replica whose scheduler has to go on, or -1;
# what it stops at: a finished request, a first token.
NUM_TOLD, WHO, STOPS_AT_END, STOPS_AT_FIRST, METER_SIZE = range(5)

# Kinds of rows of the tape, each with the replica behind it. Admitted: what the lookup answered. A
# step has ended: its place among those that ran, what became of the request, and whether it is the
# step's last such row. The state of the pool: free blocks, those of them with a key, and blocks
# with a key by group. Something stands in the log.
ADMITTED, OUTCOME, POOL, LOG = range(4)

NEVER = np.inf


class Replicas(NamedTuple):
    """All replicas, and the tape.

    Attributes:
        bundles: int64 [replicas, words], the arrays of each.
        states: int64 [`STATE_ROWS`, replicas].
        times: float64 [`TIME_ROWS`, replicas].
        tape: int64 [rows, columns].
        tape_s: float64 [rows], when.
        meter: int64 [`METER_SIZE`].
    """

    bundles: Ints
    states: Ints
    times: Floats
    tape: Ints
    tape_s: Floats
    meter: Ints


_unbundle = unbundle(LANE_KIND)


@njit
def _admit(
    arrays: Arrays,
    batch: Batch,
    lane: LaneArrays,
    all_of: Replicas,
    who: int,
    threshold: int,
    now_s: float,
) -> bool:
    """Let requests begin to run, as long as there is room; whether one found no blocks.

    No more are admitted than are known, at most `ROOM`.
    """
    core = assemble(arrays)
    meter, rules = lane.meter, lane.rules
    while meter[KNOWN] > 0 and batch.meter[BUDGET] > 0 and meter[NUM_RUNNING] < rules[MOST_RUNNING]:
        row = lane.waiting[meter[HEAD]]
        slot = row[SEAT]
        uids = lane.spans[0, row[START] : row[START] + row[NUM_SPANS]]
        ends = lane.spans[1, row[START] : row[START] + row[NUM_SPANS]]
        longest_hit(arrays, uids, ends)
        hit, junction = core.answer[HIT], core.answer[JUNCTION]
        num_new = row[NUM_PROMPT] - hit
        if 0 < threshold < num_new:
            num_new = threshold
        num_new = min(num_new, batch.meter[BUDGET])
        watermark = 0
        if rules[WATERMARK] > 0:
            for i in range(meter[NUM_RUNNING]):
                if batch.scheduled[i] > 0:
                    watermark = rules[WATERMARK]
        answer = allocate_first(
            arrays,
            slot,
            uids,
            ends,
            row[NUM_PROMPT],
            junction,
            num_new,
            hit,
            batch.settings[NUM_DRAFTS],
            rules[WHOLE_PROMPT] != 0,
            0,
            watermark,
        )
        if answer != TAKEN:
            return True
        index = meter[NUM_RUNNING]
        batch.slots[index] = slot
        batch.scheduled[index] = num_new
        batch.contexts[index] = hit
        batch.drafts[index] = 0
        batch.meter[BUDGET] -= num_new
        sequence = core.tables.sequences[slot]
        sequence.output_uid = row[OUTPUT_UID]
        sequence.end_tokens = row[END_TOKENS]
        told = all_of.meter[NUM_TOLD]
        all_of.tape[told, 0], all_of.tape[told, 1] = ADMITTED, who
        for i in range(len(core.answer)):
            all_of.tape[told, 2 + i] = core.answer[i]
        all_of.tape_s[told] = now_s
        all_of.meter[NUM_TOLD] += 1
        meter[NUM_RUNNING] += 1
        meter[NUM_WAITING] -= 1
        meter[KNOWN] -= 1
        meter[HEAD] = (meter[HEAD] + 1) & (ROOM - 1)
    return False


@njit_apart
def _tell_outcomes(
    arrays: Arrays, batch: Batch, lane: LaneArrays, all_of: Replicas, who: int, now_s: float
) -> int:
    """Tell who has a first token or is finished by the step that ended last; these leave.

    Returns:
        All outcomes together.
    """
    together = 0
    meter, tape = all_of.meter, all_of.tape
    first = meter[NUM_TOLD]
    flight = batch.flights[(batch.meter[OLDEST] - 1) % batch.settings[DEPTH]]
    for i in range(flight[LENGTH, 0]):
        outcome = batch.outcomes[i]
        if outcome == COMPUTED or (outcome & GONE) != 0:  # it was finished by the step before
            continue
        slot = flight[SLOT, i]
        place = 0
        while batch.slots[place] != slot:
            place += 1
        told = meter[NUM_TOLD]
        tape[told, 0], tape[told, 1], tape[told, 2] = OUTCOME, who, place
        tape[told, 3], tape[told, 4] = outcome, 0
        all_of.tape_s[told] = now_s
        meter[NUM_TOLD] += 1
        together |= outcome
        if (outcome & FINISHED) != 0:
            release(arrays, slot)
    if meter[NUM_TOLD] == first:
        return 0
    tape[meter[NUM_TOLD] - 1, 4] = 1
    left = 0
    for place in range(lane.meter[NUM_RUNNING]):
        stays = True
        for told in range(first, meter[NUM_TOLD]):
            if tape[told, 2] == place and (tape[told, 3] & FINISHED) != 0:
                stays = False
        if stays:
            batch.slots[left] = batch.slots[place]
            left += 1
    lane.meter[NUM_RUNNING] = left
    return together


@njit
def _tell_pool(arrays: Arrays, all_of: Replicas, who: int, now_s: float) -> None:
    """Tell how full the pool is, and when that is to be told next."""
    core = assemble(arrays)
    totals, told = core.pool.totals, all_of.meter[NUM_TOLD]
    row = all_of.tape[told]
    row[0], row[1] = POOL, who
    row[2] = totals[FREE]
    row[3] = totals[FREE_CACHED]
    for group in range(len(core.tables.groups)):
        row[4 + group] = totals[CACHED_BY_GROUP + group]
    all_of.tape_s[told] = now_s
    all_of.meter[NUM_TOLD] += 1
    interval_s = all_of.times[INTERVAL, who]
    all_of.times[ENTRY, who] = (now_s // interval_s + 1) * interval_s


@njit
def _may_lack_room(arrays: Arrays, batch: Batch, num_running: int) -> bool:
    """Whether somebody who runs could find no blocks in a step, and one had to be preempted."""
    core = assemble(arrays)
    most = most_decode_blocks(core, batch, num_running)
    for group in core.tables.groups:
        most += num_running + batch.settings[MOST_TOKENS] // group.block_size
    return num_running > 0 and core.pool.totals[FREE] < most


@njit_apart
def _plan(
    arrays: Arrays,
    params: StepTimeParams,
    batch: Batch,
    lane: LaneArrays,
    all_of: Replicas,
    who: int,
    now_s: float,
) -> int:
    """Plan a step, and put it in flight if it computes anything.

    Returns:
        How many requests compute something in it; -1 where the scheduler has to plan it.
    """
    meter, rules, settings = lane.meter, lane.rules, batch.settings
    num_running = meter[NUM_RUNNING]
    if meter[KNOWN] < min(meter[NUM_WAITING], rules[MOST_RUNNING] - num_running):
        return -1
    if _may_lack_room(arrays, batch, num_running):
        return -1
    threshold = rules[THRESHOLD]
    if rules[SPARES_LONE] != 0 and num_running + meter[NUM_WAITING] <= 1:
        threshold = 0
    batch.meter[BUDGET] = settings[MOST_TOKENS]
    batch.meter[PLANS] += 1
    batch.meter[FORESEEN] = 0
    schedule_running(arrays, batch, 0, num_running, threshold, rules[MODEL_LEN], False)
    blocked = _admit(arrays, batch, lane, all_of, who, threshold, now_s)
    if blocked and meter[NUM_RUNNING] == 0:
        batch.meter[PLANS] -= 1
        return -1  # it may never find blocks
    place = (batch.meter[OLDEST] + batch.meter[IN_FLIGHT]) % settings[DEPTH]
    num = launch(arrays, batch, meter[NUM_RUNNING])
    if num > 0:
        batch.seconds[place] = step_duration(params, batch, meter[NUM_RUNNING])
    return num


@njit
def _begin(
    arrays: Arrays,
    params: StepTimeParams,
    batch: Batch,
    lane: LaneArrays,
    all_of: Replicas,
    who: int,
    now_s: float,
) -> bool:
    """Plan steps until the oldest one runs, or see how far decodes go; False by the scheduler."""
    meter, rules, settings = lane.meter, lane.rules, batch.settings
    states, times = all_of.states, all_of.times
    while True:
        num_running, num_waiting = meter[NUM_RUNNING], meter[NUM_WAITING]
        if num_running == 0 and num_waiting == 0 and batch.meter[IN_FLIGHT] == 0:
            _tell_pool(arrays, all_of, who, now_s)
            states[PHASE, who], times[DUE, who] = ASLEEP, NEVER
            return True
        if (
            settings[NUM_DRAFTS] == 0
            and 0 < num_running <= settings[MOST_TOKENS]
            and (num_waiting == 0 or num_running >= rules[MOST_RUNNING])
            and not any_prefill(arrays, batch, num_running)
        ):
            until_s = max(times[ENTRY, who], now_s)
            end_s = decode_horizon(arrays, params, batch, num_running, now_s, until_s)
            if end_s > now_s:
                states[PHASE, who] = MEANWHILE
                times[BEGUN, who], times[DUE, who] = now_s, end_s
                return True
        num = 0
        if num_running > 0 or num_waiting > 0:
            num = _plan(arrays, params, batch, lane, all_of, who, now_s)
            if num < 0:
                return False
        if num > 0 and batch.meter[IN_FLIGHT] < settings[DEPTH]:
            stamp(assemble(arrays).pool.totals, int(now_s * 1e9))
            continue
        if batch.meter[IN_FLIGHT] == 0:
            return False
        seconds = batch.seconds[batch.meter[OLDEST]]
        times[BUSY, who] += seconds
        states[PHASE, who], times[DUE, who] = ENDING, now_s + seconds
        return True


@njit_apart
def advance(all_of: Replicas, until_s: float) -> float:
    """Let replicas do what is due before a time, in the order of times.

    Args:
        all_of: the replicas.
        until_s: what is due then or later is not done.

    Returns:
        When something is due next; what has happened stands on the tape. It stops earlier where
        ``meter`` says so, where the tape could become too short, and where a log fills up.
    """
    states, times, meter = all_of.states, all_of.times, all_of.meter
    meter[NUM_TOLD], meter[WHO] = 0, -1
    while True:
        who, now_s = int(np.int64(0)), NEVER  # of a literal all below would be compiled twice
        for i in range(times.shape[1]):
            if times[DUE, i] < now_s:
                who, now_s = i, times[DUE, i]
        if now_s >= until_s:
            return now_s
        arrays, params, batch, lane = _unbundle(all_of.bundles[who])
        if meter[NUM_TOLD] + ROOM + len(batch.slots) + 4 > len(all_of.tape):
            return now_s
        if states[BY_HAND, who] != 0:
            meter[WHO] = who
            return now_s
        totals = assemble(arrays).pool.totals
        phase, outcomes, has_ended = states[PHASE, who], 0, False
        if phase == WAKING:
            _tell_pool(arrays, all_of, who, now_s)
        elif phase == ENDING:
            has_ended = True
            if end_step(arrays, batch) > 0:
                outcomes = _tell_outcomes(arrays, batch, lane, all_of, who, now_s)
            stamp(totals, int(now_s * 1e9))
        elif phase == MEANWHILE:
            begun_s = times[BEGUN, who]
            end_s, num_outcomes = decode_run(
                arrays, params, batch, lane.meter[NUM_RUNNING], lane.rules[MODEL_LEN], begun_s,
                now_s,
            )  # fmt: skip
            times[BUSY, who] += end_s - begun_s
            times[BEGUN, who] = end_s
            has_ended = end_s >= now_s  # else its log has filled up on the way
            if num_outcomes > 0:
                outcomes = _tell_outcomes(arrays, batch, lane, all_of, who, now_s)
        if has_ended:
            states[PHASE, who], times[ENDED, who] = BETWEEN, now_s
            if now_s >= times[ENTRY, who]:
                _tell_pool(arrays, all_of, who, now_s)
        if len(totals) > LOG_LENGTH and totals[LOG_LENGTH] > 0 and states[LOGGED, who] == 0:
            states[LOGGED, who] = 1
            told = meter[NUM_TOLD]
            all_of.tape[told, 0], all_of.tape[told, 1] = LOG, who
            all_of.tape_s[told] = now_s
            meter[NUM_TOLD] += 1
        if (
            log_fills(totals)
            or ((outcomes & FINISHED) != 0 and meter[STOPS_AT_END] != 0)
            or (outcomes != 0 and meter[STOPS_AT_FIRST] != 0)
        ):
            return now_s
        if phase == MEANWHILE and not has_ended:
            continue
        if not _begin(arrays, params, batch, lane, all_of, who, now_s):
            states[PHASE, who] = BETWEEN
            meter[WHO] = who
            return now_s
