"""A slow, obvious scheduler over the slow cache: nothing is remembered twice.

One step is in flight at a time, or two: then a step is planned before the one ahead of it has
ended, and a request counts with the tokens that one may still make (its placeholders).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.slow_model.slow_cache import SlowCache
from tests.slow_model.slow_states import SlowStates


@dataclass(eq=False)
class Job:
    """A request from its arrival to its last token."""

    name: str
    spans: list[list[int]]
    num_prompt: int
    num_output: int
    output_uid: int
    rank: tuple[int, float, str]
    num_computed: int = 0
    num_produced: int = 0
    num_preemptions: int = 0
    num_in_flight: int = 0
    num_placeholders: int = 0
    num_drafts: int = 0
    is_running: bool = False

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_produced

    def content(self) -> list[list[int]]:
        """The prompt and what was produced so far."""
        produced = [[self.output_uid, self.num_produced]] if self.num_produced else []
        return [list(s) for s in self.spans] + produced


@dataclass
class Part:
    """What a step does for one request."""

    job: Job
    num_tokens: int
    num_drafts: int = 0
    makes: bool = False
    num_preemptions: int = 0


@dataclass
class Step:
    """What one step decided."""

    parts: list[Part] = field(default_factory=list)
    admitted: dict[str, int] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)

    @property
    def scheduled(self) -> dict[str, int]:
        return {part.job.name: part.num_tokens for part in self.parts}

    @property
    def drafts(self) -> dict[str, int]:
        return {part.job.name: part.num_drafts for part in self.parts if part.num_drafts}


class SlowScheduler:
    """Plans steps, pretends to compute them, and hands out the tokens."""

    def __init__(
        self,
        cache: SlowCache,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        long_prefill_token_threshold: int = 0,
        asynchronous: bool = False,
        by_priority: bool = False,
        watermark_blocks: int = 0,
        reserve_whole_prompt: bool = True,
        num_drafts: int = 0,
    ) -> None:
        self.cache = cache
        self.budget = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.threshold = long_prefill_token_threshold
        self.depth = 2 if asynchronous else 1
        self.by_priority = by_priority
        self.watermark = watermark_blocks
        self.reserves = reserve_whole_prompt
        self.num_drafts = num_drafts
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.flights: list[Step] = []
        self.counters = dict.fromkeys(
            ("queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits"), 0
        )

    def add(
        self,
        name: str,
        spans: list[list[int]],
        num_output: int,
        output_uid: int,
        priority: int = 0,
        arrival: float = 0.0,
    ) -> None:
        """A request arrives."""
        num_prompt = sum(n for _, n in spans)
        rank = (priority, arrival, name)
        self.waiting.append(Job(name, spans, num_prompt, num_output, output_uid, rank))
        self._sort()

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running or self.flights)

    def step(self) -> Step:
        """Plan one step, compute it, and give every request its new token."""
        step = self.plan()
        if step.parts:
            self.process(lambda job, num_drafts: 0)
        return step

    def plan(self) -> Step:
        """What the next step does; it is in flight from then on, if it computes anything."""
        step = Step()
        cuts = self.cache.chunk if isinstance(self.cache, SlowStates) else None
        most = min(self.threshold or self.budget, self.budget)
        crowded = len(self.waiting) + len(self.running) > 1
        spared = not crowded and self.cache.profile.spares_lone_prefills
        threshold = 0 if spared else self.threshold

        def left() -> int:
            return self.budget - sum(part.num_tokens for part in step.parts)

        def chunk(remaining: int) -> int:
            if 0 < threshold < remaining:
                remaining = threshold
            return min(remaining, left())

        for job in list(self.running):
            if not job.is_running or left() <= 0:
                continue
            end = min(job.num_prompt + job.num_output, self.max_model_len)
            # Without its drafts it is sure to have come so far when all in flight has ended.
            if job.num_placeholders and job.num_computed - job.num_placeholders + 2 >= end:
                continue
            known = job.num_tokens + job.num_placeholders
            want = chunk(known + job.num_drafts - job.num_computed)
            want = min(want, self.max_model_len - job.num_computed - 1)
            if cuts is not None:
                want = cuts(job.name, job.num_computed, want, most)
            if want <= 0:
                continue
            while self.cache.allocate(job.name, want, self.num_drafts) is None:
                victim = self._victim()
                step.parts = [part for part in step.parts if part.job is not victim]
                self._preempt(victim)
                step.preempted.append(victim.name)
                if victim is job:
                    break
            if not job.is_running:
                if self.cache.profile.goes_on_without_victim:
                    continue
                break
            extra = max(0, min(job.num_drafts, job.num_computed + want - known))
            step.parts.append(Part(job, want, extra))
            job.num_drafts = 0

        resumed: dict[str, int] = {}
        while self.waiting and not step.preempted and left() > 0:
            if len(self.running) >= self.max_num_seqs:
                break
            job = self.waiting[0]
            hit, _, _ = self.cache.lookup(job.name, job.content(), job.num_prompt)
            if self.cache.profile.counts_lookups:
                self._count(job, hit)
            want = chunk(job.num_tokens - hit)
            if cuts is not None:
                want = cuts(job.name, hit, want, most)
                if want == 0:
                    self.cache.forget(job.name)
                    break
            watermark = self.watermark if step.parts else 0
            if (
                self.cache.allocate(job.name, want, self.num_drafts, self.reserves, watermark)
                is None
            ):
                self.cache.forget(job.name)
                break
            if not self.cache.profile.counts_lookups:
                self._count(job, hit)
            self.running.append(self.waiting.pop(0))
            job.is_running = True
            job.num_computed = hit
            (resumed if job.num_preemptions else step.admitted)[job.name] = hit
            step.parts.append(Part(job, want))
        step.admitted |= resumed
        if isinstance(self.cache, SlowStates):
            self.cache.step()

        self._launch(step)
        return step

    def _launch(self, step: Step) -> None:
        for part in step.parts:
            job = part.job
            job.num_computed += part.num_tokens
            job.num_in_flight += part.num_tokens
            self.cache.sequences[job.name].num_in_flight = job.num_in_flight
            part.makes = job.num_computed >= job.num_tokens + job.num_placeholders
            part.num_preemptions = job.num_preemptions
        if self.depth > 1:
            for part in step.parts:
                if part.makes:
                    part.job.num_placeholders += 1 + part.num_drafts
                    part.job.num_drafts = self.num_drafts
        if step.parts:
            self.flights.append(step)

    def process(self, accept: Callable[[Job, int], int]) -> Step:
        """The oldest step in flight has ended. `accept` says how many drafts are right."""
        step = self.flights.pop(0)
        done: list[Job] = []
        for part in step.parts:
            job = part.job
            is_stale = part.num_preemptions != job.num_preemptions
            if not is_stale:
                job.num_in_flight -= part.num_tokens
                if job.is_running:
                    self.cache.sequences[job.name].num_in_flight = job.num_in_flight
            end = min(job.num_prompt + job.num_output, self.max_model_len)
            if not part.makes or job.num_tokens >= end:
                continue
            accepted = accept(job, part.num_drafts)
            made = min(1 + accepted, end - job.num_tokens)
            if not is_stale:
                job.num_computed -= part.num_drafts + 1 - made
                if job.num_placeholders:
                    job.num_placeholders -= 1 + part.num_drafts
                if job.is_running:
                    sequence = self.cache.sequences[job.name]
                    sequence.num_computed = job.num_computed
                    self.cache.append(job.name, job.output_uid, made)
            job.num_produced += made
            if not is_stale and (self.depth > 1 or part.num_drafts):
                self.cache.cache_up_to(job.name, job.num_computed - job.num_placeholders)
            if self.depth == 1:
                job.num_drafts = self.num_drafts
            if job.num_tokens >= end:
                done.append(job)
                step.finished.append(job.name)
        for job in done:
            if job.is_running:
                self.running.remove(job)
                job.is_running = False
                self.cache.free(job.name)
            else:
                self.waiting.remove(job)
        return step

    def _count(self, job: Job, hit: int) -> None:
        if not self.cache.enable_caching:
            return
        if job.num_preemptions:
            self.counters["preempted_requests"] += 1
            self.counters["preempted_queries"] += job.num_tokens
            self.counters["preempted_hits"] += hit
        else:
            self.counters["queries"] += job.num_tokens
            self.counters["hits"] += hit

    def _victim(self) -> Job:
        if not self.by_priority:
            return self.running[-1]
        return max(self.running, key=lambda job: job.rank[:2])

    def _preempt(self, job: Job) -> None:
        self.running.remove(job)
        job.is_running = False
        self.cache.free(job.name)
        job.num_computed = job.num_in_flight = job.num_placeholders = job.num_drafts = 0
        job.num_preemptions += 1
        self.waiting.insert(0, job)
        self._sort()

    def _sort(self) -> None:
        if self.by_priority:
            self.waiting.sort(key=lambda job: job.rank)
