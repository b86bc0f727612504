"""Steps the plain replicas of a simulation with compiled code, and tells what has happened."""

from __future__ import annotations

import math
from functools import partial
from typing import Protocol

import numpy as np

from kvsim.cache.manager import KVCache
from kvsim.engine.clock import Clock
from kvsim.engine.driving import (
    ADMITTED,
    ASLEEP,
    BETWEEN,
    BUSY,
    BY_HAND,
    DUE,
    ENDED,
    ENDING,
    ENTRY,
    INTERVAL,
    LOG,
    LOGGED,
    MEANWHILE,
    METER_SIZE,
    NEVER,
    NUM_TOLD,
    OUTCOME,
    PHASE,
    POOL,
    STATE_ROWS,
    STOPS_AT_END,
    STOPS_AT_FIRST,
    TIME_ROWS,
    WAKING,
    WHO,
    Replicas,
    advance,
)
from kvsim.engine.lanes import ROOM
from kvsim.engine.scheduler import Scheduler
from kvsim.times.step_time import StepTimeParams

_COLUMNS_BEFORE_GROUPS = 4
_SPARE_ROWS = 1 << 10


class Stepped(Protocol):
    """Who is stepped: a replica, see `kvsim.engine.replica.Replica` for what is meant."""

    scheduler: Scheduler
    step_time: StepTimeParams
    next_entry_s: float
    end_s: float
    num_refused: int
    busy_s: float

    @property
    def cache(self) -> KVCache:
        """Its prefix cache."""

    def note_state(self) -> None:
        """Enter the state of the pool now."""

    def begin_step(self) -> float | None:
        """Plan a step now; when the oldest one in flight ends, if it runs already."""

    def end_step(self) -> bool:
        """The oldest step in flight ends now; whether somebody has waited for its requests."""

    def take_admitted(self, answer: list[int]) -> None:
        """The first that waits was admitted now."""

    def take_outcome(self, place: int, outcome: int, is_last: int) -> bool:
        """What became of a running request in a step; whether somebody has waited for that."""

    def take_state(self, state: list[int]) -> None:
        """How full the pool is now."""

    def tell_log(self) -> None:
        """What its log has of the past is to be read."""


