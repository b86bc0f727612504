"""Why requests missed, as columns."""

from __future__ import annotations

import numpy as np

from kvsim.cache import reasons as at
from kvsim.metrics.misses import (
    EVICTIONS,
    MISS_COLUMNS,
    MISS_NUMBERS,
    MISS_REASONS,
    Misses,
    MissLog,
    column_of,
    missed_tokens,
)
from kvsim.metrics.records import RequestLog, RequestRecord


def numbers(**changes: int) -> list[int]:
    """What `find_reasons` says of a request, by the names of `MISS_NUMBERS`."""
    names = [name.removeprefix("missed_").removesuffix("_tokens") for name in MISS_NUMBERS]
    first = len(MISS_REASONS) + 2
    return [changes.get(name, 0 if i < first else -1) for i, name in enumerate(names)]


def test_names_stand_where_the_cache_writes_them() -> None:
    reasons = list(MISS_REASONS)
    assert len(reasons) == at.NUM_REASONS and len(MISS_NUMBERS) == at.LOST_BY_GROUP
    for name, place in {
        "never_seen": at.NEVER_SEEN,
        "elsewhere": at.ELSEWHERE,
        "coarse_id": at.COARSE_ID,
        "not_computed": at.NOT_COMPUTED,
        "preempted": at.LOST_WITH_HOLDER,
        "last_token": at.LAST_TOKEN,
        "below_unit": at.BELOW_UNIT,
        "look_ahead": at.LOOK_AHEAD,
        "not_retained": at.NOT_RETAINED,
        "no_state": at.NO_STATE,
        "evicted_by_prompt": at.EVICTED,
        "evicted_earlier": at.EARLIER,
    }.items():
        assert reasons[place] == name
    for name, place in {
        "best_hit_tokens": at.BEST,
        "kept_hit_tokens": at.KEPT,
        "shared_with": at.SHARED_WITH,
        "not_retained_group": at.NOT_RETAINED_GROUP,
        "evicted_group": at.EVICTED_GROUP,
        "evicted_ms": at.EVICTED_MS,
        "used_ms": at.USED_MS,
        "taker": at.TAKER,
        "evicted_blocks_since": at.SINCE,
        "life_ms": at.LIFE_MS,
        "life_tokens": at.LIFE_TOKENS,
    }.items():
        assert MISS_NUMBERS[place] == name


def test_what_is_noted_becomes_columns_beside_what_is_not() -> None:
    log = MissLog()
    log.add(None)
    told = numbers(
        evicted_by_prompt=32,
        best_hit=64,
        kept_hit=64,
        evicted_group=1,
        evicted_ms=5000,
        used_ms=2000,
        taker=8,
        evicted_blocks_since=7,
        life_ms=96_000,
        life=32,
    )
    log.add(Misses(told, "a", "b"))
    log.add(Misses(numbers(never_seen=5)))
    columns = log.columns(np.arange(3))
    assert list(columns) == list(MISS_COLUMNS)
    assert columns[column_of("evicted_by_prompt")].isna().tolist() == [True, False, False]
    assert columns[column_of("evicted_by_prompt")][1] == 32
    assert columns["evicted_s"][1] == 5.0 and columns["unused_since_s"][1] == 2.0
    assert columns["evicted_after_s"][1] == 3.0
    assert columns["evicted_blocks_since"].tolist()[1] == 7
    assert columns["shared_with"].isna().tolist() == [True, False, True]
    assert columns["evicted_for"][1] == "b" and columns["evicted_group"][1] == 1
    for name in ("evicted_group", "evicted_blocks_since", "not_retained_group"):
        assert columns[name].isna()[2]


def test_tokens_by_reason_are_summed_where_they_are_noted() -> None:
    log = RequestLog()
    log.add(RequestRecord(0, "r0", 0.0, 10, 1))
    assert missed_tokens(log.frame()) is None
    for order in (1, 2):
        misses = Misses(numbers(never_seen=4, evicted_by_window=3))
        log.add(RequestRecord(order, f"r{order}", 0.0, 10, 1, misses=misses))
    summed = missed_tokens(log.frame())
    assert summed is not None and list(summed) == list(MISS_REASONS)
    assert summed["never_seen"] == 8 and summed["evicted_by_window"] == 6
    assert sum(summed.values()) == 14
    assert set(EVICTIONS) == {name for name in MISS_REASONS if name.startswith("evicted")}
