"""What runs say together, in sentences with their numbers: which policy, how much, how far.

Nothing is claimed that the runs do not show: differences carry their interval, those within the
noise are called that, and what was not varied is not recommended.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kvsim.metrics.figures import FOUND_RATE
from kvsim.results.tables import difference_text, exists, percent, seconds, short
from kvsim.study.frames import LINK_COLUMN, POLICY_KEYS, Series, series_of

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.study.comparison import Comparison
    from kvsim.study.frames import Floats

KNEE_SHARE = 0.95
"""Share of a line's best hit rate that is reached at its knee."""
CAPACITY_AXES: dict[str, str] = {
    "node.num_blocks": "blocks",
    "offload.capacity": "bytes of tier",
    "offload.num_chunks": "chunks of tier",
}
"""Axes of a sweep that are a capacity, each with its unit in words."""
RATE_AXES: dict[str, str] = {"workload.time_scale": "arrivals_per_s"}
"""Axes of a sweep that set the request rate, each with the figure that tells the rate."""
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


def found_column(frame: pd.DataFrame) -> str:
    """Column of what was found: on the device alone, or in its tier too where a run has one."""
    return (
        FOUND_RATE if FOUND_RATE in frame and frame[LINK_COLUMN].notna().any() else "token_hit_rate"
    )


def best_label(frame: pd.DataFrame) -> str:
    """The label with most goodput, where there is an objective, else with most tokens found.

    Runs of one label (seeds, other axes) are averaged; of equal ones the first is taken.
    """
    means = _means(frame, _criterion(frame))
    return str(means.idxmax())


def policy_findings(frame: pd.DataFrame, comparison: Comparison | None) -> list[str]:
    """Which of several policies to use, and how sure that is.

    Args:
        frame: a row a run, from `kvsim.study.frames`, that differ in policy or seed alone.
        comparison: of the best with the others, by label; None where there is none.
    """
    if frame["label"].nunique() < 2:
        return []
    best, criterion = best_label(frame), _criterion(frame)
    rows = {str(label): group for label, group in frame.groupby("label", sort=False)}
    text = f"Use {_named(best, rows[best])}: the highest {_words(criterion)} of {len(rows)}"
    sentences = [f"{text} ({_figures(rows[best])})."]
    if comparison is not None:
        sentences += _against(comparison, criterion)
    return sentences


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
        sentences.append(f"An infinite cache that keeps everything would find {percent(ceiling)}.")
    return sentences


def _capacity(axis: str, size: float) -> str:
    unit = CAPACITY_AXES[axis]
    if unit.startswith("bytes"):
        return f"{short(float(size))}B{unit.removeprefix('bytes')}"
    return f"{size:,.0f} {unit}"


def rate_findings(frame: pd.DataFrame, rate: str) -> list[str]:
    """The highest rate tried that meets the objective, a sentence a policy.

    Args:
        frame: a row a run, with `goodput` where there is an objective.
        rate: column of the rate in requests/s.
    """
    return [_met(line) for line in series_of(frame, rate, "goodput")] if _known(frame) else []


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
    text = f"{short(stored)}B stored to tier {tier}, {short(loaded)}B loaded back"
    share = figure("loaded_share").mean()
    if loaded and not math.isnan(share):
        text += f" ({percent(share)} of what was stored is ever loaded)"
    if (figure("chunks_evicted") + figure("stores_refused")).max() > 0:
        text += (
            f". It ran full at {short(capacity)}B: a sweep over its capacity tells what more brings"
        )
    else:
        text += f". It held {short(used)}B at most, so more of it brings nothing on this workload"
    break_even = figure("break_even_bytes_per_s").max()
    if not loaded:
        return f"{text}. Nothing came back, so it did not pay."
    if math.isnan(break_even):
        return f"{text}."
    return f"{text}. {_pays(break_even, rows[LINK_COLUMN].astype(float).min())}"


def _pays(break_even: float, link: float) -> str:
    """Whether loading is quicker than computing again, by the bandwidths in bytes/s."""
    if math.isnan(link):
        return f"Loading is quicker than computing again above {short(break_even)}B/s of link."
    if link < break_even:
        return (
            f"Computing again would have been quicker than loading: the link reads "
            f"{short(link)}B/s and would have to read {short(break_even)}B/s."
        )
    return (
        f"Loading beats computing again: the link reads {short(link)}B/s, "
        f"{_times(link / break_even)} the {short(break_even)}B/s at which both take as long."
    )


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor >= 10 else f"{factor:.1f} times"


def cautions(frame: pd.DataFrame, warnings: Iterable[str]) -> list[str]:
    """What stands against taking the figures at face value."""
    said = list(dict.fromkeys(warnings))
    refused = frame[frame["num_refused"] > 0]
    said += [
        f"{row['label']}: {int(row['num_refused'])} requests were refused; they are in no figure "
        "but goodput."
        for row in refused.to_dict("records")
    ]
    slower = frame["requests_per_s"] < 0.9 * frame["arrivals_per_s"].astype(float).fillna(0)
    queues = frame["queue_s.p50"] > 0.5 * frame["ttft_s.p50"]
    behind = frame[slower & queues]
    if len(behind):
        names = ", ".join(dict.fromkeys(str(label) for label in behind["label"]))
        said.append(
            f"{names}: requests arrived faster than they were served, at least in one run. TTFT is "
            "then mostly queueing, and grows with the length of the workload."
        )
    if "seed" not in frame.columns or frame["seed"].nunique() < 2:
        said.append(
            "One seed: intervals are over stretches of this workload, not over other days' traffic."
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


def _criterion(frame: pd.DataFrame) -> str:
    return "goodput" if _known(frame) else found_column(frame)


def _known(frame: pd.DataFrame) -> bool:
    return "goodput" in frame.columns and bool(frame["goodput"].notna().any())


def _means(frame: pd.DataFrame, column: str) -> pd.Series[float]:
    import pandas as pd

    numbers = pd.to_numeric(frame[column], errors="coerce")
    return numbers.groupby(frame["label"], sort=False).mean()


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


def _against(comparison: Comparison, criterion: str) -> Iterator[str]:
    table = comparison.table[comparison.table["scope"] == "all"]
    close = []
    for case in comparison.cases:
        rows = {row["figure"]: row for row in table[table["case"] == case].to_dict("records")}
        row = rows.get(criterion)
        if row is None or not exists(row["difference"]):
            continue
        if row["beyond_noise"] is not True:
            close.append(f"{case}, {difference_text(row)}")
            continue
        ttft = rows.get("ttft_s.p50")
        more = ""
        if ttft is not None and ttft["beyond_noise"] is True:
            more = f", TTFT p50 {difference_text(ttft)}"
        yield f"{case} is behind it: {_words(criterion)} {difference_text(row)}{more}."
    if close:
        yield (
            f"Not told from it by {_words(criterion)}: {'; '.join(close)}. Choose among these by "
            "what else they keep."
        )


def _words(figure: str) -> str:
    return {
        "token_hit_rate": "token hit rate",
        FOUND_RATE: "hit rate of device and tier",
    }.get(figure, figure)


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
