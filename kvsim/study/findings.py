"""What runs say together, in sentences with their numbers: which policy, how much, how far.

Nothing is claimed that the runs do not show: differences carry their interval, those within the
noise are called that, and what was not varied is not recommended.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.metrics.figures import FOUND_RATE
from kvsim.metrics.overload import OVERLOADED
from kvsim.results.tables import difference_text, exists, percent, seconds, size
from kvsim.study.frames import LINK_COLUMN, POLICY_KEYS, Series, axis_text, series_of
from kvsim.study.ranking import Noise, Ranking, found_column, rank

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.study.comparison import Comparison
    from kvsim.study.frames import Floats

    NoiseOf = Callable[[pd.DataFrame], Noise | None]

KNEE_SHARE = 0.95
"""Share of a line's best hit rate that is reached at its knee."""
CAPACITY_AXES: dict[str, str] = {
    "node.num_blocks": "blocks",
    "offload.capacity": "of tier",
    "offload.num_chunks": "chunks of tier",
}
"""Axes of a sweep that are a capacity, each with what its value is of."""
RATE_AXES: dict[str, str] = {"workload.time_scale": "arrivals_per_s"}
"""Axes of a sweep that set the request rate, each with the figure that tells the rate."""
_MOST_BEHIND = 4
GOODPUT_MIN = 0.99
"""Share of requests within the objective from which a rate counts as met."""


def knee(capacities: Floats | Sequence[float], hit_rates: Floats | Sequence[float]) -> int | None:
    """Index of the smallest capacity with `KNEE_SHARE` of the best hit rate of the line.

    None where there are fewer than three capacities, nothing is hit, or only the largest gets
    there, so that the line may still be rising.
    """
    best = max(hit_rates, default=0.0)
    if len(capacities) < 3 or best <= 0:
        return None
    place = next(i for i, rate in enumerate(hit_rates) if rate >= KNEE_SHARE * best)
    return place if place < len(capacities) - 1 else None


def best_label(frame: pd.DataFrame) -> str:
    """The label that `kvsim.study.ranking.rank` puts first; of equal ones the first."""
    return rank(frame).leader


def policy_findings(
    frame: pd.DataFrame, ranking: Ranking, comparison: Comparison | None = None
) -> list[str]:
    """Which of several policies to use, and how sure that is.

    Args:
        frame: a row a run, from `kvsim.study.frames`, that differ in policy or seed alone.
        ranking: of the frame.
        comparison: of the leader with the others, by label; None where there is none.
    """
    if frame["label"].nunique() < 2:
        return []
    rows = {str(label): group for label, group in frame.groupby("label", sort=False)}
    judged = _listed([one.words for one in ranking.criteria])
    leader = rows[ranking.leader]
    if not ranking.has_winner:
        how = (
            f"are equal in {judged}"
            if ranking.equal
            else f"are not told apart, beyond the noise, by {judged}"
        )
        return [f"No winner: all {len(rows)} {how} ({ranking.leader}: {_figures(leader)})."]
    decided = ranking.decided_by
    assert decided is not None
    earlier = [one.words for one in ranking.criteria[: ranking.criteria.index(decided)]]
    num_tied = len(rows) - sum(one.words in earlier for one in ranking.behind.values())
    among = f"of {num_tied}" + (f" that tie in {_listed(earlier)}" if earlier else "")
    said = f"{decided.superlative} {among} ({_figures(leader)})"
    if len(ranking.best) == 1:
        sentences = [f"Use {_named(ranking.leader, leader)}: {said}."]
    else:
        names = _few([_named(label, rows[label]) for label in ranking.best], "or")
        how = "equal in" if ranking.equal else "not told apart, beyond the noise, by"
        sentences = [f"Use {names}, which are {how} {judged}: {said}."]
    return [*sentences, *_behind(ranking, comparison)]


def point_findings(frame: pd.DataFrame, axes: Sequence[str], noise_of: NoiseOf) -> list[str]:
    """The best policy at each point of the other axes, points with the same answer put together.

    Args:
        frame: a row a run, from `kvsim.study.frames`.
        axes: what varies beside the policy.
        noise_of: the noise of the runs of one point.
    """
    by_answer: dict[str, list[str]] = {}
    noise_known = True
    for point, rows in frame.groupby(list(axes), sort=True, dropna=False):
        values = point if isinstance(point, tuple) else (point,)
        at = " and ".join(axis_text(axis, v) for axis, v in zip(axes, values, strict=True))
        ranking = rank(rows, noise_of(rows))
        noise_known &= ranking.noise_known
        by_answer.setdefault(_answer(ranking, rows["label"].nunique()), []).append(at)
    names = " and ".join(axes)
    said = [f"At {names} {_few(at, 'and', 12)}: {text}." for text, at in by_answer.items()]
    if said and not noise_known:
        said[0] += " Some of these differences have no interval; kvsim compare gives those it can."
    return said


