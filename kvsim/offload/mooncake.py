"""The Mooncake store: blocks in memory that nodes share, and the connector of one replica to it.

While a prompt is computed, every whole scheduler block of it is saved: of each group the blocks of
its store mask, those the store has or is being given already left out. A lookup takes what all
groups can serve, as the prefix cache does, on the dense mask, and loads what goes beyond the local
hit. Until a save is done all blocks that its request had then stay on the device, whether they are
of the save or not and even where nothing of it is new: the engine's workers may have to repeat what
failed before. What the store holds leaves it in the order of last use, whoever reads it (there are
no leases).

vLLM 0.33.0, ``MooncakeStoreScheduler``, ``MooncakeStoreWorker`` (#44774). One file because the
connector and the store name blocks alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.cache.block_pool import (
    EVICTED,
    Ids,
    Pool,
    enter_block,
    find_block,
    give_back_run,
    make_pool,
    take_run,
    touch,
)
from kvsim.cache.content import GROUP_BITS, Content, Ints, block_key, span_at
from kvsim.cache.coordinator import HIT, Core, flatten, longest_hit
from kvsim.cache.hybrid import hybrid_hit
from kvsim.cache.manager import KVCache, Sequence
from kvsim.jit import njit
from kvsim.offload.store_masks import store_masks
from kvsim.offload.transfers import TransferJob, Transfers

Bytes8 = npt.NDArray[np.uint8]


class MooncakeStore:
    """Units, a block of one group each, as many as there is room for.

    Attributes:
        num_units: its capacity.
        num_used: units in it.
        num_used_max: the most there ever were.
        num_evicted: units that had to leave so far.
    """

    def __init__(self, num_units: int) -> None:
        """An empty store.

        Args:
            num_units: its capacity, at least 1.

        Raises:
            ValueError: no room for a single unit.
        """
        if num_units < 1:
            raise ValueError(f"num_units {num_units} is below 1: the store holds nothing")
        self.num_units = num_units
        self.num_used = 0
        self.num_used_max = 0
        # A pool of blocks none of which is ever in use: its free queue is the order of last use.
        self._pool = make_pool(min(num_units, 1 << 12) + 1)
        self._loaded: Bytes8 = np.zeros(len(self._pool.blocks), dtype=np.uint8)
        self._unit: Ids = np.zeros(1, dtype=np.int32)  # scratch: the unit in hand

    @property
    def num_evicted(self) -> int:
        """Units that had to leave so far."""
        return int(self._pool.totals[EVICTED])

    def missing(self, keys: Ints) -> npt.NDArray[np.bool_]:
        """For each key, whether the store lacks it."""
        units = np.zeros(len(keys), dtype=np.int64)
        _find(self._pool, keys, units)
        lacking: npt.NDArray[np.bool_] = units == 0
        return lacking

    def put(self, keys: Ints) -> None:
        """Take in units it lacks; those used longest ago leave where there is no room."""
        if len(keys) == 0:
            return
        needed = min(self.num_used + len(keys), self.num_units)
        if needed >= len(self._pool.blocks):
            self._grow(needed)
        _put(self._pool, keys, self._loaded, self._unit)
        self.num_used = needed
        self.num_used_max = max(self.num_used_max, needed)

    def get(self, keys: Ints) -> npt.NDArray[np.bool_]:
        """Read units, which are used last now.

        Returns:
            For each key, whether it is read for the first time since it was put.
        """
        first = np.zeros(len(keys), dtype=np.bool_)
        _get(self._pool, keys, self._loaded, self._unit, first)
        return first

    def longest_hit(self, core: Core, content: Content, max_tokens: int) -> int:
        """The longest prefix that every group can serve from the store, in tokens.

        Args:
            core: of the cache it would be loaded to: its groups and rules.
            content: the request's.
            max_tokens: looked up to here; a multiple of the scheduler block.
        """
        if max_tokens <= 0:
            return 0
        span = int(np.searchsorted(content.ends, max_tokens))
        ends = content.ends[: span + 1].copy()
        ends[-1] = max_tokens + 1  # a lookup leaves out the last token
        answer = np.zeros_like(core.answer)
        stored = core._replace(pool=self._pool, answer=answer)
        find = longest_hit if core.states is None else hybrid_hit
        find(flatten(stored), content.uids[: span + 1], ends)
        return int(answer[HIT])

    def _grow(self, needed: int) -> None:
        num_units = min(self.num_units, max(needed, 2 * len(self._pool.blocks)))
        larger = make_pool(num_units + 1)
        loaded = np.zeros(num_units + 1, dtype=np.uint8)
        _move(self._pool, larger, self._loaded, loaded, self._unit)
        larger.totals[EVICTED] = self._pool.totals[EVICTED]
        self._pool, self._loaded = larger, loaded


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
        self._being_put: set[int] = set()
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
            self._being_put.difference_update(job.keys.tolist())
            # Another replica may have put the same in the meantime.
            self.store.put(job.keys[self.store.missing(job.keys)])
            _let_go(self._cache.core, job.held, self._prepend_uncached)
        return arrived

    def saving(self, number: int) -> tuple[int, int]:
        """Of a job that is not done, the tokens it saves up to and how many blocks it holds."""
        job = self._jobs[number]
        return job.end, len(job.held)

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
        new = self.store.missing(keys)
        if self._being_put:
            new &= np.array([key not in self._being_put for key in keys.tolist()], dtype=np.bool_)
        keys = keys[new]
        groups = keys & ((1 << GROUP_BITS) - 1)
        counts = np.bincount(groups, minlength=len(self._groups)).tolist()
        for number, count in enumerate(counts):
            self.chunks_stored[number] += count
        _hold(self._cache.core, held)
        self._being_put.update(keys.tolist())
        transfers.stores.append(self._new_job(counts, _Job(sequence, end, keys, held)))

    def _keys(self, sequence: Sequence, group: int, indices: Ints) -> Ints:
        tables = self._cache.core.tables
        keys = np.zeros(len(indices), dtype=np.int64)
        num_spans = int(tables.sequences["num_spans"][sequence.slot])
        uids, ends = tables.spans[sequence.slot, :, :num_spans]
        _write_keys(uids, ends, self._groups[group].block_size, group, indices, keys)
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
def _find(pool: Pool, keys: Ints, units: Ints) -> None:
    """Write the units that hold keys, 0 for those that are not there."""
    for i in range(len(keys)):
        units[i] = find_block(pool, keys[i])


@njit
def _put(pool: Pool, keys: Ints, loaded: Bytes8, unit: Ids) -> None:
    """Enter keys, in the units used longest ago."""
    for i in range(len(keys)):
        take_run(pool, unit, -1, 0, 1, 0)
        enter_block(pool, unit[0], keys[i])
        give_back_run(pool, unit, -1, 0, 1, False)
        loaded[unit[0]] = 0


@njit
def _get(pool: Pool, keys: Ints, loaded: Bytes8, unit: Ids, first: npt.NDArray[np.bool_]) -> None:
    """Use units, and note which of them are read for the first time."""
    for i in range(len(keys)):
        unit[0] = find_block(pool, keys[i])
        touch(pool, unit[0])
        give_back_run(pool, unit, -1, 0, 1, False)
        first[i] = loaded[unit[0]] == 0
        loaded[unit[0]] = 1


@njit
def _move(pool: Pool, larger: Pool, loaded: Bytes8, larger_loaded: Bytes8, place: Ids) -> None:
    """Enter all keys in a larger pool, in the order of their last use."""
    unit = pool.blocks[0].after
    while unit != 0:
        if pool.blocks[unit].key != 0:
            take_run(larger, place, -1, 0, 1, 0)
            enter_block(larger, place[0], pool.blocks[unit].key)
            give_back_run(larger, place, -1, 0, 1, False)
            larger_loaded[place[0]] = loaded[unit]
        unit = pool.blocks[unit].after


@njit
def _hold(core: Core, blocks: Ids) -> None:
    """One more holder of blocks that are in use."""
    for block in blocks:
        touch(core.pool, block)


@njit
def _let_go(core: Core, blocks: Ids, prepend_uncached: bool) -> None:
    """One holder less of blocks, last block first."""
    give_back_run(core.pool, blocks, -1, 0, len(blocks), prepend_uncached)
