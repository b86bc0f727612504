"""A hand-off and a tier side by side, as the engine's MultiConnector.

Both are asked what they can load, the hand-off first; the first one that has something loads. Both
store. Their jobs are numbered together: even numbers are the hand-off's, odd ones the tier's.
(vLLM 0.33.0: kv_connector/v1/multi_connector.py.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from kvsim.cache.manager import Sequence
from kvsim.offload.transfers import Connector, TransferJob, Transfers

HANDOFF, TIER = range(2)


class TierConnector(Connector, Protocol):
    """The connector of a tier that may stand beside a hand-off."""

    external_queries: int
    external_hits: int

    def hand_out(self, sequence: Sequence) -> None:
        """A request got its first blocks, to load to them from elsewhere."""


def number_of(number: int, part: int) -> int:
    """What a job of a part is called by whoever has both."""
    return 2 * number + part


def part_of(number: int) -> tuple[int, int]:
    """Whose job that is, and its number there."""
    return number % 2, number // 2


class MultiConnector:
    """Two connectors as one."""

    def __init__(self, handoff: Connector, tier: TierConnector) -> None:
        """Put them side by side."""
        self._parts: tuple[Connector, TierConnector] = (handoff, tier)
        self._chosen: dict[Sequence, int] = {}
        self._load_order: list[int] = []  # whose loads were asked for since the step before

    @property
    def in_flight(self) -> bool:
        """Whether any job is not done."""
        return any(part.in_flight for part in self._parts)

    @property
    def has_news(self) -> bool:
        """Whether the next step has something to do for requests that are finished."""
        return any(part.has_news for part in self._parts)

    @property
    def idle(self) -> bool:
        """Whether steps that only decode change nothing here."""
        return all(part.idle for part in self._parts)

    def arrive(self, sequence: Sequence, name: str, output_uid: int, end_tokens: int) -> None:
        """A request arrives."""
        for part in self._parts:
            part.arrive(sequence, name, output_uid, end_tokens)

    def match(self, sequence: Sequence, num_local: int) -> int | None:
        """What the first one has that has any; the tier is asked in any case.

        What it answers counts only where it is what is loaded.
        """
        handoff, tier = self._parts
        handed = handoff.match(sequence, num_local)
        counted = tier.external_queries, tier.external_hits
        stored = tier.match(sequence, num_local)
        if handed is None or stored is None:
            return None
        if handed:
            tier.external_queries, tier.external_hits = counted
        self._chosen[sequence] = HANDOFF if handed else TIER
        return handed or stored

    def admit(self, sequence: Sequence) -> None:
        """A request got its first blocks and runs without a load."""
        for part in self._parts:
            part.admit(sequence)

    def load(self, sequence: Sequence, num_local: int, num_external: int) -> None:
        """A request got its first blocks, to load what ``match`` promised."""
        handoff, tier = self._parts
        chosen = self._chosen[sequence]
        self._load_order.append(chosen)
        if chosen == HANDOFF:
            handoff.load(sequence, num_local, num_external)
            tier.hand_out(sequence)
        else:
            handoff.admit(sequence)
            tier.load(sequence, num_local, num_external)

    def resume(self, sequence: Sequence) -> None:
        """A request runs whose load has arrived."""
        for part in self._parts:
            part.resume(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """A request is about to lose its blocks."""
        for part in self._parts:
            part.preempt(sequence)

    def finish(self, sequence: Sequence) -> None:
        """A request is done; the hand-off may take its blocks, so the tier looks at them first."""
        self._chosen.pop(sequence, None)
        for part in reversed(self._parts):
            part.finish(sequence)

    def abandon(self, sequence: Sequence) -> None:
        """A request is given up that does not run."""
        self._chosen.pop(sequence, None)
        for part in self._parts:
            part.abandon(sequence)

    def build(self, scheduled: list[Sequence]) -> Transfers:
        """A step is planned: which jobs both make, loads in the order they were asked for."""
        built = [part.build(scheduled) for part in self._parts]
        order, self._load_order = self._load_order, []
        loads = [iter(_numbered(one.loads, part)) for part, one in enumerate(built)]
        ours, stored = built
        return Transfers(
            loads=[next(loads[part]) for part in order],
            stores=[*_numbered(ours.stores, HANDOFF), *_numbered(stored.stores, TIER)],
            flushed=sorted(number_of(number, TIER) for number in stored.flushed),
            offers=stored.offers,
            loaded=stored.loaded,
        )

    def complete(self, numbers: Iterable[int]) -> list[Sequence]:
        """Jobs are done; answers whose loads have arrived."""
        own: tuple[list[int], list[int]] = ([], [])
        for number in numbers:
            part, its = part_of(number)
            own[part].append(its)
        return [
            sequence
            for part, its in zip(self._parts, own, strict=True)
            for sequence in part.complete(its)
        ]


def _numbered(jobs: list[TransferJob], part: int) -> list[TransferJob]:
    return [replace(job, number=number_of(job.number, part)) for job in jobs]
