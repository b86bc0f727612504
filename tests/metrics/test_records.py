"""The logs: what goes in comes out as columns, in order of arrival, with nulls for nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvsim.metrics.misses import MISS_COLUMNS
from kvsim.metrics.records import (
    REQUEST_COLUMNS,
    TIMELINE_COLUMNS,
    RequestLog,
    RequestRecord,
    TimelineLog,
)


def finished(order: int = 0, **changes: object) -> RequestRecord:
    record = RequestRecord(order, f"r{order}", 10.0 + order, 1000, 5)
    record.admitted_s = record.arrival_s + 0.5
    record.first_token_s = record.arrival_s + 2
    record.end_s = record.arrival_s + 4
    record.hit_tokens = 512
    record.full_hit_tokens = 768
    record.external_hit_tokens = 256
    record.hit_ended = "window"
    for name, value in changes.items():
        setattr(record, name, value)
    return record


def test_a_request_becomes_a_row() -> None:
    log = RequestLog()
    log.add(finished(preemptions=2, group_hit_tokens=(768, 512)))
    frame = log.frame()
    assert list(frame.columns) == list(REQUEST_COLUMNS)
    (row,) = frame.to_dict("records")
    told = {name: value for name, value in row.items() if name not in MISS_COLUMNS}
    assert {name: value for name, value in told.items() if name != "refused"} == {
        "request_id": "r0",
        "arrival_s": 10.0,
        "first_token_s": 12.0,
        "end_s": 14.0,
        "prompt_tokens": 1000,
        "output_tokens": 5,
        "hit_tokens": 512,
        "queue_s": 0.5,
        "ttft_s": 2.0,
        "tpot_s": 0.5,
        "preemptions": 2,
        "hit_ended": "window",
        "group_hit_tokens": [768, 512],
        "full_hit_tokens": 768,
        "external_hit_tokens": 256,
    }
    assert frame["refused"].isna().all()
    assert frame[list(MISS_COLUMNS)].isna().all(axis=None)


def test_rows_stand_in_order_of_arrival() -> None:
    log = RequestLog()
    for order in (2, 0, 1):
        log.add(finished(order, group_hit_tokens=[order] if order else None))
    frame = log.frame()
    assert frame["request_id"].tolist() == ["r0", "r1", "r2"]
    assert frame["group_hit_tokens"].tolist() == [None, [1], [2]]
    assert frame.index.tolist() == [0, 1, 2]


def test_one_output_token_has_no_time_a_token() -> None:
    log = RequestLog()
    log.add(finished(output_tokens=1, end_s=12.0))
    assert math.isnan(log.frame()["tpot_s"][0])


def test_a_refused_request_has_only_its_reason() -> None:
    log = RequestLog()
    log.add(RequestRecord(0, "r0", 1.0, 1000, 5, refused="too long"))
    frame = log.frame()
    nothing = set(frame.columns[frame.isna().all()])
    assert nothing == set(REQUEST_COLUMNS) - {
        "request_id",
        "arrival_s",
        "prompt_tokens",
        "output_tokens",
        "preemptions",
        "refused",
    }
    assert frame["refused"][0] == "too long"


def test_hits_stay_whole_numbers_beside_a_refused_request() -> None:
    log = RequestLog()
    log.add(finished(0, hit_tokens=2**53 + 1))
    log.add(RequestRecord(1, "r1", 11.0, 1000, 5, refused="too long"))
    assert log.frame()["hit_tokens"][0] == 2**53 + 1


def test_a_record_can_be_used_again_after_it_was_added() -> None:
    log = RequestLog()
    record = finished(group_hit_tokens=(reaches := [1, 2]))
    log.add(record)
    record.hit_tokens = 0
    reaches[0] = 9
    assert log.frame()["hit_tokens"][0] == 512
    assert log.frame()["group_hit_tokens"][0] == [1, 2]


def test_empty_logs_have_their_columns() -> None:
    assert RequestLog().frame().shape == (0, len(REQUEST_COLUMNS))
    assert TimelineLog().frame().shape == (0, len(TIMELINE_COLUMNS))
    assert len(RequestLog()) == len(TimelineLog()) == 0


def test_a_timeline() -> None:
    log = TimelineLog()
    rows: dict[str, list[Any]] = {
        "time_s": [0.0, 1.5],
        "used_blocks": [0, 10],
        "cached_blocks": [0, 7],
        "free_blocks": [99, 89],
        "running": [0, 2],
        "waiting": [3, 1],
        "free_cached_blocks": [0, 5],
        "store_utilization": [None, 0.5],
        "load_utilization": [None, 0.25],
        "disk_store_utilization": [None, None],
        "disk_load_utilization": [None, None],
        "group_cached_blocks": [[0, 0], [6, 1]],
    }
    shares = [name for name in rows if name.endswith("_utilization")]
    for moment in range(2):
        values = {name: column[moment] for name, column in rows.items() if name not in shares}
        log.add(**values, utilization=[rows[name][moment] for name in shares])
    assert len(log) == 2
    frame = log.frame()
    assert list(frame.columns) == list(TIMELINE_COLUMNS)
    assert frame.astype(object).where(frame.notna(), None).to_dict("list") == rows


def test_a_count_that_is_no_integer_is_refused_where_it_is_added() -> None:
    with pytest.raises(TypeError):
        RequestLog().add(finished(hit_tokens=1.5))
