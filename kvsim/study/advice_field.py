"""What advice tries: settings of the pool and of its tier, and short stretches to try them on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvsim.errors import Problems
from kvsim.policies.contract import FREE_QUEUE, HOST_EVICTION, RETENTION
from kvsim.policies.finding import ENGINE_NAMES
from kvsim.policies.table import TABLE
from kvsim.scenario import CpuOffload, MooncakeOffload, Scenario, SyntheticWorkload, TraceWorkload

AS_SET = "as-set"
"""Label of what the scenario says itself."""
ORDER, KEEP, TIER = "order", "retention", "tier"
"""Parts of a setting; at most one candidate of each makes a combination."""
INTERVALS = (1024, 4096, 32_768)
"""Tokens between boundaries that are tried, rounded up to whole units of hits."""
_NEEDS_TELLING = {"priority"}  # orders that do nothing unless requests say something
_SIZE_FACTORS = (0.5, 2.0, 4.0)


@dataclass(frozen=True)
class Candidate:
    """A setting to try.

    Attributes:
        label: its name, which is a name of a directory as well.
        keys: what it sets, by dotted key; empty for what is set already.
        parts: by part of a setting, the label of that part.
        is_engine: an engine as it is has all of it.
    """

    label: str
    keys: Mapping[str, Any]
    parts: Mapping[str, str]
    is_engine: bool = True


def as_set(scenario: Scenario) -> Candidate:
    """What the scenario says itself."""
    own_order = scenario.free_queue not in ENGINE_NAMES[FREE_QUEUE]
    return Candidate(AS_SET, {}, {}, not own_order and scenario.cache.retention is None)


def single_changes(scenario: Scenario) -> list[Candidate]:
    """Every order, every retention and every setting of a tier that changes one thing."""
    found = [
        Candidate(name, {"cache.free_queue": name}, {ORDER: name})
        for name in ENGINE_NAMES[FREE_QUEUE]
    ]
    found += [
        Candidate(name, {"cache.free_queue": name}, {ORDER: name})
        for name in TABLE[FREE_QUEUE]
        if name not in _NEEDS_TELLING
    ]
    if any(group.kind != "full" for group in scenario.model_spec.groups):
        found += _retentions(scenario)
    found += _tiers(scenario)
    return [one for one in _possible(scenario, found) if not _is_set(scenario, one)]


def combinations(scenario: Scenario, parts: Mapping[str, Iterable[Candidate]]) -> list[Candidate]:
    """Each of one part with each of the others, and each alone."""
    found: list[Candidate] = [Candidate("", {}, {})]
    for candidates in parts.values():
        found = [*found, *(_both(one, other) for one in found for other in candidates)]
    return list(_possible(scenario, found[1:]))


def sizes(scenario: Scenario) -> dict[str, Mapping[str, Any]]:
    """Other sizes of the scenario's tier, by label."""
    tier = scenario.offload
    if tier is None:
        return {}
    key, size = "offload.capacity", float(tier.capacity)
    if isinstance(tier, CpuOffload) and tier.num_chunks is not None:
        key, size = "offload.num_chunks", float(tier.num_chunks)
    return {f"tier-x{factor:g}": {key: max(1, round(size * factor))} for factor in _SIZE_FACTORS}


def with_candidates(scenario: Scenario, candidates: Iterable[Candidate]) -> Scenario:
    """The scenario with candidates as its variants."""
    return with_variants(scenario, {one.label: one.keys for one in candidates})


def with_variants(scenario: Scenario, variants: Mapping[str, Mapping[str, Any]]) -> Scenario:
    """The scenario with these variants in place of its own, and without a sweep."""
    data = scenario.written()
    data.pop("sweep", None)
    data["variants"] = {label: dict(keys) for label, keys in variants.items()}
    return Scenario.from_data(data, f"scenario {scenario.name}", scenario.directory)


