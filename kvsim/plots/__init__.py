"""Plots: a frame or results, and axes if you have some, in; axes out. Nothing is simulated.

A frame is made by `frame` from results or from a sweep. Every plot draws in one style, with one
colour for each policy everywhere; `save` writes PNG, SVG or PDF.
May come in: studies, results and what lies below; the only room that knows matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.plots.capacity import hit_rate_by_capacity
from kvsim.plots.fleets import (
    layouts_by_load,
    layouts_side_by_side,
    recovery,
    replicas_over_time,
    routers_side_by_side,
)
from kvsim.plots.latency import tpot_distribution, ttft_by_rate, ttft_distribution
from kvsim.plots.links import links_by_bytes
from kvsim.plots.matrix import evictions, heat_map
from kvsim.plots.misses import missed_tokens
from kvsim.plots.policies import policies_side_by_side, retention_tradeoff
from kvsim.plots.pool import pool_by_group, pool_by_state
from kvsim.plots.reuse import trace_reuse
from kvsim.plots.style import InputError, check_picture, policy_style, save
from kvsim.plots.survival import prefix_survival
from kvsim.plots.tiers import bytes_by_tier, link_utilization

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.study.frames import Results
    from kvsim.study.sweep_table import SweepResult

__all__ = [
    "InputError",
    "bytes_by_tier",
    "check_picture",
    "evictions",
    "frame",
    "heat_map",
    "missed_tokens",
    "hit_rate_by_capacity",
    "layouts_by_load",
    "layouts_side_by_side",
    "link_utilization",
    "links_by_bytes",
    "policies_side_by_side",
    "policy_style",
    "pool_by_group",
    "pool_by_state",
    "prefix_survival",
    "recovery",
    "replicas_over_time",
    "retention_tradeoff",
    "routers_side_by_side",
    "save",
    "trace_reuse",
    "ttft_by_rate",
    "tpot_distribution",
    "ttft_distribution",
]


def frame(runs: SweepResult | Results) -> pd.DataFrame:
    """A row a run, with `label` and `policy`, as the plots take it.

    Args:
        runs: a sweep (failed runs are left out), a result, several, or a mapping from name to
            result.

    Raises:
        KvsimError: there are none, or two results go under one name.
    """
    from kvsim.study.frames import results_frame, sweep_frame
    from kvsim.study.sweep_table import SweepResult

    return sweep_frame(runs) if isinstance(runs, SweepResult) else results_frame(runs)
