"""Links: when transfers arrive, and how busy the link was."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.catalog import LinkSpec
from kvsim.engine.clock import Clock
from kvsim.engine.link import LOAD, STORE, Link

FIFO = LinkSpec("test", 100.0, 200.0, 0.5, 0.25, "fifo", "rank")  # 50 and 100 bytes a second
FAIR = replace(FIFO, sharing="fair")


def arrivals(
    spec: LinkSpec, transfers: list[tuple[float, float]], direction: str = LOAD
) -> list[float]:
    """When transfers of (begin in s, bytes) arrive, in the order given."""
    clock = Clock()
    link = Link(clock, spec)
    found: list[float] = [-1.0] * len(transfers)

    def one(number: int, begin_s: float, num_bytes: float):  # type: ignore[no-untyped-def]
        yield clock.at(begin_s)
        yield link.carry(direction, num_bytes)
        found[number] = clock.now

    for number, (begin_s, num_bytes) in enumerate(transfers):
        clock.process(one(number, begin_s, num_bytes))
    clock.run()
    return found


@pytest.mark.parametrize("spec", [FIFO, FAIR])
def test_a_transfer_alone(spec: LinkSpec) -> None:
    assert arrivals(spec, [(1.0, 300.0)]) == [1.0 + 300 / 100 + 0.25]
    assert arrivals(spec, [(1.0, 300.0)], STORE) == [1.0 + 300 / 50 + 0.25]
    assert arrivals(spec, [(1.0, 0.0)]) == [1.25]


def test_fifo_goes_one_after_another() -> None:
    assert arrivals(FIFO, [(0.0, 300.0), (1.0, 100.0), (9.0, 50.0)]) == [3.25, 4.25, 9.75]


def test_fair_gives_everybody_an_equal_part() -> None:
    # Alone for 1 s (100 of 300 bytes), then half each: 100 bytes take 2 s, then 100 are left.
    assert arrivals(FAIR, [(0.0, 300.0), (1.0, 100.0), (9.0, 50.0)]) == [4.25, 3.25, 9.75]
    assert arrivals(FAIR, [(0.0, 100.0)] * 4) == [4.25] * 4


@pytest.mark.parametrize("spec", [FIFO, FAIR])
def test_directions_do_not_slow_each_other_down(spec: LinkSpec) -> None:
    clock = Clock()
    link = Link(clock, spec)
    store, load = link.carry(STORE, 100.0), link.carry(LOAD, 100.0)
    clock.run(until=load)
    assert clock.now == 1.25
    clock.run(until=store)
    assert clock.now == 2.25


@given(
    st.lists(
        st.tuples(st.integers(0, 40).map(lambda t: t / 8), st.integers(0, 500).map(float)),
        min_size=1,
        max_size=12,
    )
)
def test_no_sharing_is_idle_while_there_is_work(transfers: list[tuple[float, float]]) -> None:
    fifo, fair = arrivals(FIFO, transfers), arrivals(FAIR, transfers)
    assert max(fair) == pytest.approx(max(fifo))
    for (begin_s, num_bytes), end_s in zip(transfers, fair, strict=True):
        assert end_s >= begin_s + num_bytes / 100 + 0.25 - 1e-9


@pytest.mark.parametrize("spec", [FIFO, FAIR])
def test_how_busy_it_was(spec: LinkSpec) -> None:
    clock = Clock()
    link = Link(clock, spec)
    assert link.busy_share(LOAD, 0.0, 0.0) is None  # no time has passed
    link.carry(LOAD, 100.0)
    link.carry(LOAD, 100.0)
    clock.run(until=1.0)
    assert link.carried_bytes(LOAD) == 100.0
    assert link.busy_share(LOAD, 0.0, 0.0) == 1.0
    assert link.busy_share(STORE, 0.0, 0.0) == 0.0
    clock.run(until=5.0)
    assert link.carried_bytes(LOAD) == 200.0
    assert link.busy_share(LOAD, 1.0, 100.0) == 0.25


def test_a_link_without_bandwidth_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^0\.0 bytes a second carry nothing$"):
        Link(Clock(), replace(FIFO, load_bytes_per_s=0.0))


def test_what_is_given_up_goes_no_further_and_leaves_its_part_to_others() -> None:
    """At 1 s the first has 50 of 100 bytes; from then on the second has all of 100 bytes a s."""
    clock = Clock()
    link = Link(clock, FAIR)
    first, second = link.carry(LOAD, 100.0), link.carry(LOAD, 200.0)
    clock.at(1.0).callbacks.append(lambda _: link.give_up(LOAD, first))  # type: ignore[union-attr]
    ends = []
    second.callbacks.append(lambda _: ends.append(clock.now))  # type: ignore[union-attr]
    clock.run()
    assert not first.triggered
    assert ends == [1.0 + 150 / 100 + 0.25]
    assert link.carried_bytes(LOAD) == 250
    link.give_up(LOAD, second)  # it has arrived: nothing happens
    assert link.carried_bytes(LOAD) == 250


def test_on_a_link_that_carries_one_after_another_others_keep_their_turns() -> None:
    clock = Clock()
    link = Link(clock, FIFO)
    first, second = link.carry(LOAD, 100.0), link.carry(LOAD, 200.0)
    link.give_up(LOAD, first)
    ends = []
    second.callbacks.append(lambda _: ends.append(clock.now))  # type: ignore[union-attr]
    clock.run()
    assert ends == [3.25]
