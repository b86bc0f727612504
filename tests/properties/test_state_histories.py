"""Random histories of models with states: the fast core decides what the slow one does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.cache.config import CacheConfig
from kvsim.cache.spec import GroupSpec
from tests.properties.strategies import (
    Deed,
    bounded,
    caches_with_states,
    deeds,
    long_history,
)
from tests.properties.test_cache_histories import History

pytestmark = pytest.mark.bounds


class StateHistory(History):
    """The same deeds, in steps; an answer is made with drafts, some of which are refused."""

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        self.num_drafts = max(group.num_drafts for group in config.groups)
        self.in_step: set[str] = set()

    def do(self, deed: Deed) -> None:
        if deed.a % 4 == 0 or deed.what == "reset":
            self.twins.step()
            self.in_step.clear()
        super().do(deed)

    def begin(self, deed: Deed) -> None:
        known = set(self.running)
        super().begin(deed)
        self.in_step |= set(self.running) - known

    def proceed(self, name: str, number: int, other: int) -> None:
        if name not in self.in_step:  # once a step, as the engine's scheduler does
            self.in_step.add(name)
            super().proceed(name, number, self.num_drafts)

    def produce(self, name: str, number: int) -> None:
        """A token and as many drafts as are made, of which some are accepted."""
        uid = 1_000_000 + int(name[1:])
        if name in self.in_step:
            return
        for turn in range(1 + number % 4):
            room = self.config.max_model_len - self.twins.slow.sequences[name].num_tokens
            num_drafts = min(self.num_drafts, self.config.max_in_flight_tokens - 1)
            if room <= num_drafts + 1:
                return
            self.twins.append(name, uid)
            if not self.twins.proceed(name, 1 + num_drafts, self.num_drafts):
                self.preempt()
                return
            accepted = (number + turn) % (num_drafts + 1)
            for _ in range(accepted):
                self.twins.append(name, uid)
            if num_drafts > accepted:
                self.twins.rollback(name, num_drafts - accepted)
            self.twins.step()
            self.in_step.clear()


def follow(config: CacheConfig, history: list[Deed]) -> None:
    both = StateHistory(config)
    for deed in history:
        both.do(deed)
    while both.running:
        both.end(both.running[-1])
    both.twins.step()
    both.twins.reset()
    assert both.twins.fast.num_free == config.num_blocks - 1
    assert both.twins.fast.num_cached == 0


@bounded(60)
@given(caches_with_states(), deeds(50))
def test_the_core_decides_as_the_slow_model(config: CacheConfig, history: list[Deed]) -> None:
    follow(config, history)


@bounded(60)
@given(caches_with_states(), st.integers(0, 2**32 - 1))
def test_the_core_decides_so_when_the_pool_is_full(config: CacheConfig, seed: int) -> None:
    follow(config, long_history(seed, 120))


def test_as_many_groups_as_a_model_can_have() -> None:
    state = GroupSpec("mamba", 8, checkpoint_alignment=1)
    groups = (*[state] * 40, *[GroupSpec("mamba", 8)] * 22, GroupSpec("full", 8))
    groups += (GroupSpec("sliding_window", 8, 12),)
    config = CacheConfig(2000, groups, 200, 64, retention_interval=0)
    assert len(groups) == 64
    follow(config, long_history(5, 80))
    with pytest.raises(ValueError, match="1 to 64 groups, not 65"):
        CacheConfig(2000, (*groups, state), 200, 64)
