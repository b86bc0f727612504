"""What runs of fleets say: which router or layout, what routing lost, what a lost node cost.

As in `kvsim.study.findings`, a difference within its noise is a tie and is called one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvsim.results.tables import percent, seconds, short
from kvsim.study.fleets import (
    CLOSE,
    Recovery,
    event_words,
    fleet_events,
    is_fleet,
    recoveries,
    shortfall,
)
from kvsim.study.ranking import Criterion, Ranking, criteria, found_column, rank

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.results.store import RunResult
    from kvsim.study.runs import Runs

ORACLE = "oracle"
"""The router that knows every cache: a bound for the others, and no choice."""
_MISROUTED = "fleet.misrouted_share"
_IMBALANCE = "fleet.imbalance.load"
_COST = "fleet.cost_per_million_output_tokens"
_MOST_NAMED = 8


def has_fleets(runs: Runs) -> bool:
    """Whether any run is of several replicas."""
    return _MISROUTED in runs.frame.columns and bool(runs.frame[_MISROUTED].notna().any())


def choices(runs: Runs) -> pd.DataFrame:
    """The rows of runs that can be chosen: without the oracle, unless there is nothing else."""
    others = runs.frame[runs.frame["router"] != ORACLE]
    return others if len(others) else runs.frame


def fleet_criteria(frame: pd.DataFrame) -> tuple[Criterion, ...]:
    """The figures that routers and layouts are told apart by: what users wait for, then hits.

    Token hit rates come last, as a router that sends everybody to one replica has the best.
    """
    first = [one for one in criteria(frame) if one.column in ("goodput", "served_share")]
    times = [
        Criterion("ttft_s.p50", "TTFT p50", False),
        Criterion("tpot_s.p50", "TPOT p50", False),
    ]
    hits = [one for one in criteria(frame) if one.column == found_column(frame)]
    return (*first, *times, *hits)


def baseline(runs: Runs) -> str | None:
    """The run without events, where runs differ in their events alone; else None."""
    if not runs.fleet_keys or not all(key.startswith("fleet.events") for key in runs.fleet_keys):
        return None
    still = [label for label, one in runs.results.items() if not fleet_events(one.scenario)]
    return still[0] if still and not runs.axes else None


def rank_fleets(runs: Runs) -> Ranking:
    """The ranking of runs that differ in routers or layouts alone."""
    frame = choices(runs)
    return rank(frame, runs.noise(frame), fleet_criteria(frame))


def fleet_findings(runs: Runs) -> list[str]:
    """Sentences about routers, layouts and lost nodes; none where there is one replica."""
    if not has_fleets(runs):
        return []
    frame = runs.frame
    lost, load = _misrouted(frame), _imbalance(frame)
    if frame["label"].nunique() > 1 and not runs.axes and baseline(runs) is None:
        said = _best_by(runs, found_column(frame), "prompt tokens found", percent, more=True)
        said += lost
        said += _best_by(runs, "tpot_s.p50", "TPOT p50", seconds, more=False)
        said += load
        said += _best_by(runs, "ttft_s.p99", "TTFT p99", seconds, more=False)
        said += _short_of_oracle(frame)
    else:
        said = [*lost, *load]
    said += _cost(frame)
    usual = baseline(runs)
    for label, result in runs.results.items():
        if usual is not None and label != usual:
            said.insert(0, _beside_text(label, result, usual, runs.results[usual]))
        elif usual is None and is_fleet(result) and fleet_events(result.scenario):
            prefix = f"{label}: " if len(runs.results) > 1 else ""
            said += [f"{prefix}{text}" for text in loss_findings(result)]
    return said


def _best_by(runs: Runs, column: str, words: str, shown: Any, *, more: bool) -> list[str]:
    """Who is best in a figure, ties as ties, and the others in order."""
    frame = choices(runs)
    if frame["label"].nunique() < 2 or not frame[column].notna().any():
        return []
    ranking = rank(frame, runs.noise(frame), (Criterion(column, words, more),))
    means = _means(frame, column)
    best = list(ranking.best)
    if not ranking.has_winner:
        return [f"By {words} none is told from another: {_with_values(means, best, shown)}."]
    ordered = sorted(
        (label for label in means if label not in best),
        key=lambda label: means[label],
        reverse=more,
    )
    what = "Most" if more else "Shortest"
    tied = " (a tie, within the noise)" if len(best) > 1 else ""
    known = "" if ranking.noise_known else " The noise of this is not known."
    return [
        f"{what} {words}: {_with_values(means, best, shown)}{tied}; then "
        f"{_with_values(means, ordered, shown)}.{known}"
    ]


def _misrouted(frame: pd.DataFrame) -> list[str]:
    """How much was lost to routing."""
    lost = _known(frame, _MISROUTED)
    if not len(lost):
        return []
    if len(lost) == 1:
        ((label, share),) = lost.items()
        router = frame.loc[frame["label"] == label, "router"].iloc[0]
        return [
            f"Behind router {router}, {percent(share)} of the prompt tokens were cached on another "
            "replica than the chosen one (misrouted)."
        ]
    return [
        "Misrouted (prompt tokens cached on another replica than the chosen one): "
        f"{_with_values(lost, sorted(lost, key=lost.__getitem__), percent)}."
    ]


def _imbalance(frame: pd.DataFrame) -> list[str]:
    """How unequal the replicas were."""
    load = _known(frame, _IMBALANCE)
    if not load:
        return []
    shown = _with_values(load, sorted(load, key=load.__getitem__), lambda value: f"{value:.2f}")
    if len(load) == 1:
        shown = f"{next(iter(load.values())):.2f}"
    return [f"Load of the busiest replica over the mean: {shown}."]


def _short_of_oracle(frame: pd.DataFrame) -> list[str]:
    """How far the routers are from one that knows every cache."""
    found = found_column(frame)
    knowing = frame[frame["router"] == ORACLE]
    others = _means(frame[frame["router"] != ORACLE], found)
    if knowing.empty or not others:
        return []
    bound = float(knowing[found].astype(float).mean())
    best = max(others, key=lambda label: others[label])
    gap = bound - others[best]
    told = (
        f"{best} is {100 * gap:.1f} points short of it"
        if gap > 0
        else f"{best} finds no fewer, as it sends others to the caches"
    )
    return [f"A router that knows every cache (oracle) finds {percent(bound)}: {told}."]


def _cost(frame: pd.DataFrame) -> list[str]:
    if _COST not in frame.columns or not frame[_COST].notna().any():
        return []
    costs = _known(frame, _COST)
    shown = _with_values(costs, sorted(costs, key=costs.__getitem__), lambda v: f"{v:.3g}")
    return [f"Cost of a million output tokens, at this load: {shown}."]


def _beside_text(label: str, result: RunResult, usual: str, beside: RunResult) -> str:
    """What events did, against the same requests without them."""
    found = shortfall(result, beside)
    told = ", ".join(event_words(result.scenario))
    text = f"{label} ({told}) against {usual}: "
    if found.until_s is None:
        text += f"the hit rate of the fleet was never more than {100 * CLOSE:.0f} points lower"
    else:
        text += (
            f"the fleet found up to {100 * found.most:.0f} points less (at "
            f"{seconds(found.most_s)}), and as much again, within {100 * CLOSE:.0f} points, from "
            f"{seconds(found.until_s)} on"
        )
    return f"{text}. Over the whole run {short(found.num_tokens)} more prompt tokens were computed."


def loss_findings(result: RunResult) -> list[str]:
    """What each loss of a node did, a sentence or two each."""
    return [_loss_text(found) for found in recoveries(result)]


def _loss_text(found: Recovery) -> str:
    lost = f"node {found.node} was lost at {seconds(found.lost_s)}"
    if found.is_dip:
        text = (
            f"{lost}: the fleet found {percent(found.before)} of prompt tokens before, "
            f"{percent(found.lowest)} at the lowest (at {seconds(found.lowest_s)})"
        )
        text += (
            f", and as much as before, within the noise, by {seconds(found.back_s)}"
            if found.back_s is not None
            else ", and less than before to the end"
        )
    else:
        text = (
            f"{lost}: the fleet's hit rate ({percent(found.before)} before) went no lower than it "
            "had gone by itself"
        )
    if found.own is not None and found.others is not None and found.returned_s is not None:
        text += (
            f". Back cold at {seconds(found.returned_s)}, the node found {percent(found.own)} at "
            f"first, where the others found {percent(found.others)}"
        )
    return f"{text}."


def _means(frame: pd.DataFrame, column: str) -> dict[str, float]:
    import pandas as pd

    values = pd.to_numeric(frame[column], errors="coerce")
    return {
        str(label): float(mean)
        for label, mean in values.groupby(frame["label"], sort=False).mean().items()
    }


def _known(frame: pd.DataFrame, column: str) -> dict[str, float]:
    """Means over seeds of those that have the figure."""
    return {label: mean for label, mean in _means(frame, column).items() if not math.isnan(mean)}


def _with_values(means: dict[str, float], labels: Sequence[str], shown: Any) -> str:
    parts = [f"{label} {shown(means[label])}" for label in labels[:_MOST_NAMED]]
    more = len(labels) - _MOST_NAMED
    return ", ".join([*parts, *([f"and {more} more"] if more > 0 else [])])
