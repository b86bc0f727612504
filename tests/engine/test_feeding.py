"""Sessions on the clock: who arrives when, against a server whose times are known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import simpy

from kvsim.cache.content import Content
from kvsim.engine.clock import Clock
from kvsim.engine.feeding import SessionFeeder
from kvsim.workload.request import After, Request, Session, Turn, Workload


class SlowServer:
    """Ends every request a while after it arrived, and notes arrivals and ends."""

    def __init__(self, clock: Clock, service_s: float) -> None:
        self.clock = clock
        self.service_s = service_s
        self.arrivals: list[tuple[str, float]] = []
        self.most_alive = self.num_alive = 0

    def submit(self, request: Request, done: simpy.Event | None = None) -> None:
        assert request.arrival_s == self.clock.now
        self.arrivals.append((request.request_id, self.clock.now))
        self.num_alive += 1
        self.most_alive = max(self.most_alive, self.num_alive)
        end = self.clock.at(self.clock.now + self.service_s)
        assert end.callbacks is not None

        def ended(_: simpy.Event) -> None:
            self.num_alive -= 1
            assert done is not None
            done.succeed()

        end.callbacks.append(ended)


def turn(name: str, *after: After, not_before_s: float = 0.0) -> Turn:
    content = Content.from_spans([(0, 10)])
    return Turn(Request(name, 0.0, content, 10, 1, 1), after, not_before_s)


def played(
    sessions: Sequence[Session], service_s: float = 10.0, concurrency: int | None = None
) -> SlowServer:
    clock = Clock()
    server = SlowServer(clock, service_s)
    workload = Workload(iter(()), sessions=iter(sessions), concurrency=concurrency)
    SessionFeeder(clock, workload, server, lambda share: None)
    clock.run()
    return server


def test_a_turn_waits_for_the_answer_and_the_thinking() -> None:
    chat = [turn("a"), turn("b", After(0, 5.0)), turn("c", After(1, 0.0))]
    server = played([Session("s", 100.0, chat)])
    assert server.arrivals == [("a", 100.0), ("b", 115.0), ("c", 125.0)]


def test_sessions_start_at_their_times_whatever_the_others_do() -> None:
    sessions = [Session(str(n), 3.0 * n, [turn(f"{n}")]) for n in range(4)]
    assert played(sessions).arrivals == [("0", 0.0), ("1", 3.0), ("2", 6.0), ("3", 9.0)]


def test_subagents_run_beside_one_another_and_are_waited_for() -> None:
    turns = [
        turn("root"),
        turn("one", After(0)),
        turn("two", After(0)),
        turn("two more", After(2, 7.0)),
        turn("join", After(1), After(3, 1.0)),
    ]
    assert played([Session("s", 0.0, turns)]).arrivals == [
        ("root", 0.0),
        ("one", 10.0),
        ("two", 10.0),
        ("two more", 27.0),
        ("join", 38.0),
    ]


def test_a_turn_can_follow_the_start_of_another_and_a_time() -> None:
    turns = [
        turn("root"),
        turn("spawned", After(0, 2.0, "start")),
        turn("late", After(0), not_before_s=50.0),
        turn("timed", not_before_s=4.0),
    ]
    assert played([Session("s", 1.0, turns)]).arrivals == [
        ("root", 1.0),
        ("spawned", 3.0),
        ("timed", 5.0),
        ("late", 51.0),
    ]


def test_concurrency_keeps_that_many_sessions_alive() -> None:
    sessions = [Session(str(n), None, [turn(f"{n}.0"), turn(f"{n}.1", After(0))]) for n in range(5)]
    server = played(sessions, concurrency=2)
    assert server.most_alive == 2
    starts = [(name, at) for name, at in server.arrivals if name.endswith(".0")]
    assert starts == [("0.0", 0.0), ("1.0", 0.0), ("2.0", 20.0), ("3.0", 20.0), ("4.0", 40.0)]


def test_sessions_without_turns_end_at_once() -> None:
    empty = [Session(str(n), 0.0, []) for n in range(3000)]
    for concurrency in (None, 1):
        server = played([*empty, Session("s", 0.0, [turn("a")])], concurrency=concurrency)
        assert server.arrivals == [("a", 0.0)]


def test_calls_and_events_of_one_moment_come_in_the_order_in_which_they_were_set() -> None:
    for runs_until in (None, 2.0):
        clock, told = Clock(), list[str]()

        def note(name: str, told: list[str] = told) -> None:
            told.append(name)

        def set_event(name: str, *, first: bool = False, clock: Clock = clock) -> None:
            callbacks = clock.at(1.0, before_others=first).callbacks
            assert callbacks is not None
            callbacks.append(lambda _: note(name))

        set_event("event")
        clock.call(1.0, partial(note, "call"))
        set_event("second event")
        clock.call(1.0, partial(note, "first call"), before_others=True)
        set_event("first event", first=True)
        clock.run(until=runs_until)
        assert told == ["first call", "first event", "event", "call", "second event"]


def test_nothing_can_be_called_in_the_past() -> None:
    clock = Clock()
    clock.call(1.0, lambda: clock.call(0.5, print))
    with pytest.raises(ValueError, match=r"0\.5 s has passed"):
        clock.run()
