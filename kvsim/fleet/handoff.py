"""Hand-offs on the clock: who holds blocks for whom and until when, and what crosses the network.

A transfer is posted descriptor by descriptor, one transfer of a replica after the other, and then
carried by the network adapters of both sides at once; it is there when both have carried it, each
shared with whatever else it carries. (vLLM 0.33.0: kv_connector/v1/nixl, mooncake/; posting is
done by the side that reads or writes.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import simpy
from simpy.events import Event

from kvsim.cache.manager import KVCache
from kvsim.capacity.sizes import block_regions, block_sizes
from kvsim.engine.clock import Clock
from kvsim.engine.feeding import call_at
from kvsim.engine.link import LOAD, STORE, Link
from kvsim.errors import KvsimError
from kvsim.metrics.records import RequestRecord
from kvsim.metrics.tiers import TierFigures
from kvsim.offload.handoff import DecodeConnector, PrefillConnector, Pull
from kvsim.offload.transfers import Connector, TransferJob
from kvsim.scenario import NixlPull, Scenario
from kvsim.scenario.offload import link_spec
from kvsim.scenario.pool_rules import pool_scenario

Ids = npt.NDArray[np.int32]


class _Side:
    """What both ends ask of the network; see `kvsim.engine.carrying.Carrier`."""

    def __init__(self, clock: Clock, nic: Link, connector: Connector) -> None:
        self.overlap_loads = False
        self.nic = nic
        self.num_bytes = 0.0
        self.posting_until_s = 0.0
        self._clock = clock
        self._connector = connector
        self._done: list[int] = []
        self._wake: Callable[[], None] = lambda: None
        self._seen_s = 0.0
        self._seen_bytes = {STORE: 0.0, LOAD: 0.0}

    # As `kvsim.engine.tiers.Tiers`: there is no tier.

    num_queried_tokens = num_hit_tokens = 0

    @property
    def offloading(self) -> _Side:
        return self

    @property
    def links(self) -> tuple[tuple[str, Link], ...]:
        return (("transfer", self.nic),)

    def lose(self) -> None:
        pass  # nodes of pools do not come and go

    def figures(self, simulated_s: float) -> tuple[TierFigures, ...]:
        return ()

    @property
    def connector(self) -> Connector:
        return self._connector

    def call_when_done(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def begin(self, jobs: list[TransferJob]) -> None:
        assert not jobs

    def begin_disk(self) -> None:
        pass

    def take_done(self) -> list[int]:
        done, self._done = self._done, []
        return done

    def under_way(self, numbers: list[int]) -> list[Event]:
        return []

    def let_run_early(self, jobs: list[TransferJob]) -> list[int]:
        return []

    def still_loading(self, names: list[str]) -> list[Event]:
        return []

    def note_load(self, job: TransferJob, num_tokens: int, start: int, end: int) -> None:
        pass

    def utilization(self) -> tuple[float | None, ...]:
        shares = []
        for direction in (STORE, LOAD):
            seen = self._seen_bytes[direction]
            shares.append(self.nic.busy_share(direction, self._seen_s, seen))
            self._seen_bytes[direction] = self.nic.carried_bytes(direction)
        self._seen_s = self._clock.now
        return (*shares, None, None)


class PrefillSide(_Side):
    """A prefill replica's end."""

    def __init__(
        self, clock: Clock, nic: Link, cache: KVCache, on_held: Callable[[PrefillSide, str], None]
    ) -> None:
        self.cache = cache
        self.keeper = PrefillConnector(
            cache, lambda name, has_blocks: on_held(self, name) if has_blocks else None
        )
        super().__init__(clock, nic, self.keeper)

    def let_go(self, name: str) -> None:
        """Blocks were read, or their lease is over: seen at the next step."""
        self._done.append(self.keeper.let_go(name))
        if self.keeper.num_alive:  # an idle engine takes no step for it
            self._wake()

    def block_ids(self, name: str, group: int, start: int, end: int) -> Ids:
        """Blocks that are kept of a request, by position."""
        ids = self.cache.block_table(self.keeper.held[name], group, start)[: end - start]
        if len(ids) < end - start or not ids.all():
            raise RuntimeError(f"{name}: blocks {start} to {end} of group {group} are not kept")
        return ids


class DecodeSide(_Side):
    """A decode replica's end."""

    def __init__(
        self,
        clock: Clock,
        nic: Link,
        cache: KVCache,
        on_asked: Callable[[DecodeSide, int, Pull], None],
    ) -> None:
        self.cache = cache
        self.filler = DecodeConnector(cache)
        self._on_asked = on_asked
        super().__init__(clock, nic, self.filler)

    def begin(self, jobs: list[TransferJob]) -> None:
        """Requests have blocks to be filled."""
        for job in jobs:
            self._on_asked(self, job.number, self.filler.pull(job.number))

    def arrived(self, number: int) -> None:
        """What was asked for is there: seen at the next step."""
        self._done.append(number)
        self._wake()


