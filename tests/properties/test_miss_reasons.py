"""Every token that was not hit has one reason, and the reasons are what they are called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.manager import KVCache
from kvsim.cache.misses import MissLedger
from kvsim.cache.spec import GroupSpec
from kvsim.engine.clock import Clock
from kvsim.engine.jobs import SchedulerConfig
from kvsim.engine.replica import Replica
from kvsim.engine.scheduler import Scheduler
from kvsim.metrics.misses import EVICTIONS, MISS_COLUMNS, MISS_REASONS, column_of
from kvsim.metrics.records import RequestLog, TimelineLog
from kvsim.policies.contract import FREE_QUEUE, RETENTION
from kvsim.policies.finding import find_policy
from kvsim.times.step_time import constant_step_time
from kvsim.workload.request import Request
from tests.properties.strategies import bounded

pytestmark = pytest.mark.bounds

FULL = GroupSpec("full", 16)
MODELS: dict[str, tuple[GroupSpec, ...]] = {
    "full": (FULL,),
    "windows": (GroupSpec("sliding_window", 8, 16), FULL, GroupSpec("sliding_window", 4, 8)),
    "one window": (FULL, GroupSpec("sliding_window", 16, 40)),
    "look-ahead": (replace(FULL, eagle=True), GroupSpec("sliding_window", 8, 16)),
    "chunks": (FULL, GroupSpec("chunked_local", 16, attention_chunk_size=64)),
    "states": (GroupSpec("mamba", 32, checkpoint_alignment=1), GroupSpec("full", 32)),
    "coarse states": (GroupSpec("full", 32), GroupSpec("mamba", 32), GroupSpec("mamba", 32)),
    "states and a window": (
        GroupSpec("mamba", 16, checkpoint_alignment=8),
        GroupSpec("full", 16),
        GroupSpec("sliding_window", 8, 20),
    ),
}
ORDERS = ("lru", "lfu", "sieve", "s3-fifo", "tail-first", "hit-first")
ROOMY = 20_000
"""Blocks that hold whatever these cases compute."""


@dataclass(frozen=True)
class Case:
    """What is simulated."""

    config: CacheConfig
    requests: list[Request]
    limits: SchedulerConfig


@st.composite
def cases(draw: st.DrawFn, asynchronous: bool | None = None) -> Case:
    """Pools that evict and preempt, prompts that share, come again and continue answers."""
    model = draw(st.sampled_from(sorted(MODELS)))
    overlaps = draw(st.booleans()) if asynchronous is None else asynchronous
    groups = MODELS[model]
    has_states = any(group.kind == "mamba" for group in groups)
    keeps_runs = any(group.kind in ("mamba", "sliding_window") for group in groups)
    order: Any = draw(st.sampled_from(("append", "prepend-uncached", *ORDERS)))
    retention = None
    if order in ORDERS:
        assume(not has_states)
        order = find_policy(FREE_QUEUE, {"name": order})
        if keeps_runs and draw(st.booleans()):
            retention = find_policy(RETENTION, {"name": "exponential"})
    config = CacheConfig(
        num_blocks=draw(st.integers(30 if has_states else 50, 160)),
        groups=groups,
        max_model_len=1024,
        max_in_flight_tokens=128 if overlaps else 64,
        retention_interval=draw(st.sampled_from((None, 0, 64) if keeps_runs else (None, 0))),
        use_eagle=model == "look-ahead",
        key_lookahead_tokens=draw(st.sampled_from((0, 1))) if model != "look-ahead" else 0,
        free_queue=order,
        retention=retention,
        prefix_match_unit=draw(st.sampled_from((8, 16))) if model == "states" else None,
    )
    requests, arrival_s = [], 0.0
    for number in range(draw(st.integers(2, 14))):
        arrival_s += draw(st.sampled_from((0.0, 0.02, 0.3, 3.0)))
        root = draw(st.integers(0, 2))
        spans = [(root, draw(st.sampled_from((5, 40, 64, 70))))]
        branch = draw(st.integers(0, 3))
        spans.append((100 + 16 * root + 64 * spans[0][1] + branch, draw(st.integers(1, 120))))
        content = Content.from_spans(spans)
        output = draw(st.integers(1, 40))
        uid = 100_000 + number
        if requests and draw(st.booleans()):
            before = draw(st.sampled_from(requests))
            answer = (before.output_uid, before.num_output_tokens)
            spans = [*before.content.spans(), answer, (50_000 + number, draw(st.integers(1, 50)))]
            longer = Content.from_spans(spans)
            content = longer if longer.num_tokens < 600 else before.content
        requests.append(Request(f"r{number}", arrival_s, content, content.num_tokens, output, uid))
    limits = SchedulerConfig(
        max_num_batched_tokens=64,
        max_num_seqs=draw(st.sampled_from((2, 8))),
        max_model_len=1024,
        asynchronous=overlaps,
        reserve_whole_prompt=draw(st.booleans()),
    )
    return Case(config, requests, limits)


def run(case: Case, *, noted: bool = True, one_by_one: bool = False) -> dict[str, Any]:
    """What can be seen of a run."""
    clock, cache = Clock(), KVCache(case.config)
    ledger = MissLedger(cache) if noted else None
    scheduler = Scheduler(cache, case.limits, None, ledger)
    requests = RequestLog()
    replica = Replica(
        clock,
        scheduler,
        constant_step_time(0.01),
        requests,
        TimelineLog(),
        one_by_one=one_by_one,
    )

    def arrive() -> Any:
        for request in case.requests:
            if request.arrival_s > clock.now:
                yield clock.at(request.arrival_s, before_others=True)
            replica.submit(request)

    clock.process(arrive())
    clock.run()
    return {
        "requests": requests.frame(),
        "counters": scheduler.counters,
        "evicted": cache.num_evicted,
        "by_group": requests.missed_by_group(),
    }


def tokens(frame: pd.DataFrame) -> pd.DataFrame:
    """Tokens by reason, of the requests that ran."""
    ran = frame[frame["refused"].isna()]
    return ran[[column_of(reason) for reason in MISS_REASONS]].astype(int)


@bounded(150)
@given(cases())
def test_reasons_sum_to_what_was_missed(case: Case) -> None:
    outcome = run(case)
    frame = outcome["requests"]
    ran = frame[frame["refused"].isna()]
    missed = tokens(frame)
    assert (missed >= 0).all().all()
    own = ran["prompt_tokens"] - ran["hit_tokens"] - ran["external_hit_tokens"]
    assert (missed.sum(axis="columns") == own).all()
    counters = outcome["counters"]
    assert missed.sum().sum() == counters.queries - counters.hits
    groups = outcome["by_group"]
    not_kept = [column_of(name) for name in ("not_retained", "no_state")]
    assert sum(groups["not_retained"]) == missed[not_kept].sum().sum()
    assert sum(groups["evicted"]) == missed[[column_of(name) for name in EVICTIONS]].sum().sum()
    assert missed[column_of("evicted_earlier")].sum() == 0
    best, kept, hit = ran["best_hit_tokens"], ran["kept_hit_tokens"], ran["hit_tokens"]
    assert ((hit <= kept) & (kept <= best)).all()
    has_states = any(group.kind == "mamba" for group in case.config.groups)
    if not has_states:
        assert missed[column_of("no_state")].sum() == 0
    if case.config.retention_interval is None and case.config.retention is None and not has_states:
        assert missed[column_of("not_retained")].sum() == 0
    if not outcome["evicted"]:
        gone = [column_of(name) for name in EVICTIONS]
        assert missed[gone].sum().sum() == 0


@bounded(60)
@given(cases())
def test_noting_reasons_changes_nothing_else(case: Case) -> None:
    noted, plain, steps = run(case), run(case, noted=False), run(case, one_by_one=True)
    for one in (noted, plain, steps):
        assert one["counters"] == noted["counters"] and one["evicted"] == noted["evicted"]
    pd.testing.assert_frame_equal(noted["requests"], steps["requests"], check_exact=True)
    told = [name for name in noted["requests"].columns if name not in MISS_COLUMNS]
    pd.testing.assert_frame_equal(
        noted["requests"][told], plain["requests"][told], check_exact=True
    )


@bounded(60)
@given(cases())
def test_a_roomy_dense_cache_loses_nothing(case: Case) -> None:
    config = replace(case.config, num_blocks=ROOMY, retention_interval=None, retention=None)
    missed = tokens(run(replace(case, config=config))["requests"]).sum()
    lost = ("preempted", "not_retained", *EVICTIONS)
    if any(group.kind == "mamba" for group in config.groups):
        lost = ("preempted", *EVICTIONS)  # states stand where chunks end, whatever is retained
    assert missed[[column_of(name) for name in lost]].sum() == 0


@bounded(100)
@given(cases(asynchronous=False))
def test_with_room_evicted_tokens_are_hits(case: Case) -> None:
    """With the same timing and masks, a pool without end hits just what was evicted as well.

    Requests come one after another, so that a longer step moves nothing; dense retention, as a
    mask depends on where earlier lookups ended.
    """
    requests = [replace(r, arrival_s=20.0 * n) for n, r in enumerate(case.requests)]
    assume(all(group.kind != "mamba" for group in case.config.groups))  # where chunks end moves
    config = replace(case.config, retention_interval=None, retention=None, num_blocks=120)
    case = replace(case, requests=requests, config=config)
    small = run(case)["requests"]
    roomy = run(replace(case, config=replace(config, num_blocks=ROOMY)))["requests"]
    ran = small["refused"].isna()
    if not ran.all():  # what was never computed cannot be hit either
        return
    lost = tokens(small)[[column_of(name) for name in ("preempted", *EVICTIONS)]]
    expected = small["hit_tokens"] + lost.sum(axis="columns")
    assert (roomy["hit_tokens"] == expected).all()
