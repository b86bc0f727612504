"""Ranks of a mixture of experts step together: the slowest sets the time, idle ones run dummies.

A wave begins when a paused rank is given a request and goes on while any rank has work. Whether one
has is looked at after step 1 of a wave and after every 16th, so up to 15 steps of dummies follow
the last request (vLLM 0.33.0, ``DPEngineCoreProc.run_busy_loop``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import simpy

from kvsim.engine.clock import Clock
from kvsim.engine.replica import Replica
from kvsim.times.step_time import StepTimeParams, together_seconds

SYNC_STEPS = 16
"""Steps from one look at unfinished work to the next (``dp_sync_interval``)."""
WAKE_S = 0.001
"""From a request at a paused rank to the first step: one round trip to the coordinator. An
assumption: no measurement is known; steps take ten times as long."""
GRAPH_TOKENS_MAX = 512
"""Tokens of the largest CUDA graph, where twice the most requests at once are no fewer
(``max_cudagraph_capture_size``)."""
_FIELDS = 9  # of `count_step`

Floats = npt.NDArray[np.float64]


class Lockstep:
    """The common pace of ranks.

    Attributes:
        wave: waves that are over.
        step: steps of the wave that is on.
        num_steps: steps so far, dummies of all ranks included.
        num_dummies: steps so far in which a rank had nothing to run, each rank counted.
    """

    def __init__(
        self,
        clock: Clock,
        step_time: StepTimeParams,
        graph_tokens: int,
        on_wave: Callable[[bool], None] | None = None,
    ) -> None:
        """Without ranks, paused.

        Args:
            clock: the simulation's.
            step_time: of one rank.
            graph_tokens: tokens of the largest CUDA graph.
            on_wave: told when a wave begins (True) and when it is over.
        """
        self.wave = self.step = self.num_steps = self.num_dummies = 0
        self._clock = clock
        self._step_time = step_time
        self._graph_tokens = graph_tokens
        self._on_wave = on_wave or (lambda begins: None)
        self._planned: dict[Replica, deque[Floats]] = {}
        self._asleep: set[Replica] = set()
        self._ready: dict[Replica, simpy.Event] = {}
        self._woken: list[simpy.Event] = []
        self._is_stepping = False
        self._is_on = self._is_waking = False

    def join(self, replica: Replica) -> None:
        """A rank belongs to the group; it is about to fall asleep, as it has nothing to run."""
        self._planned[replica] = deque()

    def leave(self, replica: Replica) -> None:
        """A rank is lost."""
        del self._planned[replica]
        self._asleep.discard(replica)
        self._ready.pop(replica, None)
        self._go_on()

    def sleep(self, replica: Replica) -> None:
        """A rank has nothing to run."""
        self._asleep.add(replica)
        self._go_on()

    def wake(self, replica: Replica) -> simpy.Event | None:
        """It has again; a step under way has to end before it plans."""
        self._asleep.discard(replica)
        if not self._is_stepping:
            return None
        boundary = self._clock.event()
        self._woken.append(boundary)
        return boundary

    def planned(self, replica: Replica) -> None:
        """It has planned a step that computes something."""
        row = np.zeros(_FIELDS)
        replica.scheduler.count_step(self._step_time, row)
        self._planned[replica].append(row)

    def run(self, replica: Replica) -> simpy.Event:
        """Its oldest step may begin."""
        end = self._ready[replica] = self._clock.event()
        self._go_on()
        return end

    def _go_on(self) -> None:
        """Begin a step as soon as every rank is ready or asleep."""
        if self._is_stepping or len(self._ready) + len(self._asleep) < len(self._planned):
            return
        if self._ready and not self._is_on:
            self._wake_all()
            return
        if not self._is_on or not self._planned:
            return
        if not self._ready and (self.step == 1 or self.step % SYNC_STEPS == 0):
            self._is_on = False
            self.wave += 1
            self.step = 0
            self._on_wave(False)
            return
        rows = [self._planned[replica].popleft() for replica in self._ready]
        num_dummies = len(self._planned) - len(rows)
        if num_dummies:
            dummy = np.zeros(_FIELDS)
            dummy[0] = dummy[3] = dummy[7] = 1.0  # one token of one sequence
            rows += [dummy] * num_dummies
        self.step += 1
        self.num_steps += 1
        self.num_dummies += num_dummies
        self._is_stepping = True
        seconds = together_seconds(self._step_time, np.array(rows), self._graph_tokens)
        callbacks = self._clock.at(self._clock.now + seconds).callbacks
        assert callbacks is not None
        callbacks.append(lambda _: self._end())

    def _wake_all(self) -> None:
        """A paused rank was given a request: a wave begins when the others have heard of it."""
        if self._is_waking:
            return
        self._is_waking = True

        def begin() -> None:
            self._is_waking, self._is_on, self.step = False, True, 0
            self._on_wave(True)
            self._go_on()

        callbacks = self._clock.at(self._clock.now + WAKE_S).callbacks
        assert callbacks is not None
        callbacks.append(lambda _: begin())

    def _end(self) -> None:
        """A step is over: ranks that have run process it, those that were woken plan."""
        self._is_stepping = False
        ready, woken = self._ready, self._woken
        self._ready, self._woken = {}, []
        for event in (*ready.values(), *woken):
            event.succeed()
        if not ready and not woken:
            self._go_on()
