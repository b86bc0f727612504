"""What a setting gains over another on the same requests, with its interval, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.metrics.uncertainty import drawn_stretches, half_width, interval_of
from kvsim.study.ranking import POINTS_MIN
from kvsim.study.reuse import ordered_requests, reuse

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from kvsim.results.store import RunResult
    from kvsim.scenario import Scenario

NEXT_TURNS, BRANCHES, NEW = "next turns", "branches", "new prompts"
"""Classes of requests: those that go on where an earlier prompt ended, those that leave one before
its end, and those that share less than a unit with any."""
Pair = tuple[float | None, float | None]


@dataclass(frozen=True)
class Gain:
    """What a setting gains over what is set.

    Attributes:
        label: the setting.
        found_rate: share of prompt tokens found, on the requests that are compared.
        gain: that less the same of what is set.
        low, high: its 95% interval; None where there is none.
        num_requests: requests that are compared.
        classes: by class of requests, the share found as set and with the setting.
        ttft_p50_s: as set and with the setting; likewise the others.
        ttft_p99_s: likewise.
        num_refused: likewise.
        computed_tokens: tokens scheduled, likewise.
        bytes_moved: to tiers and back, likewise.
    """

    label: str
    found_rate: float
    gain: float
    low: float | None
    high: float | None
    num_requests: int
    classes: Mapping[str, Pair]
    ttft_p50_s: Pair
    ttft_p99_s: Pair
    num_refused: tuple[int, int]
    computed_tokens: tuple[int, int]
    bytes_moved: tuple[int, int]

    @property
    def is_better(self) -> bool:
        """Whether it gains what a table shows, beyond the noise."""
        return self.gain >= POINTS_MIN and self.low is not None and self.low > 0

    @property
    def is_worse(self) -> bool:
        """Whether it loses likewise."""
        return self.gain <= -POINTS_MIN and self.high is not None and self.high < 0

    def as_json(self) -> dict[str, Any]:
        """As `--json` shows it."""
        return {
            "setting": self.label,
            "found_rate": self.found_rate,
            "gain": self.gain,
            "low": self.low,
            "high": self.high,
            "beyond_noise": self.is_better or self.is_worse,
            "num_requests": self.num_requests,
            "classes": {name: list(pair) for name, pair in self.classes.items()},
            "ttft_p50_s": list(self.ttft_p50_s),
            "ttft_p99_s": list(self.ttft_p99_s),
            "num_refused": list(self.num_refused),
            "computed_tokens": list(self.computed_tokens),
            "bytes_moved": list(self.bytes_moved),
        }


def found_rate(results: Sequence[RunResult]) -> float | None:
    """Share of the prompt tokens looked up that were found, all runs together."""
    found = asked = 0.0
    for result in results:
        tokens = _tokens(result.requests)
        found += float(tokens["found"].sum())
        asked += float(tokens["prompt"].sum())
    return found / asked if asked else None


def gain_of(
    label: str,
    ours: Mapping[int, RunResult],
    theirs: Mapping[int, RunResult],
    known: pd.DataFrame | None,
) -> Gain:
    """What a setting gains.

    Args:
        label: of the setting.
        ours: its runs by seed.
        theirs: those it is compared with.
        known: requests that it was chosen on, which do not count; None where all count.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    pairs = [_paired(theirs[seed].requests, ours[seed].requests, known) for seed in seeds]
    asked = sum(float(pair["prompt"].sum()) for pair in pairs)
    found = [sum(float(pair[name].sum()) for pair in pairs) for name in ("before", "after")]
    rates = [part / asked if asked else 0.0 for part in found]
    low = high = None
    if len(seeds) > 1:
        gaps = [float((p["after"] - p["before"]).sum() / p["prompt"].sum()) for p in pairs]
        mean, width = math.fsum(gaps) / len(gaps), half_width(gaps)
        if width is not None:
            low, high = mean - width, mean + width
    elif pairs:
        interval = _over_stretches(pairs[0])
        low, high = interval if interval is not None else (None, None)
    first = seeds[0]
    moved = ("bytes_stored", "bytes_loaded")
    return Gain(
        label,
        rates[1],
        rates[1] - rates[0],
        low,
        high,
        sum(len(pair) for pair in pairs),
        _by_class(theirs[first].scenario, theirs[first].requests, pairs[0]),
        ttft_p50_s=(_mean(theirs, seeds, "p50"), _mean(ours, seeds, "p50")),
        ttft_p99_s=(_mean(theirs, seeds, "p99"), _mean(ours, seeds, "p99")),
        num_refused=(_total(theirs, seeds, "num_refused"), _total(ours, seeds, "num_refused")),
        computed_tokens=(
            _total(theirs, seeds, "scheduled_tokens"),
            _total(ours, seeds, "scheduled_tokens"),
        ),
        bytes_moved=(_total(theirs, seeds, *moved), _total(ours, seeds, *moved)),
    )


