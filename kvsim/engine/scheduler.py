"""Plans a step: running requests first, in order, then waiting ones, first come first served.

Knows no time: a step is planned, and later ended. What the engine's scheduler does synchronously,
with chunked prompts and without speculative tokens, this one does in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kvsim.cache.content import Content
from kvsim.cache.manager import Hit, KVCache, Sequence
from kvsim.engine.stepping import (
    BUDGET,
    FINISHED,
    FIRST_TOKEN,
    NUM_STEPS,
    NUM_TOKENS,
    any_prefill,
    decode_run,
    end_step,
    make_batch,
    schedule_running,
    step_duration,
)
from kvsim.offload.transfers import Connector, Transfers
from kvsim.policies.profiles import PROFILES
from kvsim.times.step_time import StepTimeParams
from kvsim.workload.request import Request


@dataclass(slots=True, eq=False)
class Job:
    """A request in the engine.

    Attributes:
        request: what arrived.
        sequence: its tokens and the blocks they hold.
        num_preemptions: how often it lost its blocks.
        hit: what its first admission found; None before.
        num_external: tokens beyond the hit that were loaded when it last got its blocks.
    """

    request: Request
    sequence: Sequence
    num_preemptions: int = 0
    hit: Hit | None = None
    num_external: int = 0


@dataclass(slots=True, eq=False)
class Load:
    """A request that holds the blocks it loads to, and does not run yet.

    Attributes:
        job: the request.
        hit: the local hit it holds as well.
        has_arrived: what it loads is there.
        is_cached: and is entered in the index.
    """

    job: Job
    hit: Hit
    has_arrived: bool = False
    is_cached: bool = False


@dataclass(slots=True)
class StepPlan:
    """What a step does.

    Attributes:
        started: requests admitted for the first time, in order, with their hits.
        resumed: requests that come back after a preemption, in order, with their hits.
        preempted: requests that lost their blocks, in order.
        stuck: a request that cannot ever be admitted: it does not fit though nothing runs.
        external: requests that asked the connector, with the tokens it can load, in order.
        deferred: requests that the connector wants to be asked again, in order.
        loading: requests that got blocks to load to, in order.
        transfers: what the step moves; None without a connector.
    """

    started: list[tuple[Job, Hit]] = field(default_factory=list)
    resumed: list[tuple[Job, Hit]] = field(default_factory=list)
    preempted: list[Job] = field(default_factory=list)
    stuck: Job | None = None
    external: list[tuple[Job, int]] = field(default_factory=list)
    deferred: list[Job] = field(default_factory=list)
    loading: list[Load] = field(default_factory=list)
    transfers: Transfers | None = None


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
        loading: who holds the blocks it loads to, in order; they run before all who wait.
        connector: between the cache and a tier; None without one.
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
        connector: Connector | None = None,
    ) -> None:
        """Make a scheduler without requests.

        Args:
            cache: made for at least ``max_num_batched_tokens`` in flight.
            max_num_batched_tokens: tokens a step can compute.
            max_num_seqs: requests that can run at once.
            max_model_len: longest sequence in tokens.
            long_prefill_token_threshold: most tokens of a chunk while more than one request is
                in the system; 0 for no limit.
            connector: asked for hits in a tier, and told what is computed.
        """
        self.cache = cache
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.loading: list[Load] = []
        self.connector = connector
        self.counters = Counters()
        self._profile = PROFILES[cache.config.profile]
        self._batch = make_batch(max_num_seqs)

    @property
    def has_work(self) -> bool:
        """Whether any request runs or waits, or the connector is to hear of finished ones."""
        if self.running or self.waiting or self.loading:
            return True
        return self.connector is not None and self.connector.has_news

    @property
    def in_flight(self) -> bool:
        """Whether a transfer is under way."""
        return self.connector is not None and self.connector.in_flight

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

    def plan(self) -> StepPlan:
        """Schedule a step: blocks are taken, nothing is computed yet."""
        plan = StepPlan()
        batch = self._batch
        batch.meter[BUDGET] = self.max_num_batched_tokens
        threshold = self.long_prefill_token_threshold
        num_requests = len(self.running) + len(self.waiting) + len(self.loading)
        if num_requests <= 1 and self._profile.spares_lone_prefills:
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
            blocked = self._admit(plan, threshold)
            if blocked is not None and not self.running and not self.in_flight:
                self._give_up(blocked)
                plan.stuck = blocked
        if self.connector is not None:
            plan.transfers = self.connector.build([job.sequence for job, _ in self.scheduled()])
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
        if self.connector is not None and not self.connector.idle:
            return False
        num = len(self.running)
        return (
            0 < num <= self.max_num_batched_tokens
            and (not (self.waiting or self.loading) or num >= self.max_num_seqs)
            and not any_prefill(self.cache.arrays, self._batch, num)
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

    def _admit(self, plan: StepPlan, threshold: int) -> Job | None:
        """Let requests begin to run or to load, as long as there is room.

        Returns:
            The first one there were no blocks for, or None.
        """
        cache, connector = self.cache, self.connector
        if self.loading and (blocked := self._admit_loaded(plan, threshold)) is not None:
            return blocked
        deferred = plan.deferred
        blocked = None
        while self.waiting and self._has_room:
            job = self.waiting[0]
            sequence = job.sequence
            hit = cache.lookup(sequence)
            if self._profile.counts_lookups:
                self._count(job, sequence.content.num_tokens, hit.tokens)
            num_external = 0
            if connector is not None:
                answer = connector.match(sequence, hit.tokens)
                if answer is None:
                    deferred.append(self.waiting.popleft())
                    continue
                num_external = answer
                plan.external.append((job, num_external))
            num_new = self._num_new(sequence.content.num_tokens - hit.tokens, threshold)
            if num_external:
                done = cache.allocate_load(
                    sequence, hit, num_external, num_reserved=self._num_reserved()
                )
            else:
                done = cache.allocate(sequence, num_new, hit=hit, full_fit=True)
            if not done:
                blocked = job
                break
            self.waiting.popleft()
            if job.num_preemptions == 0:
                job.hit = hit
            job.num_external = num_external
            if not self._profile.counts_lookups:
                self._count(job, sequence.content.num_tokens, hit.tokens)
            if num_external:
                load = Load(job, hit)
                self.loading.append(load)
                plan.loading.append(load)
            else:
                self._run(job, num_new, hit.tokens)
                (plan.started if job.num_preemptions == 0 else plan.resumed).append((job, hit))
            if connector is not None:
                if num_external:
                    connector.load(sequence, hit.tokens, num_external)
                else:
                    connector.admit(sequence)
        self.waiting.extendleft(reversed(deferred))
        return blocked

    def _admit_loaded(self, plan: StepPlan, threshold: int) -> Job | None:
        """Let requests run whose loads have arrived, in order."""
        cache = self.cache
        for load in list(self.loading):
            if not self._has_room:
                return None
            if not load.has_arrived:
                continue
            job, sequence = load.job, load.job.sequence
            if not load.is_cached:
                cache.load_arrived(sequence)
                load.is_cached = True
            num_computed = cache.num_computed(sequence)
            num_new = self._num_new(sequence.content.num_tokens - num_computed, threshold)
            if not cache.allocate(sequence, num_new, full_fit=True):
                return job
            self.loading.remove(load)
            self._run(job, num_new, num_computed)
            (plan.started if job.num_preemptions == 0 else plan.resumed).append((job, load.hit))
            if self.connector is not None:
                self.connector.resume(sequence)
        return None

    def _give_up(self, job: Job) -> None:
        """Forget a request that nothing will ever make room for."""
        if job in self.waiting:
            self.waiting.remove(job)
        self.loading = [load for load in self.loading if load.job is not job]
        if self.connector is not None:
            self.connector.abandon(job.sequence)
        self.cache.free(job.sequence)

    @property
    def _has_room(self) -> bool:
        """Whether the step being planned can take one more request."""
        return bool(self._batch.meter[BUDGET] > 0) and len(self.running) < self.max_num_seqs

    def _num_new(self, num_tokens: int, threshold: int) -> int:
        """How many of the tokens a request lacks it computes in the step being planned."""
        if 0 < threshold < num_tokens:
            num_tokens = threshold
        return min(num_tokens, int(self._batch.meter[BUDGET]))

    def _num_reserved(self) -> int:
        """Blocks that whoever runs or loads still needs for the tokens it has."""
        holders = [*self.running, *(load.job for load in self.loading)]
        slots = [job.sequence.slot for job in holders]
        return self.cache.num_blocks_left(np.array(slots, dtype=np.int64))

    def _run(self, job: Job, num_new: int, num_computed: int) -> None:
        """A request that has its blocks joins those that run."""
        batch, sequence = self._batch, job.sequence
        index = len(self.running)
        self.running.append(job)
        batch.slots[index] = sequence.slot
        batch.scheduled[index] = num_new
        batch.contexts[index] = num_computed
        batch.meter[BUDGET] -= num_new
        row = self.cache.core.tables.sequences[sequence.slot]
        row["output_uid"] = job.request.output_uid
        row["end_tokens"] = self._end_tokens(job.request)

    def _end_tokens(self, request: Request) -> int:
        """How long a request becomes."""
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        return min(num_tokens, self.max_model_len)

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
        if self.connector is not None:
            self.connector.preempt(sequence)
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
                if self.connector is not None:
                    self.cache.leave_windows(job.sequence)
                    self.connector.finish(job.sequence)
                self.cache.free(job.sequence)
            else:
                still_running.append(job)
        if finished:
            self.running = still_running
            self._batch.slots[: len(still_running)] = [job.sequence.slot for job in still_running]
        return firsts, finished
