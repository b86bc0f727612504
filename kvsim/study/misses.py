"""What was missed and why, in words: of a run, and the story of one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError, show
from kvsim.metrics.misses import EVICTIONS, MISS_REASONS, column_of
from kvsim.results.tables import NO_FIGURE, percent, seconds

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.results.store import RunResult
    from kvsim.scenario import Scenario

_CAUSES = {
    "evicted_by_prompt": "to compute the prompt of {}",
    "evicted_by_answer": "to hold the answer of {}",
    "evicted_by_window": "for blocks of a window group, which {} took",
    "evicted_by_state": "for states of {}",
    "evicted_by_recompute": "for {}, which computed again what it lost by preemption",
    "preempted": "for {}, after the request that held it was preempted",
}
_SHORT = {
    "never_seen": "never\nseen",
    "elsewhere": "on other\nreplica",
    "coarse_id": "coarse\nid",
    "not_computed": "not yet\ncomputed",
    "preempted": "pre-\nempted",
    "last_token": "last\ntoken",
    "below_unit": "below\na unit",
    "look_ahead": "look-\nahead",
    "not_retained": "not re-\ntained",
    "no_state": "no\nstate",
    "evicted_by_prompt": "evicted:\nprompt",
    "evicted_by_answer": "evicted:\nanswer",
    "evicted_by_window": "evicted:\nwindow",
    "evicted_by_state": "evicted:\nstate",
    "evicted_by_recompute": "evicted:\nrecompute",
    "evicted_earlier": "evicted:\nearlier",
}
"""Headings of a table, two lines each."""


def miss_rows(summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Cells by heading: shares of the prompt tokens by reason, a row a summary.

    Reasons that no run has are left out; a run without reasons has dashes.
    """
    tokens = {name: summary.get("missed_tokens") or {} for name, summary in summaries.items()}
    there = [r for r in MISS_REASONS if any(own.get(r) for own in tokens.values())]
    asked = {name: int(summary["prompt_tokens"]) for name, summary in summaries.items()}
    rows: dict[str, list[str]] = {
        "found": [
            percent(1 - sum(own.values()) / asked[name] if own else None)
            for name, own in tokens.items()
        ]
    }
    for reason in there:
        rows[_SHORT[reason]] = [
            _share(own.get(reason), asked[name]) for name, own in tokens.items()
        ]
    if any(reason in EVICTIONS for reason in there):
        rows["unused\np50"] = [
            seconds((summary.get("evicted_after_s") or {}).get("p50"))
            for summary in summaries.values()
        ]
    return rows


def _share(tokens: int | None, asked: int) -> str:
    if not tokens:
        return NO_FIGURE if tokens is None else "0"
    text = percent(tokens / asked)
    return "<0.1%" if text == "0.0%" else text


def miss_findings(frame: pd.DataFrame) -> list[str]:
    """Of each run which reasons cost most, of tokens that were seen before; at most four runs.

    Args:
        frame: a row a run, of `kvsim.study.frames`.
    """
    said = []
    for row in frame.head(4).to_dict("records"):
        tokens = {r: row.get(f"missed_tokens.{r}") for r in MISS_REASONS}
        if any(value is None or value != value for value in tokens.values()):
            continue
        known = {r: int(value or 0) for r, value in tokens.items()}
        asked = int(row["prompt_tokens"])
        parts = {
            "they had been evicted": sum(known[r] for r in EVICTIONS),
            "a window group had not retained the run to resume from": known["not_retained"],
            "no state was kept there": known["no_state"],
            "their holder was preempted": known["preempted"],
            "only another replica had them": known["elsewhere"],
            "nobody had computed them yet": known["not_computed"],
            "EAGLE or MTP drops a look-ahead block": known["look_ahead"],
            "hits come in whole units and never with the last token": known["below_unit"]
            + known["last_token"],
        }
        lost = sum(parts.values())
        if not lost:
            said.append(f"{row['label']}: every prompt token seen before was found.")
            continue
        order = sorted((name for name in parts if parts[name]), key=lambda n: -parts[n])
        told = ", ".join(f"{percent(parts[name] / asked)} as {name}" for name in order[:3])
        said.append(
            f"{row['label']}: {percent(lost / asked)} of prompt tokens had been seen before and "
            f"were missed: {told}."
        )
    return said


