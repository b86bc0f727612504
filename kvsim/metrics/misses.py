"""Why prompt tokens were not hit: the reasons, and the columns that tell of each request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

MISS_REASONS: dict[str, str] = {
    "never_seen": "no request admitted before had them",
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
    "evicted_by_prompt": "evicted to compute a prompt",
    "evicted_by_answer": "evicted to hold an answer",
    "evicted_by_window": "evicted for blocks of a sliding-window group, of a prompt or an answer",
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
    "best_hit_tokens": "the same, had every window run been kept as well",
    "shared_with": "the request admitted before that had most of the prompt, the last of them",
    "not_retained_group": "the first KV cache group that lacked a run that was not retained",
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
NAMES = ("shared_with", "evicted_for")
"""Those that hold names of requests."""


@dataclass(frozen=True, slots=True)
class Misses:
    """Why the first admission of a request found no more.

    Attributes:
        tokens: by reason, in the order of `MISS_REASONS`.
        kept_hit_tokens: as in `MISS_COLUMNS`, as are the others; None where there is none.
        best_hit_tokens: see above.
        shared_with: see above.
        not_retained_group: see above.
        evicted_group: see above.
        evicted_s: see above.
        unused_since_s: see above.
        evicted_for: see above.
        evicted_blocks_since: see above.
        evicted_after_s: see above.
    """

    tokens: Sequence[int]
    kept_hit_tokens: int
    best_hit_tokens: int
    shared_with: str | None = None
    not_retained_group: int | None = None
    evicted_group: int | None = None
    evicted_s: float | None = None
    unused_since_s: float | None = None
    evicted_for: str | None = None
    evicted_blocks_since: int | None = None
    evicted_after_s: float | None = None

    def by_column(self) -> dict[str, Any]:
        """Values by column of `MISS_COLUMNS`."""
        counts = dict(zip(map(column_of, MISS_REASONS), self.tokens, strict=True))
        return {
            name: counts[name] if name in counts else getattr(self, name) for name in MISS_COLUMNS
        }


def missed_tokens(requests: pd.DataFrame) -> dict[str, int] | None:
    """Tokens by reason, summed over requests; None where no reasons are noted."""
    columns = {reason: requests[column_of(reason)] for reason in MISS_REASONS}
    if not any(column.notna().any() for column in columns.values()):
        return None
    return {reason: int(column.sum()) for reason, column in columns.items()}
