"""Why tokens are missed, in caches small enough to follow by hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kvsim.cache import misses as ledgers
from kvsim.cache import reasons as at
from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.ledger import BY_RECOMPUTE, NUM_FORGOTTEN, NUM_LINES
from kvsim.cache.manager import KVCache, Sequence
from kvsim.cache.misses import MissLedger
from kvsim.cache.spec import GroupSpec

FULL = (GroupSpec("full", 16),)
WINDOWS = (GroupSpec("full", 16), GroupSpec("sliding_window", 16, 17))


class Server:
    """A cache that serves one prompt after another, whole."""

    def __init__(
        self,
        groups: tuple[GroupSpec, ...] = FULL,
        num_blocks: int = 100,
        interval: int | None = None,
        coarse: int | None = None,
        *,
        eagle: bool = False,
    ) -> None:
        config = CacheConfig(
            num_blocks=num_blocks,
            groups=groups,
            max_model_len=4096,
            max_in_flight_tokens=4096,
            retention_interval=interval,
            use_eagle=eagle,
        )
        self.cache = KVCache(config)
        self.ledger = MissLedger(self.cache, coarse)
        self.seconds = 0.0

    def begin(self, *spans: tuple[int, int]) -> tuple[Sequence, npt.NDArray[np.int64]]:
        """Admit a prompt and compute it; why it was not hit whole."""
        content = Content.from_spans(spans)
        sequence = Sequence(content, content.num_tokens)
        number = len(self.ledger.names)
        self.ledger.register(sequence, f"r{number}")
        self.ledger.make_room()
        self.seconds += 1
        self.cache.at(self.seconds)
        hit = self.cache.lookup(sequence)
        told = self.ledger.find(sequence, hit, 0, 10_000 + number)
        assert told[: at.NUM_REASONS].sum() == content.num_tokens - hit.tokens
        assert self.cache.allocate(sequence, content.num_tokens - hit.tokens, hit=hit)
        self.ledger.admitted(sequence)
        return sequence, told

    def serve(self, *spans: tuple[int, int]) -> npt.NDArray[np.int64]:
        """Serve a prompt to its end."""
        sequence, told = self.begin(*spans)
        self.cache.free(sequence)
        return told


def nonzero(told: npt.NDArray[np.int64]) -> dict[int, int]:
    """Tokens by reason, those that have some."""
    return {i: int(tokens) for i, tokens in enumerate(told[: at.NUM_REASONS]) if tokens}


def test_a_resend_misses_the_last_token_and_what_is_below_a_unit() -> None:
    server = Server()
    assert nonzero(server.serve((1, 40))) == {at.NEVER_SEEN: 40}
    assert nonzero(server.serve((1, 40))) == {at.LAST_TOKEN: 1, at.BELOW_UNIT: 7}
    told = server.serve((1, 48))
    assert nonzero(told) == {at.NEVER_SEEN: 8, at.BELOW_UNIT: 8}
    assert server.ledger.name(int(told[at.SHARED_WITH])) == "r1"
    assert nonzero(server.serve((1, 48))) == {at.LAST_TOKEN: 1, at.BELOW_UNIT: 15}


def test_the_first_id_of_a_trace_that_differs_may_be_shared_in_part() -> None:
    server = Server(coarse=64)
    assert nonzero(server.serve((1, 64), (2, 64))) == {at.NEVER_SEEN: 64, at.COARSE_ID: 64}
    told = server.serve((1, 64), (3, 64), (4, 10))
    assert nonzero(told) == {at.NEVER_SEEN: 10, at.COARSE_ID: 64}


def test_evicted_tokens_say_for_whom_and_when() -> None:
    server = Server(num_blocks=9)
    server.serve((1, 64))  # r0 at 1 s
    server.serve((2, 96))  # r1 at 2 s takes the two last blocks of r0
    told = server.serve((1, 64))
    assert nonzero(told) == {at.EVICTED: 16, at.LAST_TOKEN: 1, at.BELOW_UNIT: 15}
    assert told[at.EVICTED_GROUP] == 0 and server.ledger.taker(int(told[at.TAKER])) == "r1"
    assert (told[at.USED_MS], told[at.EVICTED_MS]) == (1000, 2000)
    assert told[at.LIFE_MS] == 1000 * told[at.EVICTED] == 1000 * told[at.LIFE_TOKENS]
    assert told[at.BEST] == told[at.KEPT] == 48
    assert server.ledger.by_group(told) == ([0], [told[at.EVICTED]])


def test_with_as_many_blocks_more_it_is_still_there() -> None:
    def told(num_blocks: int) -> npt.NDArray[np.int64]:
        server = Server(num_blocks=num_blocks)
        server.serve((1, 64))
        for uid in range(2, 7):
            server.serve((uid, 64))
        return server.serve((1, 64))

    small = told(12)
    assert small[at.EVICTED] == 48 and small[at.SINCE] > 0
    # What is next to the hit was evicted so long ago.
    assert told(12 + int(small[at.SINCE]))[at.KEPT] == 48
    assert told(12 + int(small[at.SINCE]))[at.EVICTED] == 0


def test_a_window_that_kept_nothing_there_is_told_from_an_eviction() -> None:
    server = Server(WINDOWS, interval=0)
    server.serve((1, 80), (2, 40))
    told = server.serve((1, 80), (3, 40))
    assert told[at.NOT_RETAINED] == 80 and told[at.NOT_RETAINED_GROUP] == 1
    assert server.ledger.by_group(told) == ([0, 80], [0, 0])
    assert server.serve((1, 80), (4, 40))[at.NOT_RETAINED] == 0  # the junction is kept now
    dense = Server(WINDOWS)
    dense.serve((1, 80), (2, 40))
    assert dense.serve((1, 80), (3, 40))[at.NOT_RETAINED] == 0


def test_a_dropped_block_is_a_reason_of_its_own() -> None:
    server = Server(eagle=True)
    server.serve((1, 80))
    told = server.serve((1, 80), (2, 20))
    assert nonzero(told) == {at.NEVER_SEEN: 20, at.LOOK_AHEAD: 16}


def test_what_is_being_computed_is_not_evicted() -> None:
    server = Server()
    content = Content.from_spans([(1, 160)])
    first = Sequence(content, 160)
    server.ledger.register(first, "first")
    told = server.ledger.find(first, hit := server.cache.lookup(first), 0, 9)
    assert server.cache.allocate(first, 64, hit=hit)
    server.ledger.admitted(first)
    _, told = server.begin((1, 160))
    assert nonzero(told) == {at.NOT_COMPUTED: 96}
    assert server.ledger.name(int(told[at.AWAITED])) == "first"


def test_blocks_given_back_by_a_preemption_are_told_apart() -> None:
    server = Server(num_blocks=9)
    sequence, _ = server.begin((1, 64))
    server.ledger.preempted(sequence)
    server.cache.free(sequence)
    server.serve((2, 112))
    assert nonzero(server.serve((1, 64)))[at.LOST_WITH_HOLDER] > 0
    # It comes back: what it takes is taken to compute again.
    other = Server(num_blocks=9)
    sequence, _ = other.begin((1, 64))
    other.ledger.preempted(sequence)
    other.cache.free(sequence)
    other.serve((2, 112))
    assert other.cache.allocate(sequence, 64, hit=other.cache.lookup(sequence))
    other.cache.free(sequence)
    assert other.serve((2, 112))[at.EVICTED + BY_RECOMPUTE] > 0


def test_the_ledger_grows_and_then_forgets_the_older_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "_LEAST_ROWS", 16)
    monkeypatch.setattr(ledgers, "_FIRST_LINES", 16)
    monkeypatch.setattr(ledgers, "_MOST_LINES", 64)
    server = Server(num_blocks=9)
    for uid in range(1, 22):
        server.serve((uid, 96))
    ledger = server.ledger.ledger
    assert len(ledger.lines) == 8 * 64 and ledger.meter[NUM_FORGOTTEN] == 0
    assert server.serve((1, 96))[at.EVICTED] == 80
    for uid in range(100, 200):
        server.serve((uid, 96))
    ledger = server.ledger.ledger
    assert len(ledger.lines) == 8 * 64 and server.ledger.num_forgotten > 0
    assert ledger.meter[NUM_LINES] == np.count_nonzero(ledger.lines[::8])
    assert server.serve((2, 96))[at.EARLIER] == 80
    assert server.serve((195, 96))[at.EVICTED] == 80


def test_reset_forgets_everything() -> None:
    server = Server()
    server.serve((1, 64))
    assert server.cache.reset()
    assert nonzero(server.serve((1, 64))) == {at.NEVER_SEEN: 64}
