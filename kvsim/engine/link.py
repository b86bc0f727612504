"""A link that carries transfers in two directions; each takes time and shares the bandwidth.

A transfer has a direction, ``STORE`` (away from the GPU) or ``LOAD`` (towards it). The directions
do not slow each other down. Within a direction transfers go one after another (``fifo``) or all at
once, each with an equal part of the bandwidth (``fair``); alone, a transfer of n bytes arrives
``n / (bandwidth x efficiency) + latency`` seconds after it was begun. A link is never idle while it
has something to carry, so when it has carried everything does not depend on the sharing.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from simpy.events import Event

from kvsim.catalog import LinkSpec
from kvsim.engine.clock import Clock

STORE, LOAD = "store", "load"


class Link:
    """One link; what is the same for all ranks is carried by one link for each of them at once.

    Attributes:
        spec: its bandwidths, latency and sharing.
    """

    def __init__(self, clock: Clock, spec: LinkSpec) -> None:
        """Make an idle link.

        Args:
            clock: the simulation's.
            spec: its bandwidths, latency and sharing.
        """
        self.spec = spec
        lane = _FairLane if spec.sharing == "fair" else _FifoLane
        self._lanes = {
            STORE: lane(clock, spec.store_bytes_per_s * spec.efficiency, spec.latency_s),
            LOAD: lane(clock, spec.load_bytes_per_s * spec.efficiency, spec.latency_s),
        }

    def carry(self, direction: str, num_bytes: float) -> Event:
        """Begin a transfer now; the event happens when its last byte has arrived."""
        return self._lanes[direction].carry(num_bytes)

    def give_up(self, direction: str, transfer: Event) -> None:
        """What ``carry`` began goes no further; its event never happens.

        Others get its part of the bandwidth from now on. On a link that carries one after another
        they keep their turns, and it is busy as if nothing had been given up.
        """
        self._lanes[direction].give_up(transfer)

    def carried_bytes(self, direction: str) -> float:
        """Bytes carried up to now; of a transfer under way the part that is."""
        return self._lanes[direction].carried_bytes()

    def busy_share(self, direction: str, since_s: float, since_bytes: float) -> float | None:
        """Share of the time since a moment that a direction was busy, 0 to 1.

        Args:
            direction: ``STORE`` or ``LOAD``.
            since_s: the moment.
            since_bytes: what ``carried_bytes`` was then.

        Returns:
            The share; None where no time has passed.
        """
        lane = self._lanes[direction]
        passed_s = lane.clock.now - since_s
        if passed_s <= 0:
            return None
        share = (lane.carried_bytes() - since_bytes) / (lane.bytes_per_s * passed_s)
        return min(1.0, max(0.0, share))  # rounding may pass either end


class _Lane:
    """One direction of a link."""

    def __init__(self, clock: Clock, bytes_per_s: float, latency_s: float) -> None:
        if not bytes_per_s > 0:
            raise ValueError(f"{bytes_per_s} bytes a second carry nothing")
        self.clock = clock
        self.bytes_per_s = bytes_per_s
        self.latency_s = latency_s
        self._begun_bytes = 0.0
        self._busy_until_s = 0.0

    def carried_bytes(self) -> float:
        ahead_s = max(0.0, self._busy_until_s - self.clock.now)
        return max(0.0, self._begun_bytes - ahead_s * self.bytes_per_s)

    def carry(self, num_bytes: float) -> Event:
        raise NotImplementedError

    def give_up(self, transfer: Event) -> None:
        """A transfer goes no further."""

    def _begin(self, num_bytes: float) -> None:
        """Count a transfer; the lane is busy for it in any case."""
        self._begun_bytes += num_bytes
        start_s = max(self._busy_until_s, self.clock.now)
        self._busy_until_s = start_s + num_bytes / self.bytes_per_s


class _FifoLane(_Lane):
    """Transfers one after another, in the order in which they were begun."""

    def carry(self, num_bytes: float) -> Event:
        self._begin(num_bytes)
        return self.clock.at(self._busy_until_s + self.latency_s)


class _FairLane(_Lane):
    """Transfers all at once, each with an equal part of the bandwidth.

    What every transfer under way has been given since the lane was idle last grows for all alike,
    so the next one to arrive is the one that needs least of it: a heap keeps them.
    """

    def __init__(self, clock: Clock, bytes_per_s: float, latency_s: float) -> None:
        super().__init__(clock, bytes_per_s, latency_s)
        self._given_bytes = 0.0  # to each transfer that has been there all the time
        self._given_s = 0.0  # when that was
        self._under_way: list[tuple[float, int, Event]] = []
        self._number = count()
        self._planned = 0

    def carry(self, num_bytes: float) -> Event:
        self._begin(num_bytes)
        self._give()
        arrived = self.clock.event()
        heappush(self._under_way, (self._given_bytes + num_bytes, next(self._number), arrived))
        self._plan()
        return arrived

    def give_up(self, transfer: Event) -> None:
        self._give()
        for place, (needed, _, arrived) in enumerate(self._under_way):
            if arrived is transfer:
                missing = max(0.0, needed - self._given_bytes)
                self._begun_bytes -= missing
                self._busy_until_s -= missing / self.bytes_per_s
                del self._under_way[place]
                heapify(self._under_way)
                self._plan()
                return

    def _give(self) -> None:
        now_s = self.clock.now
        if self._under_way:
            part = self.bytes_per_s / len(self._under_way)
            self._given_bytes += (now_s - self._given_s) * part
        else:
            self._given_bytes = 0.0
        self._given_s = now_s

    def _plan(self) -> None:
        """Set an event for the next arrival; one that was set before counts no more."""
        self._planned += 1
        if not self._under_way:
            return
        missing = max(0.0, self._under_way[0][0] - self._given_bytes)
        end_s = self.clock.now + missing * len(self._under_way) / self.bytes_per_s
        plan = self._planned
        callbacks = self.clock.at(end_s).callbacks
        assert callbacks is not None
        callbacks.append(lambda _: self._arrive(plan))

    def _arrive(self, plan: int) -> None:
        if plan != self._planned:
            return
        self._give()
        needed, _, arrived = heappop(self._under_way)
        self._given_bytes = needed  # exactly, whatever was rounded on the way
        self.clock.set(arrived, self.clock.now + self.latency_s)
        self._plan()
