"""How long a run was in a steady state: sessions starting as others end, not only starting.

A load that lasts is one under which sessions (requests, where there are none) still start when the
first have long ended. Where all have started before that, a run saw its start-up alone, and what it
says holds for a burst of that size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.metrics.overload import Overload, find_overload
from kvsim.workload import open_workload

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.scenario import Scenario


NUM_TURNS_OVER = 3
"""Times that those alive have to have been replaced by others, by median duration."""


@dataclass(frozen=True, slots=True)
class SteadyState:
    """What a run saw of it.

    Attributes:
        what: `sessions` or `requests`.
        count: how many there were.
        starts_s: from the first start to the last, in s.
        lasting_s: median time from a start to its end, in s.
        overload: the queue that grew to the last arrival, if one did.
    """

    what: str
    count: int
    starts_s: float
    lasting_s: float
    overload: Overload | None = None

    @property
    def steady_s(self) -> float:
        """How long they still started after the first had ended, in s."""
        return max(0.0, self.starts_s - self.lasting_s)

    @property
    def is_burst(self) -> bool:
        """Whether that is too short for the number alive at once to have settled."""
        return self.steady_s < NUM_TURNS_OVER * self.lasting_s


def steady_state(scenario: Scenario, requests: pd.DataFrame) -> SteadyState | None:
    """What a run saw of a steady state; None where none of its requests ended.

    Args:
        scenario: of the run.
        requests: of the run.
    """
    ended = requests[requests["end_s"].notna()]
    if ended.empty:
        return None
    of = _sessions(scenario)
    what = "sessions" if of else "requests"
    names = ended["request_id"].map(of) if of else ended["request_id"]
    groups = ended.groupby(names)
    begins, ends = groups["arrival_s"].min(), groups["end_s"].max()
    return SteadyState(
        what,
        len(begins),
        float(begins.max() - begins.min()),
        float((ends - begins).median()),
        find_overload(requests),
    )


def _sessions(scenario: Scenario) -> dict[str, str]:
    """The session of each request; empty where there are none."""
    workload = open_workload(scenario.workload, scenario.scheduler_block_tokens, scenario.seed)
    if workload.sessions is None:
        return {
            request.request_id: request.session_id
            for request in workload.requests
            if request.session_id is not None
        }
    return {
        turn.request.request_id: session.session_id
        for session in workload.sessions
        for turn in session.turns
    }
