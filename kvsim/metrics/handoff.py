"""What a request spent on either side of a hand-off, and the figures of two pools."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.metrics.records import RequestLog, RequestRecord
from kvsim.metrics.summary import RunCounters, spread

if TYPE_CHECKING:
    import pandas as pd

HANDOFF_COLUMNS: dict[str, str] = {
    "prefill_replica": "number of the replica that computed its prompt for another; null where the "
    "decode side did it all, as are all columns below",
    "prefill_queue_s": "arrival to the first step of its prompt",
    "prefill_s": "from there to the end of its prompt on the prefill side",
    "decode_queue_s": "from there to the begin of the transfer: the decode side had no blocks yet",
    "transfer_s": "from there until the last byte was there, waiting for other transfers included",
    "decode_start_s": "from there to its first token; the five add up to ttft_s, and are null if "
    "that came before its decode node was lost",
    "decode_hit_tokens": "prefix hit on the decode side, where hit_tokens is the prefill side's",
    "pulled_tokens": "tokens of its prompt beyond that, whose KV was moved",
    "moved_bytes": "bytes that were moved, all ranks",
    "lease_lost": "1 where the prefill side gave up the blocks before they were read, else 0",
}
"""Further columns of `requests.parquet` where prefill and decode are apart."""

PARTS = ("prefill_queue_s", "prefill_s", "decode_queue_s", "transfer_s", "decode_start_s")

SIDE_KEYS: dict[str, str] = {
    "nodes": "nodes of the pool",
    "router": "who chose among them",
    "replicas": "numbers of its replicas, the first and the last",
    "num_requests": "requests that ran on it",
    "token_hit_rate": "hit_tokens / queried_tokens, 0 to 1",
    "queried_tokens": "prompt tokens looked up at first admission",
    "hit_tokens": "prompt tokens found in its prefix caches",
    "scheduled_tokens": "tokens computed by its steps",
    "load": "mean share of its replicas' time in which a step was under way, 0 to 1",
    "imbalance": "largest over mean of its replicas' load",
    "link_bytes": "by replica, bytes it sent (prefill) or received (decode), all ranks",
}
"""Keys of one pool, each with its meaning."""

POOLS_KEYS: dict[str, str] = {
    "connector": "what moves the KV: nixl-pull or mooncake-push",
    "prefill": "the pool that computes prompts, see `kvsim describe sides`",
    "decode": "the pool that makes answers, with the same",
    "num_split": "requests whose prompt was computed by the prefill pool for the decode pool",
    "num_unsplit": "requests that the decode pool computed alone",
    **{part: f"{HANDOFF_COLUMNS[part]}: `mean`, `p50`, `p90`, `p99`" for part in PARTS},
    "moved_tokens": "prompt tokens whose KV was moved",
    "moved_bytes": "bytes moved, all ranks",
    "moved_bytes_by_group": "the same by KV cache group",
    "descriptors": "descriptors posted, of one rank",
    "leases_lost": "prompts whose blocks were given up before they were read",
    "loads_failed": "requests whose KV could not be loaded: its node, or what that kept, was gone",
}
"""Keys of `pools` of a fleet in a summary, each with its meaning."""


@dataclass(frozen=True, slots=True)
class HandoffRecord:
    """What became of one hand-off; see `HANDOFF_COLUMNS`. None where it did not come to that."""

    prefill_replica: int | None = None
    prefill_queue_s: float | None = None
    prefill_s: float | None = None
    decode_queue_s: float | None = None
    transfer_s: float | None = None
    decode_start_s: float | None = None
    decode_hit_tokens: int | None = None
    pulled_tokens: int | None = None
    moved_bytes: float | None = None
    lease_lost: int | None = None


NO_HANDOFF = HandoffRecord()


class SplitLog(RequestLog):
    """The requests of a split fleet; each is completed by what its prefill side did."""

    def __init__(self, complete: Callable[[RequestRecord], HandoffRecord]) -> None:
        """Start empty.

        Args:
            complete: asked with every record before it is entered; may change it.
        """
        super().__init__()
        self._complete = complete
        self._columns = {name: array("d") for name in HANDOFF_COLUMNS}

    def add(self, record: RequestRecord) -> None:
        """Add a request that has ended on the decode side, or was refused."""
        handoff = self._complete(record)
        super().add(record)
        for name, column in self._columns.items():
            value = getattr(handoff, name)
            column.append(math.nan if value is None else float(value))

    def frame(self, *, fleet: bool = False) -> pd.DataFrame:
        """As `RequestLog.frame`; for a fleet with the columns of `HANDOFF_COLUMNS`."""
        import numpy as np
        import pandas as pd

        frame = super().frame(fleet=fleet)
        if not fleet:
            return frame
        order = self.places()
        for name, column in self._columns.items():
            values = pd.Series(np.array(column)[order])
            frame[name] = values if name.endswith("_s") else values.round().astype("Int64")
        return frame


class LegLog(RequestLog):
    """Requests of one pool of two, told on when they are entered."""

    def __init__(self, on_end: Callable[[RequestRecord], None]) -> None:
        """Start empty; ``on_end`` is told of every record."""
        super().__init__()
        self._on_end = on_end

    def add(self, record: RequestRecord) -> None:
        """Add a request that has ended."""
        super().add(record)
        self._on_end(record)


@dataclass(frozen=True)
class SideFigures:
    """What one pool has counted.

    Attributes:
        nodes: at the start.
        router: its kind.
        first_replica: number of its first replica.
        counters: sums over its replicas.
        loads: of each replica, share of the time in which it was busy.
        link_bytes: of each replica.
    """

    nodes: int
    router: str
    first_replica: int
    counters: RunCounters
    loads: Sequence[float]
    link_bytes: Sequence[float]

    def as_json(self, num_requests: int) -> dict[str, Any]:
        """The keys of `SIDE_KEYS`, of so many requests."""
        counters, loads = self.counters, self.loads
        mean = sum(loads) / len(loads)
        queried = counters.queried_tokens
        values = {
            "nodes": self.nodes,
            "router": self.router,
            "replicas": [self.first_replica, self.first_replica + len(loads) - 1],
            "num_requests": num_requests,
            "token_hit_rate": counters.hit_tokens / queried if queried else None,
            "queried_tokens": int(queried),
            "hit_tokens": int(counters.hit_tokens),
            "scheduled_tokens": int(counters.scheduled_tokens),
            "load": mean,
            "imbalance": max(loads) / mean if mean > 0 else None,
            "link_bytes": [float(num_bytes) for num_bytes in self.link_bytes],
        }
        return {key: values[key] for key in SIDE_KEYS}


@dataclass(frozen=True)
class PoolsFigures:
    """What a split fleet has counted; see `POOLS_KEYS`."""

    connector: str
    prefill: SideFigures
    decode: SideFigures
    moved_bytes_by_group: Sequence[float]
    descriptors: int
    leases_lost: int
    loads_failed: int


def pools_summary(figures: PoolsFigures, requests: pd.DataFrame) -> dict[str, Any]:
    """The keys of `POOLS_KEYS`, plain Python.

    Args:
        figures: what was counted.
        requests: the frame of `SplitLog.frame` of a fleet.
    """
    ran = requests[requests["refused"].isna()]
    split = ran[ran["prefill_replica"].notna()]
    values: Mapping[str, Any] = {
        "connector": figures.connector,
        "prefill": figures.prefill.as_json(len(split)),
        "decode": figures.decode.as_json(len(ran)),
        "num_split": len(split),
        "num_unsplit": len(ran) - len(split),
        **{part: spread(split[part]) for part in PARTS},
        "moved_tokens": int(split["pulled_tokens"].sum()),
        "moved_bytes": float(sum(figures.moved_bytes_by_group)),
        "moved_bytes_by_group": [float(size) for size in figures.moved_bytes_by_group],
        "descriptors": figures.descriptors,
        "leases_lost": figures.leases_lost,
        "loads_failed": figures.loads_failed,
    }
    return {key: values[key] for key in POOLS_KEYS}


def prompts_by_replica(requests: pd.DataFrame) -> dict[Any, pd.DataFrame]:
    """Requests by the replica that computed their prompt, their first token being its end."""
    import numpy as np

    split = requests[requests["refused"].isna() & requests["prefill_replica"].notna()]
    ends = split["prefill_queue_s"] + split["prefill_s"]
    return dict(list(split.assign(ttft_s=ends, tpot_s=np.nan).groupby("prefill_replica")))
