"""Runs read from disk for a report or a plot: a result, several, or a sweep."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError, Problems
from kvsim.metrics.overload import OVERLOADED
from kvsim.results.store import RunResult, load_requests, load_result, summary_of
from kvsim.results.tables import notes_by_name
from kvsim.study.flat import flat_scenario
from kvsim.study.frames import (
    FLEET_COLUMNS,
    axis_text,
    is_fleet_key,
    results_frame,
    sweep_frame,
)
from kvsim.study.ranking import Noise
from kvsim.study.sweep_table import FAILED, NOT_RUN, SWEEP_FILE, SweepResult, load_sweep

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.scenario import Scenario

MOST_RUNS_ONE_BY_ONE = 8
"""Most runs of a sweep that are read request by request, for plots and intervals."""
MOST_RUNS_FOR_NOISE = 200
"""Most runs of a sweep whose requests are read to tell differences from noise."""
SETUP = "set-up"
"""Axis of runs that differ in more keys than would stand in a table."""
_MOST_KEYS = 3
_MOST_KEYS_TOLD = 8
_OF_POLICIES = ("cache", "offload", "engine.profile")
"""Keys that a policy consists of: what is kept, where, and by which version."""
_OF_NO_RESULT = ("output",)


@dataclass
class Runs:
    """What a report is made of.

    Attributes:
        path: where it was read.
        frame: a row a run that is done, from `kvsim.study.frames`, with a column for each axis.
        results: the runs by label, where they are few; else none.
        axes: axes of the sweep, and keys beside the policy in which variants or results differ.
        scenario: of the first run.
        provenance: of the first run.
        failures: messages of failed runs.
        warnings: of the runs that were read, with whose they are.
        told_first: sentences to read before any other: what is missing, what cannot be compared.
        varied: the whole of a sweep's scenario, with its variants and axes; None for results.
        fleet_keys: keys of routers and layouts in which runs differ, which their labels stand for.
    """

    path: Path
    frame: pd.DataFrame
    results: dict[str, RunResult]
    axes: tuple[str, ...]
    scenario: Scenario
    provenance: dict[str, Any]
    failures: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    told_first: list[str] = field(default_factory=list)
    varied: Scenario | None = None
    fleet_keys: tuple[str, ...] = ()

    def noise(self, rows: pd.DataFrame) -> Noise:
        """Intervals of differences between some rows of the frame."""
        objective = self.scenario.objective
        by_label: dict[str, list[Any]] = {}
        for row in rows.to_dict("records"):
            by_label.setdefault(str(row["label"]), []).append(row)

        def requests_of(label: str) -> pd.DataFrame | None:
            own = by_label[label]
            if len(own) != 1:
                return None
            if label in self.results:
                return self.results[label].requests
            if "run" not in own[0] or len(self.frame) > MOST_RUNS_FOR_NOISE:
                return None
            try:
                return load_requests(self.path / str(own[0]["run"]))
            except KvsimError:
                return None  # its requests are gone: the table still has its figures

        return Noise(requests_of, objective)


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
    # Directories' names are unique, variants' are not where runs were put together by hand.
    if len(named) < len(results):
        named = {entry.name: result for entry, result in zip(inside, results, strict=True)}
    frame = results_frame(named)
    keys = {
        name: {**flat_scenario(result), "seed": str(result.scenario.seed)}
        for name, result in named.items()
    }
    axes, told, fleet_keys = _beside_the_policy(frame, "label", keys)
    told += _versions({name: result.provenance for name, result in named.items()})
    warnings = notes_by_name({name: r.summary["warnings"] for name, r in named.items()})
    return Runs(
        path,
        frame,
        named,
        axes,
        first.scenario,
        first.provenance,
        [],
        warnings,
        told_first=told,
        fleet_keys=fleet_keys,
    )


def _sweep_runs(sweep: SweepResult) -> Runs:
    from kvsim.scenario.reading import expand_variants

    frame = sweep_frame(sweep)
    failed = sweep.table[sweep.table["status"] == FAILED]
    if frame.empty:
        raise Problems(str(sweep.path), ["no run is done, so there is nothing to report. Run it."])
    first = sweep.result(frame["run"].iloc[0])
    frame, placed = _labelled_by_fleet(frame, sweep.axes)
    results: dict[str, RunResult] = {}
    if len(frame) <= MOST_RUNS_ONE_BY_ONE and not frame["label"].duplicated().any():
        results = {
            label: sweep.result(run)
            for label, run in zip(frame["label"], frame["run"], strict=True)
        }
    variants = expand_variants(sweep.scenario)
    keys = {name: flat_scenario(variant) for name, variant in variants.items()}
    more, told, fleet_keys = _beside_the_policy(frame, "variant", keys)
    return Runs(
        sweep.path,
        frame,
        results,
        (*(axis for axis in sweep.axes if axis not in placed), *more),
        first.scenario,
        first.provenance,
        list(dict.fromkeys(failed["message"])),
        _sweep_warnings(sweep, frame),
        [*_cut_short(sweep), *told],
        sweep.scenario,
        (*placed, *fleet_keys),
    )


def _labelled_by_fleet(
    frame: pd.DataFrame, axes: Sequence[str]
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The frame with routers and layouts that were varied in its labels, and the keys of these.

    A number of nodes, and numbers of a router, stay axes.
    """
    keys = tuple(
        axis
        for axis in axes
        if is_fleet_key(axis)
        and (axis.startswith("node.") or not _are_numbers(frame[axis]))
        and frame[axis].nunique(dropna=False) > 1
    )
    if not keys:
        return frame, ()
    if frame["label"].nunique() > 1:
        return labelled(frame, keys), keys
    names = [
        ", ".join(
            text if len(keys) == 1 and key.endswith(("router", "kind")) else f"{last} {text}"
            for key in keys
            for last, text in [(key.rpartition(".")[2], axis_text(key, row[key]))]
        )
        for row in frame.to_dict("records")
    ]
    return frame.assign(label=names), keys