class Stepper:
    """Replicas that need no process of their own: a clock lets them do what is due in between.

    Attributes:
        due_s: when one of them has something to do next.
    """

    def __init__(self, clock: Clock) -> None:
        """Without replicas, at work for a clock.

        Args:
            clock: the simulation's; it has no other stepper.
        """
        self.due_s = NEVER
        self._clock = clock
        self._replicas: list[Stepped] = []
        self._gone: set[int] = set()
        self._arrays = Replicas(
            np.zeros((0, 0), dtype=np.int64),
            np.zeros((STATE_ROWS, 0), dtype=np.int64),
            np.zeros((TIME_ROWS, 0)),
            np.zeros((0, 0), dtype=np.int64),
            np.zeros(0),
            np.zeros(METER_SIZE, dtype=np.int64),
        )
        clock.stepper = self

    @classmethod
    def of(cls, clock: Clock) -> Stepper:
        """The stepper of a clock; it has one at most."""
        stepper = clock.stepper
        return stepper if isinstance(stepper, cls) else cls(clock)

    def join(self, replica: Stepped, interval_s: float) -> int:
        """A replica without requests is stepped from now on.

        Args:
            replica: whose scheduler can be driven.
            interval_s: simulated seconds between two entries of its timeline, at least.

        Returns:
            Its number here.
        """
        who = len(self._replicas)
        self._replicas.append(replica)
        arrays = self._arrays
        states = np.zeros((STATE_ROWS, who + 1), dtype=np.int64)
        times = np.zeros((TIME_ROWS, who + 1))
        states[:, :who], times[:, :who] = arrays.states, arrays.times
        states[PHASE, who] = ASLEEP
        times[DUE, who], times[INTERVAL, who] = NEVER, interval_s
        self._arrays = arrays._replace(states=states, times=times)
        self._take_in(who)
        replica.note_state()
        times[ENTRY, who] = replica.next_entry_s
        return who

    def leave(self, who: int) -> None:
        """A replica does nothing any more."""
        self._settle(who)
        self._gone.add(who)
        self._arrays.times[DUE, who] = NEVER
        self._arrays.states[BY_HAND, who] = 0

    def wake(self, who: int, *, waited_for: bool) -> None:
        """A request has arrived at a replica.

        Args:
            who: its number here.
            waited_for: somebody may do something at the end of the request.
        """
        self._take_in(who)
        if waited_for:
            self._arrays.meter[STOPS_AT_END] = 1
        states, times = self._arrays.states, self._arrays.times
        phase, now_s = states[PHASE, who], self._clock.now
        if phase == ASLEEP:
            states[PHASE, who] = WAKING
            self._go_on_later(who)
        elif phase == MEANWHILE and times[DUE, who] > now_s:
            end_s = self._replicas[who].scheduler.foreseen_end_s(now_s)
            times[DUE, who] = min(times[DUE, who], end_s)
        self.due_s = min(self.due_s, float(times[DUE, who]))

    def stop_at_firsts(self, *, stop: bool) -> None:
        """Whether somebody may do something at a first token or an end that nobody waits for."""
        self._arrays.meter[STOPS_AT_FIRST] = stop

    def advance(self, until_s: float) -> None:
        """Let replicas do what is due before a time, and tell what has happened.

        It may stop before: what is told can lead to something that comes first.
        """
        self.due_s = due_s = advance(self._arrays, float(until_s))
        self._tell()
        who = int(self._arrays.meter[WHO])
        if who >= 0:
            self._do_by_hand(who, due_s)
            self.due_s = float(self._arrays.times[DUE].min())

    def _go_on_later(self, who: int) -> None:
        """Let a replica go on after what happens at this moment already, as a process would."""
        self._arrays.times[DUE, who] = NEVER
        self._clock.call(self._clock.now, partial(self._go_on, who))

    def _go_on(self, who: int) -> None:
        if who in self._gone:
            return
        self._arrays.times[DUE, who] = self.due_s = now_s = self._clock.now
        while self.due_s <= now_s:
            self.advance(math.nextafter(now_s, math.inf))

    def settle(self) -> None:
        """Enter what replicas have done so far."""
        for who in range(len(self._replicas)):
            self._settle(who)

    def _settle(self, who: int) -> None:
        replica, times = self._replicas[who], self._arrays.times
        replica.end_s = max(replica.end_s, float(times[ENDED, who]))
        replica.busy_s += float(times[BUSY, who])
        times[BUSY, who] = 0.0

    def _take_in(self, who: int) -> None:
        """Make known who waits, and where the replica's arrays are."""
        replica = self._replicas[who]
        words = replica.scheduler.hand_over(replica.step_time)
        if words is None:
            return
        arrays = self._arrays
        bundles = arrays.bundles
        if bundles.shape != (len(self._replicas), len(words)):
            bundles = np.zeros((len(self._replicas), len(words)), dtype=np.int64)
            bundles[: len(arrays.bundles)] = arrays.bundles if len(arrays.bundles) else 0
        bundles[who] = words
        rows = 2 * (ROOM + replica.scheduler.config.max_num_seqs) + _SPARE_ROWS
        columns = _COLUMNS_BEFORE_GROUPS + len(replica.cache.config.groups)
        shape = max(rows, arrays.tape.shape[0]), max(columns, arrays.tape.shape[1])
        if shape != arrays.tape.shape:
            arrays = arrays._replace(
                tape=np.zeros(shape, dtype=np.int64), tape_s=np.zeros(shape[0])
            )
        self._arrays = arrays._replace(bundles=bundles)

    def _tell(self) -> None:
        """Tell everybody what is on the tape, each at its time."""
        arrays, replicas, clock = self._arrays, self._replicas, self._clock
        num = int(arrays.meter[NUM_TOLD])
        if not num:
            return
        # Nobody can be admitted while this is read: the tape stays as it is.
        rows, times = arrays.tape[:num].tolist(), arrays.tape_s[:num].tolist()
        now_s = -1.0
        for row, time_s in zip(rows, times, strict=True):
            kind, who = row[0], row[1]
            replica = replicas[who]
            if time_s != now_s:
                clock.set_now(time_s)
                now_s = time_s
            if kind == OUTCOME:
                if replica.take_outcome(row[2], row[3], row[4]):
                    self._go_on_later(who)
            elif kind == ADMITTED:
                replica.take_admitted(row[2:])
            elif kind == POOL:
                replica.take_state(row[2:])
            elif kind == LOG:
                arrays.states[LOGGED, who] = 0
                replica.tell_log()

    def _do_by_hand(self, who: int, now_s: float) -> None:
        """Let a replica's scheduler do what is due."""
        states, times = self._arrays.states, self._arrays.times
        replica = self._replicas[who]
        self._clock.set_now(now_s)
        replica.next_entry_s = float(times[ENTRY, who])
        if states[PHASE, who] == ENDING:
            states[PHASE, who] = BETWEEN
            if replica.end_step():
                self._go_on_later(who)
        else:
            num_refused = replica.num_refused
            due_s = replica.begin_step()
            if replica.num_refused > num_refused:
                self._go_on_later(who)
            states[PHASE, who] = BETWEEN if due_s is None else ENDING
            if due_s is not None:
                times[DUE, who] = due_s
        times[ENTRY, who] = replica.next_entry_s
        states[BY_HAND, who] = not replica.scheduler.can_drive
        self._take_in(who)
