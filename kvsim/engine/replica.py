"""One engine: wait for requests, plan a step, let it take its time, end it.

A plain one is stepped by compiled code, see `kvsim.engine.stepper`; any other is a SimPy process.
One file because a step's plan, time and end are one loop, and both ways tell what came of it alike.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Sequence
from functools import partial
from typing import Protocol

import simpy

from kvsim.bundles import COMPILES
from kvsim.cache.manager import Hit, KVCache
from kvsim.cache.reasons import ELSEWHERE, LOST_BY_GROUP, NEVER_SEEN, SHARED_WITH, TAKER
from kvsim.engine.carrying import Carrier
from kvsim.engine.clock import Clock
from kvsim.engine.hooks import IN_FLIGHT, NOTHING, Done, Step, Ticket, Watcher
from kvsim.engine.jobs import Job, StepPlan
from kvsim.engine.pipeline import Pipeline
from kvsim.engine.reasons import too_large, why_never, why_no_longer
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.stepper import Stepper
from kvsim.engine.stepping import FINISHED, FIRST_TOKEN
from kvsim.metrics.misses import Misses
from kvsim.metrics.records import NO_UTILIZATION, RequestLog, RequestRecord, TimelineLog
from kvsim.times.step_time import StepTimeParams, request_seconds
from kvsim.workload.request import Request


class Observer(Protocol):
    """Who looks at a replica in whole."""

    @property
    def counts_steps(self) -> bool:
        """Whether it has to hear of every step, and before each."""

    def before_step(self, replica: Replica) -> None:
        """A step is about to be planned; whoever has arrived is known."""

    def after_step(self, replica: Replica) -> None:
        """A step has ended, or several without an arrival or an end between them."""

    def after_steps(self, replica: Replica) -> None:
        """Steps have ended whose times stand in the log; another one may be under way."""


class Pace(Protocol):
    """Who lets steps of several replicas begin and end together."""

    def sleep(self, replica: Replica) -> None:
        """A replica has nothing to run."""

    def wake(self, replica: Replica) -> simpy.Event | None:
        """It has again; what it waits for before it plans."""

    def planned(self, replica: Replica) -> None:
        """It has planned a step that computes something."""

    def run(self, replica: Replica) -> simpy.Event:
        """Its oldest step may begin; the event is its end."""


class Replica:
    """One engine: a scheduler, its cache, and the time its steps take.

    Attributes:
        scheduler: what runs and what waits.
        number: of several replicas which one it is; None for one alone.
        num_refused: requests that could never have run.
        end_s: when the last step ended.
        busy_s: time that steps took.
        step_time: what a step's time depends on.
        next_entry_s: when the state of the pool is entered next.
    """

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        step_time: StepTimeParams,
        requests: RequestLog,
        timeline: TimelineLog,
        *,
        timeline_interval_s: float = 1.0,
        one_by_one: bool = False,
        offloading: Carrier | None = None,
        number: int | None = None,
        pace: Pace | None = None,
        observer: Observer | None = None,
        stages: Sequence[StepTimeParams] = (),
        stepper: Stepper | None = None,
    ) -> None:
        """Start the process, or have it stepped.

        Args:
            clock: the simulation's.
            scheduler: with the cache this replica uses.
            step_time: what a step's time depends on.
            requests: where finished and refused requests are entered.
            timeline: where the state of the pool is entered.
            timeline_interval_s: simulated seconds between two such entries, at least.
            one_by_one: take every step as an event of its own; runs of alike steps are taken in
                one go otherwise, with the same results.
            offloading: the transfers of the scheduler's connector, where it has one.
            number: of several replicas which one it is.
            pace: lets its steps begin and end together with those of others.
            observer: looks at it before and after steps.
            stages: what the step of each stage of a pipeline depends on; empty for no pipeline.
            stepper: steps it, if it is a plain one.
        """
        self.scheduler = scheduler
        self.number = number
        self.num_refused = 0
        self.end_s = 0.0
        self.busy_s = 0.0
        self._pace = pace
        self._stages = stages
        self._pipeline = Pipeline(len(stages)) if stages else None
        self._observer = observer
        self._outside: set[Ticket] = set()  # tokenized and so on, before the scheduler hears of it
        self._clock = clock
        self.step_time = step_time
        self._requests = requests
        self._timeline = timeline
        self._timeline_interval_s = timeline_interval_s
        self.next_entry_s = 0.0
        self._one_by_one = one_by_one
        self._num_submitted = 0
        self._tickets: dict[Job, Ticket] = {}
        self._steps: deque[Step] = deque()  # in flight, the oldest first
        self._num_calls = 0
        self._outcomes: list[tuple[int, int]] = []  # of the step that ends: place and which
        self._woken = clock.event()
        self._offloading = offloading
        if offloading is not None:
            offloading.call_when_done(self._wake)
        self._stepper: Stepper | None = None
        self._process: simpy.Process | None = None
        self._who = -1
        plain = COMPILES and not one_by_one and pace is None and scheduler.can_drive
        if stepper is not None and plain and (observer is None or not observer.counts_steps):
            self._stepper = stepper
            self._who = stepper.join(self, timeline_interval_s)
        else:
            self._process = clock.process(self._live())

    @property
    def cache(self) -> KVCache:
        """The replica's prefix cache."""
        return self.scheduler.cache

    @property
    def counts(self) -> tuple[int, int, float]:
        """Requests waiting, loads under way included; requests running; part of the pool in use."""
        cache, scheduler = self.cache, self.scheduler
        most = cache.config.num_blocks - 1
        waiting = len(scheduler.waiting) + len(scheduler.loading)
        return waiting, len(scheduler.running), (most - cache.num_free) / most

    @property
    def num_requests(self) -> int:
        """Requests it has that have not ended."""
        return len(self._tickets) + len(self._outside)

    def submit(
        self,
        request: Request,
        done: Done | None = None,
        *,
        record: RequestRecord | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        """A request arrives now.

        Args:
            request: what arrives; refused where it could never run.
            done: to be triggered when it is finished or refused.
            record: what happened to it before; it is written on.
            watcher: who hears of its first token and its end.
        """
        if record is None:
            record = RequestRecord(
                self._num_submitted,
                request.request_id,
                self._clock.now,
                request.num_prompt_tokens,
                request.num_output_tokens,
            )
        record.replica = self.number
        self._num_submitted += 1
        ticket = Ticket(request, record, done, watcher)
        reason = why_never(self.cache, request)
        if reason is not None:
            self._refuse(ticket, reason)
            return
        outside_s = request_seconds(self.step_time, request.num_prompt_tokens)
        if outside_s > 0:
            self._outside.add(ticket)
            self._clock.call(self._clock.now + outside_s, partial(self._enter_later, ticket))
        else:
            self._enter(ticket)

    def lose(self) -> list[Ticket]:
        """It fails now.

        Returns:
            The requests it had, in the order in which it has heard of them.
        """
        if self._stepper is not None:
            self._stepper.leave(self._who)
        if self._process is not None:
            self._process.interrupt()
        lost = [*self._tickets.values(), *self._outside]
        self._tickets.clear()
        self._outside.clear()
        return sorted(lost, key=lambda ticket: ticket.record.order)

    def has(self, request_id: str) -> bool:
        """Whether a request is here and has not ended."""
        tickets = (*self._tickets.values(), *self._outside)
        return any(ticket.request.request_id == request_id for ticket in tickets)

    def drop(self, request_id: str) -> Ticket:
        """Take out a request that waits or loads.

        Raises:
            KeyError: there is none of that name.
        """
        self.cache.at(self._clock.now)
        for ticket in self._outside:
            if ticket.request.request_id == request_id:
                self._outside.remove(ticket)
                return ticket
        job = self._job(request_id)
        self.scheduler.give_up(job)
        self._wake()
        return self._tickets.pop(job)

    def load_failed(self, request_id: str) -> int:
        """A request's load will not arrive; it computes what it lacks.

        Returns:
            Tokens of its local hit that it keeps its blocks for; 0 where it begins anew.
        """
        self.cache.at(self._clock.now)
        kept = self.scheduler.load_failed(self._job(request_id))
        self._wake()
        return kept

    def _job(self, request_id: str) -> Job:
        for job in self._tickets:
            if job.request.request_id == request_id:
                return job
        raise KeyError(request_id)

    def _live(self) -> Generator[simpy.Event, None, None]:
        with contextlib.suppress(simpy.Interrupt):  # it is lost
            yield from self._work()

    def _enter(self, ticket: Ticket) -> None:
        """The scheduler hears of a request."""
        self._tickets[self.scheduler.add(ticket.request)] = ticket
        if self._stepper is not None:
            self._stepper.wake(self._who, waited_for=ticket.done is not None)
        else:
            self._wake()

    def _enter_later(self, ticket: Ticket) -> None:
        """The scheduler hears of a request after the work that is done outside of steps."""
        if ticket in self._outside:
            self._outside.remove(ticket)
            self._enter(ticket)

    def _wake(self) -> None:
        """Somebody has arrived, or a transfer is done."""
        self._num_calls += 1
        if not self._woken.triggered:
            self._woken.succeed()

    def _refuse(self, ticket: Ticket, reason: str) -> None:
        ticket.record.refused = reason
        self.num_refused += 1
        self._close(ticket)

    def _close(self, ticket: Ticket) -> bool:
        """Enter a request that has ended; whether somebody has waited for that."""
        self._requests.add(ticket.record)
        if ticket.watcher is not None:
            ticket.watcher.ended(self._clock.now)
        if ticket.done is None:
            return False
        ticket.done.succeed()
        return True

    def _work(self) -> Generator[simpy.Event, None, None]:
        """Plan while fewer steps are in flight than may be; else let the oldest run to its end.

        A step begins when the one ahead of it has ended, and that is when the next one is planned.
        """
        clock, scheduler, steps = self._clock, self.scheduler, self._steps
        while True:
            self._report_transfers()
            self.cache.at(clock.now)
            if not scheduler.has_work and not steps:
                self.note_state()
                while not scheduler.has_work:
                    yield from self._sleep(self._num_calls)
                    self._report_transfers()
                self.cache.at(clock.now)
                self.note_state()
            if self._observer is not None:
                self._observer.before_step(self)
            if not self._one_by_one and self._pace is None and scheduler.only_decodes:
                start_s = clock.now
                until_s = min(clock.peek(), max(self.next_entry_s, start_s))
                if self.number is not None:  # what happens to others is no concern of its own
                    yield from self._decode_meanwhile(start_s)
                    until_s = clock.now
                end_s, firsts, finished = self._decode(start_s, until_s)
                assert self.number is None or end_s >= until_s, "it ran on to what it waited for"
                if end_s > start_s or finished:
                    yield clock.at(end_s)
                    if self._end(firsts, finished):
                        yield clock.at(end_s)
                    continue
            num_calls = self._num_calls
            if steps and not scheduler.has_requests:
                yield from self._run_oldest(num_calls)
                continue
            plan = scheduler.plan()
            if not self._take_plan(plan):
                yield clock.at(clock.now)  # whoever waits for it may submit the next one
                continue
            self._hand_over(plan)
            # A pipeline's queue fills up with steps that compute nothing, as the engine's does.
            more = plan.num_computing or (self._stages and scheduler.has_requests)
            if more and len(steps) < scheduler.config.depth:
                if self._observer is not None:
                    self._observer.after_step(self)
                continue
            if steps:
                yield from self._run_oldest(num_calls)

    def _woken_by(self, time_s: float) -> simpy.Event:
        """Somebody arrives, or it is that time."""
        if self._woken.triggered:
            self._woken = self._clock.event()
        woken = self._woken
        callbacks = self._clock.at(time_s).callbacks
        assert callbacks is not None
        callbacks.append(lambda _: _trigger(woken))
        return woken

    def _take_plan(self, plan: StepPlan) -> bool:
        """Who was preempted or admitted; False where one was refused that blocked all others."""
        now_s = self._clock.now
        for job in plan.preempted:
            self._tickets[job].record.preemptions += 1
        for job, hit in plan.started:
            self._note_admission(job, hit, now_s)
        if plan.stuck is None:
            return True
        needed = self.cache.num_blocks_to_admit(plan.stuck.sequence.content.num_tokens)
        self._refuse(self._tickets.pop(plan.stuck), too_large(self.cache, needed))
        return False

    # --- for who steps it ---

    def begin_step(self) -> float | None:
        """Plan a step now, between two; when the oldest one in flight ends, if it runs already."""
        clock, scheduler = self._clock, self.scheduler
        if scheduler.has_requests:
            plan = scheduler.plan()
            if not self._take_plan(plan):
                return None
            if plan.num_computing:
                scheduler.duration_s(self.step_time)
                if scheduler.num_in_flight < scheduler.config.depth:
                    if self._observer is not None:
                        self._observer.after_step(self)
                    return None
        if not scheduler.num_in_flight:
            return None
        duration_s = scheduler.oldest_duration_s
        self.busy_s += duration_s
        return clock.now + duration_s

    def end_step(self) -> bool:
        """The oldest step in flight ends now; whether somebody has waited for its requests."""
        return self._end(*self.scheduler.end_step())

    def take_admitted(self, answer: list[int]) -> None:
        """The first that waits was admitted now, with what its lookup answered."""
        job, hit = self.scheduler.take_admitted(answer[: len(self.cache.core.answer)])
        self._note_admission(job, hit, self._clock.now)

    def take_outcome(self, place: int, outcome: int, is_last: int) -> bool:
        """What became of a running request in the step that has ended now.

        Args:
            place: its place before the step ended.
            outcome: see `kvsim.engine.stepping`.
            is_last: the step has no further ones.

        Returns:
            Whether somebody has waited for one that is finished.
        """
        self._outcomes.append((place, outcome))
        if not is_last:
            return False
        # Whoever hears of one of them may go by what runs now.
        outcomes, scheduler, now_s = self._outcomes, self.scheduler, self._clock.now
        firsts = [scheduler.running[place] for place, what in outcomes if what & FIRST_TOKEN]
        gone = [place for place, what in outcomes if what & FINISHED]
        finished = [scheduler.running[place] for place in gone]
        outcomes.clear()
        scheduler.leave(gone)
        self.end_s = now_s
        for job in firsts:
            self._note_first(job, now_s)
        waited = False
        for job in finished:
            waited |= self._finish(job, now_s)
        return waited

    def take_state(self, state: list[int]) -> None:
        """How full the pool is now: free blocks, and so on, see `kvsim.engine.driving.POOL`."""
        free, free_cached, *by_group = state
        by_group = by_group[: len(self.cache.config.groups)]
        self._timeline.add(
            self._clock.now,
            self.cache.config.num_blocks - 1 - free,
            sum(by_group),
            free,
            len(self.scheduler.running),
            len(self.scheduler.waiting),
            free_cached_blocks=free_cached,
            group_cached_blocks=by_group,
            utilization=NO_UTILIZATION,
        )

    def tell_log(self) -> None:
        """What its log has of the past is to be read."""
        if self._observer is not None:
            self._observer.after_steps(self)

    # --- decodes ---

    def _decode_meanwhile(self, start_s: float) -> Generator[simpy.Event, None, None]:
        """Let time pass to where a run of decodes has to end, or to the next arrival here.

        The steps are taken when it has passed. What they store and evict is told then, which is
        with the next entry of the timeline at the latest; no router needs it before: a prompt can
        hold an answer only when that has ended.
        """
        limit_s = max(self.next_entry_s, start_s)
        end_s = self.scheduler.decode_horizon(self.step_time, start_s, limit_s)
        if end_s <= start_s:
            return
        yield self._woken_by(end_s)

    def _decode(self, start_s: float, until_s: float) -> tuple[float, list[Job], list[Job]]:
        """Take decode steps from one moment to the first end at or after another."""
        end_s, scheduler = start_s, self.scheduler
        while True:
            begun_s = end_s
            end_s, firsts, finished = scheduler.decode_run(self.step_time, begun_s, until_s)
            self._follow_run()
            if finished or firsts or end_s >= until_s or end_s == begun_s:
                break
            if self._observer is not None:  # what has filled up on the way
                self._observer.after_step(self)
        self.busy_s += end_s - start_s
        return end_s, firsts, finished

    def _hand_over(self, plan: StepPlan) -> None:
        """A planned step stands behind those in flight; its loads begin."""
        offloading, transfers = self._offloading, plan.transfers
        if self._pipeline is not None:
            if plan.num_computing:
                self._enter_pipeline(self._pipeline)
            self._steps.append(IN_FLIGHT if plan.num_computing else NOTHING)
            return
        if plan.num_computing:
            self.scheduler.duration_s(self.step_time)
            if self._pace is not None:
                self._pace.planned(self)
        elif offloading is None:
            return
        if offloading is None or transfers is None:
            self._steps.append(IN_FLIGHT)
            return
        offloading.begin(transfers.loads)
        offloading.begin_disk()
        for load, job in zip(plan.loading, transfers.loads, strict=True):
            start = load.hit.tokens
            num_tokens = load.job.sequence.content.num_tokens
            offloading.note_load(job, num_tokens, start, start + load.job.num_external)
        is_early = offloading.overlap_loads and bool(transfers.loads)
        if is_early:
            self.scheduler.complete(offloading.let_run_early(transfers.loads))
        names = [job.request.request_id for job, _ in self.scheduler.scheduled()]
        self._steps.append(Step(bool(plan.num_computing), transfers, names, is_early))

    def _enter_pipeline(self, pipeline: Pipeline) -> None:
        """The step planned last goes on its way: where it decodes, after the tokens it reads."""
        scheduler = self.scheduler
        tickets = [self._tickets[job] for job, _ in scheduler.scheduled()]
        begins_s = max(self._clock.now, *(ticket.token_s for ticket in tickets))
        seconds = scheduler.stage_durations_s(self._stages)
        self.busy_s += pipeline.begin(begins_s, seconds)
        for ticket, (_, makes) in zip(tickets, scheduler.planned_tokens(), strict=True):
            if makes:
                ticket.token_s = pipeline.newest_end_s

    def _run_oldest(self, num_calls: int) -> Generator[simpy.Event, None, None]:
        """The oldest step runs to its end.

        Stores whose blocks are handed out again have to end before it, loads of requests that
        run already before its end; what it computed is stored from its end on.
        """
        step, offloading, clock = self._steps.popleft(), self._offloading, self._clock
        transfers = step.transfers
        flushed = [] if transfers is None else transfers.flushed
        if offloading is not None and flushed and (ends := offloading.under_way(flushed)):
            yield simpy.AllOf(clock, ends)
        if step.computes and self._pace is not None:
            start_s = clock.now
            yield self._pace.run(self)
            self.busy_s += clock.now - start_s
        elif step.computes and self._pipeline is not None:
            yield clock.at(self._pipeline.take_end_s())
        elif step.computes:
            duration_s = self.scheduler.oldest_duration_s
            self.busy_s += duration_s
            yield clock.at(clock.now + duration_s)
        if offloading is not None and transfers is not None:
            if ends := offloading.still_loading(step.names):
                yield simpy.AllOf(clock, ends)
            offloading.begin(transfers.stores)
        self.cache.at(clock.now)
        if step.computes:
            end_s = clock.now
            if self._end(*self.scheduler.end_step()):
                yield clock.at(end_s)
        elif any(step.computes for step in self._steps) or step.is_early:
            return
        elif self._steps:
            # What was planned behind it computes nothing either: it is over as well.
            yield from self._run_oldest(num_calls)
        elif self.scheduler.transfers_in_flight:
            # Only transfers keep it from going on. (Else the only running request was preempted,
            # which is admitted next.)
            yield from self._sleep(num_calls)

    def _follow_run(self) -> None:
        """After a run of steps without transfers as many are in flight as the scheduler says."""
        self._steps.clear()
        self._steps.extend([IN_FLIGHT] * self.scheduler.num_in_flight)

    def _sleep(self, num_calls: int) -> Generator[simpy.Event, None, None]:
        """Until somebody arrives or a transfer is done, after so many times that it was so."""
        if self._num_calls != num_calls:
            return
        if self._woken.triggered:
            self._woken = self._clock.event()
        if self._pace is None:
            yield self._woken
            return
        self._pace.sleep(self)
        yield self._woken
        boundary = self._pace.wake(self)
        if boundary is not None:
            yield boundary

    def _report_transfers(self) -> None:
        """Tell the scheduler which transfers are done."""
        offloading = self._offloading
        if offloading is not None and (done := offloading.take_done()):
            self.scheduler.complete(done)
            offloading.begin_disk()

    def _end(self, firsts: list[Job], finished: list[Job]) -> bool:
        """A step has ended now; whether somebody has waited for one of the finished requests."""
        self.end_s = now_s = self._clock.now
        for job in firsts:
            self._note_first(job, now_s)
        waited = False
        for job in finished:
            waited |= self._finish(job, now_s)
        if now_s >= self.next_entry_s:
            self.note_state()
        if self._observer is not None:
            self._observer.after_step(self)
        return waited

    def _note_first(self, job: Job, now_s: float) -> None:
        ticket = self._tickets[job]
        if ticket.record.first_token_s is None:
            ticket.record.first_token_s = now_s
        if ticket.watcher is not None:
            ticket.watcher.first_token(now_s)

    def _finish(self, job: Job, now_s: float) -> bool:
        ticket = self._tickets.pop(job)
        ticket.record.end_s = now_s
        return self._close(ticket)

    def note_state(self) -> None:
        """Enter the state of the pool now."""
        cache, now_s = self.cache, self._clock.now
        num_free = cache.num_free
        self._timeline.add(
            now_s,
            cache.config.num_blocks - 1 - num_free,
            cache.num_cached,
            num_free,
            len(self.scheduler.running),
            len(self.scheduler.waiting) + len(self.scheduler.loading),
            free_cached_blocks=cache.num_free_cached,
            group_cached_blocks=cache.num_cached_by_group,
            utilization=(
                NO_UTILIZATION if self._offloading is None else self._offloading.utilization()
            ),
        )
        interval_s = self._timeline_interval_s
        self.next_entry_s = (now_s // interval_s + 1) * interval_s

    def _note_admission(self, job: Job, hit: Hit, now_s: float) -> None:
        record = self._tickets[job].record
        record.admitted_s = now_s
        record.external_hit_tokens = job.num_external
        record.hit_tokens = hit.tokens
        record.full_hit_tokens = max(hit.tokens, hit.junction)
        record.misses = self._misses(job, hit.tokens + (record.cached_elsewhere_tokens or 0))
        record.hit_ended, record.group_hit_tokens = why_no_longer(
            self.cache, job.sequence.num_prompt, hit
        )

    def _misses(self, job: Job, num_elsewhere: int) -> Misses | None:
        """Why its first admission found no more; None where that is not noted.

        Args:
            job: that is admitted.
            num_elsewhere: leading tokens that some replica of the fleet has cached.
        """
        ledger, found = self.scheduler.misses, job.misses
        if ledger is None or found is None:
            return None
        numbers = found[:LOST_BY_GROUP].tolist()
        unseen = numbers[NEVER_SEEN]
        there = num_elsewhere - (job.sequence.num_prompt - unseen)
        numbers[ELSEWHERE] = min(unseen, max(0, there))
        numbers[NEVER_SEEN] -= numbers[ELSEWHERE]
        shared_with, taker = ledger.name(numbers[SHARED_WITH]), ledger.taker(numbers[TAKER])
        return Misses(numbers, shared_with, taker, *ledger.by_group(found))


def _trigger(event: simpy.Event) -> None:
    if not event.triggered:
        event.succeed()
