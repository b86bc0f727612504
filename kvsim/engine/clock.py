"""A SimPy environment in which an event, or a call, can be set for an exact moment."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Protocol

import simpy
from simpy.core import SimTime
from simpy.events import NORMAL, URGENT, Event


class Between(Protocol):
    """Who does things between events that are none themselves.

    Attributes:
        due_s: when the next of them is due.
    """

    due_s: float

    def advance(self, until_s: float) -> None:
        """Do what is due before a time; perhaps not all of it."""

    def settle(self) -> None:
        """Nothing comes any more."""


class Clock(simpy.Environment):
    """SimPy's environment, with events at absolute times, and calls that nobody waits for.

    A delay is added to the present time and rounded; a run of steps taken in one go has to end at
    the very moment at which the same steps end one by one. A call takes its place in the queue
    among events, as an event with that callback would.

    Attributes:
        stepper: does things between events when everything is let happen; None for nobody.
    """

    stepper: Between | None = None

    def run(self, until: SimTime | Event | None = None) -> Any | None:
        """Let everything happen; as SimPy's, with less between two events.

        Args:
            until: a time or an event to stop at; None for the end.
        """
        if until is not None:
            try:
                return super().run(until)
            finally:
                if self.stepper is not None:
                    self.stepper.settle()
        queue: list[tuple[SimTime, int, int, Any]] = self._queue  # type: ignore[assignment]
        stepper = self.stepper
        while queue or (stepper is not None and stepper.due_s < math.inf):
            if stepper is not None:
                next_s = queue[0][0] if queue else math.inf
                if stepper.due_s < next_s:
                    stepper.advance(next_s)
                    continue
            self._now, _, _, event = heappop(queue)
            if not isinstance(event, Event):
                event()
                continue
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
            for callback in callbacks or ():
                callback(event)
            if not event._ok and not hasattr(event, "_defused"):
                raise event._value
        if stepper is not None:
            stepper.settle()
        return None

    def set_now(self, time_s: float) -> None:
        """It is so late, for what happens between events."""
        self._now = time_s

    def step(self) -> None:
        """Let the next event or call happen, and what is due before."""
        stepper = self.stepper
        while stepper is not None and stepper.due_s < self.peek():
            stepper.advance(self.peek())
        if self._queue and not isinstance(self._queue[0][3], Event):
            self._now, _, _, call = heappop(self._queue)
            call()
        else:
            super().step()

    def call(
        self, time_s: float, what: Callable[[], object], *, before_others: bool = False
    ) -> None:
        """Call a function at a time.

        Args:
            time_s: not before now.
            what: is called without arguments; what it answers is passed over.
            before_others: before all events of that moment that are not marked so.

        Raises:
            ValueError: a time that has passed.
        """
        if time_s < self._now:
            raise ValueError(f"{time_s} s has passed: it is {self._now} s")
        priority = URGENT if before_others else NORMAL
        heappush(self._queue, (time_s, priority, next(self._eid), what))  # type: ignore[misc]

    def at(self, time_s: float, *, before_others: bool = False) -> Event:
        """An event that happens at a time.

        Args:
            time_s: not before now.
            before_others: before all events of that moment that are not marked so.

        Raises:
            ValueError: a time that has passed.
        """
        if time_s < self._now:
            raise ValueError(f"{time_s} s has passed: it is {self._now} s")
        event = Event(self)
        event._ok = True
        event._value = None
        priority = URGENT if before_others else NORMAL
        heappush(self._queue, (time_s, priority, next(self._eid), event))
        return event

    def set(self, event: Event, time_s: float, *, before_others: bool = False) -> Event:
        """Let an event that was made before happen at a time; see ``at``."""
        if time_s < self.now:
            raise ValueError(f"{time_s} s has passed: it is {self.now} s")
        event._ok = True
        event._value = None
        priority = URGENT if before_others else NORMAL
        heappush(self._queue, (time_s, priority, next(self._eid), event))
        return event