@dataclass(slots=True, eq=False)
class Handoff:
    """One request on its way through both pools; times in s, None before they have come.

    Attributes:
        name: of the request.
        prefill_record: what happened to its prompt.
        keeper: the prefill replica that keeps its blocks.
        held_s: since when.
        is_lost: they were given up before they were read.
        decode_s: when the decode side heard of it; None again when that has ended.
        filler: the decode replica that has asked for its blocks, with the next two.
        number: of the job there.
        pull: what is asked for.
        begun_s: when the transfer was begun.
        arrived_s: when it was there.
        num_bytes: that were moved, all ranks.
    """

    name: str
    prefill_record: RequestRecord | None = None
    keeper: PrefillSide | None = None
    held_s: float | None = None
    is_lost: bool = False
    decode_s: float | None = None
    filler: DecodeSide | None = None
    number: int = -1
    pull: Pull | None = None
    begun_s: float | None = None
    arrived_s: float | None = None
    num_bytes: float = 0.0


@dataclass
class Handoffs:
    """All hand-offs of a split fleet.

    Attributes:
        scenario: with pools.
        clock: the simulation's.
        prefill_sides: by replica.
        decode_sides: by replica.
        under_way: by request.
        num_descriptors: posted so far, of one rank.
        num_lost: leases that ran out before their blocks were read.
        repeated_queried_tokens: of prompts that the prefill side looked up and that were looked up
            once more: their lease was lost, or they were preempted as they ended.
        repeated_hit_tokens: of these, tokens found.
        group_bytes: moved so far, by group, all ranks.
        warnings: what is assumed.
    """

    scenario: Scenario
    clock: Clock
    prefill_sides: dict[int, PrefillSide] = field(default_factory=dict)
    decode_sides: dict[int, DecodeSide] = field(default_factory=dict)
    under_way: dict[str, Handoff] = field(default_factory=dict)
    num_descriptors: int = 0
    num_lost: int = 0
    repeated_queried_tokens: int = 0
    repeated_hit_tokens: int = 0
    group_bytes: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """What a block is in bytes and descriptors."""
        fleet = self.scenario.fleet
        assert fleet is not None
        self.transfer = fleet.transfer
        self.pulls = isinstance(fleet.transfer, NixlPull)
        self._spec = link_spec(fleet.transfer.link)
        prefill = pool_scenario(self.scenario, "prefill")
        decode = pool_scenario(self.scenario, "decode")
        model, here, there = decode.model_spec, decode.num_ranks, prefill.num_ranks
        sizes = block_sizes(model, here, ranks_share_stores=False)
        # Each rank of the decode side reads all it holds. With fewer ranks there, a rank serves
        # several; with more, those that hold what is asked for serve a part each (tp_mapping.py).
        num_parts = max(1, round(1 / model.kv_share(there)))
        senders = there if there <= here else max(here, min(there, num_parts))
        self._received = sizes.on_link(self._spec, is_store=False)
        self._whole = tuple(size * here for size in sizes.rank_load_bytes)
        per_rank = self._spec.span == "rank"
        self._sent = tuple(size / senders if per_rank else size for size in self._whole)
        self._regions = [num * max(1, senders // here) for num in block_regions(model)]
        self.group_bytes = [0.0] * len(model.groups)
        self._nics: dict[tuple[str, int], Link] = {}
        self._ranks = {"prefill": prefill.node.data_parallel, "decode": decode.node.data_parallel}
        if sizes.assumed:
            groups = ", ".join(map(str, sizes.assumed))
            self.warnings.append(
                f"model.groups: bytes_per_block is not given for group {groups}; 1 MiB is taken "
                "for what is handed over."
            )

    # --- the two ends ---

    def connect_prefill(self, replica: int, cache: KVCache) -> PrefillSide:
        """The end of a prefill replica."""
        side = PrefillSide(self.clock, self._nic("prefill", replica), cache, self._hold)
        self.prefill_sides[replica] = side
        return side

    def connect_decode(self, replica: int, cache: KVCache) -> DecodeSide:
        """The end of a decode replica."""
        side = DecodeSide(self.clock, self._nic("decode", replica), cache, self._ask)
        self.decode_sides[replica] = side
        return side

    def _nic(self, pool: str, replica: int) -> Link:
        """A replica's own, or its node's."""
        number = replica // self._ranks[pool] if self._spec.span == "node" else replica
        if (pool, number) not in self._nics:
            self._nics[pool, number] = Link(self.clock, self._spec)
        return self._nics[pool, number]

    # --- a request's way ---

    def open(self, name: str) -> Handoff:
        """A request is to be computed in one pool and answered in the other."""
        handoff = Handoff(name)
        self.under_way[name] = handoff
        return handoff

    def close(self, name: str) -> Handoff | None:
        """The decode side is done with a request; None for one it had alone.

        One that it never read is kept to the end of its lease.
        """
        handoff = self.under_way.pop(name, None)
        if handoff is not None:
            handoff.decode_s = None
        return handoff

    def _hold(self, side: PrefillSide, name: str) -> None:
        """A prompt is computed, and its blocks are kept."""
        handoff = self.under_way.get(name)
        if handoff is None:  # the decode side has refused it meanwhile: nobody will read them
            handoff = Handoff(name)
        handoff.keeper = side
        handoff.held_s = self.clock.now
        if handoff.pull is not None:  # it has asked already, and is sent to
            self._begin(handoff)
        else:
            lease_s = self.transfer.lease
            call_at(self.clock, self.clock.now + lease_s, lambda: self._look_at_lease(handoff))

    def count_again(self, prompt: RequestRecord) -> None:
        """What the prefill side looked up for a prompt counts where it is looked up again."""
        if self.scenario.cache.enable_prefix_caching:
            self.repeated_queried_tokens += prompt.prompt_tokens
            self.repeated_hit_tokens += prompt.hit_tokens or 0

    def _lease_end_s(self, handoff: Handoff) -> float:
        assert handoff.held_s is not None
        end_s = handoff.held_s + self.transfer.lease
        transfer, since_s = self.transfer, handoff.decode_s
        if isinstance(transfer, NixlPull) and transfer.renew_every and since_s is not None:
            last = (self.clock.now - since_s) // transfer.renew_every
            end_s = max(end_s, since_s + last * transfer.renew_every + transfer.renew_to)
        return end_s

    def _look_at_lease(self, handoff: Handoff) -> None:
        """A lease may be over; whoever sends is not interrupted by that."""
        if handoff.arrived_s is not None or (handoff.begun_s is not None and not self.pulls):
            return
        end_s = self._lease_end_s(handoff)
        if end_s > self.clock.now:
            call_at(self.clock, end_s, lambda: self._look_at_lease(handoff))
            return
        handoff.is_lost = True
        self.num_lost += 1
        assert handoff.keeper is not None
        handoff.keeper.let_go(handoff.name)
        if not self.pulls:  # who pushes says so, and the decode side computes the prompt
            for side in self.decode_sides.values():
                side.filler.expected.discard(handoff.name)

    def _ask(self, side: DecodeSide, number: int, pull: Pull) -> None:
        """The decode side has blocks for a request."""
        handoff = self.under_way[pull.name]
        handoff.filler, handoff.number, handoff.pull = side, number, pull
        if handoff.held_s is not None:
            self._begin(handoff)

    def _begin(self, handoff: Handoff) -> None:
        """Post a transfer behind those its poster is at, then put it on both links."""
        clock, transfer, pull = self.clock, self.transfer, handoff.pull
        keeper, filler = handoff.keeper, handoff.filler
        assert pull is not None
        assert keeper is not None
        assert filler is not None
        handoff.begun_s = clock.now
        num_descriptors = self._descriptors(handoff)
        self.num_descriptors += num_descriptors
        poster = filler if self.pulls else keeper
        start_s = max(clock.now, poster.posting_until_s)
        poster.posting_until_s = start_s + num_descriptors * transfer.descriptor_s
        for group, (count, size) in enumerate(zip(pull.num_blocks, self._whole, strict=True)):
            self.group_bytes[group] += count * size
            handoff.num_bytes += count * size
        keeper.num_bytes += handoff.num_bytes
        filler.num_bytes += handoff.num_bytes

        def posted() -> None:
            sent = keeper.nic.carry(STORE, _times(pull.num_blocks, self._sent))
            received = filler.nic.carry(LOAD, _times(pull.num_blocks, self._received))
            both = simpy.AllOf(clock, [sent, received])
            assert both.callbacks is not None
            both.callbacks.append(lambda _: self._arrive(handoff))

        call_at(clock, poster.posting_until_s + transfer.fixed_s, posted)

    def _descriptors(self, handoff: Handoff) -> int:
        """How many a transfer has: blocks, or runs of blocks that are contiguous on both sides."""
        pull, keeper, filler = handoff.pull, handoff.keeper, handoff.filler
        assert pull is not None
        assert keeper is not None
        assert filler is not None
        total = 0
        for group, (start, end) in enumerate(pull.spans):
            if start == end:
                continue
            filled = filler.cache.block_table(pull.sequence, group, start)[: end - start]
            if len(filled) < end - start or not filled.all():
                raise RuntimeError(f"{pull.name}: no block for a part of group {group}")
            kept = None
            if not handoff.is_lost:
                kept = keeper.block_ids(pull.name, group, start, end)
            num = end - start
            if not self.pulls and kept is not None:
                num = 1 + int(np.count_nonzero((np.diff(filled) != 1) | (np.diff(kept) != 1)))
            total += num * self._regions[group]
        return total

    def _arrive(self, handoff: Handoff) -> None:
        """The last byte is there, and both sides are told."""
        handoff.arrived_s = self.clock.now
        assert handoff.keeper is not None
        assert handoff.filler is not None
        if not handoff.is_lost:
            handoff.keeper.let_go(handoff.name)
        handoff.filler.arrived(handoff.number)

    def check_all_done(self) -> None:
        """Refuse a run that ended with a request between the pools.

        Raises:
            KvsimError: there is one.
        """
        for name in self.under_way:
            raise KvsimError(f"fleet.pools: request {name} was never answered")


def _times(counts: tuple[int, ...], sizes: tuple[float, ...]) -> float:
    return sum(count * size for count, size in zip(counts, sizes, strict=True))
