"""`kvsim plot`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.cli.terminal import RunOrSweep
from kvsim.errors import KvsimError, Problems, unknown_name

if TYPE_CHECKING:
    from kvsim.results.store import RunResult
    from kvsim.study.runs import Runs


@dataclass(frozen=True)
class _Choices:
    """What the options ask for, None where they are left out."""

    x: str | None
    y: str | None
    figure: str | None
    run: str | None


def _hit_rate(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots
    from kvsim.study.findings import CAPACITY_AXES
    from kvsim.study.reuse import ceiling

    axis = choices.x or _only_axis(runs, CAPACITY_AXES, "a capacity")
    try:
        limit = ceiling(runs.scenario)
    except KvsimError:
        limit = None  # the trace is gone: the plot is drawn without the ceiling
    frame = _beside(runs, axis)
    return plots.hit_rate_by_capacity(frame, capacity=axis, ceiling=limit)


def _ttft_rate(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots
    from kvsim.study.findings import RATE_AXES

    axis = _only_axis(runs, RATE_AXES, "a request rate") if choices.x is None else ""
    objective = runs.scenario.objective
    return plots.ttft_by_rate(
        _beside(runs, axis),
        rate=choices.x or RATE_AXES[axis],
        objective_s=objective.ttft_s if objective else None,
    )


def _ttft(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots

    objective = runs.scenario.objective
    return plots.ttft_distribution(_each(runs), objective_s=objective.ttft_s if objective else None)


def _policies(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots
    from kvsim.study.findings import other_axes
    from kvsim.study.runs import labelled, mean_rows

    return plots.policies_side_by_side(mean_rows(labelled(runs.frame, other_axes(runs.axes))))


def _retention(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots
    from kvsim.study.probe import read_probe

    return plots.retention_tradeoff(read_probe(_each(runs)))


def _survival(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots
    from kvsim.study.reuse import reuse_by_run

    results = _each(runs)
    return plots.prefix_survival(results, reuse_by_run(runs.scenario, results))


def _tiers(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots

    return plots.bytes_by_tier(_each(runs))


def _heat_map(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots

    varied = [axis for axis in runs.axes if runs.frame[axis].nunique(dropna=False) > 1]
    axes = [choices.x, choices.y]
    if None in axes:
        free = iter(axis for axis in varied if axis not in axes)
        axes = [axis or next(free, None) for axis in axes]
    x, y = axes
    if x is None or y is None:
        names = ", ".join(varied) or "none"
        raise KvsimError(
            f"{runs.path}: a heat map needs two axes, and {names} was varied. Sweep two keys, or "
            "name columns with --x and --y."
        )
    return plots.heat_map(runs.frame, x, y, figure=choices.figure or "token_hit_rate")


def _of_one(draw: Callable[[Any, RunResult], Any]) -> Callable[[Runs, _Choices], Any]:
    def drawn(runs: Runs, choices: _Choices) -> Any:
        from kvsim import plots

        results = _each(runs)
        if choices.run is not None and choices.run not in results:
            raise KvsimError(f"{runs.path}: --run: {unknown_name('run', choices.run, results)}")
        if choices.run is None and len(results) > 1:
            raise KvsimError(
                f"{runs.path}: this plot shows one run. Name one with --run: {', '.join(results)}."
            )
        return draw(plots, results[choices.run or next(iter(results))])

    return drawn


_KINDS: dict[str, Callable[[Runs, _Choices], Any]] = {
    "policies": _policies,
    "hit-rate": _hit_rate,
    "ttft": _ttft,
    "ttft-rate": _ttft_rate,
    "retention": _retention,
    "survival": _survival,
    "pool": _of_one(lambda plots, result: plots.pool_by_state(result.timeline)),
    "pool-groups": _of_one(lambda plots, result: plots.pool_by_group(result)),
    "evictions": _of_one(lambda plots, result: plots.evictions(result)),
    "tiers": _tiers,
    "links": _of_one(lambda plots, result: plots.link_utilization(result.timeline)),
    "heat-map": _heat_map,
}


def plot(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(_KINDS)}.")],
    path: RunOrSweep,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A .png, .svg or .pdf. Default: KIND.png here."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The run to show, in plots of one (pool, evictions, ...)."
        ),
    ] = None,
    x: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Horizontal axis: a key that was varied, or a figure."),
    ] = None,
    y: Annotated[
        str | None, typer.Option(metavar="KEY", help="Vertical axis of a heat map.")
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What a heat map shows: token_hit_rate (default), ttft_s.p99, ..."
        ),
    ] = None,
) -> None:
    """Draw a plot of runs: PNG, SVG or PDF, in one style, readable in greyscale."""
    if kind not in _KINDS:
        raise KvsimError(f"KIND: {unknown_name('kind of plot', kind, _KINDS)}")
    from kvsim import plots
    from kvsim.study.runs import read_runs

    target = out if out is not None else Path(f"{kind}.png")
    plots.check_picture(target)
    drawn = _KINDS[kind](read_runs(path), _Choices(x, y, figure, run))
    sys.stdout.write(f"Plot: {plots.save(drawn, target)}\n")


def _each(runs: Runs) -> dict[str, RunResult]:
    """The runs one by one."""
    if not runs.results:
        raise Problems(
            str(runs.path),
            [
                f"this plot needs the runs one by one, and the sweep has {len(runs.frame)}. Give "
                "the directory of one of its runs."
            ],
        )
    return runs.results


def _only_axis(runs: Runs, known: dict[str, str], what: str) -> str:
    axes = [axis for axis in runs.axes if axis in known]
    if len(axes) != 1:
        found = f"{', '.join(axes)} are" if axes else "none is"
        raise KvsimError(
            f"{runs.path}: this plot needs {what} that was varied ({', '.join(known)}), and "
            f"{found}. Sweep one of them, or name a column with --x."
        )
    return axes[0]


def _beside(runs: Runs, axis: str) -> Any:
    """The frame with other axes than the one drawn in its labels."""
    from kvsim.study.findings import other_axes
    from kvsim.study.runs import labelled

    return labelled(runs.frame, other_axes(runs.axes, axis))
