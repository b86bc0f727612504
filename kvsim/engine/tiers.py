"""The tiers of a scenario: made, connected to a cache, and their figures at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from kvsim.cache.manager import KVCache
from kvsim.capacity.sizes import ASSUMED_BLOCK_BYTES, block_regions
from kvsim.catalog import LinkSpec
from kvsim.engine.carrying import Carrier
from kvsim.engine.clock import Clock
from kvsim.engine.link import Link
from kvsim.engine.offloading import Offloading, Posting, utilization_in_all
from kvsim.metrics.tiers import TierFigures
from kvsim.offload.connector import OffloadConnector
from kvsim.offload.cpu_tier import ChunkTier
from kvsim.offload.disk import DiskConnector
from kvsim.offload.leases import LeaseRules
from kvsim.offload.mooncake_states import store_connector
from kvsim.offload.mooncake_store import MooncakeStore
from kvsim.policies.chunks import chunk_bytes, num_chunks_in
from kvsim.scenario import CpuOffload, MooncakeOffload, Scenario
from kvsim.scenario.files import chosen_policy
from kvsim.scenario.offload import link_spec
from kvsim.times.step_time import StepTimeParams


class Tiers(Protocol):
    """The tiers of one replica."""

    @property
    def offloading(self) -> Carrier:
        """Carries what goes to them and comes from them."""

    @property
    def num_queried_tokens(self) -> int:
        """Tokens left after the local hit when the tier was first asked."""

    @property
    def num_hit_tokens(self) -> int:
        """Of these, tokens that the tier had."""

    @property
    def links(self) -> tuple[tuple[str, Link], ...]:
        """The links to them, each with the tier's name."""

    def lose(self) -> None:
        """The replica fails: what it was storing elsewhere will never be there."""

    def figures(self, simulated_s: float) -> tuple[TierFigures, ...]:
        """The tiers at the end of a run of so many seconds, the one next to the device first."""


class SharedTiers:
    """What several replicas use together: made by the first of them, found by the others.

    Attributes:
        cpu: the tier in the memory of a node; None before, and where each rank has its own.
        store: the store of a fleet, likewise.
        link: a node's link to either, where there is one for the node; None before.
    """

    def __init__(self, store: MooncakeStore | None = None) -> None:
        """Without anything, or with the store of the fleet that a node belongs to."""
        self.cpu: ChunkTier | None = None
        self.store = store
        self.link: Link | None = None

    def link_of(self, clock: Clock, spec: LinkSpec) -> Link:
        """The node's link where there is one for the node; else one of a rank's own."""
        if spec.span != "node":
            return Link(clock, spec)
        if self.link is None:
            self.link = Link(clock, spec)
        return self.link


def make_tiers(
    scenario: Scenario,
    clock: Clock,
    cache: KVCache,
    step_time: StepTimeParams,
    shared: SharedTiers | None = None,
) -> Tiers | None:
    """The tiers a scenario describes, with their links; None where it has none.

    Args:
        scenario: what they are like.
        clock: the simulation's.
        cache: of the replica.
        step_time: of the replica, for the time that computing again would take.
        shared: what it uses together with others; None for a replica alone.
    """
    shared = SharedTiers() if shared is None else shared
    if isinstance(scenario.offload, CpuOffload):
        return _CpuTiers(scenario, scenario.offload, clock, cache, step_time, shared)
    if isinstance(scenario.offload, MooncakeOffload):
        return _StoreTier(scenario, scenario.offload, clock, cache, step_time, shared)
    return None


def tier_warnings(scenario: Scenario) -> Iterator[str]:
    """What a run with tiers cannot show."""
    if scenario.offload is None:
        return
    assumed = scenario.tier_block_sizes.assumed
    if assumed:
        groups = ", ".join(str(group) for group in assumed)
        yield (
            f"model.groups: bytes_per_block is not given for group {groups}; "
            f"{ASSUMED_BLOCK_BYTES:,} bytes (1 MiB) are taken for tiers and links."
        )
    if scenario.engine.profile != "vllm-0.33":
        yield (
            f"offload: tiers follow vllm-0.33, whatever the profile ({scenario.engine.profile}) is."
        )


