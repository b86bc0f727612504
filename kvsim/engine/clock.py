"""A SimPy environment in which an event can be set for an exact moment."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import simpy
from simpy.core import SimTime
from simpy.events import NORMAL, URGENT, Event


class Clock(simpy.Environment):
    """SimPy's environment, with events at absolute times.

    A delay is added to the present time and rounded; a run of steps taken in one go has to end at
    the very moment at which the same steps end one by one.
    """

    def run(self, until: SimTime | Event | None = None) -> Any | None:
        """Let everything happen; as SimPy's, with less between two events.

        Args:
            until: a time or an event to stop at; None for the end.
        """
        if until is not None:
            return super().run(until)
        queue = self._queue
        while queue:
            self._now, _, _, event = heappop(queue)
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
            for callback in callbacks:
                callback(event)
            if not event._ok and not hasattr(event, "_defused"):
                raise event._value
        return None

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
