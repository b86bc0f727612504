"""Random histories: the fast core decides what the slow model decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.cache.config import CacheConfig
from tests.properties.strategies import Deed, bounded, caches, deeds, long_history
from tests.properties.twins import Twins

pytestmark = pytest.mark.bounds

Spans = list[list[int]]


class History:
    """Turns deeds into operations that are possible, on both caches."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.twins = Twins(config)
        self.running: list[str] = []
        self.waiting: list[tuple[Spans, int]] = []
        self.past: list[Spans] = []
        self.num_prompt: dict[str, int] = {}
        self.uid = 0

    def do(self, deed: Deed) -> None:
        if deed.what == "begin":
            self.begin(deed)
        elif deed.what == "reset":
            self.twins.reset()
        elif self.running:
            name = self.running[deed.a % len(self.running)]
            if deed.what == "end":
                self.end(name)
            elif deed.what == "preempt":
                self.preempt()
            elif self.twins.left(name):
                self.proceed(name, deed.b, deed.c)
            elif deed.what == "produce":
                self.produce(name, deed.b)

    def begin(self, deed: Deed) -> None:
        spans, num_prompt = self.waiting.pop(0) if self.waiting else self.prompt(deed)
        self.uid += 1
        name = f"r{self.uid}"
        chunk = self.chunk(deed.c)
        if self.twins.begin(name, spans, num_prompt, chunk, deed.b % 4, deed.a % 3 > 0):
            self.running.append(name)
            self.num_prompt[name] = num_prompt
            self.past.append([list(span) for span in spans])
        elif self.running:
            self.preempt()
            self.waiting.append((spans, num_prompt))

    def prompt(self, deed: Deed) -> tuple[Spans, int]:
        """New content, or one that is known: again, longer, or cut and continued."""
        self.uid += 1
        kind = deed.a % 4
        if kind == 0 or not self.past:
            spans: Spans = []
        else:
            spans = [list(span) for span in self.past[deed.b % len(self.past)]]
        if kind == 3:
            spans = cut(spans, deed.c % (1 + sum(n for _, n in spans)))
        if kind != 1 or not spans:
            spans.append([self.uid, 1 + deed.c])
        spans = cut(spans, self.config.max_model_len - 8)
        return spans, sum(n for _, n in spans)

    def chunk(self, number: int) -> int:
        """Often as much as may be in flight, else less."""
        return 1 + (number // 2 if number % 2 else 255) % self.config.max_in_flight_tokens

    def proceed(self, name: str, number: int, other: int) -> None:
        chunk = min(self.twins.left(name), self.chunk(number))
        if not self.twins.proceed(name, chunk, other % 4):
            self.preempt()

    def produce(self, name: str, number: int) -> None:
        """Some tokens, each with its allocation, in a span that no other request has."""
        uid = 1_000_000 + int(name[1:])
        for _ in range(1 + number % 12):
            if self.twins.slow.sequences[name].num_tokens >= self.config.max_model_len:
                return
            self.twins.append(name, uid)
            if not self.twins.proceed(name, 1, 0):
                self.preempt()
                return

    def end(self, name: str) -> None:
        self.past.append([list(span) for span in self.twins.slow.sequences[name].spans])
        self.running.remove(name)
        self.twins.free(name)

    def preempt(self) -> None:
        """The latest request comes back later, with what it produced."""
        name = self.running.pop()
        spans = [list(span) for span in self.twins.slow.sequences[name].spans]
        self.waiting.insert(0, (spans, self.num_prompt[name]))
        self.twins.free(name)


def cut(spans: Spans, num_tokens: int) -> Spans:
    """The first tokens of some content."""
    kept = []
    for uid, n in spans:
        if (take := min(n, num_tokens)) > 0:
            kept.append([uid, take])
        num_tokens -= take
    return kept


def follow(config: CacheConfig, history: list[Deed]) -> None:
    both = History(config)
    for deed in history:
        both.do(deed)
    while both.running:
        both.end(both.running[-1])
    both.twins.reset()
    assert both.twins.fast.num_free == config.num_blocks - 1
    assert both.twins.fast.num_cached == 0


@bounded(150)
@given(caches(), deeds(60))
def test_the_core_decides_as_the_slow_model(config: CacheConfig, history: list[Deed]) -> None:
    follow(config, history)


@bounded(100)
@given(caches(), st.integers(0, 2**32 - 1))
def test_the_core_decides_so_when_the_pool_is_full(config: CacheConfig, seed: int) -> None:
    follow(config, long_history(seed, 120))
