"""The figures of a run: rates, quantiles and counters, with the units in their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsim.metrics.figures import within_objective
from kvsim.metrics.misses import missed_tokens
from kvsim.metrics.overload import find_overload
from kvsim.metrics.tiers import SOURCES, TierFigures

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.scenario import Objective

SUMMARY_KEYS: dict[str, str] = {
    "token_hit_rate": "hit_tokens / queried_tokens, 0 to 1",
    "request_hit_rate": "share of the requests that ran with a hit of any length, 0 to 1",
    "hit_tokens": "prompt tokens found in the prefix cache at first admission",
    "queried_tokens": "prompt tokens looked up at first admission",
    "missed_tokens": "prompt tokens not found at first admission by reason (`kvsim describe "
    "reasons`): they sum to queried_tokens - hit_tokens, less what was loaded from a tier "
    "(releases that count every lookup, and requests sent again after their node was lost, have "
    "queried more); null where no reasons are noted",
    "missed_by_group": "of these `not_retained` (with `no_state`) and `evicted`: by KV cache "
    "group, those that its lookup stopped short of; null likewise",
    "evicted_after_s": "last use to eviction of the tokens that were evicted, the mean of each "
    "request, in s: `mean`, `p50`, `p90`, `p99`; null likewise",
    "num_requests": "requests that were not refused",
    "num_refused": "requests that could never run; `requests.parquet` says why",
    "num_finished": "requests that made their last token",
    "prompt_tokens": "prompt tokens of the requests that ran",
    "output_tokens": "tokens made by the requests that finished",
    "num_blocks": "blocks of the pool, block 0 included",
    "num_steps": "scheduler steps that scheduled something",
    "scheduled_tokens": "tokens computed by all steps",
    "preemptions": "times a running request was preempted",
    "preempted_queried_tokens": "tokens looked up at readmission after a preemption",
    "preempted_hit_tokens": "tokens found at readmission after a preemption",
    "evicted_blocks": "cached blocks that lost their key when they were taken",
    "evicted_by_group": "the same by KV cache group: for each that took the blocks, a list of how "
    "many each group lost",
    "ttft_s": "arrival to first token, in s: `mean`, `p50`, `p90`, `p99`",
    "tpot_s": "time a token after the first, in s, of 2 output tokens or more: the same",
    "queue_s": "arrival to first admission, in s: the same",
    "arrivals_per_s": "rate of arrivals, refused requests too: one less than their number over the "
    "time from the first to the last; null where they come at once",
    "requests_per_s": "num_finished / simulated_s",
    "prompt_tokens_per_s": "prompt_tokens / simulated_s",
    "output_tokens_per_s": "output_tokens / simulated_s",
    "external_queried_tokens": "prompt tokens left after the local hit when a tier first answered",
    "external_hit_tokens": "of these, tokens that the tier then had",
    "hit_split": "shares of the prompt tokens at first admission, 0 to 1: hit on the `device`, "
    "loaded from the `cpu` or a `remote` tier, `missed`",
    "bytes_stored": "bytes stored to the tiers next to the device",
    "bytes_loaded": "bytes loaded from the tiers next to the device",
    "tiers": "by tier, the keys of `kvsim.metrics.tiers.TIER_KEYS`",
    "simulated_s": "simulated time from the start of the clock to the end of the last step",
    "wall_s": "real time that the run took",
    "goodput": "share of all requests within the objective, refused ones counted as not; "
    "null without one",
    "overload": "where arrivals outpaced the node to the end of the workload, the keys of "
    "`kvsim.metrics.overload.OVERLOAD_KEYS`: times of such a run grow with the length of the "
    "workload; else null",
    "step_times": "who answered how long steps take (`provider`), and how far `ttft` and `tpot` "
    "were off for measured `set_ups` like this one: `error`, the median of |predicted / measured "
    "- 1|, and what is `near` in them; null where none was measured; `says` in words",
    "ceiling": "with `kvsim run --ceiling`: token hit rates that no policy can exceed, `infinite` "
    "(nothing evicted) and `optimum` (offline, in a pool of this size; with several groups a "
    "bound), and the share of each that was reached; else null",
    "warnings": "sentences about what the run cannot show",
}
"""Keys of a summary in their order, each with its meaning. A figure that does not exist is null."""


@dataclass(slots=True)
class RunCounters:
    """What the engine counts; tokens, blocks and bytes as in `SUMMARY_KEYS`."""

    num_blocks: int
    num_steps: int = 0
    scheduled_tokens: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    preemptions: int = 0
    preempted_queried_tokens: int = 0
    preempted_hit_tokens: int = 0
    evicted_blocks: int = 0
    external_queried_tokens: int = 0
    external_hit_tokens: int = 0
    evicted_by_group: list[list[int]] = field(default_factory=list)
    missed_by_group: dict[str, list[int]] | None = None
    simulated_s: float = 0.0
    tiers: tuple[TierFigures, ...] = ()


def summarize(
    requests: pd.DataFrame,
    counters: RunCounters,
    *,
    wall_s: float,
    objective: Objective | None = None,
    warnings: Iterable[str] = (),
    step_times: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the summary of a run.

    Args:
        requests: the frame of `RequestLog.frame`.
        counters: what the engine counted.
        wall_s: real seconds that the run took.
        objective: the scenario's objective.
        warnings: what the user should know about the run.
        step_times: who answered how long steps take, and how far that was off.

    Returns:
        The keys of `SUMMARY_KEYS`, with values of plain Python, None and never NaN where a figure
        does not exist. Quantiles are interpolated linearly between the two nearest requests.
    """
    ran = requests[requests["refused"].isna()]
    finished = ran[ran["end_s"].notna()]
    prompt_tokens = int(ran["prompt_tokens"].sum())
    output_tokens = int(finished["output_tokens"].sum())
    simulated_s = float(counters.simulated_s)
    overload = find_overload(requests)
    summary = {
        "token_hit_rate": _ratio(counters.hit_tokens, counters.queried_tokens),
        "request_hit_rate": _ratio(int((ran["hit_tokens"] > 0).sum()), len(ran)),
        "hit_tokens": int(counters.hit_tokens),
        "queried_tokens": int(counters.queried_tokens),
        "missed_tokens": missed_tokens(ran),
        "missed_by_group": counters.missed_by_group,
        "evicted_after_s": None
        if counters.missed_by_group is None
        else spread(ran["evicted_after_s"]),
        "num_requests": len(ran),
        "num_refused": len(requests) - len(ran),
        "num_finished": len(finished),
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "num_blocks": int(counters.num_blocks),
        "num_steps": int(counters.num_steps),
        "scheduled_tokens": int(counters.scheduled_tokens),
        "preemptions": int(counters.preemptions),
        "preempted_queried_tokens": int(counters.preempted_queried_tokens),
        "preempted_hit_tokens": int(counters.preempted_hit_tokens),
        "evicted_blocks": int(counters.evicted_blocks),
        "evicted_by_group": [list(lost) for lost in counters.evicted_by_group],
        "ttft_s": spread(ran["ttft_s"]),
        "tpot_s": spread(ran["tpot_s"]),
        "queue_s": spread(ran["queue_s"]),
        "arrivals_per_s": _ratio(
            len(requests) - 1, float(requests["arrival_s"].max() - requests["arrival_s"].min())
        ),
        "requests_per_s": _ratio(len(finished), simulated_s),
        "prompt_tokens_per_s": _ratio(prompt_tokens, simulated_s),
        "output_tokens_per_s": _ratio(output_tokens, simulated_s),
        "external_queried_tokens": int(counters.external_queried_tokens),
        "external_hit_tokens": int(counters.external_hit_tokens),
        "hit_split": _hit_split(ran, counters.tiers),
        "bytes_stored": sum(sum(tier.bytes_stored) for tier in counters.tiers if tier.source),
        "bytes_loaded": sum(sum(tier.bytes_loaded) for tier in counters.tiers if tier.source),
        "tiers": {tier.name: tier.as_json() for tier in counters.tiers},
        "simulated_s": simulated_s,
        "wall_s": float(wall_s),
        "goodput": None
        if objective is None
        else _ratio(int(within_objective(requests, objective).sum()), len(requests)),
        "overload": None if overload is None else overload.as_json(),
        "step_times": None if step_times is None else dict(step_times),
        "ceiling": None,
        "warnings": [*warnings, *([] if overload is None else [overload.sentence()])],
    }
    return {key: summary[key] for key in SUMMARY_KEYS}


def _hit_split(ran: pd.DataFrame, tiers: tuple[TierFigures, ...]) -> dict[str, float | None]:
    admitted = ran[ran["hit_tokens"].notna()]
    asked = int(admitted["prompt_tokens"].sum())
    tokens = dict.fromkeys(SOURCES, 0)
    tokens["device"] = int(admitted["hit_tokens"].sum())
    for tier in tiers:
        if tier.source:
            tokens[tier.source] = int(admitted["external_hit_tokens"].fillna(0).sum())
    tokens["missed"] = asked - sum(tokens.values())
    return {source: _ratio(count, asked) for source, count in tokens.items()}


def spread(values: pd.Series[float]) -> dict[str, float | None]:
    """Mean and quantiles of the values that exist; all None if there are none."""
    known = values.dropna()
    if known.empty:
        return {"mean": None, "p50": None, "p90": None, "p99": None}
    p50, p90, p99 = known.quantile([0.5, 0.9, 0.99])
    return {
        "mean": float(known.mean()),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
