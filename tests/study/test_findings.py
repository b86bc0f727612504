"""Sentences about runs: nothing is said that the numbers do not say."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from kvsim.study import findings
from kvsim.study.ranking import rank

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
                    "num_requests": 10,
                    "num_blocks": 6000,
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


def test_the_best_policy_with_what_is_behind_it() -> None:
    comparison = against(old=(-0.2, -0.25, -0.16, True), mid=(-0.1, -0.12, -0.08, True))
    frame = runs(old=0.05, new=0.25, mid=0.15)
    assert findings.policy_findings(frame, rank(frame), comparison) == [
        "Use new (prepend, boundary): the highest token hit rate of 3 (25.0% of prompt tokens "
        "found; TTFT p50 200 ms, p99 1.50 s).",
        "Behind by token hit rate: old, -20 points (-25 to -16); mid, -10 points (-12 to -8).",
    ]


def test_a_tie_says_what_decided() -> None:
    frame = runs(old=0.064, new=0.402, mid=0.402).assign(goodput=1.0)
    assert findings.policy_findings(frame, rank(frame)) == [
        "Use new (prepend, boundary) or mid (prepend, every 4,096), which are equal in goodput, "
        "token hit rate and TTFT p50: the highest token hit rate of 3 that tie in goodput (40.2% "
        "of prompt tokens found; TTFT p50 200 ms, p99 1.50 s; goodput 100.0%).",
        "Behind by token hit rate: old.",
    ]


def test_equal_policies_have_no_winner() -> None:
    frame = runs(old=0.4, new=0.4, mid=0.4)
    assert findings.policy_findings(frame, rank(frame)) == [
        "No winner: all 3 are equal in token hit rate and TTFT p50 (old: 40.0% of prompt tokens "
        "found; TTFT p50 200 ms, p99 1.50 s)."
    ]


def test_thirty_that_are_behind_are_one_sentence() -> None:
    rows = runs(new=[0.4], old=[0.1])
    many = pd.concat([rows.iloc[:1], *(rows.iloc[1:].assign(label=f"o{n}") for n in range(30))])
    sentences = findings.policy_findings(many, rank(many))
    assert sentences[1] == "Behind by token hit rate: o0; o1; o2; o3; and 26 more."


def test_the_best_at_each_point_falls_through_ties_too() -> None:
    frame = pd.concat(
        [
            runs(old=0.1, new=0.4).assign(**{"node.num_blocks": 1000}),
            runs(old=0.4, new=0.4).assign(**{"node.num_blocks": 2000}),
            runs(old=0.1, new=0.4, mid=0.4).assign(**{"node.num_blocks": 3000}),
            runs(mid=0.2).assign(**{"node.num_blocks": 4000}),
        ]
    ).assign(goodput=1.0)
    assert findings.point_findings(frame, ["node.num_blocks"], lambda rows: None) == [
        "At node.num_blocks 1,000: new is best, with the highest token hit rate. Some of these "
        "differences have no interval; kvsim compare gives those it can.",
        "At node.num_blocks 2,000: no winner, all 2 are equal in goodput, token hit rate and TTFT "
        "p50.",
        "At node.num_blocks 3,000: new or mid (equal) are best, with the highest token hit rate.",
        "At node.num_blocks 4,000: only mid was run.",
    ]


def test_seeds_are_averaged_before_the_best_is_chosen() -> None:
    assert findings.best_label(runs(old=[0.1, 0.5, 0.1], new=[0.31, 0.61, 0.32])) == "new"


def test_goodput_decides_where_there_is_an_objective() -> None:
    frame = runs(old=0.05, new=0.25).assign(goodput=[0.99, 0.5])
    assert findings.best_label(frame) == "old"


def test_one_policy_is_no_choice() -> None:
    assert findings.policy_findings(runs(old=0.05), rank(runs(old=0.05))) == []


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


def test_bytes_of_a_tier_are_short() -> None:
    frame = capacities(new=[0.1, 0.29, 0.3]).rename(columns={"node.num_blocks": "offload.capacity"})
    frame["offload.capacity"] *= 2.0**30
    (sentence,) = findings.capacity_findings(frame, "offload.capacity")
    assert sentence.startswith("new: 2000 GiB of tier are enough for 29.0%, ")


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


def with_tier(frame: pd.DataFrame, link: float, **figures: list[float | None]) -> pd.DataFrame:
    """Runs with a CPU tier: a figure a row."""
    shown = {f"tiers.cpu.{name}": values for name, values in figures.items()}
    zeros = {"chunks_evicted": 0, "stores_refused": 0, "capacity_bytes": 1e12}
    missing = {f"tiers.cpu.{name}": value for name, value in zeros.items() if name not in figures}
    return frame.assign(
        **shown, **missing, found_rate=frame["token_hit_rate"], link_bytes_per_s=link
    )


def test_tiers() -> None:
    nothing = "Nothing is offloaded in these runs, so they do not say how much tier to buy."
    assert findings.tier_findings(runs(old=0.1)) == [nothing]
    frame = with_tier(
        runs(old=0.1, new=0.2, mid=0.1),
        5e10,
        bytes_stored=[None, 5e12, 2e12],
        bytes_loaded=[None, 2.5e11, 0],
        used_bytes_max=[None, 1e12, 4e11],
        chunks_evicted=[None, 7, 0],
        loaded_share=[None, 0.04, 0.0],
        break_even_bytes_per_s=[None, 4e9, None],
    )
    assert findings.tier_findings(frame) == [
        "new: 5.00 TB stored to tier cpu, 250 GB loaded back (4.0% of what was stored is ever "
        "loaded). It ran full at 1.00 TB: a sweep over its capacity tells what more brings. "
        "Loading beats computing again: the link reads 50.0 GB/s, 12 times the 4.00 GB/s at which "
        "both take as long.",
        "mid: 2.00 TB stored to tier cpu, 0 B loaded back. It held 400 GB at most, so more of it "
        "brings nothing on this workload. Nothing came back, so it did not pay.",
    ]


@pytest.mark.parametrize(
    ("link", "text"),
    [
        (
            2e9,
            "Computing again would have been quicker than loading: the link reads 2.00 GB/s and "
            "would have to read 8.00 GB/s.",
        ),
        (math.nan, "Loading is quicker than computing again above 8.00 GB/s of link."),
    ],
)
def test_a_tier_may_not_pay(link: float, text: str) -> None:
    frame = with_tier(
        runs(new=[0.1, 0.1]),
        link,
        bytes_stored=[1e9, 3e9],
        bytes_loaded=[1e8, 1e8],
        used_bytes_max=[1e9, 3e9],
        loaded_share=[0.1, 0.1],
        break_even_bytes_per_s=[4e9, 8e9],
    )
    assert findings.tier_findings(frame) == [
        "new: 2.00 GB stored to tier cpu, 100 MB loaded back (10.0% of what was stored is ever "
        f"loaded). It held 3.00 GB at most, so more of it brings nothing on this workload. {text}"
    ]


def test_what_a_tier_has_counts_where_there_is_one() -> None:
    frame = runs(old=0.05, new=0.25).assign(found_rate=[0.4, 0.3], link_bytes_per_s=math.nan)
    assert findings.best_label(frame) == "new"  # no tier
    frame["link_bytes_per_s"] = [1e9, math.nan]
    assert findings.policy_findings(frame, rank(frame))[:1] == [
        "Use old (append, dense): the highest hit rate of device and tier of 2 (40.0% of prompt "
        "tokens found, 5.0% on the device; TTFT p50 200 ms, p99 1.50 s)."
    ]


def test_cautions() -> None:
    one_seed = (
        "One seed: intervals are over stretches of this workload, not over other days' traffic."
    )
    assert findings.cautions(runs(old=0.1), ["coarse", "coarse"]) == ["coarse", one_seed]
    frame = runs(old=[0.1, 0.2])
    frame["num_refused"] = [0, 4]
    assert findings.cautions(frame, []) == [
        "old: 4 of 14 requests were refused, as the pool (6,000 blocks) or the context is "
        "too small for them; they are in no figure but goodput."
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


def test_shares_of_the_ceiling_are_told_where_they_are_known() -> None:
    frame = runs(old=0.2, new=0.3)
    assert findings.ceiling_findings(frame) == []
    known = frame.assign(**{"ceiling.share_of_optimum": [0.5, 0.75]})
    assert findings.ceiling_findings(known) == [
        "Of the tokens that the offline optimum would find on the device: old 50.0%, new 75.0%."
    ]
