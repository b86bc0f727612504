"""Retention that goes by what has happened so far."""

from __future__ import annotations

from kvsim.policies.contract import count, retention, share
from kvsim.policies.facts import Run


@retention(
    "as boundary, and runs where hits have landed before",
    source="kvsim; the idea of Marconi's admission: Pan et al., MLSys 2025",
    hits=count(1, "hits at a boundary that make its run worth keeping", low=1),
    replay=count(1, "1 keeps replay boundaries as well, 0 does not", high=1),
)
def hit_driven(run: Run, hits: int, replay: int) -> bool:
    """A boundary that was evicted is kept again by whoever computes it next."""
    return run.is_junction or run.num_hits >= hits or (replay == 1 and run.is_replay)


@retention(
    "as interval, while window runs hold no more than a share of the pool; then as boundary",
    source="kvsim",
    share=share(0.2, "most of the pool that kept window blocks may hold"),
    tokens=count(1024, "tokens between runs, rounded up to whole units of hits", low=1),
)
def budget(run: Run, share: float, tokens: int) -> bool:
    """Spacing is a luxury, boundaries are not."""
    if run.is_replay or run.is_junction:
        return True
    if run.cached_blocks + run.run_blocks > share * run.pool_blocks:
        return False
    step = max(1, -(-tokens // run.unit_tokens)) * run.unit_tokens
    return run.boundary_tokens % step == 0
