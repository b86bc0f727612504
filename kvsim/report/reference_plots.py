"""The plots that stand beside a reference result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvsim import plots
from kvsim.errors import KvsimError
from kvsim.plots.layout import figure_of
from kvsim.results.store import RunResult
from kvsim.study.reuse import reuse_by_run


def draw_reference(results: Mapping[str, RunResult], directory: Path) -> None:
    """Draw policies, tiers, TTFT and survival of results by variant into a directory."""
    if len(results) > 1:
        frame = plots.frame(results)
        policies = figure_of(lambda axes: plots.policies_side_by_side(frame, axes=axes), 3)
        plots.save(policies, directory / "policies.png")
    if any(result.summary["tiers"] for result in results.values()):
        tiers = figure_of(lambda ax: plots.bytes_by_tier(results, ax=ax))
        plots.save(tiers, directory / "tiers.png")
    ttft = figure_of(lambda ax: plots.ttft_distribution(results, ax=ax))
    plots.save(ttft, directory / "ttft.png")
    try:
        offered = reuse_by_run(next(iter(results.values())).scenario, results)
        survival = figure_of(lambda ax: plots.prefix_survival(results, offered, ax=ax))
    except KvsimError:
        return  # a workload that shares nothing
    plots.save(survival, directory / "survival.png")
