"""The report's plots, each an SVG inside the page with its caption."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvsim.errors import KvsimError
from kvsim.report.fleets import fleet_plots
from kvsim.report.markup import safe
from kvsim.study import findings
from kvsim.study.frames import POLICY_KEYS
from kvsim.study.runs import Runs, labelled, mean_rows


def plots_of(
    runs: Runs, best: str | None, ceiling: float | None, left_out: list[str]
) -> Iterator[str]:
    """Every plot that these runs can give; what they cannot give is noted.

    Args:
        runs: what to draw.
        best: the run that is shown alone beside the first; None for none.
        ceiling: token hit rate of an infinite cache.
        left_out: sentences are added to it.
    """
    of_fleets = (_Plot(*drawn) for drawn in fleet_plots(runs, best))
    for plot in (*_sweep_plots(runs, ceiling), *of_fleets, *_run_plots(runs, best)):
        try:
            yield _drawn(plot)
        except KvsimError as error:
            what = plot.caption.split(":")[0]
            left_out.append(f"{what}: left out. {' '.join(str(error).split())}")


@dataclass(frozen=True)
class _Plot:
    """A plot to be made: what to call on new axes, its caption, and how many axes."""

    draw: Callable[..., object]
    caption: str
    num_axes: int = 1


def _sweep_plots(runs: Runs, ceiling: float | None) -> Iterator[_Plot]:
    from kvsim import plots

    others = findings.other_axes(runs.axes)
    objective = runs.scenario.objective
    limit_s = objective.ttft_s if objective else None
    for axis in others:
        frame = labelled(runs.frame, [other for other in others if other != axis])
        if runs.frame[axis].nunique() < 2:
            continue
        if axis in findings.CAPACITY_AXES:
            yield _Plot(
                lambda ax, f=frame, a=axis: plots.hit_rate_by_capacity(
                    f, capacity=a, ceiling=ceiling, ax=ax
                ),
                "Hit rate against capacity: rings mark the smallest capacity tried with "
                f"{findings.KNEE_SHARE:.0%} of the best of its line.",
            )
        elif axis in findings.RATE_AXES:
            rate = findings.RATE_AXES[axis]
            yield _Plot(
                lambda ax, f=frame, r=rate: plots.ttft_by_rate(
                    f, rate=r, objective_s=limit_s, ax=ax
                ),
                "TTFT against request rate: thick lines p99, thin lines p50.",
            )
    table_axes = [axis for axis in runs.axes if runs.frame[axis].nunique(dropna=False) > 1]
    one_variant = runs.varied is not None and runs.frame["variant"].nunique() == 1
    if len(table_axes) == 2 and one_variant:
        x, y = table_axes
        if x in POLICY_KEYS:
            x, y = y, x
        yield _Plot(
            lambda ax: plots.heat_map(runs.frame, x, y, ax=ax),
            f"Token hit rate over {x} and {y}.",
        )


def _run_plots(runs: Runs, best: str | None) -> Iterator[_Plot]:
    from kvsim import plots
    from kvsim.study.fleets import is_fleet
    from kvsim.study.probe import is_probe, read_probe
    from kvsim.study.reuse import reuse_by_run

    results = runs.results
    alone = not findings.other_axes(runs.axes) and not runs.fleet_keys
    if alone and runs.frame["label"].nunique() > 1:
        means = mean_rows(runs.frame)
        yield _Plot(
            lambda axes: plots.policies_side_by_side(means, axes=axes),
            "Policies side by side: hit rate, TTFT, and what leaves the cache.",
            3,
        )
    if "missed_tokens.never_seen" in runs.frame.columns and not findings.other_axes(runs.axes):
        yield _Plot(
            lambda ax: plots.missed_tokens(mean_rows(runs.frame), ax=ax),
            "Why tokens were missed: prompt tokens seen before, found or why not.",
        )
    if not results:
        return
    if all(is_probe(result) for result in results.values()):
        yield _Plot(
            lambda axes: plots.retention_tradeoff(read_probe(results), axes=axes),
            "Retention trade-off: what each policy keeps of many sessions, and of one.",
            4,
        )
    objective = runs.scenario.objective
    limit_s = objective.ttft_s if objective else None
    yield _Plot(
        lambda ax: plots.ttft_distribution(results, objective_s=limit_s, ax=ax),
        "TTFT: share of requests whose first token came within a time.",
    )
    if any(result.requests["tpot_s"].notna().any() for result in results.values()):
        tpot_s = objective.tpot_s if objective else None
        yield _Plot(
            lambda ax: plots.tpot_distribution(results, objective_s=tpot_s, ax=ax),
            "TPOT: share of requests whose tokens after the first came within a time each.",
        )
    yield _Plot(
        lambda ax: plots.prefix_survival(results, reuse_by_run(runs.scenario, results), ax=ax),
        "Survival of a prefix: share of what could be reused that was found, by its idle time.",
    )
    for label in _shown_alone(runs, best):
        result = results[label]
        yield _Plot(
            lambda ax, r=result, n=label: plots.pool_by_state(r, name=n, ax=ax),
            f"{label}, pool by state: blocks in use, free but cached, and blank.",
        )
        yield _Plot(
            lambda ax, r=result, n=label: plots.pool_by_group(r, name=n, ax=ax),
            f"{label}, pool by KV cache group: which group's blocks are cached.",
        )
        if result.summary["evicted_blocks"]:
            yield _Plot(
                lambda ax, r=result, n=label: plots.evictions(r, name=n, ax=ax),
                f"{label}, what evicted what: cached blocks lost, by the group that took them.",
            )
    if any(result.summary.get("tiers") for result in results.values()):
        yield _Plot(
            lambda ax: plots.bytes_by_tier(results, ax=ax),
            "Bytes by tier: stored and loaded.",
        )
        for label in _shown_alone(runs, best):
            result = results[label]
            if not result.summary.get("tiers") or is_fleet(result):
                continue  # links of a fleet are shown one by one
            yield _Plot(
                lambda ax, r=result, n=label: plots.link_utilization(r, name=n, ax=ax),
                f"{label}, link utilization over time.",
            )


def _shown_alone(runs: Runs, best: str | None) -> list[str]:
    """The runs worth a look of their own: the first, as what is compared with, and the best."""
    labels = list(runs.results)
    return list(dict.fromkeys([labels[0], best if best in runs.results else labels[0]]))


def _drawn(plot: _Plot) -> str:
    """A plot as a figure of the page, its SVG inside."""
    from kvsim.plots.layout import figure_of
    from kvsim.plots.style import svg_text

    svg = svg_text(figure_of(plot.draw, plot.num_axes))
    picture = base64.b64encode(svg.encode()).decode()
    caption = safe(plot.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/svg+xml;base64,{picture}">'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )
