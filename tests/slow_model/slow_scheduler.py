"""A slow, obvious scheduler over the slow cache: one step at a time, nothing remembered twice."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.slow_model.slow_cache import SlowCache


@dataclass
class Job:
    """A request from its arrival to its last token."""

    name: str
    spans: list[list[int]]
    num_prompt: int
    num_output: int
    output_uid: int
    num_computed: int = 0
    num_produced: int = 0
    num_preemptions: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_produced

    def content(self) -> list[list[int]]:
        """The prompt and what was produced so far."""
        produced = [[self.output_uid, self.num_produced]] if self.num_produced else []
        return [list(s) for s in self.spans] + produced


@dataclass
class Step:
    """What one step decided."""

    scheduled: dict[str, int] = field(default_factory=dict)
    admitted: dict[str, int] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)


class SlowScheduler:
    """Plans a step, pretends to compute it, and hands out the tokens."""

    def __init__(
        self,
        cache: SlowCache,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        long_prefill_token_threshold: int = 0,
    ) -> None:
        self.cache = cache
        self.budget = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.threshold = long_prefill_token_threshold
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.counters = dict.fromkeys(
            ("queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits"), 0
        )

    def add(self, name: str, spans: list[list[int]], num_output: int, output_uid: int) -> None:
        """A request arrives."""
        num_prompt = sum(n for _, n in spans)
        self.waiting.append(Job(name, spans, num_prompt, num_output, output_uid))

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> Step:
        """Plan one step, compute it, and give every request its new token."""
        step = Step()
        left = self.budget
        crowded = len(self.waiting) + len(self.running) > 1
        spared = not crowded and self.cache.profile.spares_lone_prefills
        threshold = 0 if spared else self.threshold

        def chunk(remaining: int) -> int:
            if 0 < threshold < remaining:
                remaining = threshold
            return min(remaining, left)

        turn = 0
        while turn < len(self.running) and left > 0:
            job = self.running[turn]
            want = chunk(job.num_tokens - job.num_computed)
            want = min(want, self.max_model_len - job.num_computed - 1)
            if want == 0:
                turn += 1
                continue
            while self.cache.allocate(job.name, want) is None:
                victim = self.running.pop()
                self._preempt(victim)
                step.preempted.append(victim.name)
                if victim is job:
                    break
            if job.name in step.preempted:
                break
            step.scheduled[job.name] = want
            left -= want
            turn += 1

        resumed: dict[str, int] = {}
        while self.waiting and not step.preempted and left > 0:
            if len(self.running) >= self.max_num_seqs:
                break
            job = self.waiting[0]
            hit, _, _ = self.cache.lookup(job.name, job.content(), job.num_prompt)
            if self.cache.profile.counts_lookups:
                self._count(job, hit)
            want = chunk(job.num_tokens - hit)
            if self.cache.allocate(job.name, want, full_fit=True) is None:
                self.cache.forget(job.name)
                break
            if not self.cache.profile.counts_lookups:
                self._count(job, hit)
            self.running.append(self.waiting.pop(0))
            job.num_computed = hit
            (resumed if job.num_preemptions else step.admitted)[job.name] = hit
            step.scheduled[job.name] = want
            left -= want
        step.admitted |= resumed

        self._compute(step)
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

    def _preempt(self, job: Job) -> None:
        self.cache.free(job.name)
        job.num_computed = 0
        job.num_preemptions += 1
        self.waiting.insert(0, job)

    def _compute(self, step: Step) -> None:
        for job in list(self.running):
            if job.name not in step.scheduled:
                continue
            job.num_computed += step.scheduled[job.name]
            if job.num_computed < job.num_tokens:
                continue
            job.num_produced += 1
            if job.num_produced == job.num_output or job.num_tokens >= self.max_model_len:
                self.running.remove(job)
                self.cache.free(job.name)
                step.finished.append(job.name)
            else:
                self.cache.append(job.name, job.output_uid, 1)
