"""Retention at boundaries by their distance from the start of the prompt."""

from __future__ import annotations

from kvsim.policies.contract import count, retention
from kvsim.policies.facts import Run


@retention("the run at every boundary is kept", source="vLLM, retention interval None")
def dense(run: Run) -> bool:
    """Whatever may come can resume anywhere."""
    return True


@retention(
    "runs at every so many tokens, at replay boundaries and at junctions",
    source="vLLM #43447, retention interval N",
    tokens=count(4096, "tokens between runs, rounded up to whole units of hits", low=1),
)
def interval(run: Run, tokens: int) -> bool:
    """The engine's rule, which `cache.retention_interval` has as well."""
    step = max(1, -(-tokens // run.unit_tokens)) * run.unit_tokens
    return run.is_replay or run.is_junction or run.boundary_tokens % step == 0


@retention(
    "runs at doubling distances from the start, at replay boundaries and at junctions",
    source="kvsim; spacing as in skip lists: Pugh, CACM 33(6), 1990",
    tokens=count(1024, "distance of the first run; then 2, 4, 8, ... times that", low=1),
)
def exponential(run: Run, tokens: int) -> bool:
    """A resume loses at most half of a prefix, with as many runs as its length has doublings."""
    if run.is_replay or run.is_junction:
        return True
    mark = tokens
    while mark <= run.boundary_tokens - run.unit_tokens:
        mark *= 2
    return mark <= run.boundary_tokens  # the first boundary at or behind a mark serves it
