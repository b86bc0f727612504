"""Lets requests begin to run or to load: what the scheduler does for those that wait."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvsim.cache.manager import Hit, KVCache
from kvsim.cache.misses import MissLedger
from kvsim.cache.reasons import AWAITED, LOST_WITH_HOLDER, NOT_COMPUTED
from kvsim.cache.spec import FULL, MAMBA
from kvsim.engine.jobs import Counters, Job, Load, SchedulerConfig, StepPlan
from kvsim.engine.stepping import BUDGET, batch_for
from kvsim.engine.waiting import WaitingQueue
from kvsim.offload.transfers import Connector
from kvsim.policies.profiles import PROFILES
from kvsim.workload.request import Request


class Admission:
    """Requests that run, load and wait, and how they come to run.

    Attributes:
        cache: where blocks come from.
        config: what it goes by.
        running: jobs that hold blocks, in the order of admission.
        waiting: jobs that do not, the next one first.
        loading: who holds the blocks it loads to, in order; they run before all who wait.
        connector: between the cache and a tier; None without one.
        counters: tokens looked up and hit, preemptions.
        misses: why tokens were not hit; None where nobody asks.
    """

    def __init__(
        self,
        cache: KVCache,
        config: SchedulerConfig,
        connector: Connector | None,
        misses: MissLedger | None,
    ) -> None:
        """Without requests; see `Scheduler`."""
        self.cache = cache
        self.config = config
        self.running: list[Job] = []
        self.waiting = WaitingQueue(by_priority=config.by_priority)
        self.loading: list[Load] = []
        self.connector = connector
        self.counters = Counters()
        self._num_ran = 0  # who ran before anybody was admitted in this step
        self.misses = misses
        self._profile = PROFILES[cache.config.profile]
        self._batch = batch_for(config)

    def _admit(self, plan: StepPlan, threshold: int, defer_prefills: bool) -> Job | None:
        """Let requests begin to run or to load, as long as there is room.

        Returns:
            The first one there were no blocks for, or None.
        """
        cache, connector = self.cache, self.connector
        self._num_ran = len(self.running)
        if self.loading and not defer_prefills:
            goes_on, blocked = self._admit_loaded(plan, threshold)
            if not goes_on:
                return blocked
        if defer_prefills and connector is None:
            return None
        deferred = []
        blocked = None
        while self.waiting and self._has_room:
            job = self.waiting.first
            if job.num_stale:  # its tokens are under way, and it has to begin with them
                deferred.append(self.waiting.pop())
                continue
            sequence = job.sequence
            hit = cache.lookup(sequence)
            if self._profile.counts_lookups:
                self._count(job, sequence.content.num_tokens, hit.tokens)
            num_external = 0
            is_cut = False
            if connector is not None:
                # A part of a block gives way to more from outside; the tier is told of whole ones.
                part = hit.tokens % cache.alignment_tokens
                answer = connector.match(sequence, hit.tokens - part)
                if answer is None:
                    plan.deferred.append(job)
                    deferred.append(self.waiting.pop())
                    continue
                plan.external.append((job, answer))
                num_external = answer if answer > part else 0
                is_cut = part > 0 and num_external > 0
                if is_cut:
                    hit = replace(hit, tokens=hit.tokens - part)
            if defer_prefills and not num_external:
                deferred.append(self.waiting.pop())
                continue
            num_new = self._num_new(sequence.content.num_tokens - hit.tokens, threshold)
            if cache.has_states:
                start = hit.tokens + num_external
                num_new = cache.chunk(sequence, start, num_new, self.config.most_chunk)
                if num_new == 0 and not num_external:  # too little is left of this step
                    break
            if self.misses is not None and job.num_preemptions == 0:
                self._find_misses(self.misses, job, hit, num_external)
            if num_external:
                done = cache.allocate_load(
                    sequence,
                    hit,
                    num_external,
                    is_cut=is_cut,
                    full_fit=self.config.reserve_whole_prompt,
                    num_reserved=self._num_reserved(),
                    watermark=self._watermark,
                )
            else:
                done = cache.allocate(
                    sequence,
                    num_new,
                    hit=hit,
                    lookahead=len(self.config.acceptance),
                    full_fit=self.config.reserve_whole_prompt,
                    watermark=self._watermark,
                )
            if not done:
                blocked = job
                break
            self.waiting.pop()
            if job.num_preemptions == 0:
                job.hit = hit
                if self.misses is not None:
                    self.misses.admitted(sequence)
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
        if deferred:
            self.waiting.put_back(deferred)
        return blocked

    def _admit_loaded(self, plan: StepPlan, threshold: int) -> tuple[bool, Job | None]:
        """Let requests run whose loads have arrived, in order.

        Returns:
            Whether those that wait are looked at in this step, and the one there was no room for.
        """
        cache = self.cache
        for load in list(self.loading):
            if not self._has_room:
                return True, None
            if not load.has_arrived:
                continue
            job, sequence = load.job, load.job.sequence
            if not load.is_cached:
                cache.load_arrived(sequence)
                load.is_cached = True
            num_computed = cache.num_computed(sequence)
            num_new = self._num_new(sequence.content.num_tokens - num_computed, threshold)
            if cache.has_states:
                num_new = cache.chunk(sequence, num_computed, num_new, self.config.most_chunk)
                if num_new == 0:  # too little is left of this step
                    return False, None
            if not cache.allocate(
                sequence,
                num_new,
                lookahead=len(self.config.acceptance),
                full_fit=self.config.reserve_whole_prompt,
                watermark=self._watermark,
            ):
                return False, job
            self.loading.remove(load)
            self._run(job, num_new, num_computed)
            (plan.started if job.num_preemptions == 0 else plan.resumed).append((job, load.hit))
            if self.connector is not None:
                self.connector.resume(sequence)
        return True, None

    def _find_misses(self, misses: MissLedger, job: Job, hit: Hit, num_external: int) -> None:
        """Note why a request that may be admitted now for the first time was not hit whole."""
        sequence = job.sequence
        whole = sequence.content.num_tokens if self.config.reserve_whole_prompt else hit.tokens + 1
        if not num_external and self.cache.num_blocks_lacking(whole, hit) > self.cache.num_free:
            return  # it will not be, and is asked about again in the next step
        found = misses.find(sequence, hit, num_external, job.request.output_uid)
        if found[NOT_COMPUTED] and any(
            other.num_preemptions and misses.number(other.sequence) == found[AWAITED]
            for other in self.waiting
        ):  # who was to compute it waits because it was preempted
            found[LOST_WITH_HOLDER] += found[NOT_COMPUTED]
            found[NOT_COMPUTED] = 0
        job.misses = found

    def load_failed(self, job: Job) -> int:
        """A request's load will not arrive.

        With one group of full attention it keeps its blocks and computes what lies beyond its own
        hit. Else, and without a hit, it gives them back and is the next to be looked up again.
        (vLLM 0.33.0: v1/core/sched/scheduler.py, `_update_waiting_for_remote_kv`.)

        Returns:
            Tokens of the hit that it keeps; 0 where it gives its blocks back.
        """
        load = next(load for load in self.loading if load.job is job)
        sequence, kept = job.sequence, load.hit.tokens
        job.num_external = 0
        groups = self.cache.config.groups
        if kept and len(groups) == 1 and groups[0].kind == FULL:
            self.cache.core.tables.sequences["num_computed"][sequence.slot] = kept
            load.has_arrived = load.is_cached = True
            return kept
        self.loading.remove(load)
        self.cache.free(sequence)
        self.waiting.put_back([job])
        return 0

    def give_up(self, job: Job) -> None:
        """Forget a request that does not run: nothing will make room for it, or it is lost."""
        if job in self.waiting:
            self.waiting.remove(job)
        self.loading = [load for load in self.loading if load.job is not job]
        if self.connector is not None:
            self.connector.abandon(job.sequence)
        self.cache.free(job.sequence)

    @property
    def _has_room(self) -> bool:
        """Whether the step being planned can take one more request."""
        return bool(self._batch.meter[BUDGET] > 0) and len(self.running) < self.config.most_running

    @property
    def _watermark(self) -> int:
        """Blocks to be left free by who is admitted, if the step computes something already."""
        blocks = self.config.watermark_blocks
        return blocks if blocks and self._batch.scheduled[: len(self.running)].any() else 0

    def _num_new(self, num_tokens: int, threshold: int) -> int:
        """How many of the tokens a request lacks it computes in the step being planned."""
        if 0 < threshold < num_tokens:
            num_tokens = threshold
        return min(num_tokens, int(self._batch.meter[BUDGET]))

    def _num_reserved(self) -> int:
        """Blocks that whoever computes its prompt or loads still needs, and a step of its own."""
        loading = [load.job.sequence for load in self.loading]
        sequences = [job.sequence for job in self.running] + loading
        slots = np.array([sequence.slot for sequence in sequences], dtype=np.int64)
        known = np.array([sequence.content.num_tokens for sequence in sequences], dtype=np.int64)
        starts = self.cache.core.tables.sequences["num_computed"][slots]
        counts = np.ones(len(slots), dtype=np.bool_)
        # Of those that run only who computed its prompt before this step, or goes on to.
        num = len(self.running)
        counts[self._num_ran : num] = starts[self._num_ran : num] < known[self._num_ran : num]
        for index in range(self._num_ran, num):
            counts[index] |= self.running[index].num_external > 0
        starts[:num] -= self._batch.scheduled[:num]
        counts[:num] &= starts[:num] < known[:num]
        # A step of who decodes takes a token, drafts, and slots for the drafts behind it.
        num_drafts = len(self.config.acceptance)
        ahead = 1 + 2 * num_drafts if num_drafts else 0
        sizes = [group.block_size for group in self.cache.config.groups if group.kind != MAMBA]
        own = sum(-(-ahead // size) for size in sizes)
        return own + self.cache.num_blocks_left(slots[counts], starts[counts], ahead)

    def _run(self, job: Job, num_new: int, num_computed: int) -> None:
        """A request that has its blocks joins those that run."""
        batch, sequence = self._batch, job.sequence
        index = len(self.running)
        self.running.append(job)
        batch.slots[index] = sequence.slot
        batch.scheduled[index] = num_new
        batch.contexts[index] = num_computed
        batch.drafts[index] = 0
        batch.meter[BUDGET] -= num_new
        row = self.cache.core.tables.sequences[sequence.slot]
        row["output_uid"] = job.request.output_uid
        row["eligible"] = job.eligible
        row["end_tokens"] = self._end_tokens(job.request)
        if self.cache.order is not None:
            request = job.request
            self.cache.tell_request(
                sequence,
                request.priority,
                request.keep_priority,
                request.keep_tokens,
                request.keep_s,
            )

    def _end_tokens(self, request: Request) -> int:
        """How long a request becomes."""
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        return min(num_tokens, self.config.max_model_len)

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