def _tokens(requests: pd.DataFrame) -> pd.DataFrame:
    """Prompt tokens, and those found, of each request that was looked up."""
    looked_up = requests[requests["hit_tokens"].notna()]
    loaded = looked_up["external_hit_tokens"].fillna(0)
    return looked_up[["request_id"]].assign(
        prompt=looked_up["prompt_tokens"].astype(float),
        found=(looked_up["hit_tokens"] + loaded).astype(float),
    )


def _paired(before: pd.DataFrame, after: pd.DataFrame, known: pd.DataFrame | None) -> pd.DataFrame:
    """Requests of both runs, in the first one's order of arrival: prompt, before and after."""
    one, other = _tokens(before), _tokens(after)
    both = one.rename(columns={"found": "before"}).merge(
        other[["request_id", "found"]].rename(columns={"found": "after"}), on="request_id"
    )
    if known is not None:
        both = both[~both["request_id"].isin(set(known["request_id"]))]
    return both.reset_index(drop=True)


def _over_stretches(pair: pd.DataFrame) -> tuple[float, float] | None:
    prompt, gap = pair["prompt"].to_numpy(), (pair["after"] - pair["before"]).to_numpy()
    drawn = [float(gap[rows].sum() / prompt[rows].sum()) for rows in drawn_stretches(len(pair))]
    values: npt.NDArray[np.float64] = np.array(drawn)
    return interval_of(values)


def _mean(runs: Mapping[int, RunResult], seeds: Sequence[int], name: str) -> float | None:
    known = [runs[seed].summary["ttft_s"][name] for seed in seeds]
    return None if None in known else math.fsum(known) / len(known)


def _total(runs: Mapping[int, RunResult], seeds: Sequence[int], *names: str) -> int:
    return sum(int(runs[seed].summary[name]) for seed in seeds for name in names)


def _by_class(scenario: Scenario, requests: pd.DataFrame, pair: pd.DataFrame) -> dict[str, Pair]:
    """By class of requests, the share found before and after."""
    kinds = pair["request_id"].map(classes_of(scenario, requests))
    shares: dict[str, Pair] = {}
    for name in (NEXT_TURNS, BRANCHES):
        rows = pair[kinds == name]
        asked = float(rows["prompt"].sum())
        if asked:
            shares[name] = (
                float(rows["before"].sum()) / asked,
                float(rows["after"].sum()) / asked,
            )
    return shares


def classes_of(scenario: Scenario, requests: pd.DataFrame) -> dict[str, str]:
    """The class of each request, by its id.

    Where the prefix that a request shares ends is compared with where the latest prompt ended that
    has the last of it; a unit of hits less is still its end, as no hit ends inside a unit.
    """
    unit = scenario.scheduler_block_tokens
    shared = reuse(scenario, requests).set_index("request_id")["reusable_tokens"]
    ends: dict[int, int] = {}
    found: dict[str, str] = {}
    for request in ordered_requests(scenario, requests):
        tokens = int(shared[request.request_id])
        uids = request.content.uids.tolist()
        holder = 0
        for uid, end in zip(uids, request.content.ends.tolist(), strict=True):
            if uid not in ends:
                break
            holder = ends[uid]
            if end >= tokens:
                break
        if tokens == 0:
            found[request.request_id] = NEW
        else:
            found[request.request_id] = NEXT_TURNS if tokens >= holder - unit else BRANCHES
        for uid in [*uids, request.output_uid]:
            ends[uid] = request.num_prompt_tokens
    return found
