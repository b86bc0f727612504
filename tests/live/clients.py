"""Clients that send their next request when an answer has come, and a clock for the steps.

The scheduler is kvsim's own; only who arrives before which planning is decided here. A recording
has the times at which its clients sent and got something. What decides is when the engine saw it:
an answer that ends with a step goes out while the next step is being planned already, so the
client's next request is seen one planning later, whatever a step takes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvsim.engine.jobs import Job
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.simulation import make_cache, scheduler_config
from kvsim.workload import open_workload
from tests.live import served

CLIENT_S = 0.004
"""From the end of an answer's last step to the next request's arrival. The client itself took 1 ms
(median of ``sent_s`` less the ``done_s`` before it); any value below a step's time is the same."""


@dataclass
class Played:
    """What became of the requests, by their place in the recording.

    Attributes:
        hit_tokens: prefix hit at the first admission.
        done_s: end of the last step.
        work: steps and tokens computed in them from arrival to end.
    """

    hit_tokens: dict[int, int] = field(default_factory=dict)
    done_s: dict[int, float] = field(default_factory=dict)
    work: dict[int, tuple[int, int]] = field(default_factory=dict)


def play(
    recorded: dict[str, Any],
    step_s: float,
    token_s: float,
    late_s: Mapping[int, float] | None = None,
    *,
    asynchronous: bool = False,
) -> Played:
    """Play a recording of several clients.

    Args:
        recorded: its content.
        step_s: seconds of every step.
        token_s: further seconds for each token of a step.
        late_s: requests that reached the engine later than they would, and how much.
        asynchronous: two steps in flight.
    """
    scenario = served.scenario(recorded, step_s, token_s, async_scheduling=asynchronous)
    opened = open_workload(scenario.workload, scenario.scheduler_block_tokens, scenario.seed)
    requests = list(opened.requests)
    cache = make_cache(scenario)
    scheduler = Scheduler(cache, scheduler_config(scenario, cache.config.num_blocks))
    played, now_s, total = Played(), 0.0, (0, 0)
    numbers: dict[Job, int] = {}
    in_flight: deque[tuple[float, int]] = deque()
    arriving: list[tuple[float, int]] = []

    def send(sent_s: float) -> None:
        number = len(numbers) + len(arriving)
        if number < len(requests):
            late = (late_s or {}).get(number, 0.0)
            heapq.heappush(arriving, (sent_s + CLIENT_S + late, number))

    for first in recorded["requests"][: recorded["clients"]]:
        send(first["sent_s"])
    while len(played.done_s) < len(requests):
        if not scheduler.has_work:
            now_s = max(now_s, arriving[0][0])
        while arriving and arriving[0][0] <= now_s:
            number = heapq.heappop(arriving)[1]
            numbers[scheduler.add(requests[number])] = number
            played.work[number] = total
        plan = scheduler.plan()
        for job, hit in plan.started:
            played.hit_tokens[numbers[job]] = hit.tokens
        if plan.num_computing:
            num_tokens = sum(num for _, num in scheduler.scheduled())
            in_flight.append((step_s + token_s * num_tokens, num_tokens))
            if len(in_flight) < scheduler.config.depth:
                continue
        duration_s, num_tokens = in_flight.popleft()
        now_s += duration_s
        total = total[0] + 1, total[1] + num_tokens
        _, finished = scheduler.end_step()
        for job in finished:
            number = numbers[job]
            steps, tokens = played.work[number]
            played.work[number] = total[0] - steps, total[1] - tokens
            played.done_s[number] = now_s
            send(now_s)
    return played


def fitted_step_time(recorded: dict[str, Any]) -> tuple[float, float]:
    """Seconds of a step and of a token that fit best how long the requests of a recording took.

    Least squares; which steps a request is in hardly depends on what they take.
    """
    work = play(recorded, 0.02, 1e-4).work
    lasted_s = [request["done_s"] - request["sent_s"] for request in recorded["requests"]]
    steps_and_tokens = np.array([work[number] for number in range(len(lasted_s))], dtype=float)
    fitted = np.linalg.lstsq(steps_and_tokens, np.array(lasted_s), rcond=None)[0]
    return float(fitted[0]), float(fitted[1])