def stretch(scenario: Scenario, share: float, num_requests: int) -> Scenario | None:
    """The beginning of the scenario's workload, at the same load.

    Args:
        scenario: without variants.
        share: of the workload, above 0 and below 1.
        num_requests: of the whole workload.

    Returns:
        The scenario with a shorter workload; None where it cannot be shortened.
    """
    workload = scenario.workload
    keys: dict[str, Any] = {}
    if isinstance(workload, TraceWorkload):
        keys["workload.limit"] = max(1, math.ceil(share * num_requests))
    elif isinstance(workload, SyntheticWorkload):
        keys["workload.num_sessions"] = max(1, math.ceil(share * workload.num_sessions))
    else:
        return None
    sessions = workload.sessions
    if sessions is not None and (starts := _shorter(str(sessions.starts or ""), share)):
        keys["workload.sessions.starts"] = starts
    return scenario.replace(keys, "advise")


def _shorter(starts: str, share: float) -> str | None:
    """Starts of fewer sessions at the same rate, where the form says how long they take."""
    found = re.search(r"\b(span_s|over_s)\s*=\s*([^,)]+)", starts)
    if found is None:
        return None
    from kvsim.units import parse_seconds

    text = found[2].strip()
    length_s = parse_seconds(float(text) if re.fullmatch(r"[\d.eE+_]+", text) else text) * share
    return f"{starts[: found.start(2)]}{length_s:g}{starts[found.end(2) :]}"


def _retentions(scenario: Scenario) -> list[Candidate]:
    unit = scenario.scheduler_block_tokens
    intervals: dict[str, int | None] = {"dense": None, "interval-0": 0}
    for tokens in INTERVALS:
        whole = -(-tokens // unit) * unit
        intervals[f"interval-{whole}"] = whole
    found = [
        Candidate(
            label, {"cache.retention": None, "cache.retention_interval": value}, {KEEP: label}
        )
        for label, value in intervals.items()
    ]
    same = {"dense", "interval", "boundary"}  # which the engine's own settings are
    return found + [
        Candidate(
            name,
            {"cache.retention": name, "cache.retention_interval": "profile"},
            {KEEP: name},
        )
        for name in TABLE[RETENTION]
        if name not in same
    ]


def _tiers(scenario: Scenario) -> list[Candidate]:
    tier = scenario.offload
    if tier is None or isinstance(tier, MooncakeOffload):
        return []
    unit = scenario.scheduler_block_tokens
    whole = -(-4096 // unit) * unit
    choices: dict[str, dict[str, Any]] = {
        f"tier-{name}": {"offload.eviction": name} for name in TABLE[HOST_EVICTION]
    }
    if any(group.kind != "full" for group in scenario.model_spec.groups):
        kept: dict[str, int | None] = {"tier-dense": None, "tier-0": 0, f"tier-{whole}": whole}
        choices |= {label: {"offload.retention_interval": at} for label, at in kept.items()}
    choices["tier-answers"] = {"offload.prompt_only": False}
    return [Candidate(label, keys, {TIER: label}) for label, keys in choices.items()]


def _both(one: Candidate, other: Candidate) -> Candidate:
    if not one.keys:
        return other
    return Candidate(
        f"{one.label}+{other.label}",
        {**one.keys, **other.keys},
        {**one.parts, **other.parts},
    )


def _possible(scenario: Scenario, candidates: Iterable[Candidate]) -> Iterable[Candidate]:
    """Those that the scenario can be run with: a release may not know them, nor a model."""
    from kvsim.scenario.not_simulated import not_simulated

    for one in candidates:
        try:
            made = scenario.replace(one.keys, "advise")
        except Problems:
            continue
        if not list(not_simulated(made)):
            yield replace(one, is_engine=as_set(made).is_engine)


def _is_set(scenario: Scenario, candidate: Candidate) -> bool:
    """Whether a candidate changes nothing."""
    return scenario.replace(candidate.keys, "advise").resolved() == scenario.resolved()
