"""One replica's transfers: put on links, noticed when they are done, counted and timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from simpy.events import Event

from kvsim.capacity.sizes import BlockSizes
from kvsim.engine.clock import Clock
from kvsim.engine.link import LOAD, STORE, Link
from kvsim.metrics.records import NO_UTILIZATION
from kvsim.metrics.tiers import TierFigures
from kvsim.offload.disk import DiskConnector
from kvsim.offload.transfers import Connector, TransferJob
from kvsim.times.step_time import StepTimeParams, step_seconds


class CountingConnector(Connector, Protocol):
    """A connector that counts what it moves, by group."""

    external_queries: int
    external_hits: int
    chunks_stored: list[int]
    blocks_stored: list[int]
    chunks_loaded: list[int]
    blocks_loaded: list[int]
    chunks_loaded_once: list[int]


@dataclass(frozen=True, slots=True)
class Posting:
    """What a transfer costs before its first byte is on the link.

    Attributes:
        fixed_s: whatever its size.
        descriptor_s: for each descriptor, one transfer of a replica after the other.
        descriptors: of a block of each group, of one rank.
    """

    fixed_s: float
    descriptor_s: float
    descriptors: tuple[int, ...]


class Offloading:
    """What a replica needs to know of its tiers.

    Attributes:
        connector: the scheduler's.
        link: between the device and the tier next to it.
        overlap_loads: steps start while loads are under way.
    """

    def __init__(
        self,
        clock: Clock,
        connector: CountingConnector,
        link: Link,
        sizes: BlockSizes,
        step_time: StepTimeParams,
        *,
        name: str,
        blocks_per_chunk: int,
        max_num_batched_tokens: int,
        overlap_loads: bool = False,
        disk_link: Link | None = None,
        posting: Posting | None = None,
    ) -> None:
        """Put a connector's transfers on links.

        Args:
            clock: the simulation's.
            connector: the scheduler's; where ``disk_link`` is given, one with a disk.
            link: between the device and the tier next to it; may be shared.
            sizes: bytes of blocks.
            step_time: for the time that computing again would take.
            name: of the tier next to the device, for the figures.
            blocks_per_chunk: of that tier.
            max_num_batched_tokens: tokens of a step that does nothing else.
            overlap_loads: steps start while loads are under way, and end no sooner than these.
            disk_link: between the tier and the disk below it.
            posting: what a transfer costs before its first byte; None for nothing.
        """
        self.connector = connector
        self.overlap_loads = overlap_loads
        self._clock = clock
        self.link = link
        self._disk_link = disk_link
        self._posting = posting
        self._posting_until_s = 0.0
        self._sizes = sizes
        self._step_time = step_time
        self._name = name
        self._blocks_per_chunk = blocks_per_chunk
        self._budget = max_num_batched_tokens
        self._begun: dict[int, Event] = {}
        self._done: list[int] = []
        self._early: dict[str, Event] = {}
        self._wake: Callable[[], None] = lambda: None
        self._loaded_link_bytes = 0.0
        self._recompute_s = 0.0
        self._seen_s = 0.0
        self._seen_bytes: dict[tuple[Link, str], float] = {}

    def call_when_done(self, wake: Callable[[], None]) -> None:
        """Have a function called whenever a transfer is done."""
        self._wake = wake

    def begin(self, jobs: list[TransferJob]) -> None:
        """Put transfers on the link now."""
        for job in jobs:
            sizes = self._sizes.on_link(self.link.spec, job.is_store)
            if self._posting is None or not any(job.num_blocks):
                self._carry(self.link, job, sizes)
            else:
                self._post(job, sizes, self._posting)

    def begin_disk(self) -> None:
        """Put what goes between the tier and the disk on its link."""
        if self._disk_link is not None and isinstance(self.connector, DiskConnector):
            for job in self.connector.take_disk_jobs():
                self._carry(self._disk_link, job, tuple(map(float, self._sizes.group_bytes)))

    def take_done(self) -> list[int]:
        """Numbers of the transfers that are done and were not asked for yet."""
        done, self._done = self._done, []
        return done

    def under_way(self, numbers: list[int]) -> list[Event]:
        """The ends of those of the transfers that are not done."""
        return [self._begun[number] for number in numbers if number in self._begun]

    def let_run_early(self, jobs: list[TransferJob]) -> list[int]:
        """Loads whose requests run already; answers their numbers, to be reported as done."""
        for job in jobs:
            self._early[job.name] = self._begun.pop(job.number)
        return [job.number for job in jobs]

    def still_loading(self, names: list[str]) -> list[Event]:
        """The ends of the loads of requests that run already."""
        if not self._early:
            return []
        ends = [self._early.pop(name) for name in names if name in self._early]
        return [end for end in ends if not end.processed]

    def note_load(self, job: TransferJob, num_tokens: int, start: int, end: int) -> None:
        """Count the time that computing again what is loaded would take, and its bytes.

        Args:
            job: the load.
            num_tokens: of the request.
            start: tokens that it has without the load.
            end: and with it.
        """
        end = min(end, num_tokens - 1)
        self._recompute_s += self._alone_s(start, num_tokens) - self._alone_s(end, num_tokens)
        sizes = self._sizes.on_link(self.link.spec, is_store=False)
        self._loaded_link_bytes += _bytes(job, sizes)

    def utilization(self) -> tuple[float | None, ...]:
        """How busy the links were since the last call; see `TIMELINE_COLUMNS`."""
        shares: list[float | None] = []
        for link in (self.link, self._disk_link):
            for direction in (STORE, LOAD):
                if link is None:
                    shares.append(None)
                    continue
                before = self._seen_bytes.get((link, direction), 0.0)
                shares.append(link.busy_share(direction, self._seen_s, before))
                self._seen_bytes[link, direction] = link.carried_bytes(direction)
        self._seen_s = self._clock.now
        assert len(shares) == len(NO_UTILIZATION)
        return tuple(shares)

    def figures(
        self,
        *,
        source: str,
        chunks_evicted: int,
        stores_refused: int,
        num_chunks: int,
        num_used_max: int,
        chunk_bytes: int,
        simulated_s: float,
    ) -> TierFigures:
        """The tier next to the device at the end of a run.

        Args:
            source: where its tokens count.
            chunks_evicted: of the tier.
            stores_refused: of the tier.
            num_chunks: its capacity.
            num_used_max: the most it held.
            chunk_bytes: what a chunk takes in it.
            simulated_s: how long the run was.
        """
        connector, group_bytes = self.connector, self._sizes.group_bytes
        once = [
            chunks * size * self._blocks_per_chunk
            for chunks, size in zip(connector.chunks_loaded_once, group_bytes, strict=True)
        ]
        return TierFigures(
            name=self._name,
            source=source,
            chunks_stored=list(connector.chunks_stored),
            bytes_stored=_times(connector.blocks_stored, group_bytes),
            chunks_loaded=list(connector.chunks_loaded),
            bytes_loaded=_times(connector.blocks_loaded, group_bytes),
            bytes_loaded_once=sum(once),
            chunks_evicted=chunks_evicted,
            stores_refused=stores_refused,
            capacity_bytes=num_chunks * chunk_bytes,
            used_bytes_max=num_used_max * chunk_bytes,
            **utilization_in_all(self.link, simulated_s),
            break_even_bytes_per_s=(
                self._loaded_link_bytes / self._recompute_s if self._recompute_s > 0 else None
            ),
        )

    def _post(self, job: TransferJob, sizes: tuple[float, ...], posting: Posting) -> None:
        """Post a transfer behind those that are being posted, then put it on the link."""
        self._begun[job.number] = arrived = self._clock.event()
        num = sum(a * b for a, b in zip(job.num_blocks, posting.descriptors, strict=True))
        start_s = max(self._clock.now, self._posting_until_s)
        self._posting_until_s = start_s + num * posting.descriptor_s
        direction, num_bytes = STORE if job.is_store else LOAD, _bytes(job, sizes)

        def posted(_: Event) -> None:
            self._call(self.link.carry(direction, num_bytes), arrive)

        def arrive(_: Event) -> None:
            self._clock.set(arrived, self._clock.now)

        self._call(arrived, lambda _: self._arrive(job.number))
        self._call(self._clock.at(self._posting_until_s + posting.fixed_s), posted)

    def _call(self, event: Event, function: Callable[[Event], None]) -> None:
        assert event.callbacks is not None
        event.callbacks.append(function)

    def _carry(self, link: Link, job: TransferJob, sizes: tuple[float, ...]) -> None:
        arrived = link.carry(STORE if job.is_store else LOAD, _bytes(job, sizes))
        self._begun[job.number] = arrived
        self._call(arrived, lambda _: self._arrive(job.number))

    def _arrive(self, number: int) -> None:
        if self._begun.pop(number, None) is not None:  # else it was reported early
            self._done.append(number)
        self._wake()

    def _alone_s(self, start: int, num_tokens: int) -> float:
        """Seconds to compute the tokens from ``start`` on, in steps that do nothing else."""
        new, context = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        total_s = 0.0
        for first in range(start, num_tokens, self._budget):
            context[0] = first
            new[0] = min(self._budget, num_tokens - first)
            total_s += step_seconds(self._step_time, new, context, 1)
        return total_s


def utilization_in_all(link: Link, simulated_s: float) -> dict[str, float | None]:
    """The two utilizations of `TierFigures` over a whole run."""
    shares: dict[str, float | None] = {}
    for direction, bandwidth in (
        (STORE, link.spec.store_bytes_per_s),
        (LOAD, link.spec.load_bytes_per_s),
    ):
        most = bandwidth * link.spec.efficiency * simulated_s
        shares[f"{direction}_utilization"] = (
            min(1.0, link.carried_bytes(direction) / most) if most > 0 else None
        )
    return shares


def _bytes(job: TransferJob, sizes: tuple[float, ...]) -> float:
    return sum(count * size for count, size in zip(job.num_blocks, sizes, strict=True))


def _times(counts: list[int], sizes: tuple[int, ...]) -> list[int]:
    return [count * size for count, size in zip(counts, sizes, strict=True)]
