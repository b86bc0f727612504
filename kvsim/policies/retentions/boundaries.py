"""Retention at the boundaries that a prompt itself names."""

from __future__ import annotations

from kvsim.policies.contract import count, retention
from kvsim.policies.facts import Run


@retention(
    "runs at replay boundaries and at junctions alone", source="vLLM #43447, retention interval 0"
)
def boundary(run: Run) -> bool:
    """The engine's rule, which `cache.retention_interval` 0 has as well."""
    return run.is_replay or run.is_junction


@retention(
    "runs at junctions alone: where siblings are known to diverge",
    source="vLLM 0.32, shared-prefix junctions, without replay boundaries",
)
def junction(run: Run) -> bool:
    """A prompt that never comes again keeps nothing; the second sibling keeps for the third."""
    return run.is_junction


@retention(
    "as boundary, and runs in the answer, where the next turn resumes",
    source="kvsim; a turn's prompt begins with the prompt and the answer of the one before",
    tokens=count(256, "tokens between runs in the answer, in whole units of hits", low=1),
)
def next_turn(run: Run, tokens: int) -> bool:
    """How long an answer becomes is not known before, so all along it one has to be ready."""
    if run.is_replay or run.is_junction:
        return True
    step = max(1, -(-tokens // run.unit_tokens)) * run.unit_tokens
    return run.in_answer and run.boundary_tokens % step == 0
