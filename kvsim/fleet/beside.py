"""A side of a hand-off and the tiers of the same replica, as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simpy.events import Event

from kvsim.engine.carrying import Carrier
from kvsim.engine.link import Link
from kvsim.engine.tiers import Tiers
from kvsim.fleet.sides import Side
from kvsim.metrics.tiers import TierFigures
from kvsim.offload.multi import HANDOFF, TIER, MultiConnector, TierConnector, number_of, part_of
from kvsim.offload.transfers import Connector, TransferJob


class SideAndTiers:
    """What both ask of links; see `kvsim.engine.tiers.Tiers` and `Carrier`.

    Attributes:
        connector: of both.
    """

    overlap_loads = False

    def __init__(self, side: Side, tiers: Tiers) -> None:
        """Put them side by side; the tier's connector is one that may stand there."""
        self._side = side
        self._tiers = tiers
        self._carriers: tuple[Carrier, Carrier] = (side, tiers.offloading)
        tier: TierConnector = tiers.offloading.connector  # type: ignore[assignment]
        self.connector: Connector = MultiConnector(side.connector, tier)

    @property
    def offloading(self) -> SideAndTiers:
        """It carries the transfers of both."""
        return self

    @property
    def num_queried_tokens(self) -> int:
        """The tier's."""
        return self._tiers.num_queried_tokens

    @property
    def num_hit_tokens(self) -> int:
        """The tier's."""
        return self._tiers.num_hit_tokens

    @property
    def links(self) -> tuple[tuple[str, Link], ...]:
        """Of both."""
        return (*self._side.links, *self._tiers.links)

    def lose(self) -> None:
        """The replica fails."""
        self._side.lose()
        self._tiers.lose()

    def figures(self, simulated_s: float) -> tuple[TierFigures, ...]:
        """The tiers'."""
        return self._tiers.figures(simulated_s)

    def call_when_done(self, wake: Callable[[], None]) -> None:
        """Have a function called whenever something of either is done."""
        for carrier in self._carriers:
            carrier.call_when_done(wake)

    def begin(self, jobs: list[TransferJob]) -> None:
        """Begin the transfers of either."""
        for carrier, own in zip(self._carriers, _apart(jobs), strict=True):
            carrier.begin(own)

    def begin_disk(self) -> None:
        """Begin what goes between two tiers."""
        self._tiers.offloading.begin_disk()

    def take_done(self) -> list[int]:
        """What of either is done and was not asked for yet."""
        return [
            number_of(number, part)
            for part, carrier in ((HANDOFF, self._carriers[0]), (TIER, self._carriers[1]))
            for number in carrier.take_done()
        ]

    def under_way(self, numbers: list[int]) -> list[Event]:
        """The ends of those of the tier's transfers that are not done."""
        stored = [its for part, its in map(part_of, numbers) if part == TIER]
        return self._tiers.offloading.under_way(stored)

    def let_run_early(self, jobs: list[TransferJob]) -> list[int]:
        """Nobody runs before its blocks are there."""
        return []

    def still_loading(self, names: list[str]) -> list[Event]:
        """Nobody does."""
        return []

    def note_load(self, job: TransferJob, num_tokens: int, start: int, end: int) -> None:
        """A load begins; what it saves counts for the tier's."""
        part, number = part_of(job.number)
        if part == TIER:
            own = replace(job, number=number)
            self._tiers.offloading.note_load(own, num_tokens, start, end)

    def utilization(self) -> tuple[float | None, ...]:
        """How busy the tiers' links were."""
        return self._tiers.offloading.utilization()


def _apart(jobs: list[TransferJob]) -> tuple[list[TransferJob], list[TransferJob]]:
    """Jobs of the hand-off and of the tier, under their own numbers."""
    own: tuple[list[TransferJob], list[TransferJob]] = ([], [])
    for job in jobs:
        part, number = part_of(job.number)
        own[part].append(replace(job, number=number))
    return own
