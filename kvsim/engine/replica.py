"""One engine as a SimPy process: wait for requests, plan a step, let it take its time, end it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import simpy

from kvsim.cache.manager import Hit, KVCache
from kvsim.cache.spec import FULL
from kvsim.engine.clock import Clock
from kvsim.engine.scheduler import Job, Scheduler
from kvsim.engine.step_time import StepTimeParams
from kvsim.metrics.records import RequestLog, RequestRecord, TimelineLog
from kvsim.workload.request import Request


@dataclass(slots=True, eq=False)
class _Ticket:
    """A submitted request: its record, and who waits for its end."""

    record: RequestRecord
    done: simpy.Event | None


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
        self._woken = clock.event()
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
        self._tickets[self.scheduler.add(request)] = _Ticket(record, done)
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
        clock, scheduler = self._clock, self.scheduler
        while True:
            if not scheduler.has_work:
                self._note_state()
                if self._woken.triggered:
                    self._woken = clock.event()
                yield self._woken
                self._note_state()
            if not self._one_by_one and scheduler.only_decodes:
                until_s = min(clock.peek(), max(self._next_entry_s, clock.now))
                end_s, finished = scheduler.decode_run(self._step_time, clock.now, until_s)
                if end_s > clock.now or finished:
                    yield clock.at(end_s)
                    if self._end(finished):
                        yield clock.at(end_s)
                    continue
            plan = scheduler.plan()
            now_s = clock.now
            for job in plan.preempted:
                self._tickets[job].record.preemptions += 1
            for job, hit in plan.started:
                self._note_admission(self._tickets[job].record, hit, now_s)
            if plan.stuck is not None:
                needed = self.cache.num_blocks_to_admit(plan.stuck.sequence.content.num_tokens)
                self._refuse(self._tickets.pop(plan.stuck), self._too_large(needed))
                yield clock.at(now_s)  # whoever waits for it may submit the next one
                continue
            if not scheduler.scheduled_any:
                continue  # the only running request was preempted; it is admitted next
            end_s = now_s + scheduler.duration_s(self._step_time)
            yield clock.at(end_s)
            firsts, finished = scheduler.end_step()
            for job in firsts:
                record = self._tickets[job].record
                if record.first_token_s is None:
                    record.first_token_s = end_s
            if self._end(finished):
                yield clock.at(end_s)

    def _end(self, finished: list[Job]) -> bool:
        """A step has ended now; whether somebody has waited for one of the finished requests."""
        self.end_s = now_s = self._clock.now
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
            len(self.scheduler.waiting),
            free_cached_blocks=cache.num_free_cached,
            group_cached_blocks=cache.num_cached_by_group,
        )
        interval_s = self._timeline_interval_s
        self._next_entry_s = (now_s // interval_s + 1) * interval_s

    def _note_admission(self, record: RequestRecord, hit: Hit, now_s: float) -> None:
        record.admitted_s = now_s
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