def _answer(ranking: Ranking, num_labels: int) -> str:
    if num_labels == 1:
        return f"only {ranking.leader} was run"
    judged = _listed([one.words for one in ranking.criteria])
    if ranking.decided_by is None:
        what = "equal in" if ranking.equal else "not told apart by"
        return f"no winner, all {num_labels} are {what} {judged}"
    names = _few(list(ranking.best), "or")
    if len(ranking.best) == 1:
        return f"{names} is best, with {ranking.decided_by.superlative}"
    what = "equal" if ranking.equal else "not told apart"
    return f"{names} ({what}) are best, with {ranking.decided_by.superlative}"


def capacity_findings(frame: pd.DataFrame, axis: str, ceiling: float | None = None) -> list[str]:
    """How much capacity is worth having, a sentence a policy.

    Args:
        frame: a row a run, that differ in the capacity, in policy or seed alone.
        axis: a key of `CAPACITY_AXES`.
        ceiling: token hit rate of an infinite cache on the same workload.
    """
    sentences = []
    for line in series_of(frame, axis, found_column(frame)):
        best = float(line.y.max())
        place = knee(line.x, line.y)
        if best <= 0:
            sentences.append(f"{line.label}: nothing is found again at any capacity tried.")
        elif place is not None:
            sentences.append(
                f"{line.label}: {_capacity(axis, line.x[place])} are enough for "
                f"{percent(line.y[place])}"
                f", {KNEE_SHARE:.0%} or more of the best of this line ({percent(best)})."
            )
        elif len(line.x) >= 3:
            sentences.append(
                f"{line.label}: no knee up to {_capacity(axis, line.x[-1])} "
                f"({percent(line.y[-1])}); more may bring more."
            )
    if ceiling is not None and sentences:
        refused = "num_refused" in frame and bool((frame["num_refused"] > 0).any())
        of = " of all prompt tokens, those of refused requests included" if refused else ""
        sentences.append(
            f"An infinite cache that keeps everything would find {percent(ceiling)}{of}."
        )
    return sentences


def _capacity(axis: str, value: float) -> str:
    unit = CAPACITY_AXES[axis]
    return f"{axis_text(axis, value)} {unit}".rstrip()


def rate_findings(frame: pd.DataFrame, rate: str) -> list[str]:
    """The highest rate tried that meets the objective, a sentence a policy.

    Args:
        frame: a row a run, with `goodput` where there is an objective.
        rate: column of the rate in requests/s.
    """
    return [_met(line) for line in series_of(frame, rate, "goodput")] if _known(frame) else []


def ceiling_findings(frame: pd.DataFrame) -> list[str]:
    """How much of what any policy could find each run found, where that is known.

    Args:
        frame: a row a run, from `kvsim.study.frames`.

    Returns:
        One sentence, or none.
    """
    shares = [f"ceiling.share_of_{name}" for name in ("optimum", "infinite")]
    known = [column for column in shares if column in frame and frame[column].notna().any()]
    if not known:
        return []
    told = [
        f"{label} {percent(float(rows[known[0]].astype(float).mean()))}"
        for label, rows in frame.groupby("label", sort=False)
        if rows[known[0]].notna().any()
    ]
    what = "the offline optimum" if known[0] == shares[0] else "a pool that evicts nothing"
    return [f"Of the tokens that {what} would find on the device: {', '.join(told)}."]


def tier_findings(frame: pd.DataFrame) -> list[str]:
    """What tiers took and gave back, how much of them was used, and whether loading pays.

    Args:
        frame: a row a run, from `kvsim.study.frames`; runs of one label (seeds) are put together.

    Returns:
        Sentences for each label and tier, or the one that there was none.
    """
    tiers = [column.split(".")[1] for column in frame.columns if _IS_TIER.match(str(column))]
    sentences = []
    for label, rows in frame.groupby("label", sort=False):
        for tier in tiers:
            known = rows[rows[f"tiers.{tier}.bytes_stored"].notna()]
            if len(known):
                sentences.append(f"{label}: {_tier_text(tier, known)}")
    if not sentences:
        return ["Nothing is offloaded in these runs, so they do not say how much tier to buy."]
    return sentences


