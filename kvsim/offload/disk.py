"""A disk below the CPU tier: every chunk stored in the tier is written on to it, and comes back.

The device never reads the disk. A lookup that the disk could serve further than the tier has the
missing chunks brought up first: they are being written in the tier meanwhile, so that the request,
and everybody else who wants them, is asked again until they are there. (vLLM 0.33.0,
``kv_offload/tiering``: stores cascade to the tiers below, promotion before use.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from kvsim.cache.content import GROUP_BITS, NUMBER_BITS, Ints
from kvsim.cache.manager import KVCache, Sequence
from kvsim.offload.connector import OffloadConnector
from kvsim.offload.cpu_tier import ChunkTier, ChunkUse
from kvsim.offload.lookup import external_hit
from kvsim.offload.request_chunks import RequestChunks
from kvsim.offload.transfers import TransferJob

_NO_ROWS: Ints = np.zeros(0, dtype=np.int64)


class DiskConnector(OffloadConnector):
    """Between a scheduler and a tier of chunks with a disk below it.

    Attributes:
        disk: what is on the disk; who was used longest ago leaves it.
        disk_chunks_stored: per group, chunks written to the disk.
        disk_chunks_loaded: per group, chunks brought up from it.
        disk_chunks_loaded_once: per group, chunks written that were brought up at least once.
    """

    def __init__(
        self,
        cache: KVCache,
        tier: ChunkTier,
        disk: ChunkTier,
        *,
        blocks_per_chunk: int = 1,
        prompt_only: bool = True,
        retention_interval: int | None | Literal["cache"] = "cache",
    ) -> None:
        """Connect a cache, a tier and a disk.

        Args:
            cache: of one replica.
            tier: next to the device.
            disk: below the tier, of the same chunks.
            blocks_per_chunk: as for ``OffloadConnector``.
            prompt_only: as for ``OffloadConnector``.
            retention_interval: as for ``OffloadConnector``.
        """
        super().__init__(
            cache,
            tier,
            blocks_per_chunk=blocks_per_chunk,
            prompt_only=prompt_only,
            retention_interval=retention_interval,
        )
        num_groups = len(self._groups)
        self.disk = disk
        self.disk_chunks_stored = [0] * num_groups
        self.disk_chunks_loaded = [0] * num_groups
        self.disk_chunks_loaded_once = [0] * num_groups
        self._disk_jobs: list[TransferJob] = []  # made and not taken yet
        self._writing: dict[int, Ints] = {}  # by job, rows on the disk
        self._bringing: dict[int, tuple[Ints, Ints]] = {}  # by job, rows there and in the tier
        self._brought_for: set[Sequence] = set()

    @property
    def in_flight(self) -> bool:
        """Whether any job is not done."""
        return super().in_flight or bool(self._writing or self._bringing)

    def take_disk_jobs(self) -> list[TransferJob]:
        """Jobs between the tier and the disk that were made since the last call."""
        jobs, self._disk_jobs = self._disk_jobs, []
        return jobs

    def match(self, sequence: Sequence, num_local: int) -> int | None:
        """As without a disk, once what it has beyond the tier was brought up.

        That is tried once for each time a request is admitted: what leaves the tier again before
        there is room for the request is not brought up a second time.
        """
        request = self._requests[sequence]
        if sequence not in self._brought_for and not request.jobs:
            request.start_again(self._rows)
            if self._bring(request, num_local):
                self._brought_for.add(sequence)
                return None
        return super().match(sequence, num_local)

    def admit(self, sequence: Sequence) -> None:
        """A request got its first blocks, or those it loaded to are full, and runs."""
        self._brought_for.discard(sequence)
        super().admit(sequence)

    resume = admit

    def abandon(self, sequence: Sequence) -> None:
        """A request will never run."""
        self._brought_for.discard(sequence)
        super().abandon(sequence)

    def complete(self, numbers: Iterable[int]) -> list[Sequence]:
        """Jobs are done, with the disk or with the device.

        Returns:
            The requests whose loads have arrived on the device.
        """
        others = []
        for number in numbers:
            if number in self._writing:
                self.disk.written(self._writing.pop(number))
            elif number in self._bringing:
                rows, tier_rows = self._bringing.pop(number)
                self.disk.read(rows)
                self.tier.written(tier_rows)
            else:
                if self._jobs[number].job.is_store:
                    self._write_on(self._jobs[number].job)
                others.append(number)
        return super().complete(others)

    def _hit(self, tier: ChunkTier, request: RequestChunks, num_local: int) -> int:
        """Tokens beyond the local hit that a tier could serve; -1: to be asked again."""
        hit = external_hit(
            tier.chunks,
            self._groups,
            self._order,
            request.use.keys,
            request.progress.chunk_starts.tolist(),
            request.sequence.content.num_tokens,
            num_local,
            load_once=self._cache.config.enable_caching,
            state_tokens=self._states.chunk_tokens,
        )
        return -1 if hit is None else hit

    def _bring(self, request: RequestChunks, num_local: int) -> bool:
        """Begin to bring up what the disk has beyond the tier; whether there was any."""
        in_tier = self._hit(self.tier, request, num_local)
        if in_tier < 0:
            return False
        on_disk = self._hit(self.disk, request, num_local)
        if on_disk <= in_tier:
            return False
        keys = request.use.keys
        wanted = np.concatenate(self._needed(request, num_local, num_local + on_disk))
        wanted = wanted[~self.tier.holds(keys[wanted])]
        # The tier learns of its own requests' use when these load or finish.
        stored = self.tier.store(_use_of(keys[wanted], self._tokens), np.arange(len(wanted)))
        if stored is None or not len(stored.chunks):
            return False
        brought = keys[wanted[stored.chunks]]
        reading = _use_of(brought, self._tokens)
        rows, unread = self.disk.load(reading, np.arange(len(brought)))
        self.disk.finish(reading)
        counts = self._by_group(reading.groups)
        self._add(self.disk_chunks_loaded, counts)
        self._add(self.disk_chunks_loaded_once, self._by_group(reading.groups[unread]))
        self._bringing[self._new_disk_job(request.name, False, counts)] = (rows, stored.rows)
        return True

    def _needed(self, request: RequestChunks, num_local: int, total: int) -> list[Ints]:
        """By group, which of a request's chunks a hit of so many tokens takes from the tier."""
        needed = []
        for g, group in enumerate(self._groups):
            start, end = num_local // group.tokens, -(-total // group.tokens)
            window = group.window_at(total)
            if window is not None:
                start = max(start, end - window)
            needed.append(request.chunks(g, start, end))
        return needed

    def _write_on(self, job: TransferJob) -> None:
        """A store is done: its chunks go on to the disk, where they are not there already."""
        keys = self.tier.chunks.rows["key"][job.rows].copy()
        use = _use_of(keys, self._tokens)
        stored = self.disk.store(use, np.arange(len(keys)))
        self.disk.finish(use)
        if stored is None or not len(stored.chunks):
            return
        counts = self._by_group(use.groups[stored.chunks])
        self._add(self.disk_chunks_stored, counts)
        self._writing[self._new_disk_job(job.name, True, counts)] = stored.rows

    def _by_group(self, groups: Ints) -> tuple[int, ...]:
        return tuple(np.bincount(groups, minlength=len(self._groups)).tolist())

    @property
    def _tokens(self) -> Ints:
        return np.array([group.tokens for group in self._groups], dtype=np.int64)

    def _new_disk_job(self, name: str, is_store: bool, counts: tuple[int, ...]) -> int:
        number = self._num_jobs
        self._num_jobs += 1
        blocks = tuple(count * self._blocks_per_chunk for count in counts)
        self._disk_jobs.append(TransferJob(number, name, is_store, counts, blocks, _NO_ROWS))
        return number


def _use_of(keys: Ints, tokens: Ints) -> ChunkUse:
    """Chunks by their keys alone; tokens of a chunk are given by group."""
    groups = keys & ((1 << GROUP_BITS) - 1)
    numbers = (keys >> GROUP_BITS) & ((1 << NUMBER_BITS) - 1)
    return ChunkUse(keys, numbers * tokens[groups], groups)