def _are_numbers(column: pd.Series[Any]) -> bool:
    import pandas as pd

    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _cut_short(sweep: SweepResult) -> list[str]:
    """That runs are missing, and how many."""
    counts = {word: int((sweep.table["status"] == word).sum()) for word in (NOT_RUN, FAILED)}
    if not any(counts.values()):
        return []
    num_done = len(sweep) - sum(counts.values())
    missing = [f"{count} {word}" for word, count in counts.items() if count]
    cut = counts[NOT_RUN] > 0
    remedy = " The sweep was cut short: kvsim sweep again runs what is missing." if cut else ""
    return [f"{num_done} of {len(sweep)} runs ({', '.join(missing)}).{remedy}"]


def _sweep_warnings(sweep: SweepResult, frame: pd.DataFrame) -> list[str]:
    """Warnings of the runs, by label; of the first ones alone where there are many."""
    notes: dict[str, list[str]] = {}
    for row in frame.head(MOST_RUNS_FOR_NOISE).to_dict("records"):
        summary = summary_of(sweep.path / str(row["run"]))
        # Overloads differ in each run's numbers; `cautions` names the runs instead.
        texts = [text for text in summary.get("warnings", ()) if not text.startswith(OVERLOADED)]
        notes.setdefault(str(row["label"]), []).extend(texts)
    return notes_by_name(notes)


def _beside_the_policy(
    frame: pd.DataFrame, column: str, keys: Mapping[str, Mapping[str, str]]
) -> tuple[tuple[str, ...], list[str], tuple[str, ...]]:
    """What runs differ in beside their policy: a column of the frame each, and a sentence.

    Keys of routers and layouts come apart, as what is compared.

    Args:
        frame: a row a run; columns are added to it.
        column: which of its columns names them.
        keys: by that name, the scenario laid flat, in JSON.
    """
    known = {key: None for flat in keys.values() for key in flat}
    apart = [
        key
        for key in known
        if not any(f"{key}.".startswith(f"{own}.") for own in (*_OF_POLICIES, *_OF_NO_RESULT))
        and len({flat.get(key) for flat in keys.values()}) > 1
    ]
    of_fleet = tuple(key for key in apart if is_fleet_key(key))
    apart = [key for key in apart if key not in of_fleet]
    if not apart:
        return (), [], of_fleet
    told = "; ".join(_told(key, keys) for key in apart[:_MOST_KEYS_TOLD])
    more = len(apart) - _MOST_KEYS_TOLD
    rest = f"; and {more} more keys" if more > 0 else ""
    sentence = (
        f"These runs differ in more than their policy: {told}{rest}. Policies are ranked only "
        "among runs that have the rest in common."
    )
    if len(apart) <= _MOST_KEYS:
        for key in apart:
            values = {name: json.loads(flat.get(key, "null")) for name, flat in keys.items()}
            plain = all(isinstance(v, int | float | str) or v is None for v in values.values())
            shown = values if plain else {name: flat.get(key) for name, flat in keys.items()}
            frame[key] = [shown[str(name)] for name in frame[column]]
        return tuple(apart), [sentence], of_fleet
    groups: dict[tuple[str | None, ...], list[str]] = {}
    for name, flat in keys.items():
        groups.setdefault(tuple(flat.get(key) for key in apart), []).append(name)
    of = {name: f"that of {', '.join(names)}" for names in groups.values() for name in names}
    frame[SETUP] = [of[str(name)] for name in frame[column]]
    return (SETUP,), [sentence], of_fleet


def _told(key: str, keys: Mapping[str, Mapping[str, str]]) -> str:
    """What each has of a key, as in ``node.num_blocks 4,500 (a, b) and 9,000 (c)``."""
    who: dict[str, list[str]] = {}
    for name, flat in keys.items():
        who.setdefault(flat.get(key, "null"), []).append(name)
    parts = []
    for text, names in who.items():
        value = json.loads(text)
        shown = axis_text(key, value) if not isinstance(value, list | dict) else text[:60]
        few = ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"
        parts.append(f"{shown} ({few})")
    return f"{key} {', '.join(parts)}"


def _versions(origins: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """That runs are of different versions of kvsim."""
    who: dict[str, list[str]] = {}
    for name, origin in origins.items():
        who.setdefault(str(origin.get("versions", {}).get("kvsim")), []).append(name)
    if len(who) < 2:
        return []
    told = ", ".join(f"{version} ({', '.join(names)})" for version, names in who.items())
    return [f"These runs are of different versions of kvsim: {told}. Run them again with one."]


def labelled(frame: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """The frame with the values of further axes in its labels."""
    if not axes:
        return frame
    labels = [
        ", ".join([str(row["label"]), *(f"{axis} {axis_text(axis, row[axis])}" for axis in axes)])
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
    names = [name for name in ("policy", *FLEET_COLUMNS) if name in frame.columns]
    words = {name: frame.groupby("label", sort=False)[name].first() for name in names}
    return means.assign(**words).reset_index()
