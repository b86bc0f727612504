"""What a replica asks of whoever carries out its connector's transfers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from simpy.events import Event

from kvsim.offload.transfers import Connector, TransferJob


class Carrier(Protocol):
    """Puts a connector's transfers on links, and notices when they are done."""

    overlap_loads: bool

    @property
    def connector(self) -> Connector:
        """The scheduler's."""

    def call_when_done(self, wake: Callable[[], None]) -> None:
        """Have a function called whenever a transfer is done."""

    def begin(self, jobs: list[TransferJob]) -> None:
        """Begin transfers now."""

    def begin_disk(self) -> None:
        """Begin what goes between two tiers."""

    def take_done(self) -> list[int]:
        """Numbers of the transfers that are done and were not asked for yet."""

    def under_way(self, numbers: list[int]) -> list[Event]:
        """The ends of those of the transfers that are not done."""

    def let_run_early(self, jobs: list[TransferJob]) -> list[int]:
        """Loads whose requests run already; answers their numbers, to be reported as done."""

    def still_loading(self, names: list[str]) -> list[Event]:
        """The ends of the loads of requests that run already."""

    def note_load(self, job: TransferJob, num_tokens: int, start: int, end: int) -> None:
        """A load begins, of the tokens from one up to another of a request."""

    def utilization(self) -> tuple[float | None, ...]:
        """How busy the links were since the last call; see `TIMELINE_COLUMNS`."""