# --- one request ---


@dataclass
class Story:
    """Why one request missed what it missed.

    Attributes:
        request_id: the request.
        lines: sentences in order.
        figures: its columns of `requests.parquet`, plain Python, None where there is nothing.
    """

    request_id: str
    lines: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def explain(result: RunResult, request: str) -> Story:
    """The story of one request: what it shared, what was there, what had gone, what would help.

    Args:
        result: the run.
        request: the name of the request, or its number in the order of arrival from 1.

    Raises:
        KvsimError: there is no such request, or the run noted no reasons.
    """
    frame = result.requests
    row = _row(frame, request)
    figures = {str(name): _plain(value) for name, value in row.items()}
    story = Story(str(row["request_id"]), figures=figures)
    if figures["refused"] is not None:
        story.lines.append(f"Request {story.request_id} never ran: it {figures['refused']}.")
        return story
    if figures["hit_tokens"] is None:
        story.lines.append(f"Request {story.request_id} was never admitted.")
        return story
    if figures[column_of("never_seen")] is None:
        raise KvsimError(
            f"{story.request_id}: this run noted no reasons. Run it again with "
            "output.reasons: true and prefix caching."
        )
    story.lines = [
        *_what_it_was(figures),
        *_what_it_shared(figures),
        *_why_missed(figures, result.scenario),
        *_what_had_gone(figures, result.scenario),
        *_what_would_help(figures, result.scenario),
    ]
    return story


def _row(frame: pd.DataFrame, request: str) -> pd.Series[Any]:
    named = frame[frame["request_id"] == request]
    if len(named):
        return named.iloc[0]
    if request.isdecimal() and 1 <= int(request) <= len(frame):
        return frame.iloc[int(request) - 1]
    raise KvsimError(
        f"REQUEST: the run has no request {show(request)}. Use a name of requests.parquet, or a "
        f"number from 1 to {len(frame)}."
    )


def _plain(value: Any) -> Any:
    """A cell as plain Python, None where there is nothing."""
    import pandas as pd

    if pd.api.types.is_list_like(value):
        return [int(number) for number in value]
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value


def _what_it_was(figures: Mapping[str, Any]) -> list[str]:
    prompt, hit = figures["prompt_tokens"], figures["hit_tokens"]
    loaded = figures["external_hit_tokens"] or 0
    found = f"{hit:,} of {prompt:,} prompt tokens were found on the device"
    if loaded:
        found += f", {loaded:,} more in a tier"
    admitted_s = figures["arrival_s"] + (figures["queue_s"] or 0.0)
    return [
        f"Request {figures['request_id']} arrived at {_clock(figures['arrival_s'])} and was "
        f"admitted at {_clock(admitted_s)}: {found}, {prompt - hit - loaded:,} were missed."
    ]


def _what_it_shared(figures: Mapping[str, Any]) -> list[str]:
    unseen = sum(figures[column_of(name)] for name in ("never_seen", "elsewhere", "coarse_id"))
    shared = figures["prompt_tokens"] - unseen
    if not shared or figures["shared_with"] is None:
        return ["It shared no token with any request admitted before it."]
    return [
        f"Its first {shared:,} tokens it shared with request {figures['shared_with']}, the last "
        "one admitted before it that had so many."
    ]


def _why_missed(figures: Mapping[str, Any], scenario: Scenario) -> list[str]:
    lines = []
    for reason, text in MISS_REASONS.items():
        tokens = figures[column_of(reason)]
        if tokens:
            group = ""
            if reason == ("not_retained" if figures[column_of("not_retained")] else "no_state"):
                group = f" ({_group(scenario, figures['not_retained_group'])})"
            lines.append(f"  {tokens:>9,} {reason}: {text}{group}.")
    return ["Missed, by the first thing that stood in the way:", *lines] if lines else []


