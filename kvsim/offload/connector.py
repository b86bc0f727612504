"""The engine's OffloadingConnector: what is offered to a tier, looked up there, and loaded.

A state machine without a clock. It builds the jobs of a step when the step is planned, answers
lookups, and is told which jobs are done. The engine's rules: vLLM 0.33.0,
``OffloadingConnectorScheduler`` (#51886).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import numpy as np

from kvsim.cache.content import Ints
from kvsim.cache.manager import KVCache, Sequence
from kvsim.offload.cpu_tier import ChunkTier
from kvsim.offload.geometry import (
    alignment_tokens,
    blocks_per_chunk_problem,
    group_chunks,
    interval_problem,
)
from kvsim.offload.lookup import external_hit, lookup_order
from kvsim.offload.pending import NO_BLOCKS, PendingJob
from kvsim.offload.request_chunks import (
    RequestChunks,
    any_handed_out,
    chunks_to_load,
    chunks_to_offer,
    copy_tables,
    forget_handed_out,
    mark_all_blocks,
    mark_new_blocks,
    source_blocks,
    store_rows,
)
from kvsim.offload.state_chunks import extended_hit, state_rules, states_to_offer
from kvsim.offload.transfers import Offer, TransferJob, Transfers
from kvsim.policies.retention import DENSE, NO_BOUNDARY


class OffloadConnector:
    """Between a scheduler and a tier of chunks.

    Attributes:
        tier: what it stores to and loads from.
        external_queries: tokens left after the local hit, counted with a request's first answer.
        external_hits: tokens of these that the tier had, by the same answer.
        chunks_stored: per group.
        blocks_stored: per group, device blocks copied.
        chunks_loaded: per group.
        blocks_loaded: per group, device blocks written.
        chunks_loaded_once: per group, stored chunks that were loaded at least once.
        key_tokens: per group, the tokens that the number in a key counts.
    """

    def __init__(
        self,
        cache: KVCache,
        tier: ChunkTier,
        *,
        blocks_per_chunk: int = 1,
        prompt_only: bool = True,
        dcp_world_size: int = 1,
        retention_interval: int | None | Literal["cache"] = "cache",
    ) -> None:
        """Connect a cache and a tier.

        Args:
            cache: of one replica.
            tier: may be shared.
            blocks_per_chunk: blocks of one group that are stored and loaded together.
            prompt_only: generated tokens are not offered.
            dcp_world_size: decode context parallelism, as it scales the masks; the cache itself
                has blocks that are scaled already.
            retention_interval: by which chunks of windows are stored; by default the cache's.

        Raises:
            ValueError: what the engine would not accept: chunks of less than a block, or a
                retention interval that is not whole chunks.
        """
        config = cache.config
        interval = config.retention_interval
        if retention_interval != "cache":
            interval = retention_interval
        if problem := blocks_per_chunk_problem(blocks_per_chunk):
            raise ValueError(f"blocks_per_chunk: {problem}")
        if problem := interval_problem(config.groups, blocks_per_chunk, interval, dcp_world_size):
            raise ValueError(f"retention_interval: {problem}")
        specs = tuple(
            replace(group, eagle=group.eagle and config.use_eagle) for group in config.groups
        )
        self.tier = tier
        self.external_queries = self.external_hits = 0
        num_groups = len(specs)
        self.chunks_stored = [0] * num_groups
        self.blocks_stored = [0] * num_groups
        self.chunks_loaded = [0] * num_groups
        self.blocks_loaded = [0] * num_groups
        self.chunks_loaded_once = [0] * num_groups
        self._cache = cache
        self._specs = specs
        self._groups = tuple(
            group_chunks(group, blocks_per_chunk, dcp_world_size) for group in specs
        )
        self._order = lookup_order(self._groups)
        alignment = alignment_tokens(config.groups, blocks_per_chunk, dcp_world_size)
        self._states = state_rules(config, blocks_per_chunk, dcp_world_size)
        cache.offer_states()
        self._rows = store_rows(
            specs, self._groups, alignment, blocks_per_chunk, self._states.tail_unit
        )
        self.key_tokens: list[int] = self._rows["key_tokens"].tolist()
        self._alignment = alignment or 0
        self._interval = DENSE if interval is None else interval
        self._blocks_per_chunk = blocks_per_chunk
        self._prompt_only = prompt_only
        self._boundaries = np.zeros(2, dtype=np.int64)
        self._ends = np.zeros(num_groups, dtype=np.int64)
        self._counts = np.zeros((2, num_groups), dtype=np.int64)
        self._kept = np.zeros((2, 0), dtype=np.bool_)
        self._chosen = np.zeros(0, dtype=np.int64)
        self._requests: dict[Sequence, RequestChunks] = {}
        self._open: dict[Sequence, RequestChunks] = {}  # that run and have more to offer
        self._finished: list[RequestChunks] = []
        self._preempted: list[RequestChunks] = []
        self._jobs: dict[int, PendingJob] = {}
        self._num_jobs = 0
        self._step = 1
        self._handed_out = np.zeros(config.num_blocks, dtype=np.int64)
        self._transfers = Transfers()

    @property
    def in_flight(self) -> bool:
        """Whether any job is not done."""
        return bool(self._jobs)

    @property
    def has_news(self) -> bool:
        """Whether requests are finished and the tier does not know it yet."""
        return bool(self._finished)

    @property
    def idle(self) -> bool:
        """Whether steps that only decode change nothing here."""
        return not (self._jobs or self._finished or self._open)

    # --- a request's way ---

    def arrive(self, sequence: Sequence, name: str, output_uid: int, end_tokens: int) -> None:
        """A request arrives that will be at most ``end_tokens`` long."""
        self._requests[sequence] = RequestChunks(sequence, name, output_uid, end_tokens)

    def match(self, sequence: Sequence, num_local: int) -> int | None:
        """Tokens that can be loaded beyond the local hit; None: to be asked again later."""
        request = self._requests[sequence]
        request.start_again(self._rows)
        if request.jobs:
            return None
        num_tokens = sequence.content.num_tokens
        hit = external_hit(
            self.tier.chunks,
            self._groups,
            self._order,
            request.use.keys,
            request.progress.chunk_starts.tolist(),
            num_tokens,
            num_local,
            load_once=self._cache.config.enable_caching,
            state_tokens=self._states.chunk_tokens,
        )
        request.tail = 0
        if hit is not None and self._states.tail_unit:
            hit = extended_hit(self.tier, self._states, request, num_local, hit)
        if hit is not None and not request.asked:
            request.asked = True
            self.external_queries += num_tokens - num_local
            self.external_hits += hit
        return hit

    def admit(self, sequence: Sequence) -> None:
        """A request got its first blocks, or those it loaded to are full, and runs."""
        request = self._requests[sequence]
        request.fresh = True
        self._open[sequence] = request
        mark_all_blocks(self._cache.core, sequence.slot, self._handed_out, self._step)

    resume = admit

    def hand_out(self, sequence: Sequence) -> None:
        """A request got its first blocks, to load to them from elsewhere."""
        mark_all_blocks(self._cache.core, sequence.slot, self._handed_out, self._step)

    def load(self, sequence: Sequence, num_local: int, num_external: int) -> None:
        """A request got its first blocks, to load what ``match`` promised."""
        request = self._requests[sequence]
        core = self._cache.core
        mark_all_blocks(core, sequence.slot, self._handed_out, self._step)
        wanted, num_blocks = chunks_to_load(
            request,
            self._rows,
            self._blocks_per_chunk,
            core.tables.tables["first"][sequence.slot],
            num_local,
            num_local + num_external,
            self._states.tail_unit,
        )
        which = np.concatenate(wanted)
        rows, unread = self.tier.load(request.use, which)
        counts = tuple(len(chunks) for chunks in wanted)
        job = self._new_job(request, False, counts, tuple(num_blocks), rows)
        self._add(self.chunks_loaded, counts)
        self._add(self.blocks_loaded, num_blocks)
        self._add(self.chunks_loaded_once, self._count_by_group(request.use.groups[unread]))
        self._transfers.loads.append(job)
        self._transfers.loaded.append(request.use.keys[which])

    def preempt(self, sequence: Sequence) -> None:
        """A request is about to lose its blocks."""
        self._open.pop(sequence, None)
        self._preempted.append(self._requests[sequence])

    def finish(self, sequence: Sequence) -> None:
        """A request is done and about to give its blocks back."""
        request = self._requests.pop(sequence)
        request.final_tokens = self._cache.num_tokens(sequence)
        for number in request.jobs:
            job = self._jobs[number]
            job.fenced = np.concatenate([job.fenced, job.fenced_later])
        self._finished.append(request)

    def abandon(self, sequence: Sequence) -> None:
        """A request is given up that does not run and has nothing under way."""
        request = self._requests.pop(sequence)
        if request.was_looked_up:
            self.tier.finish(request.use)

    # --- steps and jobs ---

    def build(self, scheduled: list[Sequence]) -> Transfers:
        """A step is planned: which jobs it makes.

        Args:
            scheduled: whoever computes something in it, in order.
        """
        transfers, self._transfers = self._transfers, Transfers()
        slots = np.fromiter((s.slot for s in scheduled), dtype=np.int64, count=len(scheduled))
        core = self._cache.core
        mark_new_blocks(core, slots, self._handed_out, self._step)
        if self._states.groups:
            self._handed_out[self._cache.copies()[1::2]] = self._step
        storing = [self._open[s] for s in scheduled if s in self._open]
        self._follow_tables(storing)
        flushed = self._to_flush(transfers)
        for offer in states_to_offer(
            self._cache, self._states, self._requests.values(), self._prompt_only
        ):
            self._offer_blocks(*offer, transfers)
        for request in storing:
            row = core.tables.sequences[request.sequence.slot]
            # Tokens that steps in flight are still to make have no key.
            num_computed = min(int(row["num_computed"]), int(row["num_tokens"]))
            self._offer(request, num_computed, transfers, flushed)
            if self._prompt_only and self._is_stored(request, num_computed):
                del self._open[request.sequence]
        self._finished.sort(key=lambda request: request.name)
        for request in self._finished:
            if request.sequence in self._open:
                self._offer(request, 0, transfers, flushed)
                del self._open[request.sequence]
        for request in self._finished:
            self.tier.finish(request.use)
        self._finished.clear()
        transfers.flushed = sorted(flushed)
        self._step += 1
        return transfers

    def complete(self, numbers: Iterable[int]) -> list[Sequence]:
        """Jobs are done; answers the requests whose loads have arrived."""
        arrived = []
        for number in numbers:
            done = self._jobs.pop(number)
            done.request.jobs.remove(number)
            if done.job.is_store:
                self.tier.written(done.job.rows)
            else:
                self.tier.read(done.job.rows)
                arrived.append(done.request.sequence)
        return arrived

    def _follow_tables(self, storing: list[RequestChunks]) -> None:
        """Copy what was added to block tables, and null what was handed out to somebody else."""
        for request in storing:
            slot = request.sequence.slot
            copy_tables(self._cache.core, slot, request.fresh, request.progress)
            request.fresh = False
        followed = set(storing)
        for request in self._open.values():
            progress = request.progress
            forget_handed_out(
                progress,
                self._rows,
                self._blocks_per_chunk,
                progress.before if request in followed else progress.lengths,
                self._handed_out,
                self._step,
            )

    def _to_flush(self, transfers: Transfers) -> set[int]:
        """Jobs whose blocks were handed out again, and all of requests that were preempted."""
        loading = {job.number for job in transfers.loads}
        flushed: set[int] = set()
        for request in self._preempted:
            flushed |= request.jobs - loading
        self._preempted.clear()
        for number, job in self._jobs.items():
            if any_handed_out(job.fenced, self._handed_out, self._step):
                flushed.add(number)
        return flushed

    def _is_stored(self, request: RequestChunks, num_computed: int) -> bool:
        """Whether a request has offered all chunks of its prompt, and its end."""
        if self._states.tail_unit and num_computed < request.sequence.num_prompt:
            return False
        num_chunks = request.sequence.num_prompt // self._rows["tokens"]
        return bool((request.progress.pointers >= num_chunks).all())

    def _offer(
        self, request: RequestChunks, num_computed: int, transfers: Transfers, flushed: set[int]
    ) -> None:
        """Offer the chunks a request has completed."""
        num_prompt = request.sequence.num_prompt
        finished = request.final_tokens > 0
        if finished:
            # The last token was sampled and has no KV.
            num_computed = max(num_prompt, request.final_tokens - 1)
        offered = self._chunks_to_offer(
            request, min(num_computed, num_prompt) if self._prompt_only else num_computed
        )
        pointers = request.progress.pointers
        if not len(offered):
            np.maximum(pointers, self._ends, out=pointers)
            return
        keys = request.use.keys
        stored = self.tier.store(request.use, offered)
        if stored is None:  # it is offered again in the next step
            transfers.offers.append(Offer(keys[offered], None, offered[:0]))
            return
        np.maximum(pointers, self._ends, out=pointers)
        transfers.offers.append(Offer(keys[offered], keys[stored.chunks], stored.evicted))
        if len(stored.chunks):
            job = self._store(request, stored.chunks, stored.rows)
            transfers.stores.append(job.job)
            if finished:
                if any_handed_out(job.fenced_later, self._handed_out, self._step):
                    flushed.add(job.job.number)
                job.fenced = np.concatenate([job.fenced, job.fenced_later])

    def _offer_blocks(
        self, request: RequestChunks, chunks: Ints, blocks: list[int], transfers: Transfers
    ) -> None:
        """Offer chunks of one block each, which may be handed out at any time."""
        keys = request.use.keys
        stored = self.tier.store(request.use, chunks)
        if stored is None:  # it is not offered again
            transfers.offers.append(Offer(keys[chunks], None, chunks[:0]))
            return
        transfers.offers.append(Offer(keys[chunks], keys[stored.chunks], stored.evicted))
        if not len(stored.chunks):
            return
        counts = self._count_by_group(request.use.groups[stored.chunks])
        job = self._new_job(request, True, counts, counts, stored.rows)
        block_of = dict(zip(chunks.tolist(), blocks, strict=True))
        fenced = [block_of[chunk] for chunk in stored.chunks.tolist()]
        self._jobs[job.number].fenced = np.array(fenced, dtype=np.int32)
        self._add(self.chunks_stored, counts)
        self._add(self.blocks_stored, counts)
        transfers.stores.append(job)

    def _chunks_to_offer(self, request: RequestChunks, num_tokens: int) -> Ints:
        """Numbers of the chunks a request offers of so many tokens, and ends per group."""
        progress, sequence = request.progress, request.sequence
        self._boundaries[:] = NO_BOUNDARY
        if self._interval != DENSE:
            self._boundaries[0] = sequence.num_prompt - 1
            if sequence.junction:
                self._boundaries[1] = sequence.junction
        if len(progress.table) > self._kept.shape[1]:
            self._kept = np.zeros((2, 2 * len(progress.table)), dtype=np.bool_)
            self._chosen = np.zeros(2 * len(progress.table), dtype=np.int64)
        num = chunks_to_offer(
            progress,
            self._rows,
            self._blocks_per_chunk,
            num_tokens,
            sequence.num_prompt,
            request.final_tokens > 0,
            self._alignment,
            self._interval,
            self._boundaries,
            self._kept,
            self._chosen,
            self._ends,
        )
        return self._chosen[:num].copy()

    def _store(self, request: RequestChunks, chunks: Ints, rows: Ints) -> PendingJob:
        """Make the job that copies chunks to the tier."""
        blocks = np.zeros(len(chunks) * self._blocks_per_chunk, dtype=np.int32)
        num_window = source_blocks(
            request.progress,
            self._rows,
            self._blocks_per_chunk,
            chunks,
            request.use.groups[chunks],
            blocks,
            self._counts,
        )
        num_chunks, num_blocks = self._counts.tolist()
        made = self._new_job(request, True, tuple(num_chunks), tuple(num_blocks), rows)
        job = self._jobs[made.number]
        job.fenced = blocks[:num_window]
        job.fenced_later = blocks[num_window : sum(num_blocks)]
        self._add(self.chunks_stored, num_chunks)
        self._add(self.blocks_stored, num_blocks)
        return job

    def _new_job(
        self,
        request: RequestChunks,
        is_store: bool,
        num_chunks: tuple[int, ...],
        num_blocks: tuple[int, ...],
        rows: Ints,
    ) -> TransferJob:
        job = TransferJob(self._num_jobs, request.name, is_store, num_chunks, num_blocks, rows)
        self._jobs[job.number] = PendingJob(job, request, NO_BLOCKS, NO_BLOCKS)
        request.jobs.add(job.number)
        self._num_jobs += 1
        return job

    def _count_by_group(self, groups: Ints) -> tuple[int, ...]:
        return tuple(np.bincount(groups, minlength=len(self._groups)).tolist())

    @staticmethod
    def _add(totals: list[int], counts: Iterable[int]) -> None:
        for g, count in enumerate(counts):
            totals[g] += count
