"""A replica's steps one after another, compiled, as long as nobody else has to be asked.

``drive`` does what the scheduler does for the plainest of engines: without a tier, policies of
one's own, priorities, pipelines, groups of states, or a ledger of misses. It plans steps, admits
who waits, ends steps, and comes back where something has to wait for the clock, where a request
has its first token or is finished, and wherever more has to be done than it knows: the scheduler
does that then, in the same order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvsim.bundles import Bundle, typeof, unbundle
from kvsim.cache.block_pool import FREE, LOG_LENGTH, log_fills, stamp
from kvsim.cache.config import CacheConfig
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
from kvsim.cache.manager import Hit, KVCache
from kvsim.cache.spec import FULL, GroupSpec
from kvsim.engine.decoding import any_prefill, decode_horizon, decode_run, most_decode_blocks
from kvsim.engine.jobs import Job, SchedulerConfig
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
    batch_for,
    end_step,
    launch,
    schedule_running,
    step_duration,
)
from kvsim.engine.waiting import WaitingQueue
from kvsim.jit import njit, njit_apart
from kvsim.times.step_time import StepTimeParams, constant_step_time

# Why `drive` comes back: there is nothing to do; the scheduler has to plan the next step; a step
# has ended, and its outcomes are to be told or it is time to look; a step is planned, and its log
# is to be read before another is; the oldest step in flight runs until the time given; decodes run
# until then unless somebody comes.
IDLE, PLAN, ENDED, LOOK, STEP, HORIZON = range(6)

# Where `drive` begins: between two steps; at the end of the oldest step in flight; at the start of
# decodes that have run meanwhile.
BETWEEN, ENDING, MEANWHILE = range(3)

# Rows of `LaneArrays.waiting`: the slot that a request will have, tokens of its prompt, uid of its
# answer, its length at the end, and where its spans are.
SEAT, NUM_PROMPT, OUTPUT_UID, END_TOKENS, START, NUM_SPANS, WAITING_ROWS = range(7)

# Entries of `LaneArrays.meter`: place of the first that waits, how many are known, how many wait in
# all, how many run; admissions and outcomes since the call.
HEAD, KNOWN, NUM_WAITING, NUM_RUNNING, NUM_ADMITTED, NUM_OUTCOMES, METER_SIZE = range(7)

# Entries of `LaneArrays.rules`: longest chunk of a prompt, and whether one alone is spared that;
# longest sequence; requests that run at once; whether a prompt has to fit whole; blocks left free.
THRESHOLD, SPARES_LONE, MODEL_LEN, MOST_RUNNING, WHOLE_PROMPT, WATERMARK, RULES_SIZE = range(7)

# Rows of `LaneArrays.outcomes`.
PLACE, OUTCOME = range(2)

_ROOM = 64
"""Waiting requests that are known at once; a power of two."""
_SPANS = 1 << 12


class LaneArrays(NamedTuple):
    """Who waits, and what has been done, for compiled code.

    Attributes:
        waiting: int64 [`WAITING_ROWS`, `_ROOM`], a ring.
        spans: int64 [2, spans]: uids and ends of the prompts of those.
        meter: int64 [`METER_SIZE`].
        rules: int64 [`RULES_SIZE`].
        admitted: int64 [`_ROOM`, 2 + groups], what the lookup of each admitted request answered.
        admitted_s: float64 [`_ROOM`], when.
        outcomes: int64 [2, requests]: place among the running before the step ended, and what
            became of the request.
        busy_s: float64 [1], what steps took.
    """

    waiting: Ints
    spans: Ints
    meter: Ints
    rules: Ints
    admitted: Ints
    admitted_s: Floats
    outcomes: Ints
    busy_s: Floats


@njit_apart
def _admit(arrays: Arrays, batch: Batch, lane: LaneArrays, threshold: int, now_s: float) -> bool:
    """Let requests begin to run, as long as there is room; whether one found no blocks.

    No more are admitted in a call of ``drive`` than were known when it began, at most `_ROOM`.
    """
    core = assemble(arrays)
    meter, rules = lane.meter, lane.rules
    room = lane.waiting.shape[1]
    while meter[KNOWN] > 0 and batch.meter[BUDGET] > 0 and meter[NUM_RUNNING] < rules[MOST_RUNNING]:
        row = lane.waiting[:, meter[HEAD]]
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
        told = meter[NUM_ADMITTED]
        for i in range(len(core.answer)):
            lane.admitted[told, i] = core.answer[i]
        lane.admitted_s[told] = now_s
        meter[NUM_ADMITTED] += 1
        meter[NUM_RUNNING] += 1
        meter[NUM_WAITING] -= 1
        meter[KNOWN] -= 1
        meter[HEAD] = (meter[HEAD] + 1) & (room - 1)
    return False


@njit_apart
def _note_outcomes(arrays: Arrays, batch: Batch, lane: LaneArrays) -> None:
    """Who has a first token or is finished by the step that ended last; these leave."""
    num = 0
    flight = batch.flights[(batch.meter[OLDEST] - 1) % batch.settings[DEPTH]]
    num_running = lane.meter[NUM_RUNNING]
    for i in range(flight[LENGTH, 0]):
        outcome = batch.outcomes[i]
        if outcome == COMPUTED or (outcome & GONE) != 0:  # it was finished by the step before
            continue
        slot = flight[SLOT, i]
        place = 0
        while batch.slots[place] != slot:
            place += 1
        lane.outcomes[PLACE, num] = place
        lane.outcomes[OUTCOME, num] = outcome
        num += 1
        if (outcome & FINISHED) != 0:
            release(arrays, slot)
    left = 0
    for place in range(num_running):
        has_left = False
        for i in range(num):
            if lane.outcomes[PLACE, i] == place and (lane.outcomes[OUTCOME, i] & FINISHED) != 0:
                has_left = True
        if not has_left:
            batch.slots[left] = batch.slots[place]
            left += 1
    lane.meter[NUM_RUNNING] = left
    lane.meter[NUM_OUTCOMES] = num


@njit
def _is_logged(totals: Ints) -> bool:
    """Whether there is a log, and something in it."""
    return len(totals) > LOG_LENGTH and totals[LOG_LENGTH] > 0


@njit
def _may_lack_room(arrays: Arrays, batch: Batch, num_running: int) -> bool:
    """Whether somebody who runs could find no blocks in a step, and one had to be preempted."""
    core = assemble(arrays)
    most = most_decode_blocks(core, batch, num_running)
    for group in core.tables.groups:
        most += num_running + batch.settings[MOST_TOKENS] // group.block_size
    return num_running > 0 and core.pool.totals[FREE] < most


@njit
def _plan(
    arrays: Arrays, params: StepTimeParams, batch: Batch, lane: LaneArrays, now_s: float
) -> int:
    """Plan a step, and put it in flight if it computes anything.

    Returns:
        How many requests compute something in it; -1 where the scheduler has to plan it.
    """
    meter, rules, settings = lane.meter, lane.rules, batch.settings
    num_running = meter[NUM_RUNNING]
    joining = min(meter[NUM_WAITING], rules[MOST_RUNNING] - num_running)
    if meter[KNOWN] < joining:
        return -1
    if _may_lack_room(arrays, batch, num_running):
        return -1
    threshold = rules[THRESHOLD]
    if rules[SPARES_LONE] != 0 and num_running + meter[NUM_WAITING] <= 1:
        threshold = 0
    batch.meter[BUDGET] = settings[MOST_TOKENS]
    batch.meter[PLANS] += 1
    schedule_running(arrays, batch, 0, num_running, threshold, rules[MODEL_LEN], False)
    if _admit(arrays, batch, lane, threshold, now_s) and meter[NUM_RUNNING] == 0:
        batch.meter[PLANS] -= 1
        return -1  # it may never find blocks
    place = (batch.meter[OLDEST] + batch.meter[IN_FLIGHT]) % settings[DEPTH]
    num = launch(arrays, batch, meter[NUM_RUNNING])
    if num > 0:
        batch.seconds[place] = step_duration(params, batch, meter[NUM_RUNNING])
    return num


def _make_lane(config: SchedulerConfig, num_answers: int, *, spares_lone: bool) -> LaneArrays:
    """Nobody waits; a lookup writes so many answers."""
    rules = np.zeros(RULES_SIZE, dtype=np.int64)
    rules[THRESHOLD] = config.long_prefill_token_threshold
    rules[SPARES_LONE] = spares_lone
    rules[MODEL_LEN] = config.max_model_len
    rules[MOST_RUNNING] = config.most_running
    rules[WHOLE_PROMPT] = config.reserve_whole_prompt
    rules[WATERMARK] = config.watermark_blocks
    return LaneArrays(
        np.zeros((WAITING_ROWS, _ROOM), dtype=np.int64),
        np.zeros((2, _SPANS), dtype=np.int64),
        np.zeros(METER_SIZE, dtype=np.int64),
        rules,
        np.zeros((_ROOM, num_answers), dtype=np.int64),
        np.zeros(_ROOM),
        np.zeros((2, config.max_num_seqs), dtype=np.int64),
        np.zeros(1),
    )


def _kind() -> Any:
    """The type of what `drive` is handed: the same for every cache without states."""
    cache = KVCache(CacheConfig(2, (GroupSpec(FULL, 16),), 16, 16))
    config = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=1, max_model_len=16)
    lane = _make_lane(config, len(cache.core.answer), spares_lone=False)
    return typeof((cache.arrays, constant_step_time(0.0), batch_for(config), lane))


_KIND = _kind()
_unbundle = unbundle(_KIND)


@njit_apart
def drive(
    words: Ints,
    now_s: float,
    until_s: float,
    entry_s: float,
    begins: int,
    alone: bool,
) -> tuple[float, int]:
    """Take steps until somebody else has to do something.

    Args:
        words: a bundle: the cache, what a step's time depends on, those that run, and those that
            wait.
        now_s: the time; with ``MEANWHILE`` when the decodes began.
        until_s: alone, nobody comes before; with ``MEANWHILE``, the end of the last step that has
            run.
        entry_s: the first step that ends then or later ends the drive.
        begins: where it begins, see `BETWEEN`.
        alone: nobody can come between ``now_s`` and ``until_s``; else a step is ended only when
            the clock has come to its end.

    Returns:
        A time, and why it came back, see `IDLE`.
    """
    arrays, params, batch, lane = _unbundle(words)
    core = assemble(arrays)
    meter, rules, settings = lane.meter, lane.rules, batch.settings
    totals = core.pool.totals
    meter[NUM_ADMITTED] = meter[NUM_OUTCOMES] = 0
    lane.busy_s[0] = 0.0
    model_len = rules[MODEL_LEN]
    if begins == ENDING:
        num_outcomes = end_step(arrays, batch)
        if num_outcomes > 0:
            _note_outcomes(arrays, batch, lane)
        stamp(totals, int(now_s * 1e9))
        if meter[NUM_OUTCOMES] > 0 or now_s >= entry_s or _is_logged(totals):
            return now_s, ENDED
    elif begins == MEANWHILE:
        end_s, num_outcomes = decode_run(
            arrays, params, batch, meter[NUM_RUNNING], model_len, now_s, until_s
        )
        lane.busy_s[0] += end_s - now_s
        now_s = end_s
        if num_outcomes > 0:
            _note_outcomes(arrays, batch, lane)
        if num_outcomes > 0 or now_s >= entry_s or now_s < until_s or _is_logged(totals):
            return now_s, ENDED
    while True:
        num_running, num_waiting = meter[NUM_RUNNING], meter[NUM_WAITING]
        if num_running == 0 and num_waiting == 0 and batch.meter[IN_FLIGHT] == 0:
            return now_s, IDLE
        if (
            0 < num_running * (1 + settings[NUM_DRAFTS]) <= settings[MOST_TOKENS]
            and (num_waiting == 0 or num_running >= rules[MOST_RUNNING])
            and not any_prefill(arrays, batch, num_running)
        ):
            if alone:
                end_s, num_outcomes = decode_run(
                    arrays, params, batch, num_running, model_len, now_s, until_s
                )
                lane.busy_s[0] += end_s - now_s
                if num_outcomes > 0:
                    _note_outcomes(arrays, batch, lane)
                if num_outcomes > 0 or end_s > now_s:
                    return end_s, ENDED
            elif settings[NUM_DRAFTS] == 0:
                end_s = decode_horizon(
                    arrays, params, batch, num_running, now_s, max(entry_s, now_s)
                )
                if end_s > now_s:
                    return end_s, HORIZON
        computes = False
        if num_running > 0 or num_waiting > 0:
            batch.meter[FORESEEN] = 0
            num = _plan(arrays, params, batch, lane, now_s)
            if num < 0:
                return now_s, PLAN
            computes = num > 0
        if computes and batch.meter[IN_FLIGHT] < settings[DEPTH]:
            if _is_logged(totals):
                return now_s, LOOK
            continue
        if batch.meter[IN_FLIGHT] == 0:
            return now_s, PLAN
        seconds = batch.seconds[batch.meter[OLDEST]]
        lane.busy_s[0] += seconds
        if not alone:
            return now_s + seconds, STEP
        now_s += seconds
        num_outcomes = end_step(arrays, batch)
        if num_outcomes > 0:
            _note_outcomes(arrays, batch, lane)
        stamp(totals, int(now_s * 1e9))
        if meter[NUM_OUTCOMES] > 0 or now_s >= until_s or now_s >= entry_s or log_fills(totals):
            return now_s, ENDED


class Lane:
    """The first requests that wait, as compiled code has them.

    Attributes:
        arrays: for compiled code.
    """

    def __init__(self, cache: KVCache, config: SchedulerConfig, *, spares_lone: bool) -> None:
        """Nobody waits.

        Args:
            cache: gives a slot to each of them.
            config: of the scheduler.
            spares_lone: the prompt of one alone is not cut to a threshold.
        """
        self._cache = cache
        self._most_running = config.most_running
        self._model_len = config.max_model_len
        self._known: list[tuple[Job, int]] = []  # with the slot of each
        self._version = 0
        self._end = 0  # of what is used of the spans
        self.arrays = _make_lane(config, len(cache.core.answer), spares_lone=spares_lone)
        self._bundle = Bundle(_KIND)

    def words(self, params: StepTimeParams, batch: Batch) -> Ints:
        """What `drive` is handed."""
        self._bundle.hold(self._cache.arrays, params, batch, self.arrays)
        return self._bundle.words

    def take_in(self, waiting: WaitingQueue, num_running: int) -> None:
        """Make known who could begin to run next, unless there are too many or some ran before."""
        num_waiting = len(waiting)
        if waiting.version != self._version:
            self._let_go()
            self._version = waiting.version
        joining = min(num_waiting, self._most_running - num_running)
        if len(self._known) < joining <= _ROOM:
            for job in waiting.between(len(self._known), joining):
                if job.num_preemptions:
                    break
                self._append(job)
        meter = self.arrays.meter
        meter[KNOWN], meter[NUM_WAITING], meter[NUM_RUNNING] = (
            len(self._known),
            num_waiting,
            num_running,
        )

    def take_admitted(self, waiting: WaitingQueue) -> list[tuple[Job, Hit, float]]:
        """Who began to run, in order, with what was found and when; they wait no more."""
        arrays = self.arrays
        num = int(arrays.meter[NUM_ADMITTED])
        if not num:
            return []
        admitted = []
        for (job, slot), answer, at_s in zip(
            self._known[:num],
            arrays.admitted[:num].tolist(),
            arrays.admitted_s[:num].tolist(),
            strict=True,
        ):
            waiting.pop()
            hit = self._cache.make_hit(answer)
            job.sequence.slot, job.sequence.junction = slot, hit.junction
            admitted.append((job, hit, at_s))
        del self._known[:num]
        self._version = waiting.version
        return admitted

    def take_outcomes(self) -> list[tuple[int, int]]:
        """Of the step that ended last: places among the running, and what became of these."""
        num = int(self.arrays.meter[NUM_OUTCOMES])
        if not num:
            return []
        places, outcomes = self.arrays.outcomes[:, :num].tolist()
        return list(zip(places, outcomes, strict=True))

    def _append(self, job: Job) -> None:
        request, content = job.request, job.sequence.content
        num = len(content.ends)
        arrays = self.arrays
        if not self._known:
            self._end = 0
        if self._end + num > arrays.spans.shape[1]:
            self._make_room(num)
            arrays = self.arrays
        start = self._end
        arrays.spans[0, start : start + num] = content.uids
        arrays.spans[1, start : start + num] = content.ends
        self._end = start + num
        slot = self._cache.hold_slot(content)
        num_prompt = request.num_prompt_tokens
        place = (int(arrays.meter[HEAD]) + len(self._known)) % _ROOM
        arrays.waiting[:, place] = (
            slot,
            num_prompt,
            request.output_uid,
            min(num_prompt + request.num_output_tokens, self._model_len),
            start,
            num,
        )
        self._known.append((job, slot))

    def _make_room(self, more: int) -> None:
        """Move the spans together, with room for more."""
        contents = [job.sequence.content for job, _ in self._known]
        needed = sum(len(content.ends) for content in contents) + more
        arrays = self.arrays
        spans = np.zeros((2, max(arrays.spans.shape[1], 2 * needed)), dtype=np.int64)
        head, start = int(arrays.meter[HEAD]), 0
        for number, content in enumerate(contents):
            end = start + len(content.ends)
            spans[0, start:end], spans[1, start:end] = content.uids, content.ends
            arrays.waiting[START, (head + number) % _ROOM] = start
            start = end
        self._end = start
        self.arrays = arrays._replace(spans=spans)

    def _let_go(self) -> None:
        """Nobody is known any more."""
        for _, slot in self._known:
            self._cache.let_go_of_slot(slot)
        self._known.clear()
