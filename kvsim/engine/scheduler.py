"""Plans steps: running requests first, in order, then waiting ones.

Knows no time: a step is planned and put in flight, and later ended. What the engine's synchronous
and its asynchronous scheduler do, with chunked prompts and with draft tokens, this one does in the
same order.

One file because a step's parts share its budget and its plan, in the engine's order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from kvsim.cache.content import Content, Ints
from kvsim.cache.holding import HeldBlocks
from kvsim.cache.manager import Hit, KVCache
from kvsim.cache.manager import Sequence as CacheSequence
from kvsim.cache.misses import MissLedger
from kvsim.engine.admission import Admission
from kvsim.engine.decoding import any_prefill, decode_horizon, decode_run
from kvsim.engine.jobs import Job, SchedulerConfig, StepPlan
from kvsim.engine.lanes import Lane
from kvsim.engine.stepping import (
    ACCEPTED,
    BUDGET,
    DRAFTS,
    ENDS_S,
    FINISHED,
    FIRST_TOKEN,
    FORESEEN,
    GONE,
    IN_FLIGHT,
    LENGTH,
    MAKES,
    NUM_STEPS,
    NUM_TOKENS,
    OLDEST,
    PLANNED,
    PLANS,
    PROCESSED,
    SCHEDULED,
    SERIAL,
    SLOT,
    draw_accepted,
    end_step,
    launch,
    schedule_running,
    step_duration,
)
from kvsim.offload.transfers import Connector
from kvsim.times.step_time import Floats, StepTimeParams, count_step, step_seconds
from kvsim.workload.request import Request


class Scheduler(Admission):
    """Chunked prompts, preemption, several steps in flight; see `Admission`."""

    def __init__(
        self,
        cache: KVCache,
        config: SchedulerConfig,
        connector: Connector | None = None,
        misses: MissLedger | None = None,
    ) -> None:
        """Make a scheduler without requests.

        Args:
            cache: made for at least ``config.max_in_flight_tokens``.
            config: what it goes by.
            connector: asked for hits in a tier, and told what is computed.
            misses: asked why tokens were not hit.
        """
        super().__init__(cache, config, connector, misses)
        # With a connector that loads, a step in flight could still write to blocks given back.
        self._defers_frees = connector is not None and config.depth > 1
        self._held: deque[tuple[int, HeldBlocks]] = deque()  # and the step that has to end first
        self._stale: dict[tuple[int, int], Job] = {}  # preempted with a step in flight
        self._last_prefill = 0  # number of a step
        self._waits_for_room = False
        self._lane: Lane | None = None
        if (
            connector is None
            and misses is None
            and cache.is_plain
            and config.stages == 1
            and not config.by_priority
            and config.prefill_schedule_interval <= 1
            and not self._profile.counts_lookups
        ):
            self._lane = Lane(cache, config, spares_lone=self._profile.spares_lone_prefills)

    # --- what there is ---

    @property
    def has_requests(self) -> bool:
        """Whether any request runs or waits, or the connector is to hear of finished ones."""
        if self.running or self.waiting or self.loading:
            return True
        return self.connector is not None and self.connector.has_news

    @property
    def has_work(self) -> bool:
        """Whether there is something to plan, or a step is in flight."""
        return self.has_requests or self.num_in_flight > 0

    @property
    def transfers_in_flight(self) -> bool:
        """Whether a transfer is under way."""
        return self.connector is not None and self.connector.in_flight

    @property
    def num_in_flight(self) -> int:
        """Steps that are planned and have not ended."""
        return int(self._batch.meter[IN_FLIGHT])

    @property
    def num_steps(self) -> int:
        """Steps so far that scheduled something."""
        return int(self._batch.meter[NUM_STEPS])

    @property
    def num_scheduled_tokens(self) -> int:
        """Tokens computed so far."""
        return int(self._batch.meter[NUM_TOKENS])

    # --- arrivals ---

    def add(self, request: Request) -> Job:
        """A request arrives."""
        job = Job(request, CacheSequence(request.content, request.num_prompt_tokens))
        self.waiting.add(job)
        if self.misses is not None:
            self.misses.register(job.sequence, request.request_id)
        if self.connector is not None:
            self.connector.arrive(
                job.sequence, request.request_id, request.output_uid, self._end_tokens(request)
            )
        return job

    def complete(self, numbers: Iterable[int]) -> None:
        """Transfers are done; what was loaded can be used from the next step on."""
        if self.connector is None:
            return
        arrived = set(self.connector.complete(numbers))
        for load in self.loading:
            load.has_arrived |= load.job.sequence in arrived

    # --- a step ---

    def plan(self) -> StepPlan:
        """Schedule a step: blocks are taken, and it is in flight if it computes anything."""
        plan = StepPlan()
        if self.misses is not None:
            self.misses.make_room()
        batch = self._batch
        batch.meter[BUDGET] = self.config.max_num_batched_tokens
        batch.meter[PLANS] += 1
        batch.meter[FORESEEN] = 0
        threshold = self.config.long_prefill_token_threshold
        num_requests = len(self.running) + len(self.waiting) + len(self.loading)
        if num_requests <= 1 and self._profile.spares_lone_prefills:
            threshold = 0  # nobody else would have to wait
        defer_prefills = self._defers_prefills
        if self.cache.has_states:
            self.cache.begin_step()
        self._schedule_running(plan, threshold, defer_prefills)
        if not plan.preempted:
            blocked = self._admit(plan, threshold, defer_prefills)
            if blocked is not None and self._nothing_will_free:
                self.give_up(blocked)
                plan.stuck = blocked
        if self.connector is not None:
            plan.transfers = self.connector.build([job.sequence for job, _ in self.scheduled()])
        if self.cache.has_states:
            self._let_go_of_copies()
        self.cache.check()
        plan.num_computing = launch(self.cache.arrays, batch, len(self.running))
        if self.config.prefill_schedule_interval > 1 and not defer_prefills:
            self._note_prefills(plan)
        return plan

    def scheduled(self) -> list[tuple[Job, int]]:
        """The jobs of the step planned last, in order, with the tokens each computes."""
        tokens = self._batch.scheduled[: len(self.running)].tolist()
        return [(job, n) for job, n in zip(self.running, tokens, strict=True) if n]

    def planned_tokens(self) -> list[tuple[int, bool]]:
        """For each of ``scheduled``: how many tokens are drafts, and whether it makes new ones."""
        flight = self._batch.flights[
            (self._batch.meter[OLDEST] + self._batch.meter[IN_FLIGHT] - 1) % self.config.depth
        ]
        num = flight[LENGTH, 0]
        makes = flight[MAKES, :num].astype(bool).tolist()
        return list(zip(flight[DRAFTS, :num].tolist(), makes, strict=True))

    def duration_s(self, params: StepTimeParams) -> float:
        """Seconds that the step planned last takes; it counts as taken from now on."""
        batch = self._batch
        seconds = float(step_duration(params, batch, len(self.running)))
        newest = (batch.meter[OLDEST] + batch.meter[IN_FLIGHT] - 1) % self.config.depth
        batch.seconds[newest] = seconds
        return seconds

    def stage_durations_s(self, stages: Sequence[StepTimeParams]) -> list[float]:
        """Seconds that the step planned last takes on each stage; it counts as taken from now."""
        batch, num = self._batch, len(self.running)
        first = float(step_duration(stages[0], batch, num))
        held = *batch.packed, int(np.count_nonzero(batch.scheduled[:num]))
        return [first, *(float(step_seconds(params, *held)) for params in stages[1:])]

    def count_step(self, params: StepTimeParams, row: Floats) -> None:
        """Write what the step holds whose ``duration_s`` was asked for last; see `count_step`."""
        batch = self._batch
        num = int(np.count_nonzero(batch.scheduled[: len(self.running)]))
        count_step(params, batch.packed[0], batch.packed[1], num, row)

    @property
    def oldest_duration_s(self) -> float:
        """Seconds that the oldest step in flight takes."""
        return float(self._batch.seconds[self._batch.meter[OLDEST]])

    def end_step(self, accepted: Sequence[int] | None = None) -> tuple[list[Job], list[Job]]:
        """The oldest step in flight is over.

        Args:
            accepted: how many drafts of each of its requests were accepted; drawn where not given.

        Returns:
            The jobs whose first token it made, and those it finished, which gave their blocks
            back; each in order.
        """
        batch = self._batch
        if accepted is not None:
            batch.flights[batch.meter[OLDEST], ACCEPTED, : len(accepted)] = accepted
        processed = int(batch.meter[PROCESSED]) + 1
        while self._held and self._held[0][0] <= processed:
            self.cache.give_back(self._held.popleft()[1])
        num_outcomes = end_step(self.cache.arrays, batch)
        self.cache.check()
        return self._outcomes() if num_outcomes else ([], [])

    @property
    def only_decodes(self) -> bool:
        """Whether steps go on alike until somebody arrives or is finished.

        All running requests decode within the budget, and nobody who waits could join.
        """
        if (
            self.config.stages > 1
            or self._held
            or (self.connector is not None and not self.connector.idle)
        ):
            return False
        num = len(self.running)
        return (
            0 < num * (1 + len(self.config.acceptance)) <= self.config.max_num_batched_tokens
            and (not (self.waiting or self.loading) or num >= self.config.most_running)
            and not any_prefill(self.cache.arrays, self._batch, num)
        )

    def decode_horizon(self, params: StepTimeParams, now_s: float, limit_s: float) -> float:
        """When a run of decodes from now on would end if nobody came; ``now_s`` if not known.

        Args:
            params: what a step's time depends on.
            now_s: as for `decode_run`.
            limit_s: it ends with the first step that ends then or later.
        """
        if self.config.acceptance:
            return now_s
        batch, num = self._batch, len(self.running)
        return float(decode_horizon(self.cache.arrays, params, batch, num, now_s, limit_s))

    def decode_run(
        self, params: StepTimeParams, now_s: float, until_s: float
    ) -> tuple[float, list[Job], list[Job]]:
        """Take decode steps in one go, each as ``plan`` and ``end_step`` would take it.

        Args:
            params: what a step's time depends on.
            now_s: now; no step is in flight, or one that begins now.
            until_s: no step is planned at or after this time, but the first.

        Returns:
            When the last step ends, ``now_s`` where none could be taken safely; the jobs whose
            first token that one made, and those it finished.
        """
        if self.cache.has_states:
            self.cache.begin_step()  # with room for what its steps copy
        if self.misses is not None:
            self.misses.make_room()
        end_s, num_outcomes = decode_run(
            self.cache.arrays,
            params,
            self._batch,
            len(self.running),
            self.config.max_model_len,
            now_s,
            until_s,
        )
        self.cache.check()
        firsts, finished = self._outcomes() if num_outcomes else ([], [])
        return end_s, firsts, finished

    @property
    def can_drive(self) -> bool:
        """Whether compiled code can step it now, see `kvsim.engine.driving`."""
        return self._lane is not None and not self._stale

    def hand_over(self, params: StepTimeParams) -> Ints | None:
        """Make known who waits, for compiled code that steps this scheduler.

        Returns:
            What it is handed, see `Lane.words`; None where that is what it has.
        """
        assert self._lane is not None, "it cannot be driven"
        self._lane.take_in(self.waiting, len(self.running))
        return self._lane.words(params, self._batch)

    def take_admitted(self, answer: list[int]) -> tuple[Job, Hit]:
        """The first that waits was admitted by compiled code; with what its lookup found."""
        assert self._lane is not None, "it cannot be driven"
        job, hit = self._lane.take_admitted(self.waiting, answer)
        self.running.append(job)
        job.hit = hit
        self._count(job, job.request.num_prompt_tokens, hit.tokens)
        return job, hit

    def leave(self, places: Iterable[int]) -> None:
        """The requests in these places among the running were finished by compiled code."""
        for place in sorted(places, reverse=True):
            sequence = self.running.pop(place).sequence
            self.cache.let_go_of_slot(sequence.slot)
            sequence.slot = -1

    def foreseen_end_s(self, now_s: float) -> float:
        """Of the steps that the last horizon foresaw, the end of the first that ends no earlier."""
        batch = self._batch
        ends = batch.foreseen[ENDS_S, : batch.meter[FORESEEN]]
        return float(ends[np.searchsorted(ends, now_s)])

    # --- running requests ---

    def _schedule_running(self, plan: StepPlan, threshold: int, defer_prefills: bool) -> None:
        """Schedule those that run; take blocks from the last of them where there are too few."""
        index = 0
        while index < len(self.running):
            index = schedule_running(
                self.cache.arrays,
                self._batch,
                index,
                len(self.running),
                threshold,
                self.config.max_model_len,
                defer_prefills,
            )
            if index == len(self.running):
                return
            self._batch.scheduled[index : len(self.running)] = 0  # of the step before
            victim = self._victim()
            job = self.running[victim]
            # Blocks that are held back would be of no help to this step.
            helps = not self._defers_frees or self._can_be_freed(job.sequence)
            if not helps:
                return
            self._preempt(victim)
            plan.preempted.append(job)
            if victim == index and not self._profile.goes_on_without_victim:
                return
            index -= victim < index

    def _victim(self) -> int:
        """Which of the running requests loses its blocks."""
        if not self.config.by_priority:
            return len(self.running) - 1
        ranks = [job.rank[:2] for job in self.running]
        return ranks.index(max(ranks))

    def _preempt(self, index: int) -> None:
        """Take the blocks of a running request; it waits again."""
        batch, num = self._batch, len(self.running)
        job = self.running.pop(index)
        request, sequence = job.request, job.sequence
        if index < num - 1:
            batch.meter[BUDGET] += batch.scheduled[index]
            for row in (batch.slots, batch.scheduled, batch.contexts, batch.drafts):
                row[index : num - 1] = row[index + 1 : num].copy()
        row = self.cache.core.tables.sequences[sequence.slot]
        num_output = int(row["num_tokens"]) - request.num_prompt_tokens
        job.num_stale = int(row["in_flight"])
        job.eligible = int(row["eligible"])
        if job.num_stale:
            self._stale[sequence.slot, int(row["serial"])] = job
        if self.connector is not None:
            self.connector.preempt(sequence)
        if self.misses is not None:
            self.misses.preempted(sequence)
        self._free(sequence)
        if num_output:
            sequence.content = Content.from_spans(
                [*request.content.spans(), (request.output_uid, num_output)]
            )
        job.num_preemptions += 1
        self.counters.preemptions += 1
        self.waiting.put_back([job])

    def _can_be_freed(self, sequence: CacheSequence) -> bool:
        """Whether no step in flight writes to a sequence's blocks."""
        planned = self.cache.core.tables.sequences["planned"][sequence.slot]
        return bool(planned <= self._batch.meter[PROCESSED])

    def _free(self, sequence: CacheSequence) -> None:
        """Give a sequence's blocks back, now or when the steps planned so far have ended."""
        if sequence.slot < 0 or not self._defers_frees or self._can_be_freed(sequence):
            self.cache.free(sequence)
        else:
            planned = int(self._batch.meter[PLANNED])
            self._held.append((planned, self.cache.hold_back(sequence)))

    def _let_go_of_copies(self) -> None:
        """Blocks copied within the step are given back, now or when the step has ended."""
        planned, processed = self._batch.meter[[PLANNED, PROCESSED]].tolist()
        if self._defers_frees and planned + 1 > processed:
            held = self.cache.hold_back_copies()
            if len(held.ids):
                self._held.append((planned + 1, held))
        else:
            self.cache.let_go_of_copies()

    # --- prompts now and then ---

    @property
    def _defers_prefills(self) -> bool:
        """Whether the step to be planned computes no prompts."""
        interval = self.config.prefill_schedule_interval
        return (
            interval > 1
            and not self._waits_for_room
            and self._batch.meter[PLANNED] + 1 - self._last_prefill < interval
            and any(self._decodes(job) for job in self.running)
        )

    def _decodes(self, job: Job) -> bool:
        row = self.cache.core.tables.sequences[job.sequence.slot]
        return bool(row["num_computed"] + 1 >= row["num_tokens"] + row["placeholders"])

    def _note_prefills(self, plan: StepPlan) -> None:
        """Remember when prompts were computed last, and whether some wait for room."""
        self._waits_for_room = bool(self.waiting)
        extra = self._batch.scheduled - self._batch.drafts
        if plan.started or plan.resumed or (extra[: len(self.running)] > 1).any():
            self._last_prefill = int(self._batch.meter[PLANNED])

    @property
    def _nothing_will_free(self) -> bool:
        """Whether no block can come back: nothing runs, and nothing is under way."""
        return not (self.running or self.num_in_flight or self._held or self.transfers_in_flight)

    # --- the end of a step ---

    def _outcomes(self) -> tuple[list[Job], list[Job]]:
        """Jobs with their first token, and finished ones, of the step that ended last."""
        batch = self._batch
        flight = batch.flights[(batch.meter[OLDEST] - 1) % self.config.depth]
        outcomes = batch.outcomes[: flight[LENGTH, 0]]
        slots = batch.slots[: len(self.running)]
        firsts: list[Job] = []
        finished: list[Job] = []
        left: list[int] = []
        for i in np.flatnonzero(outcomes).tolist():
            outcome = int(outcomes[i])
            if outcome & GONE:
                stale = self._stale.get((int(flight[SLOT, i]), int(flight[SERIAL, i])))
                if stale is None:  # it was finished by the step before
                    continue
                job, place = stale, -1
                outcome = self._take_stale(job, flight[:, i].tolist())
            else:
                place = int(np.argmax(slots == flight[SLOT, i]))
                job = self.running[place]
            if outcome & FIRST_TOKEN:
                firsts.append(job)
            if outcome & FINISHED:
                finished.append(job)
                self._finish(job)
                if place >= 0 and job.sequence.slot < 0:
                    left.append(place)
        for place in sorted(left, reverse=True):
            num_left = len(self.running) - 1
            del self.running[place]
            batch.slots[place:num_left] = batch.slots[place + 1 : num_left + 1]
        return firsts, finished

    def _finish(self, job: Job) -> None:
        if self.connector is not None:
            if job.sequence.slot >= 0:
                self.cache.leave_windows(job.sequence)
            self.connector.finish(job.sequence)
        self._free(job.sequence)

    def _take_stale(self, job: Job, column: list[int]) -> int:
        """Tokens arrive for a request that was preempted when they were under way."""
        job.num_stale -= column[SCHEDULED]
        if not job.num_stale:
            del self._stale[column[SLOT], column[SERIAL]]
        if not column[MAKES]:
            return 0
        request, sequence = job.request, job.sequence
        before, end = sequence.content.num_tokens, self._end_tokens(request)
        accepted = column[ACCEPTED]
        if accepted < 0 or not column[DRAFTS]:
            accepted = draw_accepted(self._batch, request.output_uid, before, column[DRAFTS])
        self.cache.append(sequence, request.output_uid, min(1 + accepted, end - before))
        outcome = FIRST_TOKEN if before == request.num_prompt_tokens else 0
        if sequence.content.num_tokens >= end:
            self.waiting.remove(job)
            outcome |= FINISHED
        return outcome
