"""One engine as a SimPy process: wait for requests, plan a step, let it take its time, end it."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field

import simpy

from kvsim.cache.manager import Hit, KVCache
from kvsim.cache.spec import FULL
from kvsim.engine.clock import Clock
from kvsim.engine.jobs import Job, StepPlan
from kvsim.engine.offloading import Offloading
from kvsim.engine.scheduler import Scheduler
from kvsim.metrics.records import NO_UTILIZATION, RequestLog, RequestRecord, TimelineLog
from kvsim.offload.transfers import Transfers
from kvsim.times.step_time import StepTimeParams, request_seconds
from kvsim.workload.request import Request


@dataclass(slots=True, eq=False)
class _Ticket:
    """A submitted request: its record, and who waits for its end."""

    record: RequestRecord
    done: simpy.Event | None


@dataclass(frozen=True, slots=True)
class _Step:
    """A step in flight.

    Attributes:
        computes: whether it computes anything; it takes no time otherwise.
        transfers: what it moves; None without a tier.
        names: of the requests that compute something, where there is a tier.
        is_early: requests can run in the next step though their loads are under way.
    """

    computes: bool = True
    transfers: Transfers | None = None
    names: list[str] = field(default_factory=list)
    is_early: bool = False


_IN_FLIGHT = _Step()
"""One without transfers."""


class Replica:
    """One engine: a scheduler, its cache, and the time its steps take.

    Attributes:
        scheduler: what runs and what waits.
        num_refused: requests that could never have run.
        end_s: when the last step ended.
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
        offloading: Offloading | None = None,
    ) -> None:
        """Start the process.

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
        """
        self.scheduler = scheduler
        self.num_refused = 0
        self.end_s = 0.0
        self._clock = clock
        self._step_time = step_time
        self._requests = requests
        self._timeline = timeline
        self._timeline_interval_s = timeline_interval_s
        self._next_entry_s = 0.0
        self._one_by_one = one_by_one
        self._num_submitted = 0
        self._tickets: dict[Job, _Ticket] = {}
        self._steps: deque[_Step] = deque()  # in flight, the oldest first
        self._num_calls = 0
        self._woken = clock.event()
        self._offloading = offloading
        if offloading is not None:
            offloading.call_when_done(self._wake)
        clock.process(self._work())

    @property
    def cache(self) -> KVCache:
        """The replica's prefix cache."""
        return self.scheduler.cache

    def submit(self, request: Request, done: simpy.Event | None = None) -> None:
        """A request arrives now.

        Args:
            request: what arrives; refused where it could never run.
            done: an event to trigger when it is finished or refused.
        """
        record = RequestRecord(
            self._num_submitted,
            request.request_id,
            self._clock.now,
            request.num_prompt_tokens,
            request.num_output_tokens,
        )
        self._num_submitted += 1
        reason = self._why_never(request)
        if reason is not None:
            self._refuse(_Ticket(record, done), reason)
            return
        outside_s = request_seconds(self._step_time, request.num_prompt_tokens)
        if outside_s > 0:
            self._clock.process(self._enter_later(request, _Ticket(record, done), outside_s))
        else:
            self._enter(request, _Ticket(record, done))

    def _enter(self, request: Request, ticket: _Ticket) -> None:
        """The scheduler hears of a request."""
        self._tickets[self.scheduler.add(request)] = ticket
        self._wake()

    def _enter_later(
        self, request: Request, ticket: _Ticket, outside_s: float
    ) -> Generator[simpy.Event, None, None]:
        """The scheduler hears of a request after the work that is done outside of steps."""
        yield self._clock.at(self._clock.now + outside_s)
        self._enter(request, ticket)

    def _wake(self) -> None:
        """Somebody has arrived, or a transfer is done."""
        self._num_calls += 1
        if not self._woken.triggered:
            self._woken.succeed()

    def _why_never(self, request: Request) -> str | None:
        """Why a request could not run even alone, or None."""
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        config = self.cache.config
        if num_tokens > config.max_model_len:
            return (
                f"{request.num_prompt_tokens} prompt and {request.num_output_tokens} output tokens "
                f"are more than max_model_len ({config.max_model_len})"
            )
        needed = self.cache.num_blocks_to_admit(request.num_prompt_tokens)
        needed = max(needed, self.cache.num_blocks_to_hold(num_tokens - 1))
        return None if needed < config.num_blocks else self._too_large(needed)

    def _too_large(self, needed: int) -> str:
        return f"needs {needed} blocks, and the pool has {self.cache.config.num_blocks - 1}"

    def _refuse(self, ticket: _Ticket, reason: str) -> None:
        ticket.record.refused = reason
        self.num_refused += 1
        self._close(ticket)

    def _close(self, ticket: _Ticket) -> bool:
        """Enter a request that has ended; whether somebody has waited for that."""
        self._requests.add(ticket.record)
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
                self._note_state()
                while not scheduler.has_work:
                    yield from self._sleep(self._num_calls)
                    self._report_transfers()
                self.cache.at(clock.now)
                self._note_state()
            if not self._one_by_one and scheduler.only_decodes:
                until_s = min(clock.peek(), max(self._next_entry_s, clock.now))
                end_s, firsts, finished = scheduler.decode_run(self._step_time, clock.now, until_s)
                self._follow_run()
                if end_s > clock.now or finished:
                    yield clock.at(end_s)
                    if self._end(firsts, finished):
                        yield clock.at(end_s)
                    continue
            num_calls = self._num_calls
            if steps and not scheduler.has_requests:
                yield from self._run_oldest(num_calls)
                continue
            plan = scheduler.plan()
            now_s = clock.now
            for job in plan.preempted:
                self._tickets[job].record.preemptions += 1
            for job, hit in plan.started:
                self._note_admission(job, hit, now_s)
            if plan.stuck is not None:
                needed = self.cache.num_blocks_to_admit(plan.stuck.sequence.content.num_tokens)
                self._refuse(self._tickets.pop(plan.stuck), self._too_large(needed))
                yield clock.at(now_s)  # whoever waits for it may submit the next one
                continue
            self._hand_over(plan)
            if plan.num_computing and len(steps) < scheduler.config.depth:
                continue
            if steps:
                yield from self._run_oldest(num_calls)

    def _hand_over(self, plan: StepPlan) -> None:
        """A planned step stands behind those in flight; its loads begin."""
        offloading, transfers = self._offloading, plan.transfers
        if plan.num_computing:
            self.scheduler.duration_s(self._step_time)
        elif offloading is None:
            return
        if offloading is None or transfers is None:
            self._steps.append(_IN_FLIGHT)
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
        self._steps.append(_Step(bool(plan.num_computing), transfers, names, is_early))

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
        if step.computes:
            yield clock.at(clock.now + self.scheduler.oldest_duration_s)
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
        self._steps.extend([_IN_FLIGHT] * self.scheduler.num_in_flight)

    def _sleep(self, num_calls: int) -> Generator[simpy.Event, None, None]:
        """Until somebody arrives or a transfer is done, after so many times that it was so."""
        if self._num_calls != num_calls:
            return
        if self._woken.triggered:
            self._woken = self._clock.event()
        yield self._woken

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
            record = self._tickets[job].record
            if record.first_token_s is None:
                record.first_token_s = now_s
        waited = False
        for job in finished:
            ticket = self._tickets.pop(job)
            ticket.record.end_s = now_s
            waited |= self._close(ticket)
        if now_s >= self._next_entry_s:
            self._note_state()
        return waited

    def _note_state(self) -> None:
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
        self._next_entry_s = (now_s // interval_s + 1) * interval_s

    def _note_admission(self, job: Job, hit: Hit, now_s: float) -> None:
        record = self._tickets[job].record
        record.admitted_s = now_s
        record.external_hit_tokens = job.num_external
        record.hit_tokens = hit.tokens
        record.full_hit_tokens = max(hit.tokens, hit.junction)
        record.hit_ended, record.group_hit_tokens = self._why_no_longer(record, hit)

    def _why_no_longer(self, record: RequestRecord, hit: Hit) -> tuple[str, tuple[int, ...] | None]:
        """Why a hit ended where it did, and the reach of each group where they differ."""
        cache = self.cache
        if not cache.config.enable_caching:
            return "caching is off", None
        reach = cache.reach_by_group(hit)
        most = (record.prompt_tokens - 1) // cache.alignment_tokens * cache.alignment_tokens
        if hit.tokens >= most:
            return "end of prompt", None
        # The first group that can serve no more than the hit is the one that ended it.
        group = min(range(len(reach)), key=lambda g: (reach[g] > hit.tokens, cache.asked_at[g]))
        kind = "full attention" if cache.config.groups[group].kind == FULL else "sliding window"
        return f"group {group} ({kind})", None if len(set(reach)) == 1 else reach
