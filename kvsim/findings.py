"""What runs say together, in sentences with their numbers: which policy, how much, how far.

Nothing is claimed that the runs do not show: differences carry their interval, those within the
noise are called that, and what was not varied is not recommended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.frames import POLICY_KEYS, Series, series_of
from kvsim.tables import percent, seconds, short

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.comparison import Comparison
    from kvsim.frames import Floats

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


def best_label(frame: pd.DataFrame) -> str:
    """The label with most goodput, where there is an objective, else with the best hit rate.

    Runs of one label (seeds, other axes) are averaged; of equal ones the first is taken.
    """
    means = _means(frame, _criterion(frame))
    return str(means.idxmax())


def policy_findings(frame: pd.DataFrame, comparison: Comparison | None) -> list[str]:
    """Which of several policies to use, and how sure that is.

    Args:
        frame: a row a run, from `kvsim.frames`, that differ in policy or seed alone.
        comparison: of the best with the others, by label; None where there is none.
    """
    if frame["label"].nunique() < 2:
        return []
    best, criterion = best_label(frame), _criterion(frame)
    rows = {str(label): group for label, group in frame.groupby("label", sort=False)}
    what = "goodput" if criterion == "goodput" else "token hit rate"
    text = f"Use {_named(best, rows[best])}: the highest {what} of {len(rows)}"
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
    unit = CAPACITY_AXES[axis]
    for line in series_of(frame, axis, "token_hit_rate"):
        best = float(line.y.max())
        place = knee(line.x, line.y)
        if best <= 0:
            sentences.append(f"{line.label}: nothing is found again at any capacity tried.")
        elif place is not None:
            sentences.append(
                f"{line.label}: {line.x[place]:,.0f} {unit} are enough for {percent(line.y[place])}"
                f", {KNEE_SHARE:.0%} or more of the best of this line ({percent(best)})."
            )
        elif len(line.x) >= 3:
            sentences.append(
                f"{line.label}: no knee up to {line.x[-1]:,.0f} {unit} ({percent(line.y[-1])}); "
                "more may bring more."
            )
    if ceiling is not None and sentences:
        sentences.append(f"An infinite cache that keeps everything would find {percent(ceiling)}.")
    return sentences


def rate_findings(frame: pd.DataFrame, rate: str) -> list[str]:
    """The highest rate tried that meets the objective, a sentence a policy.

    Args:
        frame: a row a run, with `goodput` where there is an objective.
        rate: column of the rate in requests/s.
    """
    return [_met(line) for line in series_of(frame, rate, "goodput")] if _known(frame) else []


def tier_findings(frame: pd.DataFrame) -> list[str]:
    """What tiers took and gave back, or that there was none."""
    stored = frame["bytes_stored"].fillna(0)
    if not (stored > 0).any():
        return ["Nothing is offloaded in these runs, so they do not say how much tier to buy."]
    return [
        f"{row['label']}: {short(float(row['bytes_stored']))}B stored to the next tier, "
        f"{short(float(row['bytes_loaded']))}B loaded back."
        for row in frame.to_dict("records")
        if row["bytes_stored"]
    ]


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
    return "goodput" if _known(frame) else "token_hit_rate"


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
        for column in ("token_hit_rate", "ttft_s.p50", "ttft_s.p99", "goodput")
        if column in rows.columns
    }
    parts = [f"{percent(means['token_hit_rate'])} of prompt tokens found"]
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
        if row is None or row["difference"] is None or _nan(row["difference"]):
            continue
        if row["beyond_noise"] is not True:
            close.append(f"{case} ({interval_text(row)})")
            continue
        ttft = rows.get("ttft_s.p50")
        more = ""
        if ttft is not None and ttft["beyond_noise"] is True:
            more = f", TTFT p50 {interval_text(ttft)}"
        yield f"{case} is behind it: {_words(criterion)} {interval_text(row)}{more}."
    if close:
        yield (
            f"Not told from it by {_words(criterion)}: {'; '.join(close)}. Choose among these by "
            "what else they keep."
        )


def _words(figure: str) -> str:
    return {"token_hit_rate": "token hit rate"}.get(figure, figure)


def interval_text(row: Mapping[Any, Any]) -> str:
    """A difference with its 95% interval, rates in points, times in ms: "-1.6 points (-2 to -1)".

    Args:
        row: a row of `kvsim.comparison.Comparison.table`.
    """
    figure = str(row["figure"])
    if figure.endswith("_rate") or figure == "goodput":
        factor, unit = 100.0, " points"
    elif "_s." in figure:
        factor, unit = 1000.0, " ms"
    else:
        factor, unit = 1.0, ""
    if row["low"] is None or _nan(row["low"]):
        return f"{factor * row['difference']:+,.3g}{unit}"
    low, high = factor * row["low"], factor * row["high"]
    width = max(high - low, 1e-9)
    digits = max(0, 1 - math.floor(math.log10(width)))
    digits = min(digits, 3)
    middle = factor * row["difference"]
    if row["beyond_noise"] is True:
        return f"{middle:+,.{digits}f}{unit} ({low:+,.{digits}f} to {high:+,.{digits}f})"
    return f"within noise: {low:+,.{digits}f} to {high:+,.{digits}f}{unit}"


def _nan(value: Any) -> bool:
    return bool(value != value)


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
