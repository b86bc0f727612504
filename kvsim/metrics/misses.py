"""Why prompt tokens were not hit: the reasons, and the columns that tell of each request."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

MISS_REASONS: dict[str, str] = {
    "never_seen": "no request admitted before had them",
    "elsewhere": "no request admitted before by this replica had them, but another replica of the "
    "fleet had them cached when the request was sent here",
    "coarse_id": "of the first id of the trace that no request had before: they may have been "
    "shared in part, which ids that stand for many tokens cannot show",
    "not_computed": "a request admitted before had them, and nobody had computed them yet",
    "preempted": "the last to hold them was preempted and they were evicted then, or who would "
    "have computed them was preempted first and waits",
    "last_token": "the last token of the prompt, computed already, is always computed again",
    "below_unit": "computed, but less than a whole block, or scheduler block, which hits come in",
    "look_ahead": "in the look-ahead block that EAGLE or MTP drops",
    "not_retained": "a window group had not kept the run of blocks it resumes from there: no "
    "boundary, and not at the retention interval",
    "no_state": "the model's states (Mamba, linear attention) were not kept there: no chunk ended "
    "there, or not at the retention interval",
    "evicted_by_prompt": "evicted to compute a prompt",
    "evicted_by_answer": "evicted to hold an answer",
    "evicted_by_window": "evicted for blocks of a sliding-window or chunked group, of a prompt or "
    "an answer",
    "evicted_by_state": "evicted to hold states of a request",
    "evicted_by_recompute": "evicted for a request that computes again what it lost by preemption",
    "evicted_earlier": "evicted so long ago that it is not remembered for whom",
}
"""Why a prompt token was missed, each with its meaning. Of several reasons the first that stands in
the way counts, see `kvsim.cache.reasons`."""
EVICTIONS = tuple(name for name in MISS_REASONS if name.startswith("evicted"))
"""Those that a pool without end would have made hits."""


def column_of(reason: str) -> str:
    """The column of a reason in `requests.parquet`."""
    return f"missed_{reason}_tokens"


MISS_COLUMNS: dict[str, str] = {
    **{
        column_of(reason): f"prompt tokens not found: {text}"
        for reason, text in MISS_REASONS.items()
    },
    "kept_hit_tokens": "what would have been found, had nothing been evicted",
    "best_hit_tokens": "the same, had every window run and every state been kept as well",
    "shared_with": "the request admitted before that had most of the prompt, the last of them",
    "not_retained_group": "the first KV cache group that lacked a run, or a state, that was not "
    "retained",
    "evicted_group": "the KV cache group in which the hit ended at a block that had been evicted",
    "evicted_s": "when that block was evicted",
    "unused_since_s": "when its last holder had given it back",
    "evicted_for": "the request it was evicted for",
    "evicted_blocks_since": "cached blocks evicted from then until the request was admitted: with "
    "about so many more in the pool the block would still have been there",
    "evicted_after_s": "mean time from last use to eviction, over the evicted tokens",
}
"""Columns of `requests.parquet` about misses, each with its meaning; null where no reasons are
noted."""

MISS_NUMBERS = (
    *map(column_of, MISS_REASONS),
    "best_hit_tokens",
    "kept_hit_tokens",
    "shared_with",
    "awaited",
    "not_retained_group",
    "evicted_group",
    "evicted_ms",
    "used_ms",
    "taker",
    "evicted_blocks_since",
    "life_ms",
    "life_tokens",
)
"""What the first entries of `kvsim.cache.reasons.find_reasons` are, in order."""


@dataclass(frozen=True, slots=True)
class Misses:
    """Why the first admission of a request found no more.

    Attributes:
        numbers: in the order of `MISS_NUMBERS`; -1 for what does not exist from `shared_with` on.
        shared_with: as in `MISS_COLUMNS`.
        evicted_for: as in `MISS_COLUMNS`.
        not_retained_by_group: tokens `not_retained` or `no_state`, by KV cache group.
        evicted_by_group: tokens evicted.
    """

    numbers: Sequence[int]
    shared_with: str | None = None
    evicted_for: str | None = None
    not_retained_by_group: Sequence[int] = ()
    evicted_by_group: Sequence[int] = ()


class MissLog:
    """Why requests missed, in the order of a log; without rows before there is one to keep."""

    def __init__(self) -> None:
        """Start empty."""
        self._num_rows = 0
        self._numbers = array("q")
        self._shared_with: list[str | None] = []
        self._evicted_for: list[str | None] = []
        self._by_group: dict[str, list[int]] | None = None

    def add(self, misses: Misses | None) -> None:
        """Another request; None where nothing was noted."""
        self._num_rows += 1
        if misses is None:
            return
        self._fill(self._num_rows - 1)
        self._numbers.extend(misses.numbers)
        self._shared_with.append(misses.shared_with)
        self._evicted_for.append(misses.evicted_for)
        lost = {"not_retained": misses.not_retained_by_group, "evicted": misses.evicted_by_group}
        if self._by_group is None:
            self._by_group = {name: [0] * len(tokens) for name, tokens in lost.items()}
        for name, tokens in lost.items():
            summed = zip(self._by_group[name], tokens, strict=True)
            self._by_group[name] = [a + b for a, b in summed]

    def skip(self, num_requests: int) -> None:
        """Further requests of which nothing was noted."""
        self._num_rows += num_requests

    def by_group(self) -> dict[str, list[int]] | None:
        """Tokens `not_retained` (states too) and `evicted` by group; None where none are noted."""
        return self._by_group

    def columns(self, order: npt.NDArray[np.int64]) -> dict[str, Any]:
        """The columns of `MISS_COLUMNS`, a row a request.

        Args:
            order: which request stands in each row.
        """
        import numpy as np
        import pandas as pd

        if self._by_group is None:
            return _nothing_noted(self._num_rows)
        self._fill(self._num_rows)
        table = np.array(self._numbers, dtype=np.int64).reshape(-1, len(MISS_NUMBERS))
        numbers = dict(zip(MISS_NUMBERS, table[order].T, strict=True))
        rows = order.tolist()
        noted = numbers["best_hit_tokens"] >= 0
        taken = noted & (numbers["taker"] >= 0)
        life_tokens = numbers["life_tokens"]

        def counts(name: str, exists: Any) -> Any:
            return pd.arrays.IntegerArray(numbers[name].copy(), ~exists)

        special = {
            "shared_with": pd.Series([self._shared_with[row] for row in rows], dtype="str"),
            "not_retained_group": counts("not_retained_group", numbers["not_retained_group"] >= 0),
            "evicted_group": counts("evicted_group", numbers["evicted_group"] >= 0),
            "evicted_s": np.where(taken, numbers["evicted_ms"] / 1000, np.nan),
            "unused_since_s": np.where(taken, numbers["used_ms"] / 1000, np.nan),
            "evicted_for": pd.Series([self._evicted_for[row] for row in rows], dtype="str"),
            "evicted_blocks_since": counts("evicted_blocks_since", taken),
            "evicted_after_s": np.where(
                life_tokens > 0, numbers["life_ms"] / np.maximum(1, life_tokens) / 1000, np.nan
            ),
        }
        return {
            name: special[name] if name in special else counts(name, noted) for name in MISS_COLUMNS
        }

    def _fill(self, num_rows: int) -> None:
        """Requests of which nothing is known, up to a number of rows."""
        more = num_rows - len(self._shared_with)
        if more > 0:
            self._numbers.extend(array("q", [-1]) * (more * len(MISS_NUMBERS)))
            self._shared_with.extend([None] * more)
            self._evicted_for.extend([None] * more)


def _nothing_noted(num_rows: int) -> dict[str, Any]:
    """The columns of `MISS_COLUMNS` without a value."""
    import numpy as np
    import pandas as pd

    columns: dict[str, Any] = {}
    for name in MISS_COLUMNS:
        if name in ("shared_with", "evicted_for"):
            columns[name] = pd.Series([None] * num_rows, dtype="str")
        elif name.endswith("_s"):
            columns[name] = np.full(num_rows, np.nan)
        else:
            nothing = np.zeros(num_rows, dtype=np.int64), np.ones(num_rows, dtype=bool)
            columns[name] = pd.arrays.IntegerArray(*nothing)
    return columns


def missed_tokens(requests: pd.DataFrame) -> dict[str, int] | None:
    """Tokens by reason, summed over requests; None where no reasons are noted."""
    columns = {reason: requests[column_of(reason)] for reason in MISS_REASONS}
    if not any(column.notna().any() for column in columns.values()):
        return None
    return {reason: int(column.sum()) for reason, column in columns.items()}
