"""The figures of a run against small cases worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

from kvsim.metrics.records import RequestLog, RequestRecord
from kvsim.metrics.summary import SUMMARY_KEYS, RunCounters, spread, summarize
from kvsim.metrics.tiers import TierFigures
from kvsim.scenario import Objective

OF_THE_ISSUE = {
    *("token_hit_rate", "request_hit_rate", "hit_tokens", "queried_tokens", "num_requests"),
    *("num_refused", "num_blocks", "num_steps", "scheduled_tokens", "preemptions"),
    *("preempted_queried_tokens", "preempted_hit_tokens", "evicted_blocks", "ttft_s", "tpot_s"),
    *("bytes_stored", "bytes_loaded", "simulated_s", "wall_s", "goodput", "warnings"),
}
NOTHING = {"mean": None, "p50": None, "p90": None, "p99": None}


def requests(*rows: dict[str, Any]) -> pd.DataFrame:
    """Requests that arrive at 0 s, wait 0.5 s, and end 2 s after their first token at 1 s."""
    log = RequestLog()
    usual = {"admitted_s": 0.5, "first_token_s": 1.0, "end_s": 3.0, "hit_tokens": 0}
    for order, row in enumerate(rows):
        start = {} if "refused" in row else usual
        fixed = {"arrival_s": 0.0, "prompt_tokens": 1000, "output_tokens": 5}
        log.add(RequestRecord(order=order, request_id=f"r{order}", **{**fixed, **start, **row}))
    return log.frame()


def summary(
    *rows: dict[str, Any], objective: dict[str, float] | None = None, **counters: Any
) -> dict[str, Any]:
    made = summarize(
        requests(*rows),
        RunCounters(num_blocks=100, **counters),
        wall_s=0.25,
        objective=None if objective is None else Objective(**objective),
        warnings=["coarse"],
    )
    json.dumps(made, allow_nan=False)
    assert list(made) == list(SUMMARY_KEYS)
    return made


def test_the_keys_that_users_were_promised() -> None:
    assert set(SUMMARY_KEYS) >= OF_THE_ISSUE


def test_counters_pass_through() -> None:
    counters: dict[str, Any] = {
        "num_steps": 7,
        "scheduled_tokens": 8,
        "queried_tokens": 2000,
        "hit_tokens": 500,
        "preemptions": 9,
        "preempted_queried_tokens": 10,
        "preempted_hit_tokens": 11,
        "evicted_blocks": 12,
        "external_queried_tokens": 13,
        "external_hit_tokens": 14,
        "evicted_by_group": [[12, 0], [0, 0]],
        "simulated_s": 4.0,
    }
    made = summary({}, **counters)
    assert {key: made[key] for key in counters} == counters
    assert made["num_blocks"] == 100
    assert made["wall_s"] == 0.25
    assert made["warnings"] == ["coarse"]


def tier(name: str, source: str | None, **changes: Any) -> TierFigures:
    """Two groups, of chunks of 10 and 20 bytes."""
    figures: dict[str, Any] = {
        "name": name,
        "source": source,
        "chunks_stored": [3, 4],
        "bytes_stored": [30, 80],
        "chunks_loaded": [2, 1],
        "bytes_loaded": [20, 20],
        "bytes_loaded_once": 22,
        "chunks_evicted": 5,
        "stores_refused": 6,
        "capacity_bytes": 1000,
        "used_bytes_max": 900,
        "store_utilization": 0.5,
        "load_utilization": 0.25,
        "break_even_bytes_per_s": None,
    }
    return TierFigures(**{**figures, **changes})


def test_tiers() -> None:
    tiers = (tier("cpu", "cpu"), tier("disk", None, bytes_stored=[0, 0], bytes_loaded=[500, 0]))
    row = {"hit_tokens": 400, "external_hit_tokens": 100, "prompt_tokens": 1000}
    made = summary(row, {"refused": "too long"}, tiers=tiers)
    assert list(made["tiers"]) == ["cpu", "disk"]
    assert made["tiers"]["cpu"] == {
        "bytes_stored": 110,
        "bytes_loaded": 40,
        "chunks_stored": 7,
        "chunks_loaded": 3,
        "chunks_evicted": 5,
        "stores_refused": 6,
        "capacity_bytes": 1000,
        "used_bytes_max": 900,
        "loaded_share": 0.2,
        "store_utilization": 0.5,
        "load_utilization": 0.25,
        "break_even_bytes_per_s": None,
        "by_group": [
            {"chunks_stored": 3, "bytes_stored": 30, "chunks_loaded": 2, "bytes_loaded": 20},
            {"chunks_stored": 4, "bytes_stored": 80, "chunks_loaded": 1, "bytes_loaded": 20},
        ],
    }
    assert made["tiers"]["disk"]["loaded_share"] is None
    # Only the tier next to the device counts.
    assert (made["bytes_stored"], made["bytes_loaded"]) == (110, 40)
    assert made["hit_split"] == {"device": 0.4, "cpu": 0.1, "remote": 0.0, "missed": 0.5}


def test_without_tiers_what_is_no_hit_is_missed() -> None:
    made = summary({"hit_tokens": 400}, {"hit_tokens": 0})
    assert made["tiers"] == {}
    assert (made["bytes_stored"], made["bytes_loaded"]) == (0, 0)
    assert made["hit_split"] == {"device": 0.2, "cpu": 0.0, "remote": 0.0, "missed": 0.8}
    assert summary({"refused": "too long"})["hit_split"]["missed"] is None


def test_the_rate_of_arrivals_counts_refused_requests_and_gaps() -> None:
    rows = ({}, {"arrival_s": 1.0, "refused": "too long"}, {"arrival_s": 4.0})
    assert summary(*rows)["arrivals_per_s"] == 0.5
    assert summary({})["arrivals_per_s"] is None
    assert summary({}, {})["arrivals_per_s"] is None


def test_rates() -> None:
    made = summary({"hit_tokens": 500}, {}, queried_tokens=2000, hit_tokens=500, simulated_s=4.0)
    assert made["token_hit_rate"] == 0.25
    assert made["request_hit_rate"] == 0.5
    assert made["requests_per_s"] == 0.5
    assert made["prompt_tokens_per_s"] == 500
    assert made["output_tokens_per_s"] == 2.5


def test_a_refused_request_counts_as_refused_and_nowhere_else() -> None:
    made = summary({"hit_tokens": 8}, {"refused": "too long"}, simulated_s=1.0)
    assert (made["num_requests"], made["num_refused"], made["num_finished"]) == (1, 1, 1)
    assert made["request_hit_rate"] == 1.0
    assert made["prompt_tokens"] == 1000
    assert made["output_tokens"] == 5


def test_an_unfinished_request_makes_no_output() -> None:
    made = summary({}, {"end_s": None, "first_token_s": None}, simulated_s=2.0)
    assert (made["num_requests"], made["num_finished"]) == (2, 1)
    assert made["output_tokens"] == 5
    assert made["requests_per_s"] == 0.5


def test_times() -> None:
    made = summary({}, {"first_token_s": 2.0, "end_s": 2.0, "output_tokens": 1})
    assert made["ttft_s"] == {"mean": 1.5, "p50": 1.5, "p90": 1.9, "p99": 1.99}
    assert made["tpot_s"] == dict.fromkeys(NOTHING, 0.5)
    assert made["queue_s"] == dict.fromkeys(NOTHING, 0.5)


def test_what_does_not_exist_is_null() -> None:
    made = summary({"refused": "too long"})
    for key in ("token_hit_rate", "request_hit_rate", "requests_per_s", "goodput"):
        assert made[key] is None
    for key in ("ttft_s", "tpot_s", "queue_s"):
        assert made[key] == NOTHING


def test_spread_interpolates_and_leaves_out_what_is_missing() -> None:
    values = pd.Series([*range(101), None], dtype="float64")
    assert spread(values) == {"mean": 50, "p50": 50, "p90": 90, "p99": 99}
    assert spread(pd.Series([3.0])) == {"mean": 3, "p50": 3, "p90": 3, "p99": 3}


@pytest.mark.parametrize(
    ("objective", "goodput"),
    [
        ({"ttft_s": 1.0}, 0.75),
        ({"ttft_s": 0.9}, 0.0),
        ({"tpot_s": 0.5}, 0.75),
        ({"tpot_s": 0.4}, 0.25),  # the one of a single output token has none to miss
        ({"ttft_s": 1.0, "tpot_s": 0.4}, 0.25),
        ({}, 0.75),
    ],
)
def test_goodput_counts_refused_requests_as_missed(
    objective: dict[str, float], goodput: float
) -> None:
    rows: list[dict[str, Any]] = [
        {},
        {},
        {"output_tokens": 1, "end_s": 1.0},
        {"refused": "too long"},
    ]
    assert summary(*rows, objective=objective)["goodput"] == goodput