_IS_TIER = re.compile(r"^tiers\.[^.]+\.bytes_stored$")


def _tier_text(tier: str, rows: pd.DataFrame) -> str:
    """One tier under one policy: bytes are means over seeds, sizes and bandwidths the most."""

    def figure(name: str) -> pd.Series[float]:
        return rows[f"tiers.{tier}.{name}"].astype(float)

    stored, loaded = figure("bytes_stored").mean(), figure("bytes_loaded").mean()
    used, capacity = figure("used_bytes_max").max(), figure("capacity_bytes").max()
    text = f"{size(stored)} stored to tier {tier}, {size(loaded)} loaded back"
    share = figure("loaded_share").mean()
    if loaded and not math.isnan(share):
        text += f" ({percent(share)} of what was stored is ever loaded)"
    if (figure("chunks_evicted") + figure("stores_refused")).max() > 0:
        text += (
            f". It ran full at {size(capacity)}: a sweep over its capacity tells what more brings"
        )
    else:
        text += f". It held {size(used)} at most, so more of it brings nothing on this workload"
    break_even = figure("break_even_bytes_per_s").max()
    if not loaded:
        return f"{text}. Nothing came back, so it did not pay."
    if math.isnan(break_even):
        return f"{text}."
    return f"{text}. {_pays(break_even, rows[LINK_COLUMN].astype(float).min())}"


def _pays(break_even: float, link: float) -> str:
    """Whether loading is quicker than computing again, by the bandwidths in bytes/s."""
    if math.isnan(link):
        return f"Loading is quicker than computing again above {size(break_even)}/s of link."
    if link < break_even:
        return (
            f"Computing again would have been quicker than loading: the link reads "
            f"{size(link)}/s and would have to read {size(break_even)}/s."
        )
    return (
        f"Loading beats computing again: the link reads {size(link)}/s, "
        f"{_times(link / break_even)} the {size(break_even)}/s at which both take as long."
    )


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor >= 10 else f"{factor:.1f} times"


def cautions(frame: pd.DataFrame, warnings: Iterable[str]) -> list[str]:
    """What stands against taking the figures at face value."""
    said = list(dict.fromkeys(warnings))
    said += _refusals(frame)
    slower = frame["requests_per_s"] < 0.9 * frame["arrivals_per_s"].astype(float).fillna(0)
    queues = frame["queue_s.p50"] > 0.5 * frame["ttft_s.p50"]
    over = overloaded(frame)
    behind = frame[(slower & queues) | over]
    if len(behind) and not any(OVERLOADED in warning for warning in said):
        names = ", ".join(dict.fromkeys(str(label) for label in behind["label"]))
        said.append(
            f"{names}: requests arrived faster than they were served, at least in one run. TTFT is "
            f"then mostly queueing{' (marked *)' if over.any() else ''}, and grows with the length "
            "of the workload."
        )
    if "seed" not in frame.columns or frame["seed"].nunique() < 2:
        said.append(
            "One seed: intervals are over stretches of this workload, not over other days' traffic."
        )
    return said


def overloaded(frame: pd.DataFrame) -> pd.Series[bool]:
    """Which runs were overloaded to the end, so that their times say how long the workload is."""
    import pandas as pd

    if "overload.since_s" not in frame.columns:
        return pd.Series(data=False, index=frame.index)
    known: pd.Series[bool] = frame["overload.since_s"].notna()
    return known


def _refusals(frame: pd.DataFrame) -> list[str]:
    """Which runs refused requests, with the pool they had."""
    said = []
    for label, rows in frame[frame["num_refused"] > 0].groupby("label", sort=False):
        most = max(rows.to_dict("records"), key=lambda row: row["num_refused"])
        count, asked = int(most["num_refused"]), int(most["num_refused"] + most["num_requests"])
        pools = _few([f"{blocks:,.0f}" for blocks in sorted(set(rows["num_blocks"]))], "and", 6)
        upto = "up to " if rows["num_refused"].nunique() > 1 else ""
        said.append(
            f"{label}: {upto}{count} of {asked} requests were refused, as the pool ({pools} "
            "blocks) or the context is too small for them; they are in no figure but goodput."
        )
    return said