def _what_had_gone(figures: Mapping[str, Any], scenario: Scenario) -> list[str]:
    lines = []
    reaches = figures["group_hit_tokens"]
    if reaches is not None:
        told = ", ".join(
            f"{_group(scenario, number)} up to {tokens:,}" for number, tokens in enumerate(reaches)
        )
        lines.append(
            f"Still there, each group bounded by those asked before it: {told}. A hit is what all "
            "groups can serve."
        )
    group = figures["evicted_group"]
    if group is None:
        return lines
    where = f"Behind the hit {_group(scenario, group)} lacked a block"
    if figures["evicted_s"] is None:
        return [*lines, f"{where} that was evicted too long ago to be remembered for whom."]
    causes = [r for r in _CAUSES if figures[column_of(r)]]
    whom = f"request {figures['evicted_for']}"
    cause = _CAUSES[causes[0]].format(whom) if len(causes) == 1 else f"for {whom}"
    idle_s = figures["evicted_s"] - figures["unused_since_s"]
    return [
        *lines,
        f"{where}: last given back at {_clock(figures['unused_since_s'])}, it was evicted at "
        f"{_clock(figures['evicted_s'])}, {seconds(idle_s)} later, {cause}.",
    ]


def _what_would_help(figures: Mapping[str, Any], scenario: Scenario) -> list[str]:
    lines = []
    lost = figures[column_of("not_retained")]
    if lost:
        lines.append(f"  {_retention(figures, scenario)}")
    if figures[column_of("no_state")]:
        lines.append(
            "  States are kept where chunks of a prompt end: a smaller "
            "engine.max_num_batched_tokens, or cache.retention_interval: null, keeps more of them."
        )
    if figures[column_of("elsewhere")]:
        lines.append(
            "  A router that goes by what the caches hold (fleet.router) would have sent it to "
            "where it was cached."
        )
    evicted = sum(figures[column_of(reason)] for reason in EVICTIONS)
    if evicted:
        since = figures["evicted_blocks_since"]
        more = f" (about {since:,} blocks, judging by what was evicted since)" if since else ""
        lines.append(
            f"  A larger pool{more} or a tier beside it (offload) keeps what was evicted "
            f"({evicted:,} tokens)."
        )
    if figures[column_of("preempted")]:
        lines.append(
            "  Fewer requests at once (engine.max_num_seqs) or a larger pool avoids preemptions."
        )
    if figures[column_of("not_computed")]:
        lines.append(
            "  What another request was still computing is hit by who comes later; no setting of "
            "the cache changes that."
        )
    if figures[column_of("look_ahead")]:
        lines.append("  Without EAGLE or MTP (engine.speculative) no look-ahead block is dropped.")
    if not lines:
        return ["No setting of the cache would have found more."]
    return ["What would have helped:", *lines]


def _retention(figures: Mapping[str, Any], scenario: Scenario) -> str:
    """The largest interval at which something more would have been kept."""
    unit = scenario.scheduler_block_tokens
    best, kept = figures["best_hit_tokens"], figures["kept_hit_tokens"]
    interval = unit
    while best // (2 * interval) * (2 * interval) > kept:
        interval *= 2
    if scenario.cache.retention is not None:
        return f"cache.retention: dense would have kept it up to {best:,} tokens."
    kept_tokens = best // interval * interval
    if kept_tokens == best:
        return f"cache.retention_interval: null or {interval} would have kept {best:,} tokens."
    dense = f"cache.retention_interval: null would have kept it up to {best:,} tokens"
    return f"{dense}, {interval} up to {kept_tokens:,}."


def _group(scenario: Scenario, number: int) -> str:
    group = scenario.model_spec.groups[number]
    name = group.name or group.kind.replace("_", " ")
    return f"group {number} ({name})"


def _clock(time_s: float) -> str:
    return f"{time_s:,.3f} s"
