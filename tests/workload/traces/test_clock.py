"""Units of times: recognised, said, and given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.cache.content import Content
from kvsim.errors import KvsimError
from kvsim.workload.request import Request
from kvsim.workload.traces import TraceOptions, open_trace_file
from kvsim.workload.traces.clock import recognised, unix_seconds
from kvsim.workload.traces.trace import Trace
from kvsim.workload.traces.writing import write_mooncake


def trace(tmp_path: Path, times: list[Any], trace_format: str = "auto", **options: Any) -> Trace:
    row = {"input_length": 1000, "output_length": 7, "hash_ids": [4, 9]}
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps({"timestamp": time, **row}) for time in times))
    return open_trace_file(path, TraceOptions(**options), trace_format=trace_format, shown="t")


NS = 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("times", "unit", "said"),
    [
        ([0, 12.5, 30.25], "s", "times are taken as seconds (they have fractions, and as "),
        ([0, 12500, 30250], "ms", None),
        ([0, 12500.5, 30250.25], "ms", None),
        ([0, 12_500_000, 30_250_000], "us", "times are taken as microseconds (as milliseconds "),
        ([0, 12_500_000_000, 30_250_000_000], "ns", "times are taken as nanoseconds (as mill"),
        ([1.7e9, 1.7e9 + 12.5, 1.7e9 + 30.25], "s", "times are Unix seconds, so the clock "),
        ([1.7e12, 1.7e12 + 12500, 1.7e12 + 30250], "ms", "times are Unix milliseconds, so "),
        ([NS, NS + 12_500_000_000, NS + 30_250_000_000], "ns", "times are Unix nanoseconds, "),
        (
            ["2024-05-10 08:00:00", "2024-05-10T08:00:12.5Z", "2024-05-10 10:00:30.2500000+02:00"],
            "date",
            None,
        ),
    ],
)
def test_units_are_recognised(
    tmp_path: Path, times: list[Any], unit: str, said: str | None
) -> None:
    opened = trace(tmp_path, times)
    arrivals = [request.arrival_s for request in opened.requests()]
    assert opened.time_unit == unit
    assert np.diff(arrivals) == pytest.approx([12.5, 17.75], rel=1e-3)
    assert arrivals[0] == 0.0
    assert [warning.removeprefix("t: ").startswith(said or "?") for warning in opened.warnings] == (
        [] if said is None else [True]
    )


def test_a_doubtful_rate_is_said(tmp_path: Path) -> None:
    opened = trace(tmp_path, [0, 12, 30])
    assert opened.warnings == [
        "t: times are taken as milliseconds (67 requests would come in a second). If that is "
        "wrong, set workload.time_unit (--time-unit) to s, ms, us or ns."
    ]


def test_a_unit_that_is_given_is_taken(tmp_path: Path) -> None:
    opened = trace(tmp_path, [0, 12, 30], time_unit="s")
    assert [request.arrival_s for request in opened.requests()] == [0.0, 12.0, 30.0]
    assert opened.warnings == []
    given = trace(tmp_path, [0, 12.5, 30.25], time_unit="ms")
    assert [request.arrival_s for request in given.requests()] == [0.0, 0.0125, 0.03025]
    late = trace(tmp_path, [5, 12, 30], "mooncake", time_unit="s", start_s=6.0)
    assert [request.arrival_s for request in late.requests()] == [6.0, 24.0]


def test_delays_are_in_the_unit_of_times(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    row = {"session_id": "a", "input_length": 9, "output_length": 1, "hash_ids": [1]}
    path.write_text(json.dumps({**row, "timestamp": 2}) + "\n" + json.dumps({**row, "delay": 3.5}))
    opened = open_trace_file(path, TraceOptions(time_unit="s"), trace_format="mooncake-delta")
    (session,) = opened.sessions()
    assert (session.start_s, session.turns[1].after[0].delay_s) == (2.0, 3.5)


def test_the_clock_starts_at_the_earliest_row_wherever_it_is(tmp_path: Path) -> None:
    times = [1.7e9 + 3000 + n for n in range(1200)] + [1.7e9]
    arrivals = [request.arrival_s for request in trace(tmp_path, times).requests()]
    assert (arrivals[0], arrivals[1], len(arrivals)) == (0.0, 3000.0, 1201)


def test_times_beyond_all_bounds(tmp_path: Path) -> None:
    with pytest.raises(KvsimError) as caught:
        list(trace(tmp_path, [0, 1e300], "mooncake").requests())
    assert str(caught.value) == (
        "t: 1 problem\n  line 2: timestamp: 1e+300 milliseconds are above 2**33 seconds. Say the "
        "unit with workload.time_unit (--time-unit): s, ms, us or ns."
    )


def test_formats_that_say_their_unit(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"id": "s", "requests": [[0, 64, 1, 0, 1.0, 1.0, [[1, 1]]]]}))
    with pytest.raises(KvsimError, match="time_unit: ms, but format weka says that its times are"):
        open_trace_file(path, TraceOptions(time_unit="ms"))
    open_trace_file(path, TraceOptions(time_unit="s"))


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_fast_trace_of_our_own_is_read_as_it_was_written(tmp_path: Path, ending: str) -> None:
    """Fractions of a millisecond at 200 requests a second are no seconds."""
    times_s = np.cumsum(np.random.default_rng(0).exponential(0.005, 50)).round(6).tolist()
    content = Content.from_spans([(1, 40)])
    requests = [Request(f"{n}", at, content, 40, 3, 900 + n) for n, at in enumerate(times_s)]
    path = tmp_path / f"t.{ending}"
    write_mooncake(path, requests, 16)
    read = open_trace_file(path, TraceOptions())
    assert [request.arrival_s for request in read.requests()] == pytest.approx(times_s)
    assert (read.time_unit, read.warnings) == ("ms", [])


def test_times_without_a_usual_unit() -> None:
    assert recognised([0, 300, 650], "").unit == "ms"
    assert recognised([0, 2, 3], "").unit == "s"
    assert recognised([], "").unit == "s"
    assert recognised([7, 7], "").unit == "s"


@pytest.mark.parametrize(
    ("text", "unix_s"),
    [
        ("1970-01-02", 86400.0),
        ("1970-01-01 00:00:01.5", 1.5),
        ("1970-01-01T02:00:00+02:00", 0.0),
        ("1970-01-01T00:00:00-01:00", 3600.0),
        ("1970-01-01 00:00:03 UTC", 3.0),
        ("1970-13-01", None),
        ("soon", None),
        (5, None),
    ],
)
def test_dates(text: Any, unix_s: float | None) -> None:
    assert unix_seconds(text) == unix_s
