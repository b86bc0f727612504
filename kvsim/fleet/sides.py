"""The two ends of hand-offs on the clock: for a replica they stand where a tier would."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from simpy.events import Event

from kvsim.cache.manager import KVCache
from kvsim.engine.clock import Clock
from kvsim.engine.link import LOAD, STORE, Link
from kvsim.metrics.tiers import TierFigures
from kvsim.offload.handoff import DecodeConnector, PrefillConnector, Pull
from kvsim.offload.transfers import Connector, TransferJob

Ids = npt.NDArray[np.int32]


class Side:
    """What both ends ask of the network; see `kvsim.engine.carrying.Carrier`.

    Attributes:
        replica: its number in its pool.
        nic: its network adapter.
        num_bytes: that it sent or received, all ranks.
        posting_until_s: when what it posts is posted.
        is_gone: its node has failed.
    """

    def __init__(
        self,
        replica: int,
        clock: Clock,
        nic: Link,
        connector: Connector,
        on_lost: Callable[[Side], None],
    ) -> None:
        self.replica = replica
        self.is_gone = False
        self._on_lost = on_lost
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

    # As `kvsim.engine.tiers.Tiers` and `kvsim.engine.carrying.Carrier`.

    num_queried_tokens = num_hit_tokens = 0

    @property
    def offloading(self) -> Side:
        """It carries its own transfers."""
        return self

    @property
    def links(self) -> tuple[tuple[str, Link], ...]:
        """The network adapter."""
        return (("transfer", self.nic),)

    def lose(self) -> None:
        """The replica fails."""
        self.is_gone = True
        self._on_lost(self)

    def figures(self, simulated_s: float) -> tuple[TierFigures, ...]:
        """There is no tier."""
        return ()

    @property
    def connector(self) -> Connector:
        """The scheduler's."""
        return self._connector

    def call_when_done(self, wake: Callable[[], None]) -> None:
        """Have a function called whenever something is done."""
        self._wake = wake

    def begin(self, jobs: list[TransferJob]) -> None:
        """Nothing goes out by itself."""
        assert not jobs

    def begin_disk(self) -> None:
        """There is no disk."""

    def take_done(self) -> list[int]:
        """What is done and was not asked for yet."""
        done, self._done = self._done, []
        return done

    def under_way(self, numbers: list[int]) -> list[Event]:
        """Nothing is waited for."""
        return []

    def let_run_early(self, jobs: list[TransferJob]) -> list[int]:
        """Nobody runs before its blocks are there."""
        return []

    def still_loading(self, names: list[str]) -> list[Event]:
        """Nobody does."""
        return []

    def note_load(self, job: TransferJob, num_tokens: int, start: int, end: int) -> None:
        """Not counted: the prefill side has computed it."""

    def utilization(self) -> tuple[float | None, ...]:
        """How busy the adapter was since the last call."""
        shares = []
        for direction in (STORE, LOAD):
            seen = self._seen_bytes[direction]
            shares.append(self.nic.busy_share(direction, self._seen_s, seen))
            self._seen_bytes[direction] = self.nic.carried_bytes(direction)
        self._seen_s = self._clock.now
        return (*shares, None, None)


class PrefillSide(Side):
    """A prefill replica's end."""

    def __init__(
        self,
        replica: int,
        clock: Clock,
        nic: Link,
        cache: KVCache,
        on_held: Callable[[PrefillSide, str], None],
        on_lost: Callable[[Side], None],
    ) -> None:
        self.cache = cache
        self.keeper = PrefillConnector(
            cache, lambda name, has_blocks: on_held(self, name) if has_blocks else None
        )
        super().__init__(replica, clock, nic, self.keeper, on_lost)

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


class DecodeSide(Side):
    """A decode replica's end."""

    def __init__(
        self,
        replica: int,
        clock: Clock,
        nic: Link,
        cache: KVCache,
        on_asked: Callable[[DecodeSide, int, Pull], None],
        on_lost: Callable[[Side], None],
        filler: DecodeConnector,
    ) -> None:
        self.cache = cache
        self.filler = filler
        self._on_asked = on_asked
        super().__init__(replica, clock, nic, self.filler, on_lost)

    def begin(self, jobs: list[TransferJob]) -> None:
        """Requests have blocks to be filled."""
        for job in jobs:
            self._on_asked(self, job.number, self.filler.pull(job.number))

    def arrived(self, number: int) -> None:
        """What was asked for is there: seen at the next step."""
        self._done.append(number)
        self._wake()
