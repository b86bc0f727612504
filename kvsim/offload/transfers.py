"""What a connector tells the scheduler and is told by it: the interface of every tier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvsim.cache.manager import Sequence

Ints = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class TransferJob:
    """Blocks that cross a link together.

    Attributes:
        number: in the order in which jobs were made.
        name: of the request.
        is_store: from the device to the tier; the other way otherwise.
        num_chunks: per group.
        num_blocks: per group; what crosses the link is these, each as wide as its group's.
        rows: int64, the chunks in the tier.
    """

    number: int
    name: str
    is_store: bool
    num_chunks: tuple[int, ...]
    num_blocks: tuple[int, ...]
    rows: Ints


@dataclass(frozen=True, slots=True)
class Offer:
    """Chunks that a request offered to the tier.

    Attributes:
        offered: int64, their keys in order.
        stored: int64, the keys of those that were new; None where there was no room for them.
        evicted: int64, the keys that left for them, in order.
    """

    offered: Ints
    stored: Ints | None
    evicted: Ints


@dataclass(slots=True)
class Transfers:
    """What a step moves between the device and the tier.

    Attributes:
        loads: issued with this step.
        stores: of what this step computes and steps before it computed.
        flushed: numbers of stores that have to be done before the step runs, since the blocks they
            copy from are handed out again; rising.
        offers: what was offered, in order.
        loaded: keys of each load, in order; int64.
    """

    loads: list[TransferJob] = field(default_factory=list)
    stores: list[TransferJob] = field(default_factory=list)
    flushed: list[int] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)
    loaded: list[Ints] = field(default_factory=list)


class Connector(Protocol):
    """Between a scheduler and a tier.

    It has no clock. It is asked for hits, told what got blocks and what was computed, hands out
    jobs, and is told which of them are done.
    """

    @property
    def in_flight(self) -> bool:
        """Whether any job is not done."""

    @property
    def has_news(self) -> bool:
        """Whether the next step has something to do for requests that are finished."""

    @property
    def idle(self) -> bool:
        """Whether steps that only decode change nothing here."""

    def arrive(self, sequence: Sequence, name: str, output_uid: int, end_tokens: int) -> None:
        """A request arrives that will be at most ``end_tokens`` long."""

    def match(self, sequence: Sequence, num_local: int) -> int | None:
        """Tokens that can be loaded beyond the local hit; None to be asked again in a later step.

        A request that holds no blocks asks before every attempt to admit it.
        """

    def admit(self, sequence: Sequence) -> None:
        """A request got its first blocks and runs without a load."""

    def load(self, sequence: Sequence, num_local: int, num_external: int) -> None:
        """A request got its first blocks, to load what ``match`` promised."""

    def resume(self, sequence: Sequence) -> None:
        """A request runs whose load has arrived."""

    def preempt(self, sequence: Sequence) -> None:
        """A request is about to lose its blocks."""

    def finish(self, sequence: Sequence) -> None:
        """A request is done, has left its windows, and is about to give its blocks back."""

    def abandon(self, sequence: Sequence) -> None:
        """A request is given up that does not run and has nothing under way."""

    def build(self, scheduled: list[Sequence]) -> Transfers:
        """A step is planned: which jobs it makes.

        Args:
            scheduled: whoever computes something in it, in order.
        """

    def complete(self, numbers: Iterable[int]) -> list[Sequence]:
        """Jobs are done.

        Returns:
            The requests whose loads have arrived.
        """
