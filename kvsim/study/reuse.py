"""What a workload offers to reuse, whatever the cache: the prefix seen before, and how long ago.

Read off the workload alone, in its order of arrival, as a cache of infinite size that keeps every
aligned boundary would see it. No run is needed and none is simulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.errors import KvsimError
from kvsim.workload import open_workload

if TYPE_CHECKING:
    import pandas as pd

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


def reuse(scenario: Scenario) -> pd.DataFrame:
    """A row a request, with the columns of `REUSE_COLUMNS`.

    A request can reuse the prompts of all requests before it, and their answers where a later
    prompt contains them, as if each answer were there at once. So the sum of `reusable_tokens`
    over that of `prompt_tokens` is the most a prefix cache can reach on requests that do not
    overlap: the infinite-cache ceiling.

    Raises:
        KvsimError: the workload cannot be read, or its arrivals depend on the run.
    """
    import pandas as pd

    unit = scenario.scheduler_block_tokens
    workload = open_workload(scenario.workload, unit)
    if workload.concurrency is not None:
        raise KvsimError(
            "workload: its arrivals depend on the run (concurrency is set), so idle times are not "
            "known before it. Use a workload with times of arrival."
        )
    seen = _Seen()
    rows = []
    for request in workload.requests:
        tokens, last_s = seen.longest(request, unit)
        idle_s = None if last_s is None else request.arrival_s - last_s
        rows.append(
            (request.request_id, request.arrival_s, request.num_prompt_tokens, tokens, idle_s)
        )
        seen.add(request)
    frame = pd.DataFrame(rows, columns=list(REUSE_COLUMNS))
    return frame.astype({"arrival_s": float, "idle_s": float})


def ceiling(scenario: Scenario) -> float | None:
    """The token hit rate of an infinite cache that keeps everything; None without prompts.

    Raises:
        KvsimError: the workload cannot be read.
    """
    unit = scenario.scheduler_block_tokens
    seen, reusable, prompts = _Seen(), 0, 0
    for request in open_workload(scenario.workload, unit).requests:
        reusable += seen.longest(request, unit)[0]
        prompts += request.num_prompt_tokens
        seen.add(request)
    return reusable / prompts if prompts else None


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
