"""The columns of `requests.parquet` and `timeline.parquet`, collected while a run goes on.

The logs keep columns of numbers, not objects, so that a million requests take a few hundred MB. A
value that does not exist is None here, NaN or NA in a frame, and null in a file.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from kvsim.metrics.misses import MISS_COLUMNS, Misses, MissLog

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

REQUEST_COLUMNS: dict[str, str] = {
    "request_id": "name of the request, ordered like the workload",
    "arrival_s": "arrival on the clock of the run",
    "first_token_s": "end of the step that computed the last prompt token",
    "end_s": "end of the step that made the last token",
    "prompt_tokens": "length of the prompt",
    "output_tokens": "tokens asked for",
    "hit_tokens": "prefix hit at first admission",
    "queue_s": "arrival to first admission",
    "ttft_s": "arrival to first token",
    "tpot_s": "mean time of a token after the first; null for one output token",
    "preemptions": "times the request was preempted",
    "hit_ended": "why the hit at first admission was not longer",
    "group_hit_tokens": "reach of each KV cache group alone, where it differs; else null",
    "full_hit_tokens": "reach of the longest group alone: the junction where it exceeds the hit",
    "refused": "why the request was refused; null for one that ran",
    "external_hit_tokens": "tokens beyond the hit that its first admission loaded from a tier",
    **MISS_COLUMNS,
}
"""Columns of `requests.parquet` in their order, each with its meaning (times in s, sizes in
tokens)."""

FLEET_COLUMNS: dict[str, str] = {
    "replica": "number of the replica that ran it last, as in the summary; null for none",
    "resent": "times it was sent again because its replica was lost, or its KV with another",
    "cached_elsewhere_tokens": "tokens of its prompt that another replica had cached when it was "
    "routed, beyond what its own had; null where output.compare_caches is false",
    "expected_hit_tokens": "tokens of its prompt that the router expected its replica to have "
    "cached; null where it did not look",
}
"""Further columns of a fleet's `requests.parquet`."""

TIMELINE_COLUMNS: dict[str, str] = {
    "time_s": "moment on the clock of the run",
    "used_blocks": "blocks that a request refers to",
    "cached_blocks": "blocks with a key in the hash index, in use or free",
    "free_blocks": "blocks in the free queue",
    "running": "requests running",
    "waiting": "requests waiting, for room or for their load",
    "free_cached_blocks": "blocks in the free queue with a key: what there is to evict",
    "store_utilization": "share of the time since the row before that the link from the device to "
    "the tier next to it was busy, 0 to 1; null without a tier",
    "load_utilization": "the same for the way to the device",
    "disk_store_utilization": "the same for the link to the disk below; null without one",
    "disk_load_utilization": "the same for the way from the disk",
    "group_cached_blocks": "cached_blocks of each KV cache group, in order",
}
"""Columns of `timeline.parquet` in their order, each with its meaning."""

NO_UTILIZATION = (None, None, None, None)
"""Of links that are not there."""
_NO_SHARES = (math.nan,) * len(NO_UTILIZATION)


@dataclass(slots=True)
class RequestRecord:
    """What happened to one request so far; times in seconds on the clock of the run.

    Attributes:
        order: place in the order of arrival, from 0.
        request_id: the request's name.
        arrival_s: when it arrived.
        prompt_tokens: length of its prompt.
        output_tokens: tokens it asked for.
        admitted_s: when it was first admitted to run.
        first_token_s: when its first token was there.
        end_s: when its last token was there.
        hit_tokens: its prefix hit at first admission.
        full_hit_tokens: the reach of the longest group alone, then.
        group_hit_tokens: the reach of each group alone, then; None where all are the hit.
        hit_ended: why the hit was not longer.
        preemptions: times it was preempted.
        refused: why it never ran.
        external_hit_tokens: tokens beyond the hit that were loaded from a tier, then.
        misses: why no more was found, then; None where that is not noted.
        replica: of a fleet, the one that has it.
        resent: times it was sent again because its replica was lost.
        cached_elsewhere_tokens: see `FLEET_COLUMNS`.
        expected_hit_tokens: see there.
    """

    order: int
    request_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    admitted_s: float | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    hit_tokens: int | None = None
    full_hit_tokens: int | None = None
    group_hit_tokens: Sequence[int] | None = None
    hit_ended: str | None = None
    preemptions: int = 0
    refused: str | None = None
    external_hit_tokens: int | None = None
    misses: Misses | None = None
    replica: int | None = None
    resent: int = 0
    cached_elsewhere_tokens: int | None = 0
    expected_hit_tokens: int | None = None

    def begin_again(self) -> None:
        """It is sent again: what its lost replica did counts for nothing but its first token."""
        self.admitted_s = self.end_s = self.hit_tokens = self.full_hit_tokens = None
        self.group_hit_tokens = self.hit_ended = self.external_hit_tokens = self.replica = None
        self.misses = None
        self.resent += 1


