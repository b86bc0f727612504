"""What every policy has to keep to, without being named here."""

from __future__ import annotations

import pytest

from kvsim.cache.content import Content
from kvsim.cache.manager import Sequence
from kvsim.policies.contract import KINDS, RETENTION
from kvsim.policies.finding import find_policy
from kvsim.policies.table import TABLE
from tests.policies.suite import ORDERS, PLAIN, RETENTIONS, History, make_cache, order

EVERY = [(kind, name) for kind in KINDS for name in TABLE[kind]]


@pytest.mark.parametrize(("kind", "name"), EVERY)
class TestEvery:
    def test_it_says_what_it_is(self, kind: str, name: str) -> None:
        policy = find_policy(kind, name).policy
        assert 10 < len(policy.description) <= 100
        assert "\n" not in policy.description
        assert not policy.description.endswith(".")
        assert policy.source
        for parameter in policy.parameters.values():
            assert parameter.low <= parameter.default <= parameter.high
            assert parameter.description

    def test_unknown_parameters_are_refused_with_the_nearest(self, kind: str, name: str) -> None:
        policy = find_policy(kind, name).policy
        for known in policy.parameters:
            with pytest.raises(ValueError, match=f"Did you mean '{known}'"):
                find_policy(kind, {"name": name, f"{known}x": 1})
        if not policy.parameters:
            with pytest.raises(ValueError, match="unknown parameter 'sise'. It has none."):
                find_policy(kind, {"name": name, "sise": 1})

    def test_values_out_of_range_are_refused(self, kind: str, name: str) -> None:
        for key in find_policy(kind, name).policy.parameters:
            for wrong in (-1, 1e30, "many", None, True):
                with pytest.raises(ValueError, match=f"^{key}: "):
                    find_policy(kind, {"name": name, key: wrong})


@pytest.mark.parametrize("name", ORDERS)
class TestOrders:
    def test_it_is_compiled(self, name: str) -> None:
        cache = make_cache(order(name))
        assert cache.notes == []

    def test_blocks_in_use_stay_and_each_leaves_once(self, name: str) -> None:
        history = History(make_cache(order(name)), 1)
        for _ in range(300):
            history.step()
            history.check()

    def test_same_calls_same_answers(self, name: str) -> None:
        logs = []
        for _ in range(2):
            history = History(make_cache(order(name), num_blocks=24), 2)
            for _ in range(200):
                history.step()
            logs.append(history.log)
        assert logs[0] == logs[1]

    @pytest.mark.parametrize("num_usable", [1, 2])
    def test_tiny_pools(self, name: str, num_usable: int) -> None:
        cache = make_cache(order(name), num_blocks=num_usable + 1, groups=PLAIN)
        for uid in (1, 2, 1, 1, 3, 1):
            sequence = Sequence(Content.from_spans([(uid, 4 * num_usable)]), 4 * num_usable)
            hit = cache.lookup(sequence)
            assert cache.allocate(sequence, sequence.content.num_tokens - hit.tokens, hit=hit)
            assert cache.num_free == 0
            cache.free(sequence)
            assert sorted(cache.free_queue().tolist()) == list(range(1, num_usable + 1))

    def test_it_goes_on_after_a_reset(self, name: str) -> None:
        history = History(make_cache(order(name)), 3)
        for _ in range(100):
            history.step()
        assert not history.cache.reset() or not history.live
        while history.live:
            history.cache.free(history.live.pop())
        assert history.cache.reset()
        history.check()
        fresh = History(make_cache(order(name)), 4)
        again = History(history.cache, 4)
        for _ in range(150):
            fresh.step()
            again.step()
            again.check()
        assert again.log == fresh.log

    def test_held_back_blocks_come_back(self, name: str) -> None:
        cache = make_cache(order(name))
        for number in range(20):
            cache.at(float(number))
            spans = [(1 + number % 3, 20), (100 + number, 3)]
            sequence = Sequence(Content.from_spans(spans), 23)
            hit = cache.lookup(sequence)
            assert cache.allocate(sequence, 23 - hit.tokens, hit=hit)
            cache.give_back(cache.hold_back(sequence))
        assert sorted(cache.free_queue().tolist()) == list(range(1, 40))


@pytest.mark.parametrize("name", RETENTIONS)
class TestRetention:
    def test_histories_hold(self, name: str) -> None:
        policy = find_policy(RETENTION, name)
        logs = []
        for _ in range(2):
            cache = make_cache(retention=policy)
            assert cache.notes == []
            history = History(cache, 5)
            for _ in range(200):
                history.step()
                history.check()
            logs.append(history.log)
        assert logs[0] == logs[1]
