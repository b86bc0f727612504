"""vLLM's coordinator of data-parallel ranks: when counts are published, and waves.

A state machine driven by times. It is told what ranks report and says when the next publication
falls due and what is in it; as `vllm/v1/engine/coordinator.py` of 0.33.0 does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.routing.views import Counts

CHANGED_S = 0.1
"""From one publication to the next where counts have changed."""
UNCHANGED_S = 5.0
"""From one publication to the next where they have not."""
SETTLE_S = 0.05
"""Lockstep: so long after a message, the other ranks' reports of the step have come."""


@dataclass(frozen=True, slots=True)
class Publication:
    """What goes to all clients at once.

    Attributes:
        counts: by rank; None where only the wave changed, which hides counts not yet read.
        wave: number of the current wave.
        running: whether the ranks are stepping.
    """

    counts: tuple[Counts, ...] | None
    wave: int
    running: bool


class Coordinator:
    """Collects the ranks' counts and publishes them.

    Where a report comes at the very time a publication falls due, the report is first: whoever
    drives it takes in all messages of a time before it looks at `due_s`.

    Attributes:
        wave: number of the current wave; stays 0 where ranks do not step together.
        running: whether a wave is on.
    """

    def __init__(self, num_ranks: int, *, lockstep: bool, start_s: float = 0.0) -> None:
        """Start with idle ranks.

        Args:
            num_ranks: ranks that report.
            lockstep: whether they step together (a mixture-of-experts model).
            start_s: the time, which counts as that of a publication.
        """
        self.wave = 0
        self.running = False
        self._lockstep = lockstep
        self._counts: list[Counts] = [(0, 0, 0.0)] * num_ranks
        self._frozen: list[Counts] | None = None
        self._changed = False
        self._stamp = (-1, -1)
        self._published_s = start_s
        self._heard_s = start_s

    @property
    def due_s(self) -> float:
        """When the next publication falls due, if no message comes before."""
        due = self._published_s + (CHANGED_S if self._changed else UNCHANGED_S)
        settled = SETTLE_S if self._lockstep and self._frozen is None else 0.0
        return max(due, self._heard_s + settled)

    @property
    def has_changed(self) -> bool:
        """Whether there is anything that was not published."""
        return self._changed

    def report(
        self, rank: int, counts: Counts, now_s: float, *, wave: int = 0, step: int = 0
    ) -> None:
        """A rank's counts have changed.

        Args:
            rank: which.
            counts: waiting, running, share of the KV cache in use.
            now_s: the time it is heard.
            wave: in lockstep the wave of that moment.
            step: in lockstep the step within the wave.
        """
        self._heard_s = now_s
        if self._lockstep and (wave, step) > self._stamp:
            if self._changed:
                self._frozen = list(self._counts)  # as they were at the end of the step before
            self._stamp = (wave, step)
        waiting, running, usage = counts
        self._counts[rank] = (waiting, running, usage)
        self._changed = True

    def publish(self, now_s: float) -> Publication:
        """The publication that falls due."""
        if self._frozen is not None:
            counts, self._frozen = self._frozen, None
        else:
            counts, self._changed = self._counts, False
        self._published_s = self._heard_s = now_s
        return Publication(tuple(counts), self.wave, self.running)

    def start_wave(self, wave: int, now_s: float) -> Publication | None:
        """A paused rank was given a request.

        Returns:
            What is published for it, at once; the other ranks are woken with it. None where the
            wave is on already or over.
        """
        self._heard_s = now_s
        if wave < self.wave or (wave == self.wave and self.running):
            return None
        self.wave, self.running = wave, True
        return Publication(None, self.wave, self.running)

    def complete_wave(self, wave: int, now_s: float) -> Publication | None:
        """Rank 0 saw that no rank has unfinished work: all pause.

        Returns:
            What is published for it, at once. None where that wave was over already.
        """
        self._heard_s = now_s
        if self.wave > wave:
            return None
        self.wave, self.running = wave + 1, False
        return Publication(None, self.wave, self.running)


def as_counts(values: Sequence[float]) -> Counts:
    """Counts from a list of three numbers."""
    waiting, running, usage = values
    return int(waiting), int(running), float(usage)
