"""Requests on the clock: at their times, or in sessions, each turn when what it waits for happened.

Calls and not processes: the end of an answer lets the next turn in before the replica plans its
next step, and a turn costs two entries of the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from kvsim.engine.clock import Clock
from kvsim.engine.hooks import Done
from kvsim.workload.request import After, Request, Session, Turn, Workload

_PROGRESS_EVERY = 64  # sessions, or requests


class Server(Protocol):
    """Who takes requests."""

    def submit(self, request: Request, done: Done | None = None) -> None:
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
        _RunningSession(self._clock, self._server, self._ended).start(session)

    def _ended(self) -> None:
        self._num_alive -= 1
        if self._workload.concurrency is not None:
            self._fill()


class _Turn:
    """A turn on its way: how much it still waits for, and until when.

    It is triggered itself when it has ended.
    """

    __slots__ = ("at_end", "at_start", "earliest_s", "num_missing", "request", "session")

    def __init__(self, session: _RunningSession, turn: Turn, now_s: float) -> None:
        self.session = session
        self.request: Request | None = turn.request
        self.num_missing = len(turn.after)
        self.earliest_s = now_s + turn.not_before_s
        self.at_end: list[tuple[_Turn, float]] | None = None
        self.at_start: list[tuple[_Turn, float]] | None = None

    def let_wait(self, follower: _Turn, after: After) -> None:
        """Another turn waits for this one."""
        waits = (follower, after.delay_s)
        if after.event == "end":
            if self.at_end is None:
                self.at_end = [waits]
            else:
                self.at_end.append(waits)
        elif self.at_start is None:
            self.at_start = [waits]
        else:
            self.at_start.append(waits)

    def arrive_in_time(self) -> None:
        """It waits for no other turn any more."""
        clock = self.session.clock
        if self.earliest_s > clock.now:
            clock.call(self.earliest_s, self.arrive, before_others=True)
        else:
            self.arrive()

    def arrive(self) -> None:
        """Its request arrives, which is let go: long prompts would pile up."""
        request, self.request = self.request, None
        assert request is not None, "a turn arrives once"
        session = self.session
        request.arrival_s = session.clock.now
        session.server.submit(request, self)
        if self.at_start is not None:
            self._let_go(self.at_start)

    def succeed(self) -> None:
        """Its answer is there."""
        clock = self.session.clock
        clock.call(clock.now, self.end)

    def end(self) -> None:
        """Those that waited for nothing else go on."""
        if self.at_end is not None:
            self._let_go(self.at_end)
        session = self.session
        session.num_left -= 1
        if not session.num_left:
            session.ended()

    def _let_go(self, followers: list[tuple[_Turn, float]]) -> None:
        now_s = self.session.clock.now
        for follower, delay_s in followers:
            follower.earliest_s = max(follower.earliest_s, now_s + delay_s)
            follower.num_missing -= 1
            if not follower.num_missing:
                follower.arrive_in_time()


class _RunningSession:
    """What its turns have in common."""

    __slots__ = ("clock", "ended", "num_left", "server")

    def __init__(self, clock: Clock, server: Server, ended: Callable[[], None]) -> None:
        self.clock = clock
        self.server = server
        self.ended = ended
        self.num_left = 0

    def start(self, session: Session) -> None:
        """Let the turns that wait for no other arrive."""
        now_s = self.clock.now
        turns = [_Turn(self, turn, now_s) for turn in session.turns]
        self.num_left = len(turns)
        if not turns:
            self.ended()
        for follower, turn in zip(turns, session.turns, strict=True):
            for after in turn.after:
                turns[after.turn].let_wait(follower, after)
        first = [turn for turn in turns if not turn.num_missing]
        del turns
        for turn_without in first:
            turn_without.arrive_in_time()


class RequestFeeder:
    """Lets requests arrive when the workload says, before anything else of that moment."""

    def __init__(
        self, clock: Clock, workload: Workload, server: Server, told: Callable[[float], None]
    ) -> None:
        """Set the first request on the clock; arguments as for `SessionFeeder`."""
        self._clock = clock
        self._workload = workload
        self._server = server
        self._told = told
        self._requests = iter(workload.requests)
        self._num_read = 0
        call_at(clock, clock.now, self._go_on)

    def _go_on(self, request: Request | None = None) -> None:
        """Let a request arrive, and those after it up to the first that is not due yet."""
        clock = self._clock
        while True:
            if request is not None:
                if self._num_read % _PROGRESS_EVERY == 1:
                    self._told(self._workload.share_read())
                self._server.submit(request)
            request = next(self._requests, None)
            if request is None:
                return
            self._num_read += 1
            if request.arrival_s > clock.now:
                clock.call(request.arrival_s, partial(self._go_on, request), before_others=True)
                return


def call_at(clock: Clock, time_s: float, what: Callable[[], None]) -> None:
    """Do something at a time, before anything else of that moment."""
    clock.call(time_s, what, before_others=True)
