"""The Mooncake master's rules: leases, batches, and what finds no room."""

from __future__ import annotations

import numpy as np

from kvsim.offload.leases import LeaseRules
from kvsim.offload.mooncake_store import MooncakeStore
from tests.offload.test_mooncake import Node, keys


class Clock:
    now_s = 0.0


def leased(num_units: int, clock: Clock) -> MooncakeStore:
    return MooncakeStore(num_units, LeaseRules(lambda: clock.now_s, 0.9, 0.05, 10.0))


def put(store: MooncakeStore, *numbers: int) -> int:
    """Put units at once; answers how many had room."""
    count = store.reserve(keys(*numbers))
    store.put(keys(*numbers)[:count])
    return count


def there(store: MooncakeStore, *numbers: int) -> list[int]:
    lacking = store.missing(keys(*numbers))
    return [number for number, is_lacking in zip(numbers, lacking, strict=True) if not is_lacking]


def test_nothing_is_there_before_its_put_has_ended_and_nobody_puts_it_twice() -> None:
    store = leased(100, Clock())
    assert store.reserve(keys(1, 2)) == 2
    assert there(store, 1, 2) == []
    assert store.wanted(keys(1, 2, 3)).tolist() == [False, False, True]
    store.put(keys(1, 2))
    assert there(store, 1, 2) == [1, 2]
    assert (store.num_used, store.num_used_max) == (2, 2)


def test_a_batch_leaves_above_the_watermark_the_oldest_first() -> None:
    """91 of 100 used: 0.05 + 0.01 of the 90 objects that are there leave."""
    clock = Clock()
    store = leased(100, clock)
    for number in range(1, 91):
        put(store, number)
        clock.now_s += 0.1
    assert store.num_evicted == 0
    store.get(keys(1))
    clock.now_s += 60
    put(store, 91)
    assert store.num_evicted == 6  # ceil(90 x 0.06)
    assert there(store, *range(1, 10)) == [1, 8, 9]  # what was read has a later lease
    assert store.num_used == 85


def test_a_lease_holds_for_ten_seconds() -> None:
    clock = Clock()
    store = leased(10, clock)
    assert put(store, *range(1, 10)) == 9
    store.look_up(keys(*range(1, 9), 77))
    assert put(store, 10) == 1  # full: one without a lease leaves
    assert there(store, *range(1, 11)) == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    store.look_up(keys(10))
    assert put(store, 11, 12) == 1  # one has room, and nothing can leave
    store.look_up(keys(11))
    assert put(store, 13) == 0
    assert store.leases is not None
    assert store.leases.num_refused == 2
    clock.now_s = 9.9
    assert put(store, 13) == 0
    clock.now_s = 10.0
    assert put(store, 13) == 0  # too late for this put, but a batch leaves
    assert put(store, 14) == 1
    assert store.num_evicted >= 2


def test_a_put_that_is_given_up_takes_no_room() -> None:
    store = leased(4, Clock())
    assert store.reserve(keys(1, 2, 3)) == 3
    assert store.reserve(keys(4, 5)) == 1
    store.give_up(keys(1, 2, 3))
    assert store.wanted(keys(1)).tolist() == [True]
    assert store.reserve(keys(1, 2, 3)) == 3


def test_it_grows_and_keeps_its_leases() -> None:
    clock = Clock()
    store = leased(10_000, clock)
    put(store, *range(1, 4001))
    store.look_up(keys(*range(1, 2001)))
    clock.now_s = 5.0
    put(store, *range(4001, 9001))  # 90 % used, and not more
    assert store.num_evicted == 0
    put(store, 9001)
    assert store.num_evicted == 451
    assert not store.missing(keys(*range(1, 2001))).any()
    assert store.missing(keys(*range(2001, 2452))).all()
    assert not store.missing(keys(*range(2452, 9002))).any()


def test_who_finds_no_room_saves_no_more_until_somebody_does() -> None:
    clock = Clock()
    store = leased(18, clock)
    node = Node(store)
    one = node.arrive((1, 150))
    (job,) = node.compute(one).stores  # 4 full blocks and 8 of the window
    node.connector.complete([job.number])
    node.connector.match(one, 0)
    two = node.arrive((2, 150))
    (job,) = node.compute(two).stores
    assert job.num_chunks == (4, 2)  # 6 of 12 have room
    assert store.leases is not None
    assert store.leases.num_refused == 6
    node.connector.complete([job.number])
    three = node.arrive((3, 150))
    clock.now_s = 20.0
    (job,) = node.compute(three).stores
    assert sum(job.num_chunks) < 12


def test_a_replica_that_fails_puts_nothing() -> None:
    store = leased(1000, Clock())
    node, other = Node(store), Node(store)
    node.compute(node.arrive((1, 150)))
    assert other.compute(other.arrive((1, 150))).stores[0].num_chunks == (0, 0)
    node.connector.lose()
    assert store.num_used == 0
    (job,) = other.compute(other.arrive((1, 160))).stores
    assert job.num_chunks == (5, 4)  # its window has left the others
    assert np.array_equal(store.wanted(keys(1)), [True])