def window_loss(requests: pd.DataFrame) -> float | None:
    """Share of prompt tokens that one group could serve and the hit could not.

    Full attention keeps all it computed until it is evicted; a window or state group keeps the
    runs its policy retains. So this is what a denser retention could have added at most.
    """
    ran = requests[requests["hit_tokens"].notna()]
    prompts = int(ran["prompt_tokens"].sum())
    return float((ran["full_hit_tokens"] - ran["hit_tokens"]).sum()) / prompts if prompts else None


def other_axes(axes: Iterable[str], *shown: str) -> list[str]:
    """Axes of a sweep that are no part of the policy and not shown otherwise."""
    return [axis for axis in axes if axis not in POLICY_KEYS and axis not in shown]


def _known(frame: pd.DataFrame) -> bool:
    return "goodput" in frame.columns and bool(frame["goodput"].notna().any())


def _listed(words: Sequence[str], joint: str = "and") -> str:
    return f" {joint} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _few(names: Sequence[str], joint: str, most: int = 4) -> str:
    """Names in a row, or the first of them and how many more there are."""
    if len(names) <= most:
        return _listed(names, joint)
    return f"{', '.join(names[: most - 1])} {joint} {len(names) - most + 1} more"


def _named(label: str, rows: pd.DataFrame) -> str:
    policy = str(rows["policy"].iloc[0])
    return label if policy in label else f"{label} ({policy})"


def _figures(rows: pd.DataFrame) -> str:
    means = {
        column: float(rows[column].astype(float).mean())
        for column in ("token_hit_rate", FOUND_RATE, "ttft_s.p50", "ttft_s.p99", "goodput")
        if column in rows.columns
    }
    parts = [f"{percent(means['token_hit_rate'])} of prompt tokens found"]
    if found_column(rows) == FOUND_RATE:
        found, on_device = means[FOUND_RATE], means["token_hit_rate"]
        parts = [f"{percent(found)} of prompt tokens found, {percent(on_device)} on the device"]
    if not math.isnan(means["ttft_s.p50"]):
        parts.append(f"TTFT p50 {seconds(means['ttft_s.p50'])}, p99 {seconds(means['ttft_s.p99'])}")
    if not math.isnan(means.get("goodput", math.nan)):
        parts.append(f"goodput {percent(means['goodput'])}")
    return "; ".join(parts)


def _behind(ranking: Ranking, comparison: Comparison | None) -> list[str]:
    """Which others fell behind, a sentence for each figure by which they did."""
    rows: dict[str, dict[str, Mapping[Any, Any]]] = {}
    if comparison is not None:
        table = comparison.table[comparison.table["scope"] == "all"]
        for shown in table.to_dict("records"):
            rows.setdefault(str(shown["case"]), {})[str(shown["figure"])] = shown
    said = []
    for criterion in ranking.criteria:
        labels = [label for label, one in ranking.behind.items() if one == criterion]
        if not labels:
            continue
        parts = []
        for label in labels:
            row = rows.get(label, {}).get(criterion.column)
            has_difference = row is not None and exists(row["difference"])
            parts.append(f"{label}, {difference_text(row)}" if row and has_difference else label)
        joined = "; ".join(parts[:_MOST_BEHIND])
        more = len(parts) - _MOST_BEHIND
        rest = f"; and {more} more" if more > 0 else ""
        said.append(f"Behind by {criterion.words}: {joined}{rest}.")
    return said


def _met(line: Series) -> str:
    met = [i for i, share in enumerate(line.y) if share >= GOODPUT_MIN]
    least = f"{GOODPUT_MIN:.0%} of requests within the objective"
    if not met:
        return f"{line.label}: no rate tried has {least} (best: {percent(float(line.y.max()))})."
    if len(met) == len(line.x):
        return f"{line.label}: every rate tried, up to {line.x[-1]:.3g}/s, has {least}."
    last = met[-1]
    text = f"{line.label}: {least} up to {line.x[last]:.3g}/s"
    if last < len(line.x) - 1:
        text += f"; at {line.x[last + 1]:.3g}/s it is {percent(float(line.y[last + 1]))}"
    if met != list(range(last + 1)):
        text += "; not at every lower rate, so rates between are in doubt"
    return f"{text}."