class RequestLog:
    """The requests of a run, added in any order once they have ended or were refused."""

    def __init__(self) -> None:
        """Start empty."""
        self._integers = array("q")  # rows of `_INTEGERS`
        self._times = array("d")  # rows of `_TIMES`
        self._request_ids: list[str] = []
        self._hit_ended: list[str | None] = []
        self._refused: list[str | None] = []
        self._group_hit_tokens: dict[int, list[int]] = {}
        self._misses = MissLog()

    def __len__(self) -> int:
        """Number of requests added."""
        return len(self._request_ids)

    def add(self, record: RequestRecord) -> None:
        """Add a request; later changes to the record have no effect."""
        if record.group_hit_tokens is not None:
            reaches = [int(tokens) for tokens in record.group_hit_tokens]
            self._group_hit_tokens[len(self._request_ids)] = reaches
        integers = _integers_of(record)
        if None in integers:
            integers = [_NO_COUNT if count is None else count for count in integers]
        times_s = _times_of(record)
        if None in times_s:
            times_s = [math.nan if time_s is None else time_s for time_s in times_s]
        self._integers.extend(integers)
        self._times.extend(times_s)
        self._request_ids.append(record.request_id)
        self._hit_ended.append(record.hit_ended)
        self._refused.append(record.refused)
        self._misses.add(record.misses)

    def extend(self, other: RequestLog) -> None:
        """Add the requests of another log, in its order; one without reasons of misses."""
        num_before = len(self)
        for row, reaches in other._group_hit_tokens.items():
            self._group_hit_tokens[num_before + row] = reaches
        self._integers.extend(other._integers)
        self._times.extend(other._times)
        self._request_ids.extend(other._request_ids)
        self._hit_ended.extend(other._hit_ended)
        self._refused.extend(other._refused)
        self._misses.skip(len(other))

    def order_by_arrival(self, sizes: Sequence[int]) -> bool:
        """Number requests anew by their arrival, after logs with orders of their own were added.

        Args:
            sizes: of these logs.

        Returns:
            Whether arrivals tell all requests of different logs apart.
        """
        import numpy as np

        counts, times_s = self._counts(), self._times_s()
        logs = np.repeat(np.arange(len(sizes)), sizes)
        order, arrivals_s = _INTEGERS.index("order"), times_s[:, _TIMES.index("arrival_s")]
        places = np.lexsort((counts[:, order], logs, arrivals_s))
        counts[places, order] = np.arange(len(places))
        self._integers = array("q", counts.tobytes())
        at_once = np.diff(arrivals_s[places]) == 0
        return not bool((at_once & (np.diff(logs[places]) != 0)).any())

    def places(self) -> npt.NDArray[np.int64]:
        """The place at which each request was added, in order of arrival."""
        import numpy as np

        return np.argsort(self._counts()[:, _INTEGERS.index("order")], kind="stable")

    def _counts(self) -> npt.NDArray[np.int64]:
        """A copy of the integers, a row a request."""
        import numpy as np

        return np.array(self._integers, dtype=np.int64).reshape(-1, len(_INTEGERS))

    def _times_s(self) -> npt.NDArray[np.float64]:
        """A copy of the times, a row a request."""
        import numpy as np

        return np.array(self._times).reshape(-1, len(_TIMES))

    def first_refusal(self) -> str | None:
        """Why the first refused request was refused, None where none was."""
        return next((reason for reason in self._refused if reason is not None), None)

    def missed_by_group(self) -> dict[str, list[int]] | None:
        """Missed tokens by KV cache group, see `MissLog.by_group`."""
        return self._misses.by_group()

    def frame(self, *, fleet: bool = False) -> pd.DataFrame:
        """A row a request in order of arrival, with the columns of `REQUEST_COLUMNS`.

        Args:
            fleet: with those of `FLEET_COLUMNS` as well.
        """
        import numpy as np
        import pandas as pd

        order = self.places()
        counts = dict(zip(_INTEGERS, self._counts()[order].T.copy(), strict=True))
        times = dict(zip(_TIMES, self._times_s()[order].T.copy(), strict=True))
        rows = order.tolist()
        num_later = counts["output_tokens"] - 1
        decode_s = times["end_s"] - times["first_token_s"]
        columns = {
            "request_id": pd.Series([self._request_ids[row] for row in rows], dtype="str"),
            "arrival_s": times["arrival_s"],
            "first_token_s": times["first_token_s"],
            "end_s": times["end_s"],
            "prompt_tokens": counts["prompt_tokens"],
            "output_tokens": counts["output_tokens"],
            "hit_tokens": _nullable(counts["hit_tokens"]),
            "queue_s": times["admitted_s"] - times["arrival_s"],
            "ttft_s": times["first_token_s"] - times["arrival_s"],
            "tpot_s": np.where(num_later > 0, decode_s / np.maximum(num_later, 1), np.nan),
            "preemptions": counts["preemptions"],
            "hit_ended": pd.Series([self._hit_ended[row] for row in rows], dtype="str"),
            "group_hit_tokens": pd.Series(
                [self._group_hit_tokens.get(row) for row in rows], dtype="object"
            ),
            "full_hit_tokens": _nullable(counts["full_hit_tokens"]),
            "refused": pd.Series([self._refused[row] for row in rows], dtype="str"),
            "external_hit_tokens": _nullable(counts["external_hit_tokens"]),
            **self._misses.columns(order),
        }
        if fleet:
            columns["replica"] = _nullable(counts["replica"])
            columns["resent"] = counts["resent"]
            elsewhere = counts["cached_elsewhere_tokens"]
            if (elsewhere == _NO_COUNT).any():
                columns["cached_elsewhere_tokens"] = _nullable(elsewhere)
            else:
                columns["cached_elsewhere_tokens"] = elsewhere
            columns["expected_hit_tokens"] = _nullable(counts["expected_hit_tokens"])
        return pd.DataFrame(columns, copy=False)


