"""Runs read from disk for a report or a plot: a result, several, or a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import Problems
from kvsim.results.store import RunResult, load_result
from kvsim.study.frames import results_frame, sweep_frame
from kvsim.study.sweeps import SWEEP_FILE, SweepResult, load_sweep

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.scenario import Scenario

MOST_RUNS_ONE_BY_ONE = 8
"""Most runs of a sweep that are read request by request, for plots and intervals."""


@dataclass
class Runs:
    """What a report is made of.

    Attributes:
        path: where it was read.
        frame: a row a run that is done, from `kvsim.study.frames`.
        results: the runs by label, where they are few; else none.
        axes: axes of the sweep; none for runs.
        scenario: of the first run.
        provenance: of the first run.
        failures: messages of failed runs.
        warnings: of the runs that were read.
    """

    path: Path
    frame: pd.DataFrame
    results: dict[str, RunResult]
    axes: tuple[str, ...]
    scenario: Scenario
    provenance: dict[str, Any]
    failures: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_runs(path: Path | str) -> Runs:
    """Read a result, a directory of results, or a sweep.

    Raises:
        KvsimError: there is none, or it is damaged.
    """
    path = Path(path)
    if (path / SWEEP_FILE).is_file():
        return _sweep_runs(load_sweep(path))
    inside = [file.parent for file in path.glob("*/summary.json") if file.parent.name[0] != "."]
    if (path / "summary.json").is_file() or not inside:
        inside = [path]
    # In the order they were made; when they began is told to the second, the files tell the rest.
    inside.sort(key=lambda entry: (entry.stat().st_mtime_ns, entry.name) if entry.exists() else ())
    results = [load_result(entry) for entry in inside]
    order = sorted(range(len(results)), key=lambda i: str(results[i].provenance.get("started")))
    inside, results = [inside[i] for i in order], [results[i] for i in order]
    named = {result.variant: result for result in results}
    first = results[0]
    warnings = [warning for result in results for warning in result.summary["warnings"]]
    # Directories' names are unique, variants' are not where runs were put together by hand.
    if len(named) < len(results):
        named = {entry.name: result for entry, result in zip(inside, results, strict=True)}
    return Runs(
        path, results_frame(named), named, (), first.scenario, first.provenance, [], warnings
    )


def _sweep_runs(sweep: SweepResult) -> Runs:
    frame = sweep_frame(sweep)
    failed = sweep.table[sweep.table["status"] == "failed"]
    if frame.empty:
        raise Problems(str(sweep.path), ["no run is done, so there is nothing to report. Run it."])
    first = sweep.result(frame["run"].iloc[0])
    results: dict[str, RunResult] = {}
    if len(frame) <= MOST_RUNS_ONE_BY_ONE and not frame["label"].duplicated().any():
        results = {
            label: sweep.result(run)
            for label, run in zip(frame["label"], frame["run"], strict=True)
        }
    return Runs(
        sweep.path,
        frame,
        results,
        sweep.axes,
        first.scenario,
        first.provenance,
        list(dict.fromkeys(failed["message"])),
        list(first.summary["warnings"]),
    )


def labelled(frame: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """The frame with the values of further axes in its labels."""
    if not axes:
        return frame
    labels = [
        ", ".join([str(row["label"]), *(f"{axis} {value_text(row[axis])}" for axis in axes)])
        for row in frame.to_dict("records")
    ]
    return frame.assign(label=labels)


def mean_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a label: figures averaged over seeds."""
    import pandas as pd

    figures: pd.DataFrame = frame.drop(columns=["label", "policy"]).apply(
        pd.to_numeric, errors="coerce"
    )
    means: pd.DataFrame = figures.groupby(frame["label"], sort=False).mean()
    policies = frame.groupby("label", sort=False)["policy"].first()
    return means.assign(policy=policies).reset_index()


def value_text(value: Any) -> str:
    """A value of an axis for people."""
    import pandas as pd

    if pd.isna(value):
        return "null"
    value = value.item() if hasattr(value, "item") else value
    return f"{value:,.6g}" if isinstance(value, int | float) else str(value)
