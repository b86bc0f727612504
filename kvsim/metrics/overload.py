"""Whether arrivals outpaced the node: a queue that grows to the end of the workload.

Times of such a run say how long its workload is, not how fast the node is, so they are named as
that; what can be said is the rate that was served meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

OVERLOAD_KEYS: dict[str, str] = {
    "since_s": "moment from which on the queue grew to the last arrival",
    "until_s": "the last arrival",
    "offered_requests_per_s": "rate of arrivals from since_s to until_s",
    "served_requests_per_s": "rate of first admissions in that time: what the node could serve",
    "offered_tokens_per_s": "the same in prompt tokens, found ones included",
    "served_tokens_per_s": "the same in prompt tokens, found ones included",
    "waiting": "requests that waited for admission at until_s",
}
"""Keys of `overload` in a summary, each with its meaning."""

OVERLOADED = "overloaded from"
"""How the sentence of an overload begins."""
SHARE_OF_SPAN = 0.2
"""Least part of the time of arrivals over which a queue grows, to be no burst."""
EXCESS = 1.05
"""Least ratio of offered to served tokens."""
WAITING = 10
"""Least requests that wait at the end."""


@dataclass(frozen=True, slots=True)
class Overload:
    """An overload; see `OVERLOAD_KEYS`."""

    since_s: float
    until_s: float
    offered_requests_per_s: float
    served_requests_per_s: float
    offered_tokens_per_s: float
    served_tokens_per_s: float
    waiting: int

    def as_json(self) -> dict[str, Any]:
        """The keys of `OVERLOAD_KEYS`."""
        return {key: getattr(self, key) for key in OVERLOAD_KEYS}

    def sentence(self) -> str:
        """What to know before reading times of this run."""
        return (
            f"{OVERLOADED} {self.since_s:,.0f} s on: {self.offered_tokens_per_s:,.0f} prompt "
            f"tokens/s ({self.offered_requests_per_s:.3g} requests/s) arrived and "
            f"{self.served_tokens_per_s:,.0f} ({self.served_requests_per_s:.3g}) were served, so "
            f"{self.waiting:,} requests waited when the last arrived. TTFT and queue times "
            "(marked *) grow with the length of the workload; lower the rate (sessions, "
            "workload.time_scale) or use more nodes to compare them"
        )


def find_overload(requests: pd.DataFrame) -> Overload | None:
    """Look for a queue that grows to the last arrival.

    The queue is counted in prompt tokens of requests that have arrived and were not yet admitted.
    It is taken to grow from the last moment at which it was a tenth of what it is at the last
    arrival, or less.

    Args:
        requests: the frame of `RequestLog.frame`; refused requests do not count.

    Returns:
        The overload, or None where the node keeps up, all come at once, or the queue is a burst.
    """
    ran = requests[requests["refused"].isna()]
    if len(ran) <= WAITING:
        return None
    arrived_s = ran["arrival_s"].to_numpy(dtype=np.float64)
    admitted_s = arrived_s + ran["queue_s"].to_numpy(dtype=np.float64, na_value=np.inf)
    tokens = ran["prompt_tokens"].to_numpy(dtype=np.float64)
    first_s, last_s = float(arrived_s.min()), float(arrived_s.max())
    waiting = int((admitted_s > last_s).sum())
    if waiting < WAITING or last_s <= first_s:
        return None
    # At each moment of an arrival or admission up to the last arrival, the queue after it.
    moments_s = np.concatenate((arrived_s, admitted_s))
    changes = np.concatenate((tokens, -tokens))
    order = np.lexsort((-changes, moments_s))
    moments_s, queue = moments_s[order], np.cumsum(changes[order])
    end = int(np.searchsorted(moments_s, last_s, side="right"))
    moments_s, queue = moments_s[:end], queue[:end]
    short = np.flatnonzero(queue <= 0.1 * queue[-1])
    since_s = float(moments_s[short[-1]]) if short.size else first_s
    span_s = last_s - since_s
    if span_s < SHARE_OF_SPAN * (last_s - first_s) or queue[-1] < 0.8 * queue.max():
        return None
    offered = (arrived_s > since_s) & (arrived_s <= last_s)
    served = (admitted_s > since_s) & (admitted_s <= last_s)
    if tokens[offered].sum() < EXCESS * tokens[served].sum():
        return None
    return Overload(
        since_s=since_s,
        until_s=last_s,
        offered_requests_per_s=float(offered.sum() / span_s),
        served_requests_per_s=float(served.sum() / span_s),
        offered_tokens_per_s=float(tokens[offered].sum() / span_s),
        served_tokens_per_s=float(tokens[served].sum() / span_s),
        waiting=waiting,
    )
