"""`kvsim plot`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.cli.terminal import RunOrSweep
from kvsim.errors import KvsimError, nearest, show, unknown_name

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.results.store import RunResult
    from kvsim.study.runs import Runs


@dataclass(frozen=True)
class _Choices:
    """What the options ask for, None where they are left out."""

    x: str | None
    y: str | None
    figure: str | None
    run: str | None


@dataclass(frozen=True)
class _Kind:
    """A kind of plot: how it is drawn, what it shows in a line, and which options it has."""

    draw: Callable[[Runs, _Choices], Any]
    shows: str
    options: tuple[str, ...] = ()


def _hit_rate(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots
    from kvsim.study.findings import CAPACITY_AXES
    from kvsim.study.reuse import ceiling

    axis = choices.x or _only_axis(runs, CAPACITY_AXES, "a capacity")
    try:
        limit = ceiling(runs.scenario)
    except KvsimError:
        limit = None  # the trace is gone: the plot is drawn without the ceiling
    frame = _beside(runs, axis, f"node.{axis}")
    return plots.hit_rate_by_capacity(frame, capacity=axis, ceiling=limit)


def _ttft_rate(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots
    from kvsim.study.findings import RATE_AXES

    rate = choices.x or RATE_AXES[_only_axis(runs, RATE_AXES, "a request rate")]
    # A key that sets this rate is on the axis with it.
    keys = [key for key, column in RATE_AXES.items() if column == rate]
    return plots.ttft_by_rate(_beside(runs, rate, *keys), rate=rate, objective_s=_objective_s(runs))


def _ttft(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots

    return plots.ttft_distribution(_each(runs), objective_s=_objective_s(runs))


def _tpot(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots

    objective = runs.scenario.objective
    limit_s = objective.tpot_s if objective else None
    return plots.tpot_distribution(_each(runs), objective_s=limit_s)


def _misses(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots
    from kvsim.study.runs import mean_rows

    return plots.missed_tokens(mean_rows(_beside(runs)))


def _retention(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots
    from kvsim.study.probe import is_probe, read_probe

    results = _each(runs)
    others = [name for name, result in results.items() if not is_probe(result)]
    if others:
        raise KvsimError(
            f"{runs.path}: {', '.join(others)}: no run of the retention probe. Write its scenario "
            "with kvsim new probe.yaml --retention-probe, and run that."
        )
    return plots.retention_tradeoff(read_probe(results))


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
    figure = choices.figure or "token_hit_rate"
    keys = [x, y, *(["seed"] if "seed" in runs.frame.columns else [])]
    if runs.frame.duplicated(keys).any():
        others = [key for key in varied if key not in keys] or ["label"]
        vary = "varies" if len(others) == 1 else "vary"
        raise KvsimError(
            f"{runs.path}: several runs have the same {x} and {y}: {' and '.join(others)} {vary} "
            f"too. {_keep_fewer(runs, others)}"
        )
    return plots.heat_map(runs.frame, x, y, figure=figure)


def _replicas(runs: Runs, choices: _Choices) -> Any:
    return _of_one(
        lambda plots, result, name: plots.replicas_over_time(result, name=_called(name))
    )(runs, choices)


def _side_by_side(runs: Runs, choices: _Choices, draw: str) -> Any:
    from kvsim import plots
    from kvsim.plots.bars import MOST_BARS
    from kvsim.study.runs import mean_rows

    rows = mean_rows(_beside(runs))
    if len(rows) > MOST_BARS:
        raise KvsimError(
            f"{runs.path}: {len(rows)} runs are too many side by side ({MOST_BARS} at most). "
            f"{_keep_fewer(runs)}"
        )
    return getattr(plots, draw)(rows)


def _policies(runs: Runs, choices: _Choices) -> Any:
    return _side_by_side(runs, choices, "policies_side_by_side")


def _routers(runs: Runs, choices: _Choices) -> Any:
    return _side_by_side(runs, choices, "routers_side_by_side")


def _layouts(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots

    if choices.x is None:
        return _side_by_side(runs, choices, "layouts_side_by_side")
    # What sets the load is on the axis with it; a key of the workload sets nothing else here.
    keys = [axis for axis in runs.axes if axis.startswith("workload.")]
    return plots.layouts_by_load(_beside(runs, choices.x, *keys), load=choices.x)


def _recovery(runs: Runs, choices: _Choices) -> Any:
    from kvsim import plots

    return plots.recovery(_each(runs))


def _of_one(draw: Callable[[Any, RunResult, str], Any]) -> Callable[[Runs, _Choices], Any]:
    def drawn(runs: Runs, choices: _Choices) -> Any:
        from kvsim import plots

        results = _each(runs)
        if choices.run is not None and choices.run not in results:
            raise KvsimError(f"{runs.path}: --run: {unknown_name('run', choices.run, results)}")
        if choices.run is None and len(results) > 1:
            raise KvsimError(
                f"{runs.path}: this plot shows one run. Name one with --run: {', '.join(results)}."
            )
        name = choices.run or next(iter(results))
        return draw(plots, results[name], name)

    return drawn


def _links(plots: Any, result: RunResult, name: str | None) -> Any:
    from kvsim.study.fleets import is_fleet

    draw = plots.links_by_bytes if is_fleet(result) else plots.link_utilization
    return draw(result, name=name)


_ONE = ("--run",)
_KINDS: dict[str, _Kind] = {
    "policies": _Kind(_policies, "hits, TTFT, bytes stored or blocks evicted, a bar a run"),
    "misses": _Kind(_misses, "why prompt tokens seen before were not found, a bar a run"),
    "hit-rate": _Kind(
        _hit_rate, "token hit rate over a capacity that was varied, with knees", ("--x",)
    ),
    "ttft": _Kind(_ttft, "share of requests whose first token came within a time"),
    "tpot": _Kind(_tpot, "share of requests whose tokens came within a time each"),
    "ttft-rate": _Kind(_ttft_rate, "TTFT p50 and p99 over the request rate", ("--x",)),
    "retention": _Kind(_retention, "what each interval keeps (kvsim new --retention-probe)"),
    "survival": _Kind(_survival, "reusable tokens found, by idle time of the prefix"),
    "pool": _Kind(
        _of_one(lambda plots, result, name: plots.pool_by_state(result, name=_called(name))),
        "one run: blocks in use, cached and blank over time",
        _ONE,
    ),
    "pool-groups": _Kind(
        _of_one(lambda plots, result, name: plots.pool_by_group(result, name=_called(name))),
        "one run: cached blocks of each KV cache group over time",
        _ONE,
    ),
    "evictions": _Kind(
        _of_one(lambda plots, result, name: plots.evictions(result, name=_called(name))),
        "one run: which group's blocks were evicted for which",
        _ONE,
    ),
    "tiers": _Kind(_tiers, "bytes stored to and loaded from each tier"),
    "links": _Kind(
        _of_one(lambda plots, result, name: _links(plots, result, _called(name))),
        "one run: how busy the links are; of a fleet, bytes by link",
        _ONE,
    ),
    "replicas": _Kind(_replicas, "one fleet: requests and hit rate by replica over time", _ONE),
    "routers": _Kind(_routers, "fleets: hits, hits lost to routing, TTFT, imbalance, a bar a run"),
    "layouts": _Kind(
        _layouts,
        "TP against DP: hits, TTFT, TPOT; lines over a load with --x",
        ("--x",),
    ),
    "recovery": _Kind(_recovery, "fleets: hit rate over time as nodes are lost and come back"),
    "heat-map": _Kind(
        _heat_map, "a figure over two axes that were varied", ("--x", "--y", "--figure")
    ),
}


def help_text() -> str:
    """What `kvsim plot --help` says, with a line for each kind."""
    width = max(len(name) for name in _KINDS)
    kinds = "\n".join(f"  {name:<{width}}  {kind.shows}" for name, kind in _KINDS.items())
    return (
        f"Draw a plot of runs: PNG, SVG or PDF, in one style, readable in greyscale.\n\n\b\n{kinds}"
    )


def plot(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What to draw: one of those above.")],
    path: RunOrSweep,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A .png, .svg or .pdf. Default: KIND.png here."),
    ] = None,
    where: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE",
            help="Keep the runs with this value of a key that was varied. May be given again.",
        ),
    ] = [],  # noqa: B006 - typer copies it
    run: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The run to show, in plots of one run."),
    ] = None,
    x: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Horizontal axis of hit-rate, ttft-rate, layouts, heat-map: a key that was "
            "varied, or a figure.",
        ),
    ] = None,
    y: Annotated[str | None, typer.Option(metavar="KEY", help="Vertical axis of heat-map.")] = None,
    figure: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What heat-map shows: token_hit_rate (default), ttft_s.p99, ..."
        ),
    ] = None,
) -> None:
    """Draw a plot of runs; `help_text` is what users see."""
    if kind not in _KINDS:
        raise KvsimError(f"KIND: {unknown_name('kind of plot', kind, _KINDS)}")
    from kvsim import plots
    from kvsim.study.runs import read_runs

    target = out if out is not None else Path(f"{kind}.png")
    plots.check_picture(target)
    given = {"--run": run, "--x": x, "--y": y, "--figure": figure}
    for option, value in given.items():
        if value is not None and option not in _KINDS[kind].options:
            able = ", ".join(name for name, other in _KINDS.items() if option in other.options)
            raise KvsimError(f"{option}: plot {kind} has no such option. It is for {able}.")
    runs = _kept(read_runs(path), where)
    for option, column, numbers in (
        ("--x", x, kind != "heat-map"),
        ("--y", y, False),
        ("--figure", figure, True),
    ):
        if column is not None:
            _check_column(runs, option, column, numbers)
    try:
        drawn = _KINDS[kind].draw(runs, _Choices(x, y, figure, run))
    except plots.InputError as error:
        raise KvsimError(f"{path}: {error.problem}") from None
    sys.stdout.write(f"Plot: {plots.save(drawn, target)}\n")


def _called(name: str) -> str | None:
    """A run's name for a title; that of a scenario without variants says nothing."""
    return None if name == "default" else name


