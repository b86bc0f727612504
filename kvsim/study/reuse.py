"""What a workload offers to reuse, whatever the cache: the prefix seen before, and how long ago.

Read off the workload in its order of arrival, as a cache of infinite size that keeps every aligned
boundary would see it. Nothing is simulated; where arrivals depend on the run, one gives its times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kvsim.errors import KvsimError
from kvsim.workload import open_workload

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.results.store import RunResult
    from kvsim.scenario import Scenario
    from kvsim.workload.request import Request

REUSE_COLUMNS: dict[str, str] = {
    "request_id": "name of the request, as in `requests.parquet`",
    "arrival_s": "arrival on the clock of the run",
    "prompt_tokens": "length of the prompt",
    "reusable_tokens": "longest prefix that requests before had, in whole scheduler blocks and "
    "short of the last prompt token",
    "idle_s": "time since that prefix last arrived with a request; null where there is none",
}
"""Columns of `reuse`, each with its meaning."""


def reuse(scenario: Scenario, requests: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row a request, with the columns of `REUSE_COLUMNS`.

    A request can reuse the prompts of all requests before it, and their answers where a later
    prompt contains them, as if each answer were there at once. So the sum of `reusable_tokens`
    over that of `prompt_tokens` is the most a prefix cache can reach on requests that do not
    overlap: the infinite-cache ceiling.

    Args:
        scenario: whose workload it is.
        requests: of a run of it, for the times of arrival; needed where these depend on the run
            (sessions in a closed loop, or a concurrency). Requests that are not there are left out.

    Raises:
        KvsimError: the workload cannot be read, or its arrivals depend on the run and there is
            none.
    """
    import pandas as pd

    unit = scenario.scheduler_block_tokens
    seen = _Seen()
    rows = []
    for request in ordered_requests(scenario, requests):
        tokens, last_s = seen.longest(request, unit)
        idle_s = None if last_s is None else request.arrival_s - last_s
        rows.append(
            (request.request_id, request.arrival_s, request.num_prompt_tokens, tokens, idle_s)
        )
        seen.add(request)
    frame = pd.DataFrame(rows, columns=list(REUSE_COLUMNS))
    return frame.astype({"arrival_s": float, "idle_s": float})


def ordered_requests(scenario: Scenario, requests: pd.DataFrame | None = None) -> Iterator[Request]:
    """The requests of a workload in the order of their arrival; see `reuse`.

    Raises:
        KvsimError: the workload cannot be read, or its arrivals depend on the run and there is
            none.
    """
    if not arrivals_depend_on_run(scenario):
        yield from _each_request(scenario)
        return
    if requests is None:
        raise KvsimError(
            "workload: its arrivals depend on the run (sessions in a closed loop, or a "
            "concurrency), so idle times are not known before it. Give the requests of a run."
        )
    arrivals_s = dict(zip(requests["request_id"], requests["arrival_s"], strict=True))
    timed = [
        replace(request, arrival_s=float(arrivals_s[request.request_id]))
        for request in _each_request(scenario)
        if request.request_id in arrivals_s
    ]
    yield from sorted(timed, key=lambda request: request.arrival_s)


def reuse_by_run(
    scenario: Scenario, results: Mapping[str, RunResult]
) -> pd.DataFrame | dict[str, pd.DataFrame]:
    """What the workload of some runs offered: one frame, or one a run where arrivals depend on it.

    Args:
        scenario: of the first run, where all have the same workload.
        results: the runs, by name.

    Raises:
        KvsimError: the workload cannot be read.
    """
    alike = len({result.scenario.workload.model_dump_json() for result in results.values()}) < 2
    if alike and not arrivals_depend_on_run(scenario):
        return reuse(scenario)
    return {name: reuse(result.scenario, result.requests) for name, result in results.items()}


def ceiling(scenario: Scenario) -> float | None:
    """The token hit rate of an infinite cache that keeps everything; None without prompts.

    Sessions are taken one after another: which of two sessions brings a prefix they share does not
    change how often it can be found.

    Raises:
        KvsimError: the workload cannot be read.
    """
    unit = scenario.scheduler_block_tokens
    seen, reusable, prompts = _Seen(), 0, 0
    for request in _each_request(scenario):
        reusable += seen.longest(request, unit)[0]
        prompts += request.num_prompt_tokens
        seen.add(request)
    return reusable / prompts if prompts else None


def arrivals_depend_on_run(scenario: Scenario) -> bool:
    """Whether requests wait for others to end, so that only a run tells when they arrive."""
    workload = open_workload(scenario.workload, scenario.scheduler_block_tokens, scenario.seed)
    return workload.sessions is not None or workload.concurrency is not None


def _each_request(scenario: Scenario) -> Iterator[Request]:
    """All requests, by arrival; those of sessions session by session, as each waits for others."""
    workload = open_workload(scenario.workload, scenario.scheduler_block_tokens, scenario.seed)
    if workload.sessions is None:
        yield from workload.requests
        return
    for session in workload.sessions:
        yield from (turn.request for turn in session.turns)


class _Seen:
    """The prefixes seen so far, and when each was last.

    For each span the ends it was seen to, falling, with times that rise: what reached further is
    older, or it would have covered the shorter end too.
    """

    def __init__(self) -> None:
        self._ends: dict[int, list[tuple[int, float]]] = {}

    def longest(self, request: Request, unit: int) -> tuple[int, float | None]:
        """The longest reusable prefix in tokens, and when it was last seen."""
        limit = (request.num_prompt_tokens - 1) // unit * unit
        tokens, reached = 0, []
        for uid, end in zip(
            request.content.uids.tolist(), request.content.ends.tolist(), strict=True
        ):
            ends = self._ends.get(uid)
            if ends is None:
                break
            reached.append((tokens, ends))
            tokens = min(end, ends[0][0])
            if tokens < end:
                break
        tokens = min(tokens, limit) // unit * unit
        if tokens == 0:
            return 0, None
        for start, ends in reversed(reached):
            if start < tokens:
                return tokens, next(time_s for end, time_s in reversed(ends) if end >= tokens)
        raise AssertionError("a prefix without a span")

    def add(self, request: Request) -> None:
        """A request's prompt, and its answer."""
        for uid, end in zip(
            request.content.uids.tolist(), request.content.ends.tolist(), strict=True
        ):
            self._note(uid, end, request.arrival_s)
        answered = request.num_prompt_tokens + request.num_output_tokens
        self._note(request.output_uid, answered, request.arrival_s)

    def _note(self, uid: int, end: int, time_s: float) -> None:
        ends = self._ends.setdefault(uid, [])
        while ends and ends[-1][0] <= end:
            ends.pop()
        ends.append((end, time_s))
