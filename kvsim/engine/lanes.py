"""The first requests that wait for a replica, and what happened to it, for compiled code."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvsim.bundles import Bundle, typeof
from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Ints
from kvsim.cache.manager import Hit, KVCache
from kvsim.cache.spec import FULL, GroupSpec
from kvsim.engine.jobs import Job, SchedulerConfig
from kvsim.engine.stepping import Batch, batch_for
from kvsim.engine.waiting import WaitingQueue
from kvsim.times.step_time import StepTimeParams, constant_step_time

# Columns of `LaneArrays.waiting`: the slot that a request will have, tokens of its prompt, uid of
# its answer, its length at the end, and where its spans are.
SEAT, NUM_PROMPT, OUTPUT_UID, END_TOKENS, START, NUM_SPANS, WAITING_COLUMNS = range(7)

# Entries of `LaneArrays.meter`: place of the first that waits, how many are known, how many wait in
# all, how many run.
HEAD, KNOWN, NUM_WAITING, NUM_RUNNING, METER_SIZE = range(5)

# Entries of `LaneArrays.rules`: longest chunk of a prompt, and whether one alone is spared that;
# longest sequence; requests that run at once; whether a prompt has to fit whole; blocks left free.
THRESHOLD, SPARES_LONE, MODEL_LEN, MOST_RUNNING, WHOLE_PROMPT, WATERMARK, RULES_SIZE = range(7)

ROOM = 64
"""Waiting requests that are known at once; a power of two."""
_SPANS = 1 << 12


class LaneArrays(NamedTuple):
    """Who waits, and what has been done, for compiled code.

    Attributes:
        waiting: int64 [`ROOM`, `WAITING_COLUMNS`], a ring.
        spans: int64 [2, spans]: uids and ends of the prompts of those.
        meter: int64 [`METER_SIZE`].
        rules: int64 [`RULES_SIZE`].
    """

    waiting: Ints
    spans: Ints
    meter: Ints
    rules: Ints


def _make_lane(config: SchedulerConfig, *, spares_lone: bool) -> LaneArrays:
    """Nobody waits."""
    rules = np.zeros(RULES_SIZE, dtype=np.int64)
    rules[THRESHOLD] = config.long_prefill_token_threshold
    rules[SPARES_LONE] = spares_lone
    rules[MODEL_LEN] = config.max_model_len
    rules[MOST_RUNNING] = config.most_running
    rules[WHOLE_PROMPT] = config.reserve_whole_prompt
    rules[WATERMARK] = config.watermark_blocks
    return LaneArrays(
        np.zeros((ROOM, WAITING_COLUMNS), dtype=np.int64),
        np.zeros((2, _SPANS), dtype=np.int64),
        np.zeros(METER_SIZE, dtype=np.int64),
        rules,
    )


def _kind() -> Any:
    """The type of what a replica hands over: the same for every cache without states."""
    cache = KVCache(CacheConfig(2, (GroupSpec(FULL, 16),), 16, 16))
    config = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=1, max_model_len=16)
    lane = _make_lane(config, spares_lone=False)
    return typeof((cache.arrays, constant_step_time(0.0), batch_for(config), lane))


LANE_KIND = _kind()


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
        self._model_len = config.max_model_len
        self._known: list[tuple[Job, int]] = []  # with the slot of each
        self._version = 0
        self._end = 0  # of what is used of the spans
        self.arrays = _make_lane(config, spares_lone=spares_lone)
        self._bundle = Bundle(LANE_KIND)

    def take_in(self, waiting: WaitingQueue, num_running: int) -> None:
        """Make known who could begin to run next, as far as nobody has run before."""
        num_waiting = len(waiting)
        if waiting.version != self._version:
            self._let_go()
            self._version = waiting.version
        known = self._known
        if len(known) < num_waiting and len(known) < ROOM:
            for job in waiting.between(len(known), ROOM):
                if job.num_preemptions:
                    break
                self._append(job)
        self.arrays.meter[KNOWN : NUM_RUNNING + 1] = len(known), num_waiting, num_running

    def words(self, params: StepTimeParams, batch: Batch) -> Ints | None:
        """What compiled code is handed, where that is other than before."""
        return self._bundle.hold(self._cache.arrays, params, batch, self.arrays)

    def take_admitted(self, waiting: WaitingQueue, answer: list[int]) -> tuple[Job, Hit]:
        """The next one was admitted by compiled code, and waits no more."""
        waiting.pop()
        self._version = waiting.version
        job, slot = self._known.pop(0)
        hit = self._cache.make_hit(answer)
        job.sequence.slot, job.sequence.junction = slot, hit.junction
        return job, hit

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
        slot = self._cache.hold_slot(num)
        num_prompt = request.num_prompt_tokens
        place = (int(arrays.meter[HEAD]) + len(self._known)) % ROOM
        arrays.waiting[place] = (
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
            arrays.waiting[(head + number) % ROOM, START] = start
            start = end
        self._end = start
        self.arrays = arrays._replace(spans=spans)

    def _let_go(self) -> None:
        """Nobody is known any more."""
        for _, slot in self._known:
            self._cache.let_go_of_slot(slot)
        self._known.clear()