class _CpuTiers:
    """Chunks in the host's memory."""

    def __init__(
        self,
        scenario: Scenario,
        written: CpuOffload,
        clock: Clock,
        cache: KVCache,
        step_time: StepTimeParams,
        shared: SharedTiers,
    ) -> None:
        sizes = scenario.tier_block_sizes
        self._chunk_bytes = chunk_bytes(sizes.pool_bytes, written.blocks_per_chunk, 1)
        self._is_first = shared.cpu is None  # what is told of the tier is told once
        self._tier = shared.cpu or ChunkTier(
            written.num_chunks or num_chunks_in(written.capacity, self._chunk_bytes),
            chosen_policy(scenario, "offload.eviction"),
        )
        if written.shared_by == "node":
            shared.cpu = self._tier
        self._blocks_per_chunk = written.blocks_per_chunk
        self._group_bytes = sizes.group_bytes
        self._disk_link: Link | None = None
        chunks: dict[str, Any] = {
            "blocks_per_chunk": written.blocks_per_chunk,
            "prompt_only": written.prompt_only,
            "retention_interval": written.retention_interval,
        }
        below = written.below
        if below is None:
            self._connector = OffloadConnector(cache, self._tier, **chunks)
        else:
            disk = ChunkTier(num_chunks_in(below.capacity, self._chunk_bytes))
            self._connector = DiskConnector(cache, self._tier, disk, **chunks)
            self._disk_link = Link(clock, link_spec(below.link, below.link_efficiency))
        self.offloading = Offloading(
            clock,
            self._connector,
            shared.link_of(clock, link_spec(written.link, written.link_efficiency)),
            sizes,
            step_time,
            name="cpu",
            blocks_per_chunk=written.blocks_per_chunk,
            max_num_batched_tokens=scenario.max_num_batched_tokens,
            overlap_loads=written.overlap_loads,
            disk_link=self._disk_link,
        )

    @property
    def links(self) -> tuple[tuple[str, Link], ...]:
        disk = (("disk", self._disk_link),) if self._disk_link is not None else ()
        return (("cpu", self.offloading.link), *disk)

    def lose(self) -> None:
        pass  # the host's memory fails with it

    @property
    def num_queried_tokens(self) -> int:
        return self._connector.external_queries

    @property
    def num_hit_tokens(self) -> int:
        return self._connector.external_hits

    def figures(self, simulated_s: float) -> tuple[TierFigures, ...]:
        tier = self._tier
        own = int(self._is_first)
        cpu = self.offloading.figures(
            source="cpu",
            chunks_evicted=own * tier.num_evicted,
            stores_refused=own * tier.num_refused,
            num_chunks=own * tier.num_chunks,
            num_used_max=own * tier.num_used_max,
            chunk_bytes=self._chunk_bytes,
            simulated_s=simulated_s,
        )
        if self._disk_link is None or not isinstance(self._connector, DiskConnector):
            return (cpu,)
        return (cpu, self._disk_figures(self._connector, self._disk_link, simulated_s))

    def _disk_figures(
        self, connector: DiskConnector, link: Link, simulated_s: float
    ) -> TierFigures:
        sizes = [size * self._blocks_per_chunk for size in self._group_bytes]

        def times_sizes(chunks: list[int]) -> list[int]:
            return [count * size for count, size in zip(chunks, sizes, strict=True)]

        disk = connector.disk
        return TierFigures(
            name="disk",
            source=None,
            chunks_stored=connector.disk_chunks_stored,
            bytes_stored=times_sizes(connector.disk_chunks_stored),
            chunks_loaded=connector.disk_chunks_loaded,
            bytes_loaded=times_sizes(connector.disk_chunks_loaded),
            bytes_loaded_once=sum(times_sizes(connector.disk_chunks_loaded_once)),
            chunks_evicted=disk.num_evicted,
            stores_refused=disk.num_refused,
            capacity_bytes=disk.num_chunks * self._chunk_bytes,
            used_bytes_max=disk.num_used_max * self._chunk_bytes,
            **utilization_in_all(link, simulated_s),
            break_even_bytes_per_s=None,
        )


class _StoreTier:
    """The Mooncake store, as one replica uses it."""

    def __init__(
        self,
        scenario: Scenario,
        written: MooncakeOffload,
        clock: Clock,
        cache: KVCache,
        step_time: StepTimeParams,
        shared: SharedTiers,
    ) -> None:
        sizes = scenario.tier_block_sizes
        self._unit_bytes = chunk_bytes(sizes.pool_bytes, 1, 1)
        self._is_first = shared.store is None
        self._store = shared.store or MooncakeStore(
            num_chunks_in(written.capacity, self._unit_bytes),
            LeaseRules(
                lambda: clock.now, written.high_watermark, written.eviction_ratio, written.lease
            ),
        )
        shared.store = self._store
        self._connector = store_connector(cache, self._store)
        self.offloading = Offloading(
            clock,
            self._connector,
            shared.link_of(clock, link_spec(written.link, written.link_efficiency)),
            sizes,
            step_time,
            name="mooncake",
            blocks_per_chunk=1,
            max_num_batched_tokens=scenario.max_num_batched_tokens,
            overlap_loads=written.overlap_loads,
            posting=Posting(
                written.fixed_s,
                written.descriptor_s,
                tuple(block_regions(scenario.model_spec)),
            ),
        )

    @property
    def links(self) -> tuple[tuple[str, Link], ...]:
        return (("mooncake", self.offloading.link),)

    def lose(self) -> None:
        self._connector.lose()

    @property
    def num_queried_tokens(self) -> int:
        return self._connector.external_queries

    @property
    def num_hit_tokens(self) -> int:
        return self._connector.external_hits

    def figures(self, simulated_s: float) -> tuple[TierFigures, ...]:
        store, own = self._store, int(self._is_first)
        assert store.leases is not None
        figures = self.offloading.figures(
            source="remote",
            chunks_evicted=own * store.num_evicted,
            stores_refused=own * store.leases.num_refused,
            num_chunks=own * store.num_units,
            num_used_max=own * store.num_used_max,
            chunk_bytes=self._unit_bytes,
            simulated_s=simulated_s,
        )
        return (figures,)
