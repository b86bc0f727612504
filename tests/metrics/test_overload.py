"""Overload: a queue that grows to the last arrival, told from bursts and closed loops."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kvsim.metrics.overload import OVERLOAD_KEYS, find_overload


def fifo(arrivals_s: np.ndarray, service_s: float, tokens: int = 100) -> pd.DataFrame:
    """A single server that takes each request `service_s` after the one before."""
    admitted, free_s = [], 0.0
    for arrival_s in arrivals_s:
        start_s = max(arrival_s, free_s)
        admitted.append(start_s)
        free_s = start_s + service_s
    return pd.DataFrame(
        {
            "arrival_s": arrivals_s,
            "queue_s": np.array(admitted) - arrivals_s,
            "prompt_tokens": tokens,
            "refused": None,
        }
    )


def test_arrivals_that_outpace_the_server_are_an_overload_with_its_rate() -> None:
    found = find_overload(fifo(np.arange(0, 1000, 1.0), 2.0))
    assert found is not None
    assert found.since_s < 150
    assert found.offered_requests_per_s == pytest.approx(1.0, rel=0.01)
    assert found.served_requests_per_s == pytest.approx(0.5, rel=0.01)
    assert found.served_tokens_per_s == pytest.approx(50, rel=0.01)
    assert found.waiting == pytest.approx(500, abs=2)
    assert list(found.as_json()) == list(OVERLOAD_KEYS)
    assert "1,000" not in found.sentence()
    assert "marked *" in found.sentence()


def test_it_begins_where_the_load_rises() -> None:
    calm, rush = np.arange(0, 500, 4.0), np.arange(500, 1000, 1.0)
    found = find_overload(fifo(np.concatenate((calm, rush)), 2.0))
    assert found is not None
    assert 500 <= found.since_s <= 560


@pytest.mark.parametrize(
    "requests",
    [
        fifo(np.arange(0, 1000, 2.0), 1.9),  # it keeps up
        fifo(np.zeros(500), 2.0),  # all at once
        fifo(np.concatenate((np.arange(0, 1000, 4.0), np.full(50, 990.0))), 2.0),  # a burst
        fifo(np.concatenate((np.zeros(400), np.arange(100, 1000, 2.0))), 2.0),  # a start-up burst
        fifo(np.arange(0, 10, 1.0), 5.0),  # ten requests
    ],
)
def test_other_queues_are_none(requests: pd.DataFrame) -> None:
    assert find_overload(requests) is None


def test_refused_requests_do_not_wait() -> None:
    requests = fifo(np.arange(0, 1000, 1.0), 0.5)
    requests.loc[500:, "refused"] = "too long"
    assert find_overload(requests) is None
