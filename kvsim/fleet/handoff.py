"""Hand-offs on the clock: who holds blocks for whom and until when, and what crosses the network.

A transfer is posted descriptor by descriptor, one transfer of a replica after the other, and then
carried by the network adapters of both sides at once; it is there when both have carried it, each
shared with whatever else it carries. (vLLM 0.33.0: kv_connector/v1/nixl, mooncake/; posting is
done by the side that reads or writes.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import simpy
from simpy.events import Event

from kvsim.cache.manager import KVCache
from kvsim.capacity.sizes import block_regions, block_sizes
from kvsim.engine.clock import Clock
from kvsim.engine.feeding import call_at
from kvsim.engine.link import LOAD, STORE, Link
from kvsim.engine.tiers import Tiers
from kvsim.errors import KvsimError
from kvsim.fleet.beside import SideAndTiers
from kvsim.fleet.sides import DecodeSide, PrefillSide, Side
from kvsim.metrics.records import RequestRecord
from kvsim.offload.handoff import DecodeConnector, Pull
from kvsim.scenario import NixlPull, Scenario
from kvsim.scenario.offload import link_spec
from kvsim.scenario.pool_rules import left_tokens, pool_scenario
from kvsim.workload.request import Request


@dataclass(slots=True, eq=False)
class Handoff:
    """One request on its way through both pools; times in s, None before they have come.

    Attributes:
        name: of the request; another where it is sent again.
        prompt: what the prefill pool has of it.
        prefill_record: what happened to its prompt.
        keeper: the prefill replica that keeps its blocks.
        held_s: since when.
        is_lost: they were given up before they were read.
        is_unneeded: the decode side has as much of it.
        has_failed: whoever asks for them gets nothing: they were given up, or are lost with their
            node.
        decode_s: when the decode side heard of it; None again when that has ended.
        filler: the decode replica that has asked for its blocks, with the next two.
        number: of the job there.
        pull: what is asked for.
        begun_s: when the transfer was begun.
        arrived_s: when it was there.
        num_bytes: that were moved, all ranks.
        flows: links that carry it, directions, and what to wait for.
        is_aborted: it was begun, and one of its ends is gone.
    """

    name: str
    prompt: Request | None = None
    prefill_record: RequestRecord | None = None
    keeper: PrefillSide | None = None
    held_s: float | None = None
    is_lost: bool = False
    is_unneeded: bool = False
    has_failed: bool = False
    decode_s: float | None = None
    filler: DecodeSide | None = None
    number: int = -1
    pull: Pull | None = None
    begun_s: float | None = None
    arrived_s: float | None = None
    num_bytes: float = 0.0
    flows: list[tuple[Link, str, Event]] = field(default_factory=list)
    is_aborted: bool = False


@dataclass
class Handoffs:
    """All hand-offs of a split fleet.

    Attributes:
        scenario: with pools.
        clock: the simulation's.
        prefill_sides: of every replica there ever was.
        decode_sides: likewise.
        under_way: by request.
        on_failed: told of a request that has asked for blocks that nobody has.
        on_let_go: told of a prefill side that keeps less.
        num_descriptors: posted so far, of one rank.
        num_lost: leases that ran out before their blocks were read.
        num_left_tokens: of prompts handed over, which were looked up by the decode side alone.
        num_failed: loads that failed.
        repeated_queried_tokens: of prompts that the prefill side looked up and that were looked up
            once more: their lease was lost, or they were preempted as they ended.
        repeated_hit_tokens: of these, tokens found.
        group_bytes: moved so far, by group, all ranks.
        warnings: what is assumed.
    """

    scenario: Scenario
    clock: Clock
    prefill_sides: list[PrefillSide] = field(default_factory=list)
    decode_sides: list[DecodeSide] = field(default_factory=list)
    under_way: dict[str, Handoff] = field(default_factory=dict)
    on_failed: Callable[[Handoff], None] = lambda handoff: None
    on_let_go: Callable[[int], None] = lambda replica: None
    num_descriptors: int = 0
    num_lost: int = 0
    num_left_tokens: int = 0
    num_failed: int = 0
    repeated_queried_tokens: int = 0
    repeated_hit_tokens: int = 0
    group_bytes: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """What a block is in bytes and descriptors."""
        fleet = self.scenario.fleet
        assert fleet is not None
        self.transfer = fleet.transfer
        self._left_tokens = left_tokens(self.scenario)
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

    def connect_prefill(self, replica: int, cache: KVCache, tiers: Tiers | None) -> Tiers:
        """The end of a prefill replica."""
        nic = self._nic("prefill", replica)
        side = PrefillSide(replica, self.clock, nic, cache, self._hold, self._lose_keeper)
        self.prefill_sides.append(side)
        return side if tiers is None else SideAndTiers(side, tiers)

    def connect_decode(self, replica: int, cache: KVCache, tiers: Tiers | None) -> Tiers:
        """The end of a decode replica."""
        nic = self._nic("decode", replica)
        filler = DecodeConnector(cache, self._left_tokens, self._need_nothing)
        side = DecodeSide(replica, self.clock, nic, cache, self._ask, self._lose_filler, filler)
        self.decode_sides.append(side)
        return side if tiers is None else SideAndTiers(side, tiers)

    def _nic(self, pool: str, replica: int) -> Link:
        """A replica's own, or its node's."""
        key = self._nic_key(pool, replica)
        if key not in self._nics:
            self._nics[key] = Link(self.clock, self._spec)
        return self._nics[key]

    def _nic_key(self, pool: str, replica: int) -> tuple[str, int]:
        return pool, replica // self._ranks[pool] if self._spec.span == "node" else replica

    # --- a request's way ---

    def open(self, prompt: Request) -> Handoff:
        """A request is to be computed in one pool and answered in the other."""
        handoff = Handoff(prompt.request_id, prompt)
        self.under_way[handoff.name] = handoff
        return handoff

    def close(self, name: str) -> Handoff | None:
        """The decode side is done with a request; None for one it had alone.

        One that it never read is kept to the end of its lease.
        """
        handoff = self.under_way.pop(name, None)
        if handoff is not None:
            handoff.decode_s = None
        return handoff

    def expect(self, handoff: Handoff, replicas: Iterable[int]) -> None:
        """The decode side hears of a request, whose prompt is computed elsewhere."""
        handoff.decode_s = self.clock.now
        for side in self.decode_sides:
            if side.replica in replicas and not side.is_gone:
                side.filler.expected.add(handoff.name)

    def expect_no_more(self, name: str) -> None:
        """It has heard of a request for nothing."""
        for side in self.decode_sides:
            side.filler.expected.discard(name)

    def _hold(self, side: PrefillSide, name: str) -> None:
        """A prompt is computed, and its blocks are kept."""
        handoff = self.under_way.get(name)
        if handoff is None:  # refused or lost on the decode side meanwhile: nobody will read them
            handoff = Handoff(name)
        handoff.keeper = side
        handoff.held_s = self.clock.now
        if handoff.is_unneeded:
            self._let_go(side, name)
        elif handoff.pull is not None:  # it has asked already, and is sent to
            self._begin(handoff)
        else:
            self._watch_lease(handoff)

    def _watch_lease(self, handoff: Handoff) -> None:
        end_s = max(self.clock.now, self._lease_end_s(handoff))
        call_at(self.clock, end_s, lambda: self._look_at_lease(handoff))

    def shorter(self, num_tokens: int) -> int:
        """What the prefill side computes of a prompt of so many tokens."""
        return num_tokens - self._left_tokens if num_tokens > self._left_tokens else num_tokens

    def count_left(self, num_tokens: int) -> int:
        """A prompt of so many tokens was handed over: what of it the prefill side has not seen."""
        num_left = num_tokens - self.shorter(num_tokens)
        if self.scenario.cache.enable_prefix_caching:
            self.num_left_tokens += num_left
        return num_left

    def count_again(self, prompt: RequestRecord) -> None:
        """What the prefill side looked up for a prompt counts where it is looked up again."""
        if self.scenario.cache.enable_prefix_caching:
            self.repeated_queried_tokens += self.shorter(prompt.prompt_tokens)
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
        assert handoff.keeper is not None
        if handoff.arrived_s is not None or handoff.is_unneeded or handoff.keeper.is_gone:
            return
        if handoff.begun_s is not None and not handoff.is_aborted and not self.pulls:
            return
        end_s = self._lease_end_s(handoff)
        if end_s > self.clock.now:
            call_at(self.clock, end_s, lambda: self._look_at_lease(handoff))
            return
        handoff.is_lost = True
        self.num_lost += 1
        handoff.has_failed = not self.pulls  # who pushes says so; who pulls reads what is there
        self._let_go(handoff.keeper, handoff.name)

    def _let_go(self, keeper: PrefillSide, name: str) -> None:
        keeper.let_go(name)
        self.on_let_go(keeper.replica)

    def _ask(self, side: DecodeSide, number: int, pull: Pull) -> None:
        """The decode side has blocks for a request."""
        handoff = self.under_way[pull.name]
        handoff.filler, handoff.number, handoff.pull = side, number, pull
        if handoff.has_failed:
            self._fail_soon(handoff)
        elif handoff.held_s is not None:
            self._begin(handoff)

    def _need_nothing(self, name: str) -> None:
        """The decode side has as much of a prompt, and tells who keeps its blocks."""
        handoff = self.under_way[name]
        handoff.is_unneeded = True
        keeper = handoff.keeper
        if keeper is not None and not keeper.is_gone and not handoff.is_lost:
            self._let_go(keeper, name)

    # --- ends that are gone ---

    def _lose_keeper(self, side: Side) -> None:
        """A prefill node has failed: what it kept can be read no more, and is asked for in vain."""
        self._nics.pop(self._nic_key("prefill", side.replica), None)
        for handoff in self.under_way.values():
            is_over = handoff.arrived_s is not None or handoff.is_unneeded
            if handoff.keeper is side and not is_over:
                self._abort(handoff)
                self.fail(handoff)

    def _lose_filler(self, side: Side) -> None:
        """A decode node has failed: what it has asked for is kept to the end of its lease."""
        self._nics.pop(self._nic_key("decode", side.replica), None)
        for handoff in self.under_way.values():
            if handoff.filler is side and handoff.arrived_s is None:
                self._abort(handoff)
                handoff.filler, handoff.pull = None, None

    def fail(self, handoff: Handoff) -> None:
        """Whoever asks for a request's blocks, or has asked, gets nothing."""
        handoff.has_failed = True
        if handoff.filler is not None:
            self._fail_soon(handoff)

    def _fail_soon(self, handoff: Handoff) -> None:
        """Now, but after whoever is at it."""

        def fail() -> None:
            is_under_way = self.under_way.get(handoff.name) is handoff
            if is_under_way and handoff.filler is not None and not handoff.filler.is_gone:
                self.num_failed += 1
                self.on_failed(handoff)

        call_at(self.clock, self.clock.now, fail)

    def _abort(self, handoff: Handoff) -> None:
        """A transfer goes no further, and moves nothing."""
        if handoff.begun_s is None or handoff.is_aborted:
            return
        handoff.is_aborted = True
        for link, direction, event in handoff.flows:
            link.give_up(direction, event)
        self._count_bytes(handoff, -1)
        handoff.num_bytes = 0.0
        keeper = handoff.keeper
        if not self.pulls and keeper is not None and not keeper.is_gone:
            self._watch_lease(handoff)

    # --- transfers ---

    def _count_bytes(self, handoff: Handoff, sign: int) -> None:
        pull, keeper, filler = handoff.pull, handoff.keeper, handoff.filler
        assert pull is not None
        assert keeper is not None
        assert filler is not None
        handoff.num_bytes = 0.0
        for group, (count, size) in enumerate(zip(pull.num_blocks, self._whole, strict=True)):
            self.group_bytes[group] += sign * count * size
            handoff.num_bytes += count * size
        keeper.num_bytes += sign * handoff.num_bytes
        filler.num_bytes += sign * handoff.num_bytes

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
        self._count_bytes(handoff, 1)

        def posted() -> None:
            if handoff.is_aborted:
                return
            sent = keeper.nic.carry(STORE, _times(pull.num_blocks, self._sent))
            received = filler.nic.carry(LOAD, _times(pull.num_blocks, self._received))
            handoff.flows = [(keeper.nic, STORE, sent), (filler.nic, LOAD, received)]
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
        if handoff.is_aborted:
            return
        handoff.arrived_s = self.clock.now
        assert handoff.keeper is not None
        assert handoff.filler is not None
        if not handoff.is_lost:
            self._let_go(handoff.keeper, handoff.name)
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