class TimelineLog:
    """The state of the pool and of the queues over time, added in order of time."""

    def __init__(self) -> None:
        """Start empty."""
        self._times_s = array("d")
        self._counts = array("q")
        self._utilization = array("d")
        self._group_cached_blocks = array("q")

    def __len__(self) -> int:
        """Number of moments added."""
        return len(self._times_s)

    def add(
        self,
        time_s: float,
        used_blocks: int,
        cached_blocks: int,
        free_blocks: int,
        running: int,
        waiting: int,
        *,
        free_cached_blocks: int,
        group_cached_blocks: Sequence[int],
        utilization: Sequence[float | None] = NO_UTILIZATION,
    ) -> None:
        """Add a moment; see `TIMELINE_COLUMNS` for what each number means."""
        self._times_s.append(time_s)
        self._counts.extend(
            (used_blocks, cached_blocks, free_blocks, running, waiting, free_cached_blocks)
        )
        if utilization is NO_UTILIZATION:
            self._utilization.extend(_NO_SHARES)
        else:
            self._utilization.extend(math.nan if share is None else share for share in utilization)
        self._group_cached_blocks.extend(group_cached_blocks)

    def used_blocks(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Moments in s, and the blocks in use from each on."""
        import numpy as np

        num_counts = len(TIMELINE_COLUMNS) - len(NO_UTILIZATION) - 2
        counts = np.array(self._counts, dtype=np.int64).reshape(-1, num_counts)
        return np.array(self._times_s), counts[:, 0]

    def frame(self) -> pd.DataFrame:
        """A row a moment, with the columns of `TIMELINE_COLUMNS`."""
        import numpy as np
        import pandas as pd

        _, *names, by_group = TIMELINE_COLUMNS
        num_counts = len(names) - len(NO_UTILIZATION)
        counts = np.array(self._counts, dtype=np.int64).reshape(-1, num_counts)
        shares = np.array(self._utilization).reshape(-1, len(NO_UTILIZATION))
        columns: dict[str, object] = {"time_s": np.array(self._times_s)}
        columns |= dict(zip(names, [*counts.T, *shares.T], strict=True))
        cached = np.array(self._group_cached_blocks, dtype=np.int64)
        by_moment = cached.reshape(len(self), -1).tolist() if len(self) else []
        columns[by_group] = pd.Series(by_moment, dtype="object")
        return pd.DataFrame(columns)


def fleet_timeline(timelines: Sequence[tuple[int, TimelineLog]]) -> pd.DataFrame:
    """The moments of several replicas in order of time, with a column `replica`."""
    import pandas as pd

    frames = [log.frame().assign(replica=number) for number, log in timelines]
    together: pd.DataFrame = pd.concat(frames, ignore_index=True)
    return together.sort_values("time_s", kind="stable", ignore_index=True)


_NO_COUNT = -1
_INTEGERS = (
    "order",
    "prompt_tokens",
    "output_tokens",
    "hit_tokens",
    "full_hit_tokens",
    "preemptions",
    "external_hit_tokens",
    "replica",
    "resent",
    "cached_elsewhere_tokens",
    "expected_hit_tokens",
)
_TIMES = ("arrival_s", "admitted_s", "first_token_s", "end_s")
_integers_of: Callable[[RequestRecord], Sequence[int]] = attrgetter(*_INTEGERS)
_times_of: Callable[[RequestRecord], Sequence[float]] = attrgetter(*_TIMES)


def _nullable(counts: npt.NDArray[np.int64]) -> pd.arrays.IntegerArray:
    import pandas as pd

    return pd.arrays.IntegerArray(counts, counts == _NO_COUNT)
