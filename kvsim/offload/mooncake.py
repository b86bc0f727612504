"""The connector of one replica to a Mooncake store, which holds blocks that nodes share.

While a prompt is computed, every whole scheduler block of it is saved: of each group the blocks of
its store mask, those the store has or is being given already left out. A lookup takes what all
groups can serve, as the prefix cache does, on the dense mask, and loads what goes beyond the local
hit. Until a save is done all blocks that its request had then stay on the device, whether they are
of the save or not and even where nothing of it is new: the engine's workers may have to repeat what
failed before. Where the store has no room for a save, its request saves no more until some save of
the replica has found room.

vLLM 0.33.0, ``MooncakeStoreScheduler``, ``MooncakeStoreWorker`` (#44774).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvsim.cache.block_pool import Ids, give_back_run, touch
from kvsim.cache.content import GROUP_BITS, Content, Ints, block_key, span_at
from kvsim.cache.coordinator import Core
from kvsim.cache.manager import KVCache, Sequence
from kvsim.jit import njit
from kvsim.offload.mooncake_store import MooncakeStore
from kvsim.offload.store_masks import store_masks
from kvsim.offload.transfers import TransferJob, Transfers


@dataclass(slots=True, eq=False)
class _Request:
    """A request that runs.

    Attributes:
        name: its name.
        prefill_tokens: it is saved up to here, be it prompt or computed again.
        num_saved: tokens saved so far.
        comes_back: it was preempted before.
    """

    name: str
    prefill_tokens: int = 0
    num_saved: int = 0
    comes_back: bool = False


@dataclass(slots=True, eq=False)
class _Job:
    """A job that is not done: what was handed out, and what is to be done at its end.

    Attributes:
        sequence: whose it is.
        end: tokens that it saves up to; 0 for a load, and for states alone.
        keys: units to put.
        held: blocks that stay on the device until then, group after group.
        is_load: it is one.
    """

    sequence: Sequence
    end: int
    keys: Ints
    held: Ids
    is_load: bool = False


_NO_KEYS: Ints = np.zeros(0, dtype=np.int64)
_NO_BLOCKS: Ids = np.zeros(0, dtype=np.int32)


class MooncakeConnector:
    """Between one replica's scheduler and a store that may be shared.

    Attributes:
        store: what it saves to and loads from.
        external_queries: tokens left after the local hit, counted with a request's first answer.
        external_hits: tokens of these that the store had.
        chunks_stored: per group; a chunk is one block here.
        blocks_stored: the same.
        chunks_loaded: per group.
        blocks_loaded: the same.
        chunks_loaded_once: per group, stored chunks that were loaded at least once.
    """

    def __init__(self, cache: KVCache, store: MooncakeStore) -> None:
        """Connect a cache and a store.

        Args:
            cache: of one replica.
            store: may be shared by connectors of the same model.
        """
        config = cache.config
        num_groups = len(config.groups)
        self.store = store
        self.external_queries = 0
        self.external_hits = 0
        self.chunks_stored = [0] * num_groups
        self.blocks_stored = self.chunks_stored
        self.chunks_loaded = [0] * num_groups
        self.blocks_loaded = self.chunks_loaded
        self.chunks_loaded_once = [0] * num_groups
        self._cache = cache
        self._groups = config.groups
        # Blocks go back all groups at once, so to the head of the queue only where all go there.
        self._prepend_uncached = bool(cache.core.tables.groups["prepend_uncached"].all())
        self._requests: dict[Sequence, _Request] = {}
        self._admitted: list[Sequence] = []  # in the step being planned
        self._asked: set[Sequence] = set()
        self._jobs: dict[int, _Job] = {}
        self._no_room: set[Sequence] = set()
        self._num_jobs = 0
        self._loads: list[TransferJob] = []
        self._loaded: list[Ints] = []
        self._hit_unit = cache.alignment_tokens
        self._rules = cache.core.rules.copy()
        self._rules["caching"] = 1  # the store is looked up with the device's caching off as well

    @property
    def in_flight(self) -> bool:
        """Whether any job is not done."""
        return bool(self._jobs)

    @property
    def has_news(self) -> bool:
        """Nothing is told to the store once a request is finished."""
        return False

    @property
    def idle(self) -> bool:
        """Whether steps that only decode change nothing here: only prompts are saved."""
        return not self._jobs

    def arrive(self, sequence: Sequence, name: str, output_uid: int, end_tokens: int) -> None:
        """A request arrives that will be at most ``end_tokens`` long."""
        self._requests[sequence] = _Request(name)

    def match(self, sequence: Sequence, num_local: int) -> int | None:
        """Tokens that can be loaded beyond the local hit."""
        content = sequence.content
        num_tokens, size = content.num_tokens, self._hit_unit
        core = self._cache.core._replace(rules=self._rules)
        hit = self.store.longest_hit(core, content, num_tokens // size * size)
        if hit >= num_tokens:
            hit = self.store.longest_hit(core, content, (num_tokens - 1) // size * size)
        external = max(0, hit - num_local)
        if hit and self.store.leases is not None:
            for number in range(len(self._groups)):
                self.store.look_up(self._keys_within(content, number, hit))
        if sequence not in self._asked:
            self._asked.add(sequence)
            self.external_queries += num_tokens - num_local
            self.external_hits += external
        return external

    def admit(self, sequence: Sequence) -> None:
        """A request got its first blocks, or those it loaded to are full, and runs."""
        request = self._requests[sequence]
        request.prefill_tokens = sequence.content.num_tokens
        request.num_saved = 0
        self._admitted.append(sequence)

    resume = admit

    def hand_out(self, sequence: Sequence) -> None:
        """A request got its first blocks, to load to them from elsewhere: nothing to remember."""

    def load(self, sequence: Sequence, num_local: int, num_external: int) -> None:
        """A request got its first blocks, to load what ``match`` promised."""
        found = []
        for number, group in enumerate(self._groups):
            first = int(self._cache.core.tables.tables["first"][sequence.slot, number])
            start = max(-(-num_local // group.block_size), first)
            indices = np.arange(start, (num_local + num_external) // group.block_size)
            found.append(self._keys(sequence, number, indices))
        self._load(sequence, found)

    def _load(self, sequence: Sequence, found: list[Ints]) -> None:
        """Load units, given by group."""
        counts = [len(keys) for keys in found]
        keys = np.concatenate(found)
        fresh = keys[self.store.get(keys)] & ((1 << GROUP_BITS) - 1)
        for number, count in enumerate(counts):
            self.chunks_loaded[number] += count
            self.chunks_loaded_once[number] += int(np.count_nonzero(fresh == number))
        self._loads.append(
            self._new_job(counts, _Job(sequence, 0, _NO_KEYS, _NO_BLOCKS, is_load=True))
        )
        self._loaded.append(keys)

    def preempt(self, sequence: Sequence) -> None:
        """A request is about to lose its blocks; those that a save holds stay held."""
        self._requests[sequence].comes_back = True

    def finish(self, sequence: Sequence) -> None:
        """A request is done and about to give its blocks back."""
        del self._requests[sequence]
        self._asked.discard(sequence)
        self._no_room.discard(sequence)

    def abandon(self, sequence: Sequence) -> None:
        """A request will never run."""
        self.finish(sequence)

    def build(self, scheduled: list[Sequence]) -> Transfers:
        """A step is planned: which jobs it makes.

        Args:
            scheduled: whoever computes something in it, in order.
        """
        transfers = Transfers(loads=self._loads, loaded=self._loaded)
        self._loads, self._loaded = [], []
        rows, size = self._cache.core.tables.sequences, self._cache.alignment_tokens
        for sequence in self._in_order(scheduled):
            request = self._requests[sequence]
            computed = min(int(rows["num_computed"][sequence.slot]), request.prefill_tokens)
            end = computed // size * size
            if end > request.num_saved:
                self._save(sequence, request, end, transfers)
                request.num_saved = end
        return transfers

    def _in_order(self, scheduled: list[Sequence]) -> list[Sequence]:
        """As the engine tells its workers: who starts, then who comes back, then who ran before."""
        admitted, self._admitted = self._admitted, []
        admitted.sort(key=lambda sequence: self._requests[sequence].comes_back)
        return admitted + [sequence for sequence in scheduled if sequence not in admitted]

    def complete(self, numbers: Iterable[int]) -> list[Sequence]:
        """Jobs are done.

        Returns:
            The requests whose loads have arrived.
        """
        arrived = []
        for number in numbers:
            job = self._jobs.pop(number)
            if job.is_load:
                arrived.append(job.sequence)
                continue
            self.store.put(job.keys)
            if len(job.keys) and job.sequence not in self._no_room:
                self._no_room.clear()
            _let_go(self._cache.core, job.held, self._prepend_uncached)
        return arrived

    def saving(self, number: int) -> tuple[int, int]:
        """Of a job that is not done, the tokens it saves up to and how many blocks it holds."""
        job = self._jobs[number]
        return job.end, len(job.held)

    def lose(self) -> None:
        """The replica fails: what it is putting will never be there."""
        for job in self._jobs.values():
            self.store.give_up(job.keys)
        self._jobs.clear()

    def _save(self, sequence: Sequence, request: _Request, end: int, transfers: Transfers) -> None:
        """Save what a request has computed since its last save."""
        found = self._to_save(sequence, request, end)
        first = self._cache.core.tables.tables["first"][sequence.slot].tolist()
        tables = [self._cache.block_table(sequence, g, first[g]) for g in range(len(self._groups))]
        self._put(sequence, end, np.concatenate(found), np.concatenate(tables), transfers)

    def _to_save(self, sequence: Sequence, request: _Request, end: int) -> list[Ints]:
        """The units of a save, by group."""
        config = self._cache.config
        masks = store_masks(
            self._groups,
            self._cache.alignment_tokens,
            end,
            start_token=request.num_saved,
            num_prompt_tokens=request.prefill_tokens,
            retention_interval=config.retention_interval,
            use_eagle=config.use_eagle,
        )
        found: list[Ints] = []
        for number, (group, mask) in enumerate(zip(self._groups, masks, strict=True)):
            start = -(-request.num_saved // group.block_size)
            if mask is None:
                indices = np.arange(start, end // group.block_size)
            else:
                indices = start + np.flatnonzero(mask)
            first = int(self._cache.core.tables.tables["first"][sequence.slot, number])
            indices = indices[indices >= first]  # the window has left those before
            found.append(self._keys(sequence, number, indices))
        return found

    def _put(
        self, sequence: Sequence, end: int, keys: Ints, held: Ids, transfers: Transfers
    ) -> None:
        """Put what the store lacks of some units; blocks are held until that is done."""
        wanted = keys[:0] if sequence in self._no_room else keys[self.store.wanted(keys)]
        keys = wanted[: self.store.reserve(wanted)]
        if len(keys) < len(wanted):
            self._no_room.add(sequence)
        groups = keys & ((1 << GROUP_BITS) - 1)
        counts = np.bincount(groups, minlength=len(self._groups)).tolist()
        for number, count in enumerate(counts):
            self.chunks_stored[number] += count
        _hold(self._cache.core, held)
        transfers.stores.append(self._new_job(counts, _Job(sequence, end, keys, held)))

    def _keys(self, sequence: Sequence, group: int, indices: Ints) -> Ints:
        tables = self._cache.core.tables
        keys = np.zeros(len(indices), dtype=np.int64)
        num_spans = int(tables.sequences["num_spans"][sequence.slot])
        uids, ends = tables.spans[sequence.slot, :, :num_spans]
        _write_keys(uids, ends, self._groups[group].block_size, group, indices, keys)
        return keys

    def _keys_within(self, content: Content, group: int, num_tokens: int) -> Ints:
        """The keys of a group's whole blocks of a prompt's beginning, which may have no row yet."""
        size = self._groups[group].block_size
        indices = np.arange(num_tokens // size)
        keys = np.zeros(len(indices), dtype=np.int64)
        _write_keys(content.uids, content.ends, size, group, indices, keys)
        return keys

    def _new_job(self, counts: list[int], job: _Job) -> TransferJob:
        number = self._num_jobs
        self._num_jobs += 1
        self._jobs[number] = job
        name, blocks = self._requests[job.sequence].name, tuple(counts)
        return TransferJob(number, name, not job.is_load, blocks, blocks, _NO_KEYS)


@njit
def _write_keys(
    uids: Ints, ends: Ints, block_size: int, group: int, indices: Ints, keys: Ints
) -> None:
    """Write the keys of a group's blocks, whose numbers rise."""
    for i in range(len(indices)):
        position = (indices[i] + 1) * block_size
        keys[i] = block_key(uids[span_at(ends, len(ends), position)], indices[i] + 1, group)


@njit
def _hold(core: Core, blocks: Ids) -> None:
    """One more holder of blocks that are in use."""
    for block in blocks:
        touch(core.pool, block)


@njit
def _let_go(core: Core, blocks: Ids, prepend_uncached: bool) -> None:
    """One holder less of blocks, last block first."""
    give_back_run(core.pool, blocks, -1, 0, len(blocks), prepend_uncached)
