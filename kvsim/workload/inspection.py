"""What a trace holds, in figures: lengths, reuse, and hit rates by capacity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.cache.content import Ints
from kvsim.workload.analysis import LruCurve, Policy, TraceBlocks, Window
from kvsim.workload.prompts import Prompts
from kvsim.workload.request import Request
from kvsim.workload.sessions import in_open_loop, with_starts
from kvsim.workload.traces import Trace

UNRECORDED_STARTS = "uniform(span_s=12 h)"
"""When sessions start whose starts are not recorded, where nothing else is said."""
EXACT_BLOCK_TOKENS = 16
"""Tokens of a block where contents are exact and nothing else is said."""
QUANTILES = (0.1, 0.5, 0.9, 0.99)
_NUM_WINDOWS = 48
_NUM_CAPACITIES = 12


@dataclass(frozen=True)
class Inspection:
    """A trace in figures.

    Attributes:
        figures: the JSON that `kvsim trace inspect` prints.
        curve: hit rates by LRU capacity.
        blocks: what they were counted from.
    """

    figures: dict[str, Any]
    curve: LruCurve
    blocks: TraceBlocks


def timed_requests(trace: Trace, starts: str | None, seed: int) -> tuple[Iterator[Request], str]:
    """The requests of a trace by time, and how their times were come by.

    Args:
        trace: just opened.
        starts: when sessions start, as in a scenario; None for what is recorded, and where nothing
            is, for `UNRECORDED_STARTS`.
        seed: what is drawn follows from it.

    Raises:
        KvsimError: while reading, the first bad lines.
    """
    if not trace.has_sessions or (starts is None and trace.starts_recorded and trace.timed):
        return trace.requests(), "recorded"
    how = "recorded" if starts is None else starts
    if starts is None and not trace.starts_recorded:
        how = starts = UNRECORDED_STARTS
    sessions = trace.sessions()
    if not trace.timed:
        how += ", answers taking no time"
    return in_open_loop(with_starts(sessions, starts, seed, trace.shown)), how


def inspect(
    trace: Trace,
    *,
    block_tokens: int | None = None,
    starts: str | None = None,
    seed: int = 0,
    capacities_blocks: Sequence[int] = (),
    policy: Policy = "lru",
    window: Window = "all",
    shared: Trace | None = None,
) -> Inspection:
    """Read a trace and count.

    Args:
        trace: just opened.
        block_tokens: tokens of a block where contents are exact.
        starts: when sessions start; see `timed_requests`.
        seed: what is drawn follows from it.
        capacities_blocks: sizes of caches in blocks; none for powers of 2 up to all blocks.
        policy: of these caches.
        window: the requests whose hits count.
        shared: the same trace with shared tails, for the upper bound.

    Raises:
        KvsimError: while reading, the first bad lines.
    """
    tokens = trace.block_tokens or block_tokens or EXACT_BLOCK_TOKENS
    requests, times = timed_requests(trace, starts, seed)
    noted = _SessionIds(requests)
    blocks = TraceBlocks.from_requests(noted, tokens)
    curve = blocks.lru_curve(window)
    upper = None
    if shared is not None:
        shared_prompts = Prompts.from_requests(timed_requests(shared, starts, seed)[0])
        upper = shared_prompts.ideal_token_hit_rate(window)
    capacities = list(capacities_blocks) or _powers_of_2(blocks.num_unique)
    rates = blocks.token_hit_rates(policy, capacities, window)
    said = trace.block_tokens_from
    if trace.block_tokens is None:
        said = "chosen" if block_tokens is None else "given"
    span_s = float(np.ptp(blocks.times_s)) if blocks.num_requests else 0.0
    reuse_s = blocks.reuse_time_quantiles_s(QUANTILES)
    ideal = blocks.prompts.ideal_token_hit_rate(window)
    figures: dict[str, Any] = {
        "format": trace.format,
        "requests": blocks.num_requests,
        "sessions": len(noted.seen) or None,
        "times": times,
        "time_unit": trace.time_unit,
        "span_s": span_s,
        "requests_per_s": blocks.num_requests / span_s if span_s else None,
        "block_tokens": tokens,
        "block_tokens_from": said,
        "prompt_tokens": _spread(blocks.prompt_tokens),
        "output_tokens": _spread(blocks.output_tokens),
        "blocks": blocks.num_unique,
        "single_use_share": blocks.num_single_use() / max(1, blocks.num_unique),
        "reuse_time_s": None
        if reuse_s is None
        else {f"p{100 * q:g}": value for q, value in zip(QUANTILES, reuse_s, strict=True)},
        "window": window,
        "ideal_token_hit_rate": ideal,
        "ideal_token_hit_rate_shared_tails": upper,
        "capacities": [
            {"blocks": size, "policy": policy, "token_hit_rate": rate}
            for size, rate in zip(capacities, rates, strict=True)
        ],
        "working_set": [
            {"until_s": end_s, "blocks": count}
            for end_s, count in blocks.working_sets(_NUM_WINDOWS)
        ],
        "notices": [*trace.warnings, *_unchained(trace, blocks)],
    }
    return Inspection(figures, curve, blocks)


class _SessionIds:
    """Passes requests on and remembers their sessions."""

    def __init__(self, requests: Iterator[Request]) -> None:
        self._requests = requests
        self.seen: set[str] = set()

    def __iter__(self) -> Iterator[Request]:
        for request in self._requests:
            if request.session_id is not None:
                self.seen.add(request.session_id)
            yield request


def _unchained(trace: Trace, blocks: TraceBlocks) -> Iterator[str]:
    if not blocks.is_chained:
        yield (
            f"{trace.shown}: some ids come after different ids, so they do not stand for whole "
            "prefixes: hits are counted by id and place, and LRU hit rates are approximate."
        )


def _spread(lengths: Ints) -> dict[str, float]:
    """Mean and quantiles."""
    if len(lengths) == 0:
        return {}
    p50, p90, p99 = np.quantile(lengths, (0.5, 0.9, 0.99)).tolist()
    return {
        "mean": float(lengths.mean()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": int(lengths.max()),
        "sum": int(lengths.sum()),
    }


def _powers_of_2(num_blocks: int) -> list[int]:
    """About a dozen sizes up to the first that holds all blocks."""
    sizes = [1]
    while sizes[-1] < num_blocks:
        sizes.append(2 * sizes[-1])
    return sizes[-_NUM_CAPACITIES:]