def _objective_s(runs: Runs) -> float | None:
    objective = runs.scenario.objective
    return objective.ttft_s if objective else None


def _kept(runs: Runs, where: Iterable[str]) -> Runs:
    """The runs that have all the values asked for.

    Raises:
        KvsimError: no key and value, an unknown key, or no such run.
    """
    from kvsim.study.frames import axis_text

    for text in where:
        key, equals, wanted = text.partition("=")
        if not equals:
            raise KvsimError(f"--where: {show(text)} is no KEY=VALUE. Write node.num_blocks=25000.")
        _check_column(runs, "--where", key, numbers=False)
        column = runs.frame[key]
        has = column.map(lambda value, k=key, w=wanted: w in (axis_text(k, value), _plain(value)))
        if not has.any():
            known = ", ".join(dict.fromkeys(show(_plain(value)) for value in column))
            raise KvsimError(f"--where: no run has {key} {show(wanted)}. Use one of {known}.")
        frame = runs.frame[has].reset_index(drop=True)
        axes = tuple(axis for axis in runs.axes if frame[axis].nunique(dropna=False) > 1)
        labels = set(frame["label"])
        results = {name: result for name, result in runs.results.items() if name in labels}
        runs = replace(runs, frame=frame, axes=axes, results=results)
    return runs


