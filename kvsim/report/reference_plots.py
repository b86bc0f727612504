"""The plots that stand beside a reference result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvsim import plots
from kvsim.errors import KvsimError
from kvsim.plots.style import bars_size_in, figure_of
from kvsim.results.store import RunResult
from kvsim.study.reuse import reuse_by_run


def draw_reference(results: Mapping[str, RunResult], directory: Path) -> None:
    """Draw policies, tiers, TTFT and survival of results by variant into a directory."""
    if len(results) > 1:
        frame = plots.frame(results)
        policies = figure_of(
            lambda axes: plots.policies_side_by_side(frame, axes=axes), bars_size_in(len(frame)), 3
        )
        plots.save(policies, directory / "policies.png")
    num_tiers = sum(len(result.summary["tiers"]) for result in results.values())
    if num_tiers:
        tiers = figure_of(
            lambda ax: plots.bytes_by_tier(results, ax=ax), (9.0, 1.4 + 0.7 * num_tiers)
        )
        plots.save(tiers, directory / "tiers.png")
    ttft = figure_of(lambda ax: plots.ttft_distribution(results, ax=ax), (8.0, 4.5))
    plots.save(ttft, directory / "ttft.png")
    try:
        offered = reuse_by_run(next(iter(results.values())).scenario, results)
        survival = figure_of(lambda ax: plots.prefix_survival(results, offered, ax=ax), (8.0, 4.5))
    except KvsimError:
        return  # a workload that shares nothing
    plots.save(survival, directory / "survival.png")
