"""Plans a step: running requests first, in order, then waiting ones, first come first served.

Knows no time: a step is planned, and later ended. What the engine's scheduler does synchronously,
with chunked prompts and without speculative tokens, this one does in the same order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kvsim.cache.content import Content
from kvsim.cache.manager import Hit, KVCache, Sequence
from kvsim.engine.step_time import StepTimeParams
from kvsim.engine.stepping import (
    BUDGET,
    COMPUTED,
    FINISHED,
    FIRST_TOKEN,
    NUM_STEPS,
    NUM_TOKENS,
    decode_run,
    end_step,
    make_batch,
    schedule_running,
    step_duration,
)
from kvsim.workload.request import Request


@dataclass(slots=True, eq=False)
class Job:
    """A request in the engine.

    Attributes:
        request: what arrived.
        sequence: its tokens and the blocks they hold.
        num_preemptions: how often it lost its blocks.
        hit: what its first admission found; None before.
    """

    request: Request
    sequence: Sequence
    num_preemptions: int = 0
    hit: Hit | None = None


@dataclass(slots=True)
class StepPlan:
    """What a step does.

    Attributes:
        started: requests admitted for the first time, in order, with their hits.
        resumed: requests that come back after a preemption, in order, with their hits.
        preempted: requests that lost their blocks, in order.
        stuck: a request that cannot ever be admitted: it does not fit though nothing runs.
    """

    started: list[tuple[Job, Hit]] = field(default_factory=list)
    resumed: list[tuple[Job, Hit]] = field(default_factory=list)
    preempted: list[Job] = field(default_factory=list)
    stuck: Job | None = None


@dataclass(slots=True)
class Counters:
    """Prefix-cache counters in tokens: first admissions, and readmissions apart.

    All stay 0 with caching off, as the engine's do.
    """

    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    preemptions: int = 0


class Scheduler:
    """First come, first served, with chunked prompts and preemption of the latest.

    Attributes:
        cache: where blocks come from.
        running: jobs that hold blocks, in the order of admission.
        waiting: jobs that do not, the next one first.
        counters: tokens looked up and hit, preemptions.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        long_prefill_token_threshold: int = 0,
    ) -> None:
        """Make a scheduler without requests.

        Args:
            cache: made for at least ``max_num_batched_tokens`` in flight.
            max_num_batched_tokens: tokens a step can compute.
            max_num_seqs: requests that can run at once.
            max_model_len: longest sequence in tokens.
            long_prefill_token_threshold: most tokens of a chunk while more than one request is
                in the system; 0 for no limit.
        """
        self.cache = cache
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.counters = Counters()
        self._batch = make_batch(max_num_seqs)

    @property
    def has_work(self) -> bool:
        """Whether any request runs or waits."""
        return bool(self.running or self.waiting)

    @property
    def num_steps(self) -> int:
        """Steps so far that scheduled something."""
        return int(self._batch.meter[NUM_STEPS])

    @property
    def num_scheduled_tokens(self) -> int:
        """Tokens computed so far."""
        return int(self._batch.meter[NUM_TOKENS])

    def add(self, request: Request) -> Job:
        """A request arrives at the end of the waiting queue."""
        job = Job(request, Sequence(request.content, request.num_prompt_tokens))
        self.waiting.append(job)
        return job

    def plan(self) -> StepPlan:
        """Schedule a step: blocks are taken, nothing is computed yet."""
        plan = StepPlan()
        batch = self._batch
        batch.meter[BUDGET] = self.max_num_batched_tokens
        threshold = self.long_prefill_token_threshold
        if len(self.running) + len(self.waiting) <= 1:
            threshold = 0  # nobody else would have to wait
        scheduled = 0
        while scheduled < len(self.running):
            scheduled = schedule_running(
                self.cache.arrays,
                batch,
                scheduled,
                len(self.running),
                threshold,
                self.max_model_len,
            )
            if scheduled < len(self.running):
                plan.preempted.append(self._preempt_latest())
        if not plan.preempted:
            self._admit(plan, threshold)
            if self.waiting and not self.running:
                plan.stuck = self.waiting.popleft()
        return plan

    def scheduled(self) -> list[tuple[Job, int]]:
        """The planned step's jobs in order, with the tokens each computes."""
        tokens = self._batch.scheduled[: len(self.running)].tolist()
        return [(job, n) for job, n in zip(self.running, tokens, strict=True) if n]

    @property
    def scheduled_any(self) -> bool:
        """Whether the planned step computes anything."""
        return bool(self._batch.scheduled[: len(self.running)].any())

    def duration_s(self, params: StepTimeParams) -> float:
        """Seconds the planned step takes; it counts as taken from now on."""
        return float(step_duration(params, self._batch, len(self.running)))

    def end_step(self) -> tuple[list[Job], list[Job]]:
        """The planned step is over.

        Returns:
            The jobs whose first token it made, and those it finished, which gave their blocks
            back; each in order.
        """
        num_outcomes = end_step(self.cache.arrays, self._batch, len(self.running))
        return self._outcomes() if num_outcomes else ([], [])

    @property
    def only_decodes(self) -> bool:
        """Whether steps go on alike until somebody arrives or is finished.

        All running requests decode within the budget, and nobody who waits could join.
        """
        num = len(self.running)
        return (
            0 < num <= self.max_num_batched_tokens
            and (not self.waiting or num >= self.max_num_seqs)
            and not self._any_prefill()
        )

    def decode_run(
        self, params: StepTimeParams, now_s: float, until_s: float
    ) -> tuple[float, list[Job]]:
        """Take decode steps in one go, each as ``plan`` and ``end_step`` would take it.

        Args:
            params: what a step's time depends on.
            now_s: when the first step begins.
            until_s: no step begins at or after this time, but the first.

        Returns:
            When the last step ends, ``now_s`` where none could be taken safely; and the jobs it
            finished.
        """
        end_s, num_finished = decode_run(
            self.cache.arrays, params, self._batch, len(self.running), now_s, until_s
        )
        return end_s, self._outcomes()[1] if num_finished else []

    def _any_prefill(self) -> bool:
        """Whether a running request has more than its latest token to compute, or no output yet."""
        rows = self.cache.core.tables.sequences[self._batch.slots[: len(self.running)]]
        behind = rows["num_computed"] + 1 < rows["num_tokens"]
        return bool((behind | (rows["num_tokens"] == rows["num_prompt"])).any())

    def _admit(self, plan: StepPlan, threshold: int) -> None:
        batch, cache = self._batch, self.cache
        budget = int(batch.meter[BUDGET])
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            job = self.waiting[0]
            sequence = job.sequence
            hit = cache.lookup(sequence)
            num_tokens = sequence.content.num_tokens
            num_new = num_tokens - hit.tokens
            if 0 < threshold < num_new:
                num_new = threshold
            num_new = min(num_new, budget)
            if not cache.allocate(sequence, num_new, hit=hit, full_fit=True):
                break
            self.waiting.popleft()
            index = len(self.running)
            self.running.append(job)
            batch.slots[index] = sequence.slot
            batch.scheduled[index] = num_new
            batch.contexts[index] = hit.tokens
            budget -= num_new
            request = job.request
            row = cache.core.tables.sequences[sequence.slot]
            row["output_uid"] = request.output_uid
            row["end_tokens"] = min(
                request.num_prompt_tokens + request.num_output_tokens, self.max_model_len
            )
            if job.num_preemptions == 0:
                job.hit = hit
                plan.started.append((job, hit))
            else:
                plan.resumed.append((job, hit))
            self._count(job, num_tokens, hit.tokens)
        batch.meter[BUDGET] = budget

    def _count(self, job: Job, num_tokens: int, hit_tokens: int) -> None:
        if not self.cache.config.enable_caching:
            return
        if job.num_preemptions == 0:
            self.counters.queries += num_tokens
            self.counters.hits += hit_tokens
        else:
            self.counters.preempted_requests += 1
            self.counters.preempted_queries += num_tokens
            self.counters.preempted_hits += hit_tokens

    def _preempt_latest(self) -> Job:
        """Take the blocks of the latest running request; it waits again, before all others."""
        job = self.running.pop()
        request, sequence = job.request, job.sequence
        num_tokens = int(self.cache.core.tables.sequences["num_tokens"][sequence.slot])
        num_output = num_tokens - request.num_prompt_tokens
        self.cache.free(sequence)
        if num_output:
            sequence.content = Content.from_spans(
                [*request.content.spans(), (request.output_uid, num_output)]
            )
        job.num_preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(job)
        return job

    def _outcomes(self) -> tuple[list[Job], list[Job]]:
        outcomes = self._batch.outcomes[: len(self.running)].tolist()
        firsts, finished, still_running = [], [], []
        for job, outcome in zip(self.running, outcomes, strict=True):
            if outcome & FIRST_TOKEN:
                firsts.append(job)
            if outcome & FINISHED:
                finished.append(job)
                self.cache.free(job.sequence)
            else:
                still_running.append(job)
        if finished:
            self.running = still_running
            self._batch.slots[: len(still_running)] = [job.sequence.slot for job in still_running]
        return firsts, finished


assert FIRST_TOKEN | FINISHED == 3 and COMPUTED == 0, "outcomes are read bit by bit"
