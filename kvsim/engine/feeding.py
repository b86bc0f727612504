"""Sessions on the clock, in a closed loop: a turn arrives when what it waits for has happened.

Callbacks and not processes: the end of an answer lets the next turn in before the replica plans
its next step, and a turn costs two events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import simpy

from kvsim.engine.clock import Clock
from kvsim.workload.request import Request, Session, Workload

_PROGRESS_EVERY = 64  # sessions


class Server(Protocol):
    """Who takes requests."""

    def submit(self, request: Request, done: simpy.Event | None = None) -> None:
        """A request arrives now; `done` is triggered when it has ended."""


class SessionFeeder:
    """Starts the sessions of a workload, and lets their turns arrive."""

    def __init__(
        self, clock: Clock, workload: Workload, server: Server, told: Callable[[float], None]
    ) -> None:
        """Set the first session on the clock.

        Args:
            clock: the simulation's.
            workload: one with sessions; started at their `start_s`, or by its `concurrency`.
            server: where requests go.
            told: told the share of the workload that has been read, now and then.
        """
        self._clock = clock
        self._server = server
        self._workload = workload
        self._sessions = iter(workload.sessions or ())
        self._told = told
        self._num_started = self._num_alive = 0
        self._filling = False
        call_at(clock, clock.now, self._by_time if workload.concurrency is None else self._fill)

    def _by_time(self) -> None:
        """Start sessions at the times they name."""
        for session in self._sessions:
            start_s = session.start_s or 0.0
            if start_s > self._clock.now:

                def go_on(session: Session = session) -> None:
                    self._start(session)
                    self._by_time()

                call_at(self._clock, start_s, go_on)
                return
            self._start(session)

    def _fill(self) -> None:
        """Start sessions until enough of them are alive."""
        if self._filling:  # one without turns has ended while it was started
            return
        self._filling = True
        while self._num_alive < (self._workload.concurrency or 0):
            session = next(self._sessions, None)
            if session is None:
                break
            self._start(session)
        self._filling = False

    def _start(self, session: Session) -> None:
        if self._num_started % _PROGRESS_EVERY == 0:
            self._told(self._workload.share_read())
        self._num_started += 1
        self._num_alive += 1
        _RunningSession(self._clock, self._server, session, self._ended).start()

    def _ended(self) -> None:
        self._num_alive -= 1
        if self._workload.concurrency is not None:
            self._fill()


class _RunningSession:
    """A session on its way: for each turn how much it still waits for, and until when."""

    def __init__(
        self, clock: Clock, server: Server, session: Session, ended: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._server = server
        self._ended = ended
        turns = session.turns
        # A turn is let go when it has ended: long prompts would pile up.
        self._requests: list[Request | None] = [turn.request for turn in turns]
        self._num_left = len(turns)
        self._num_missing = [len(turn.after) for turn in turns]
        self._earliest_s = [clock.now + turn.not_before_s for turn in turns]
        self._followers: dict[tuple[int, str], list[tuple[int, float]]] = {}
        for index, turn in enumerate(turns):
            for after in turn.after:
                follower = (index, after.delay_s)
                self._followers.setdefault((after.turn, after.event), []).append(follower)

    def start(self) -> None:
        """Let the turns that wait for no other arrive."""
        if not self._num_left:
            self._ended()
        first = [index for index, missing in enumerate(self._num_missing) if not missing]
        for index in first:
            self._arrive_in_time(index)

    def _happened(self, index: int, event: Literal["end", "start"]) -> None:
        """A turn has arrived or ended; those that waited for nothing else go on."""
        now_s = self._clock.now
        for follower, delay_s in self._followers.pop((index, event), ()):
            self._earliest_s[follower] = max(self._earliest_s[follower], now_s + delay_s)
            self._num_missing[follower] -= 1
            if not self._num_missing[follower]:
                self._arrive_in_time(follower)

    def _arrive_in_time(self, index: int) -> None:
        if self._earliest_s[index] > self._clock.now:
            call_at(self._clock, self._earliest_s[index], lambda: self._arrive(index))
        else:
            self._arrive(index)

    def _arrive(self, index: int) -> None:
        request, self._requests[index] = self._requests[index], None
        assert request is not None, "a turn arrives once"
        request.arrival_s = self._clock.now
        done = self._clock.event()
        assert done.callbacks is not None
        done.callbacks.append(lambda _: self._end(index))
        self._server.submit(request, done)
        self._happened(index, "start")

    def _end(self, index: int) -> None:
        self._happened(index, "end")
        self._num_left -= 1
        if not self._num_left:
            self._ended()


def call_at(clock: Clock, time_s: float, what: Callable[[], None]) -> None:
    """Do something at a time, before anything else of that moment."""
    event = clock.at(time_s, before_others=True)
    assert event.callbacks is not None
    event.callbacks.append(lambda _: what())
