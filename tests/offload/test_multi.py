"""A hand-off and a tier side by side: who loads, and whose jobs are whose."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvsim.cache.content import Content
from kvsim.cache.manager import Sequence
from kvsim.offload.multi import HANDOFF, TIER, MultiConnector, number_of, part_of
from kvsim.offload.transfers import TransferJob, Transfers

ROWS = np.zeros(0, dtype=np.int64)


class Noted:
    """A connector that has so many tokens of everything, and notes what it is told."""

    in_flight = has_news = False
    idle = True

    def __init__(self, tokens: int | None) -> None:
        self.tokens = tokens
        self.external_queries = self.external_hits = 0
        self.told: list[str] = []
        self.built = Transfers()
        self.num_jobs = 0

    def arrive(self, sequence: Sequence, name: str, output_uid: int, end_tokens: int) -> None:
        self.told.append("arrive")

    def match(self, sequence: Sequence, num_local: int) -> int | None:
        self.external_queries += 1
        self.external_hits += self.tokens or 0
        return self.tokens

    def load(self, sequence: Sequence, num_local: int, num_external: int) -> None:
        self.told.append("load")
        self.built.loads.append(TransferJob(self.num_jobs, "r", False, (1,), (1,), ROWS))
        self.num_jobs += 1

    def admit(self, sequence: Sequence) -> None:
        self.told.append("admit")

    def hand_out(self, sequence: Sequence) -> None:
        self.told.append("hand_out")

    def resume(self, sequence: Sequence) -> None:
        self.told.append("resume")

    def preempt(self, sequence: Sequence) -> None:
        self.told.append("preempt")

    def finish(self, sequence: Sequence) -> None:
        self.told.append("finish")

    def abandon(self, sequence: Sequence) -> None:
        self.told.append("abandon")

    def build(self, scheduled: list[Sequence]) -> Transfers:
        built, self.built = self.built, Transfers()
        return built

    def complete(self, numbers: Iterable[int]) -> list[Sequence]:
        self.told.append(f"complete {list(numbers)}")
        return []


def sequence() -> Sequence:
    return Sequence(Content.from_spans([(7, 100)]), 100)


def test_the_first_that_has_something_loads() -> None:
    for handed, stored, loads in ((100, 50, HANDOFF), (0, 50, TIER), (100, 0, HANDOFF)):
        handoff, tier = Noted(handed), Noted(stored)
        both, one = MultiConnector(handoff, tier), sequence()
        assert both.match(one, 0) == (handed or stored)
        # What the tier could have loaded counts where it is what is loaded.
        assert tier.external_hits == (stored if loads == TIER else 0)
        both.load(one, 0, handed or stored)
        expected = (["load"], ["hand_out"]) if loads == HANDOFF else (["admit"], ["load"])
        assert (handoff.told, tier.told) == expected


def test_who_is_still_looking_is_waited_for() -> None:
    assert MultiConnector(Noted(100), Noted(None)).match(sequence(), 0) is None


def test_nobody_has_anything_and_everybody_hears_of_the_rest() -> None:
    handoff, tier = Noted(0), Noted(0)
    both, one = MultiConnector(handoff, tier), sequence()
    both.arrive(one, "r", 1, 200)
    assert both.match(one, 0) == 0
    both.admit(one)
    both.preempt(one)
    both.resume(one)
    both.finish(one)
    assert handoff.told == tier.told == ["arrive", "admit", "preempt", "resume", "finish"]


def test_loads_stand_in_the_order_they_were_asked_for_and_numbers_tell_whose_they_are() -> None:
    handoff, tier = Noted(0), Noted(50)
    both = MultiConnector(handoff, tier)
    for tokens in (0, 100, 0, 100):
        handoff.tokens = tokens
        one = sequence()
        assert both.match(one, 0)
        both.load(one, 0, 50)
    tier.built.stores.append(TransferJob(9, "s", True, (1,), (1,), ROWS))
    tier.built.flushed = [4, 2]
    built = both.build([])
    assert [part_of(job.number) for job in built.loads] == [
        (TIER, 0),
        (HANDOFF, 0),
        (TIER, 1),
        (HANDOFF, 1),
    ]
    assert [part_of(job.number) for job in built.stores] == [(TIER, 9)]
    assert built.flushed == [number_of(2, TIER), number_of(4, TIER)]
    both.complete([number_of(0, TIER), number_of(1, HANDOFF), number_of(9, TIER)])
    assert handoff.told[-1] == "complete [1]"
    assert tier.told[-1] == "complete [0, 9]"
