"""When sessions start, and sessions as a plain stream of requests."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count

import numpy as np

from kvsim.errors import Problems
from kvsim.scenario.draws import Draw, parse_starts
from kvsim.workload.request import Request, Session
from kvsim.workload.streams import stream

_CHUNK = 1024


def start_times_s(starts: Draw, rng: np.random.Generator, num_sessions: int) -> Iterator[float]:
    """When sessions start, in ascending order, without holding them all.

    Args:
        starts: any form but "recorded".
        rng: the stream to draw from.
        num_sessions: how many; "uniform" has to know, the others could go on.
    """
    given = starts.arguments
    if starts.form == "uniform":
        return _uniform(rng, given["span_s"], num_sessions)
    return (time_s for time_s, _ in zip(_unending(starts, rng), range(num_sessions), strict=False))


def _unending(starts: Draw, rng: np.random.Generator) -> Iterator[float]:
    """Start times of the forms that could go on for ever."""
    form, given = starts.form, starts.arguments
    if form == "together":
        while True:
            yield 0.0
    if form == "constant":
        for number in count():
            yield number / given["per_s"]
    if form == "diurnal":
        yield from _diurnal(rng, given["mean_per_s"], given["swing"], given["period_s"])
    # Gaps of a renewal process; a Poisson process is one whose gaps are exponential.
    shape, scale = 1.0, 1.0
    if form == "gamma":
        # Gamma gaps with mean 1: shape is 1 / cv**2.
        shape, scale = given["cv"] ** -2, given["cv"] ** 2
    passed = 0.0
    while True:
        for gap in rng.gamma(shape, scale, _CHUNK).tolist():
            passed += gap
            yield _ramp_time_s(passed, given) if form == "ramp" else passed / given["per_s"]


def _uniform(rng: np.random.Generator, span_s: float, num: int) -> Iterator[float]:
    """`num` independent uniform times in ascending order: each is the least of those left."""
    time_s = 0.0
    for left in range(num, 0, -1):
        time_s += (span_s - time_s) * -math.expm1(math.log1p(-rng.random()) / left)
        yield time_s


def _ramp_time_s(passed: float, given: Mapping[str, float]) -> float:
    """When a Poisson process whose rate goes from one to another has had `passed` mean events.

    The mean number of events up to t is ``a t + (b - a) t**2 / (2 T)`` up to T, and then grows by b
    a second; this is its inverse.
    """
    begin, end, over_s = given["from_per_s"], given["to_per_s"], given["over_s"]
    in_ramp = (begin + end) / 2 * over_s
    if passed > in_ramp:
        return over_s + (passed - in_ramp) / end
    root = math.sqrt(begin**2 + 2 * (end - begin) / over_s * passed)
    return 2 * passed / (begin + root)  # without the cancellation of (root - begin) / slope


def _diurnal(
    rng: np.random.Generator, mean_per_s: float, swing: float, period_s: float
) -> Iterator[float]:
    """A Poisson process whose rate is ``mean (1 + swing sin(2 pi t / period))``, by thinning."""
    most_per_s = mean_per_s * (1 + swing)
    time_s = 0.0
    while True:
        time_s += rng.exponential(1 / most_per_s)
        rate_per_s = mean_per_s * (1 + swing * math.sin(2 * math.pi * time_s / period_s))
        if rng.random() * most_per_s < rate_per_s:
            yield time_s


def with_starts(
    sessions: Iterable[Session], starts: str | None, seed: int, trace: str
) -> Iterator[Session]:
    """Sessions of a trace in order of their start.

    Args:
        sessions: in the order of the file.
        starts: as in a scenario; None or "recorded" keeps what is recorded. "uniform" draws a start
            for each in the order of the file and so has to hold them all; other forms start them
            in that order.
        seed: the scenario's.
        trace: how messages name the file.

    Raises:
        Problems: no start is recorded.
    """
    chosen = Draw("recorded") if starts is None else parse_starts(starts)
    if chosen.form == "recorded":
        for session in sessions:
            if session.start_s is None:
                text = "when sessions start is not recorded. Say it with workload.sessions.starts "
                text += "(on the command line --starts), as in 'uniform(span_s=12 h)'."
                raise Problems(trace, [text])
            yield session
    elif chosen.form == "uniform":
        drawn = random.Random(seed)
        span_s = chosen.arguments["span_s"]
        placed = [replace(session, start_s=drawn.uniform(0, span_s)) for session in sessions]
        placed.sort(key=_start_s)
        yield from placed
    else:
        times_s = _unending(chosen, stream(seed, "starts"))
        for session, start_s in zip(sessions, times_s, strict=False):
            yield replace(session, start_s=start_s)


def _start_s(session: Session) -> float:
    return session.start_s or 0.0


def set_times(session: Session) -> None:
    """Give turns the times that follow from their delays if answers take no time."""
    times_s: list[float] = []
    for turn in session.turns:
        waits = [times_s[wait.turn] + wait.delay_s for wait in turn.after]
        times_s.append(max([turn.not_before_s, *waits]))
        turn.request.arrival_s = times_s[-1]
    session.timed = True


def in_open_loop(sessions: Iterable[Session]) -> Iterator[Request]:
    """The turns of sessions as requests by arrival, ties in the order of the sessions.

    Turns without times come as long after the arrival of those they wait for as their delays say,
    as in Dynamo's replay of traces. Memory follows the sessions alive at once.

    Args:
        sessions: in order of `start_s`.
    """
    alive: list[tuple[float, int, int, list[Request]]] = []

    def push(number: int, index: int, left: list[Request]) -> None:
        if index < len(left):
            heapq.heappush(alive, (left[index].arrival_s, number, index, left))

    for number, session in enumerate(sessions):
        if not session.timed:
            set_times(session)
        start_s = _start_s(session)
        while alive and alive[0][0] < start_s:
            _, earlier, index, left = heapq.heappop(alive)
            yield left[index]
            push(earlier, index + 1, left)
        requests = [
            replace(turn.request, arrival_s=start_s + turn.request.arrival_s)
            for turn in session.turns
        ]
        requests.sort(key=lambda request: request.arrival_s)
        push(number, 0, requests)
    while alive:
        _, earlier, index, left = heapq.heappop(alive)
        yield left[index]
        push(earlier, index + 1, left)
