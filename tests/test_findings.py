"""Sentences about runs: nothing is said that the numbers do not say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from kvsim import findings

POLICIES = {"old": "append, dense", "new": "prepend, boundary", "mid": "prepend, every 4,096"}


def runs(**hit_rates: float | list[float]) -> pd.DataFrame:
    """Runs by label; several rates are seeds."""
    rows = []
    for label, rates in hit_rates.items():
        for seed, rate in enumerate(rates if isinstance(rates, list) else [rates]):
            rows.append(
                {
                    "label": label,
                    "policy": POLICIES[label],
                    "seed": seed,
                    "token_hit_rate": rate,
                    "ttft_s.p50": 0.2,
                    "ttft_s.p99": 1.5,
                    "queue_s.p50": 0.0,
                    "goodput": None,
                    "bytes_stored": 0,
                    "bytes_loaded": 0,
                    "num_refused": 0,
                    "requests_per_s": 3.0,
                    "arrivals_per_s": 3.0,
                }
            )
    return pd.DataFrame(rows)


def against(**cases: tuple[float, float, float, bool]) -> Any:
    """A comparison by token hit rate: difference, low, high, beyond noise."""
    rows = [
        {
            "case": case,
            "scope": "all",
            "figure": "token_hit_rate",
            "difference": difference,
            "low": low,
            "high": high,
            "beyond_noise": beyond,
        }
        for case, (difference, low, high, beyond) in cases.items()
    ]
    return SimpleNamespace(cases=tuple(cases), table=pd.DataFrame(rows))


@pytest.mark.parametrize(
    ("rates", "place"),
    [
        ([0.1, 0.2, 0.39, 0.4], 2),
        ([0.4, 0.4, 0.4], 0),
        ([0.1, 0.2, 0.3], None),  # still rising at the largest
        ([0.4, 0.4], None),
        ([0.0, 0.0, 0.0], None),
        ([0.2, 0.4, 0.3], 1),
    ],
)
def test_the_knee(rates: list[float], place: int | None) -> None:
    assert findings.knee([10 * 2**n for n in range(len(rates))], rates) == place


def test_the_best_policy_with_what_is_behind_it_and_what_is_not() -> None:
    comparison = against(old=(-0.2, -0.25, -0.16, True), mid=(-0.002, -0.01, 0.006, False))
    assert findings.policy_findings(runs(old=0.05, new=0.25, mid=0.248), comparison) == [
        "Use new (prepend, boundary): the highest token hit rate of 3 (25.0% of prompt tokens "
        "found; TTFT p50 200 ms, p99 1.50 s).",
        "old is behind it: token hit rate -20.0 points (-25.0 to -16.0).",
        "Not told from it by token hit rate: mid (within noise: -1.0 to +0.6 points). Choose among "
        "these by what else they keep.",
    ]


def test_seeds_are_averaged_before_the_best_is_chosen() -> None:
    assert findings.best_label(runs(old=[0.1, 0.5], new=[0.31, 0.31])) == "new"


def test_goodput_decides_where_there_is_an_objective() -> None:
    frame = runs(old=0.05, new=0.25).assign(goodput=[0.99, 0.5])
    assert findings.best_label(frame) == "old"


def test_one_policy_is_no_choice() -> None:
    assert findings.policy_findings(runs(old=0.05), None) == []


def capacities(**lines: list[float]) -> pd.DataFrame:
    rows = [
        {
            "label": label,
            "policy": POLICIES[label],
            "node.num_blocks": 1000 * 2**n,
            "token_hit_rate": rate,
        }
        for label, rates in lines.items()
        for n, rate in enumerate(rates)
    ]
    return pd.DataFrame(rows)


def test_capacity() -> None:
    frame = capacities(new=[0.1, 0.29, 0.3], old=[0.0, 0.0, 0.0], mid=[0.1, 0.2, 0.3])
    assert findings.capacity_findings(frame, "node.num_blocks", 0.35) == [
        "new: 2,000 blocks are enough for 29.0%, 95% or more of the best of this line (30.0%).",
        "old: nothing is found again at any capacity tried.",
        "mid: no knee up to 4,000 blocks (30.0%); more may bring more.",
        "An infinite cache that keeps everything would find 35.0%.",
    ]


def test_rates() -> None:
    def line(label: str, *goodput: float | None) -> pd.DataFrame:
        rates = [1.0, 2.0, 4.0]
        return pd.DataFrame(
            {"label": label, "policy": POLICIES[label], "arrivals_per_s": rates, "goodput": goodput}
        )

    frame = pd.concat([line("new", 1.0, 0.99, 0.7), line("old", 0.9, 0.8, 0.1)])
    assert findings.rate_findings(frame, "arrivals_per_s") == [
        "new: 99% of requests within the objective up to 2/s; at 4/s it is 70.0%.",
        "old: no rate tried has 99% of requests within the objective (best: 90.0%).",
    ]
    odd = pd.concat([line("new", 0.5, 1.0, 0.7), line("mid", 1.0, 1.0, 1.0)])
    assert findings.rate_findings(odd, "arrivals_per_s") == [
        "new: 99% of requests within the objective up to 2/s; at 4/s it is 70.0%; not at every "
        "lower rate, so rates between are in doubt.",
        "mid: every rate tried, up to 4/s, has 99% of requests within the objective.",
    ]
    assert findings.rate_findings(line("new", None, None, None), "arrivals_per_s") == []


def test_tiers() -> None:
    assert findings.tier_findings(runs(old=0.1)) == [
        "Nothing is offloaded in these runs, so they do not say how much tier to buy."
    ]
    frame = runs(old=0.1, new=0.2).assign(bytes_stored=[0, 5e12], bytes_loaded=[0, 2.5e11])
    assert findings.tier_findings(frame) == [
        "new: 5.00TB stored to the next tier, 250GB loaded back."
    ]


def test_cautions() -> None:
    one_seed = (
        "One seed: intervals are over stretches of this workload, not over other days' traffic."
    )
    assert findings.cautions(runs(old=0.1), ["coarse", "coarse"]) == ["coarse", one_seed]
    frame = runs(old=[0.1, 0.2])
    frame["num_refused"] = [0, 4]
    assert findings.cautions(frame, []) == [
        "old: 4 requests were refused; they are in no figure but goodput."
    ]
    frame = runs(old=[0.1, 0.2]).assign(requests_per_s=1.0)
    assert findings.cautions(frame, []) == []  # a long last answer is no queue
    frame["queue_s.p50"] = 0.15
    assert findings.cautions(frame, []) == [
        "old: requests arrived faster than they were served, at least in one run. TTFT is then "
        "mostly queueing, and grows with the length of the workload."
    ]


def test_what_window_groups_lost() -> None:
    requests = pd.DataFrame(
        {
            "prompt_tokens": [1000, 1000, 50],
            "hit_tokens": pd.array([200, 0, None], dtype="Int64"),
            "full_hit_tokens": pd.array([500, 0, None], dtype="Int64"),
        }
    )
    assert findings.window_loss(requests) == 0.15
    assert findings.window_loss(requests.iloc[2:]) is None


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (("ttft_s.p50", 0.128, 0.112, 0.146, True), "+128 ms (+112 to +146)"),
        (("token_hit_rate", -0.0167, -0.027, -0.008, True), "-1.7 points (-2.7 to -0.8)"),
        (("goodput", 0.0, -0.01, 0.02, False), "within noise: -1.0 to +2.0 points"),
        (("evicted_blocks", 1200.0, None, None, None), "+1.2e+03"),
    ],
)
def test_differences_in_words(row: tuple[Any, ...], text: str) -> None:
    keys = ("figure", "difference", "low", "high", "beyond_noise")
    assert findings.interval_text(dict(zip(keys, row, strict=True))) == text
