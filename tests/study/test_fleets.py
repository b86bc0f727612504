"""A fleet over time: what adds up to what, and what a loss does, with known answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvsim.errors import KvsimError
from kvsim.study.fleets import (
    event_words,
    pool_timeline,
    recoveries,
    replica_series,
    shortfall,
)
from tests.fleet.results import apart, apart_with_loss, laid_out, routed, with_loss
from tests.fleet.small import scenario

SECONDS = 40


def made(lost_rate: float, events: list[dict[str, Any]] | None = None, before: float = 0.8) -> Any:
    """Two nodes with a request of 100 tokens each every 0.1 s, the second's from 20 s on worse."""
    rows, timeline = [], []
    for n in range(10 * SECONDS):
        for replica in (0, 1):
            at_s = n / 10
            if events and replica == 1 and 20 <= at_s < 24:
                continue
            wobble = 0.02 if n % 2 else -0.02
            rate = lost_rate if replica == 1 and 20 <= at_s < 30 else before
            rows.append((at_s, 0.0, 100, round(100 * (rate + wobble)), replica, 0.05))
    for replica in (0, 1):
        timeline += [(0.0, 2, 0, replica), (10.0, 4, 1, replica), (float(SECONDS), 0, 0, replica)]
    requests = pd.DataFrame(
        rows,
        columns=["arrival_s", "queue_s", "prompt_tokens", "hit_tokens", "replica", "ttft_s"],
    )
    fleet: dict[str, Any] = {"nodes": 2}
    if events:
        fleet["events"] = events
    return SimpleNamespace(
        requests=requests,
        timeline=pd.DataFrame(timeline, columns=["time_s", "running", "waiting", "replica"]),
        scenario=scenario(fleet=fleet),
        summary={
            "fleet": {"replicas": [{"replica": n, "node": n, "pool": None} for n in (0, 1)]},
            "token_hit_rate": requests["hit_tokens"].sum() / requests["prompt_tokens"].sum(),
            "prompt_tokens": int(requests["prompt_tokens"].sum()),
        },
    )


LOSS = [{"at": 20.0, "lose": 1}, {"at": 22.0, "add": 1, "ready_after": 2.0}]


def test_load_and_hit_rate_over_time() -> None:
    series = replica_series(made(0.8), num_stretches=4)
    assert series.names == ("0", "1")
    assert series.edges_s[-1] == pytest.approx(SECONDS - 0.8, abs=0.2)
    np.testing.assert_allclose(series.hit_rate, 0.8, atol=0.005)
    np.testing.assert_allclose(series.fleet_hit_rate, 0.8, atol=0.005)
    # 2 to the tenth second, 5 from there on: of the first stretch a sliver is beyond it or not.
    np.testing.assert_allclose(series.queue[:, 0], 2.0, atol=0.1)
    np.testing.assert_allclose(series.queue[:, 1:], 5.0, atol=0.1)


def test_a_node_that_is_not_there_has_no_load() -> None:
    series = replica_series(made(0.2, LOSS), num_stretches=40)
    gone = np.isnan(series.queue[1])
    starts_s, ends_s = series.edges_s[:-1], series.edges_s[1:]
    assert gone.tolist() == ((starts_s >= 20) & (ends_s <= 24)).tolist()
    assert not np.isnan(series.queue[0]).any()


def test_of_a_split_fleet_it_is_the_node_of_its_pool_that_is_not_there() -> None:
    series = replica_series(apart_with_loss())
    gone = np.isnan(series.queue)
    inside = (series.edges_s[:-1] >= 4.0) & (series.edges_s[1:] <= 6.0)
    assert inside.any()
    assert gone[2][inside].all()  # the second decode node
    assert not gone[:2].any()
    assert event_words(apart_with_loss().scenario) == [
        "decode node 1 lost at 4.00 s",
        "decode node 1 ready at 6.00 s",
    ]


def test_what_a_loss_did() -> None:
    (found,) = recoveries(made(0.2, LOSS))
    assert (found.lost_s, found.node, found.returned_s) == (20.0, 1, 24.0)
    assert found.before == pytest.approx(0.8, abs=0.01)
    assert found.is_dip
    assert found.lowest == pytest.approx(0.5, abs=0.01)
    assert found.own == pytest.approx(0.2, abs=0.05)
    assert found.others == pytest.approx(0.8, abs=0.01)
    (nothing,) = recoveries(made(0.8, LOSS))
    assert not nothing.is_dip
    assert recoveries(made(0.8)) == []


def test_what_is_short_of_a_run_without_the_loss() -> None:
    found = shortfall(made(0.2, LOSS), made(0.8))
    assert found.most == pytest.approx(0.3, abs=0.01)
    assert 24 < found.most_s < 30
    assert found.until_s is not None
    assert 29 < found.until_s < 33
    same = shortfall(made(0.8, LOSS), made(0.8))
    assert same.until_s is None
    assert abs(same.num_tokens) < 100


def test_events_in_words() -> None:
    told = event_words(scenario(fleet={"nodes": 2, "events": [*LOSS, {"at": 30.0, "drain": 0}]}))
    assert told == ["node 1 lost at 20.0 s", "node 1 ready at 24.0 s", "node 0 drained at 30.0 s"]


def test_hits_over_time_are_those_of_the_summary() -> None:
    for result in (routed("session"), laid_out(2)):
        looked_up = replica_series(result, edges_s=np.array([0.0, 1e6]))
        by_replica = [row["token_hit_rate"] for row in result.summary["fleet"]["replicas"]]
        np.testing.assert_allclose(looked_up.hit_rate[:, 0], by_replica, rtol=1e-9)
        assert looked_up.fleet_hit_rate[0] == pytest.approx(result.summary["token_hit_rate"])


def test_both_sides_of_a_split_fleet_look_prompts_up() -> None:
    result = apart()
    series = replica_series(result, edges_s=np.array([0.0, 1e6]))
    assert series.names == ("prefill 0", "decode 1", "decode 2")
    rows = result.summary["fleet"]["replicas"]
    np.testing.assert_allclose(
        series.hit_rate[:, 0], [row["token_hit_rate"] for row in rows], rtol=1e-9
    )
    assert series.fleet_hit_rate[0] == pytest.approx(result.summary["token_hit_rate"])


def test_the_pools_of_all_replicas_together() -> None:
    result = with_loss(True)
    together = pool_timeline(result)
    assert together["time_s"].is_monotonic_increasing
    assert together["time_s"].is_unique
    held = together["used_blocks"] + together["free_blocks"]
    away = (together["time_s"] >= 4.0) & (together["time_s"] < 6.0)
    assert set(held[~away & (together["time_s"] > 0)]) == {3 * 399}
    assert set(held[away]) == {2 * 399}
    by_group = np.array([*together["group_cached_blocks"]])
    np.testing.assert_array_equal(by_group.sum(axis=1), together["cached_blocks"])
    alone = laid_out(1)
    assert pool_timeline(alone) is alone.timeline


def test_one_replica_is_no_fleet() -> None:
    with pytest.raises(KvsimError, match="one replica. Give a run with fleet.nodes or node.data"):
        replica_series(laid_out(1))