def _plain(value: Any) -> str:
    """A value as it is written in a scenario."""
    from kvsim.study.frames import axis_text

    return axis_text("", value).replace(",", "") if not isinstance(value, str) else value


def _check_column(runs: Runs, option: str, column: str, numbers: bool) -> None:
    import pandas as pd

    columns = [str(name) for name in runs.frame.columns]
    if column not in columns:
        near = nearest(column, columns)
        axes = f"a key that was varied ({', '.join(runs.axes)})" if runs.axes else "num_blocks"
        advice = f"Did you mean '{near}'?" if near else f"Use {axes}, or a figure, as ttft_s.p99."
        raise KvsimError(f"{runs.path}: {option}: unknown column {show(column)}. {advice}")
    if numbers and not pd.to_numeric(runs.frame[column], errors="coerce").notna().any():
        raise KvsimError(
            f"{runs.path}: {option}: {column} holds no numbers. Use a figure, as ttft_s.p99."
        )


def _each(runs: Runs) -> dict[str, RunResult]:
    """The runs one by one."""
    if runs.results:
        return runs.results
    from kvsim.study.runs import MOST_RUNS_ONE_BY_ONE
    from kvsim.study.sweep_table import load_sweep

    if len(runs.frame) > MOST_RUNS_ONE_BY_ONE:
        raise KvsimError(
            f"{runs.path}: this plot reads runs one by one, {MOST_RUNS_ONE_BY_ONE} at most, and "
            f"the sweep has {len(runs.frame)}. {_keep_fewer(runs)}"
        )
    sweep = load_sweep(runs.path)
    frame = _beside(runs)
    if frame["label"].duplicated().any():
        frame = frame.assign(label=[f"{r['label']}, seed {r['seed']}" for _, r in frame.iterrows()])
    return {
        label: sweep.result(run) for label, run in zip(frame["label"], frame["run"], strict=True)
    }


def _keep_fewer(runs: Runs, keys: Sequence[str] = ()) -> str:
    """What to do where there are too many runs."""
    varied = [*runs.axes, "seed", "variant", "label"]
    for key in keys or varied:
        if key in runs.frame.columns and runs.frame[key].nunique(dropna=False) > 1:
            value = _plain(runs.frame[key].iloc[0])
            setting = f"{key}={value}"
            setting = f"'{setting}'" if " " in setting else setting
            return f"Keep those of one value, as with --where {setting}."
    return "Give a directory with fewer runs."


def _only_axis(runs: Runs, known: dict[str, str], what: str) -> str:
    axes = [axis for axis in runs.axes if axis in known]
    if len(axes) != 1:
        found = f"{', '.join(axes)} are" if axes else "none is"
        raise KvsimError(
            f"{runs.path}: this plot needs {what} that was varied ({', '.join(known)}), and "
            f"{found}. Sweep one of them, or name a column with --x."
        )
    return axes[0]


def _beside(runs: Runs, *shown: str) -> pd.DataFrame:
    """The frame with other axes than those drawn in its labels."""
    from kvsim.study.findings import other_axes
    from kvsim.study.runs import labelled

    return labelled(runs.frame, other_axes(runs.axes, *shown))
