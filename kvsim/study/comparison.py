"""Runs side by side: what differs in their scenarios, and what that changed, with the noise.

Runs of the same scenario with other seeds are one case. The first case is the reference; the others
are compared with it seed by seed, on the same arrivals, so that what both have in common cancels.
Differences are absolute: of rates in fractions, never in percent of the reference.

With several seeds the interval is Student's t over the paired differences. With one seed, or where
seeds change nothing, it is over stretches of the workload: both cases' requests in the same
stretches, drawn again and again (`kvsim.metrics.uncertainty`). Counts of a single run (evicted
blocks, bytes) are exact and have no interval.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.errors import KvsimError, Problems
from kvsim.metrics.figures import Columns, column_figures, columns_of, flat_figures
from kvsim.metrics.uncertainty import half_width, over_stretches
from kvsim.results.store import RunResult, load_result
from kvsim.study.flat import flat_scenario
from kvsim.study.sweep_table import SWEEP_FILE, SweepResult, load_sweep

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

LENGTH_CLASSES = (1_000, 4_000, 16_000, 64_000, 256_000)
"""Bounds of the classes of prompt lengths, in tokens; each class begins at its bound."""
TABLE_COLUMNS: dict[str, str] = {
    "case": "what is compared with the reference",
    "scope": "all, fleet, a replica, a tier, a KV cache group, or a class of prompt lengths",
    "figure": "name of the figure, as in a summary laid flat",
    "reference": "the reference's value, mean over the seeds; null where it does not exist",
    "value": "the case's value, likewise",
    "difference": "value - reference, mean over the pairs of seeds; null where either is",
    "low": "low end of the 95% interval of the difference; null without one",
    "high": "high end, likewise",
    "basis": "what the interval is over: seeds or stretches; null without one",
    "beyond_noise": "whether the interval leaves 0 out; null without one",
}
"""Columns of a comparison's table, each with its meaning."""
_REAL_TIME = "wall_s"  # differs from run to run whatever is compared
_SEEDS, _STRETCHES = "seeds", "stretches"

Scoped = dict[tuple[str, str], float]
"""Figures by scope and name, NaN where one does not exist."""


@dataclass(frozen=True, slots=True)
class Case:
    """Runs of one scenario, by seed.

    Attributes:
        name: its variant, and what else sets it apart where that is not enough.
        runs: by seed.
    """

    name: str
    runs: Mapping[int, RunResult] = field(repr=False)

    @property
    def first(self) -> RunResult:
        """The run of the lowest seed."""
        return self.runs[min(self.runs)]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between cases.

    Attributes:
        reference: name of the case the others are compared with.
        cases: names of the others, in order.
        scenario_changes: a row a key that differs, with `case`, `key`, `reference` and `value` as
            JSON.
        table: a row a figure, with `TABLE_COLUMNS`.
        notes: sentences for people.
    """

    reference: str
    cases: tuple[str, ...]
    scenario_changes: pd.DataFrame = field(repr=False)
    table: pd.DataFrame = field(repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)

    def _repr_html_(self) -> str:
        """What differs, for a cell of a notebook."""
        from html import escape

        beyond = self.table[self.table["beyond_noise"].fillna(value=False).astype(bool)]
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        columns = ["case", "scope", "figure", "reference", "value", "difference", "low", "high"]
        return (
            f"<p>Against {escape(self.reference)}, what changed:</p>"
            + self.scenario_changes.to_html(index=False)
            + f"<p>{len(beyond)} of {len(self.table)} figures differ beyond the noise:</p>"
            + beyond[columns].to_html(index=False, max_rows=60, float_format="{:.4g}".format)
            + notes
        )

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values, the table as records."""

        def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
            objects = frame.astype(object).where(frame.notna(), None)
            return [
                {str(name): value for name, value in row.items()}
                for row in objects.to_dict(orient="records")
            ]

        return {
            "reference": self.reference,
            "cases": list(self.cases),
            "scenario_changes": records(self.scenario_changes),
            "table": records(self.table),
            "notes": list(self.notes),
        }


def compare(*runs: RunResult | SweepResult | Path | str) -> Comparison:
    """Compare runs with the first of them.

    Args:
        runs: results, or their directories; a directory of results, or of a sweep, stands for all
            the runs in it.

    Raises:
        KvsimError: a result is missing or damaged, or there is nothing to compare with. All
            problems at once.
    """
    results, problems = [], []
    for run in runs:
        try:
            results += list(_results(run))
        except Problems as error:
            problems += [f"{error.where}: {problem}" for problem in error.problems]
        except KvsimError as error:
            problems.append(str(error))
    if problems:
        raise Problems("compare", problems)
    cases = _cases(results)
    if len(cases) < 2:
        what = "they are all runs of one scenario" if len(results) > 1 else "one run was given"
        if not results:
            what = "no run was given"
        raise Problems("compare", [f"{what}. Give runs of two scenarios or variants."])
    reference, *others = cases
    notes: list[str] = []
    rows = [row for case in others for row in _rows(reference, case, notes)]
    changes = [row for case in others for row in _changes(reference, case)]
    import pandas as pd

    return Comparison(
        reference.name,
        tuple(case.name for case in others),
        pd.DataFrame(changes, columns=["case", "key", "reference", "value"]),
        pd.DataFrame(rows, columns=list(TABLE_COLUMNS)).astype({"beyond_noise": "boolean"}),
        tuple(dict.fromkeys(notes)),
    )


def _results(run: RunResult | SweepResult | Path | str) -> Iterator[RunResult]:
    if isinstance(run, RunResult):
        yield run
    elif isinstance(run, SweepResult):
        yield from run.results()
    elif (Path(run) / SWEEP_FILE).is_file():
        yield from load_sweep(run).results()
    elif (Path(run) / "summary.json").is_file():
        yield load_result(run)
    elif inside := _inside(Path(run)):
        yield from inside
    else:
        yield load_result(run)  # which says what is wrong with it


def _inside(path: Path) -> list[RunResult]:
    """Results in a directory in the order they were made, which is that of the variants."""
    found = [file.parent for file in path.glob("*/summary.json") if file.parent.name[0] != "."]
    # When they began is told to the second; within one, the files tell.
    found.sort(key=lambda directory: (directory.stat().st_mtime_ns, directory.name))
    results = [load_result(directory) for directory in found]
    return sorted(results, key=lambda result: str(result.provenance.get("started")))


def _cases(results: Sequence[RunResult]) -> list[Case]:
    """Results by scenario, seeds put together, in order of their first run."""
    by_scenario: dict[str, dict[int, RunResult]] = {}
    flat: dict[str, dict[str, str]] = {}
    for result in results:
        figures = flat_scenario(result)
        key = json.dumps(figures, sort_keys=True)
        flat[key] = figures
        by_scenario.setdefault(key, {}).setdefault(result.scenario.seed, result)
    variants = [next(iter(runs.values())).variant for runs in by_scenario.values()]
    keys = {name for figures in flat.values() for name in figures}
    apart = sorted(name for name in keys if len({f.get(name) for f in flat.values()}) > 1)
    cases = []
    for key, runs in by_scenario.items():
        variant = next(iter(runs.values())).variant
        name = variant
        if variants.count(variant) > 1:
            own = ", ".join(f"{n}={flat[key].get(n, 'null')}" for n in apart)
            name = own if variant == "default" else f"{variant}: {own}"
        cases.append(Case(name, runs))
    return cases


def _changes(reference: Case, case: Case) -> list[tuple[str, str, str, str]]:
    before, after = flat_scenario(reference.first), flat_scenario(case.first)
    keys = dict.fromkeys([*before, *after])
    return [
        (case.name, key, before.get(key, "null"), after.get(key, "null"))
        for key in keys
        if before.get(key, "null") != after.get(key, "null")
    ]


def _rows(reference: Case, case: Case, notes: list[str]) -> Iterator[tuple[Any, ...]]:
    seeds = sorted(reference.runs.keys() & case.runs.keys())
    if not seeds:
        raise Problems(
            "compare",
            [
                f"{case.name}: has no seed in common with {reference.name} "
                f"({_listed(case.runs)} and {_listed(reference.runs)}). Run both with the same."
            ],
        )
    pairs = [(reference.runs[seed], case.runs[seed]) for seed in seeds]
    measured = [(_figures(before), _figures(after)) for before, after in pairs]
    drawn = any(_apart(measured[0][side], other[side]) for other in measured[1:] for side in (0, 1))
    if len(seeds) > 1 and not drawn:
        notes.append("Seeds change nothing in these runs: there is no noise between seeds.")
        measured, pairs = measured[:1], pairs[:1]
    same = all(_same_requests(before, after) for before, after in pairs)
    if not same:
        notes.append(
            f"{case.name}: its requests are not those of {reference.name} (other arrivals, prompts "
            "or answers), so part of the difference is the workload's."
        )
    intervals: dict[tuple[str, str], tuple[float, float]] = {}
    basis = _SEEDS if len(measured) > 1 else _STRETCHES
    if basis == _STRETCHES:
        intervals = _stretch_intervals(*pairs[0], notes)
    # Not of the first pair alone: another seed may have a length of prompts that it lacks.
    for key in dict.fromkeys(key for pair in measured for side in pair for key in side):
        before, after = ([pair[s].get(key, math.nan) for pair in measured] for s in (0, 1))
        gaps = [b - a for a, b in zip(before, after, strict=True)]
        low = high = beyond = None
        difference = _mean(gaps)
        if basis == _SEEDS and difference is not None:
            width = half_width(gaps)
            if width is not None:
                low, high = difference - width, difference + width
        elif key in intervals and difference is not None:
            low, high = intervals[key]
        if low is not None and high is not None:
            # Equal in every pair is no difference at all, and not one that is known exactly.
            beyond = not low <= 0 <= high
        yield (
            case.name,
            *key,
            _mean(before),
            _mean(after),
            difference,
            low,
            high,
            None if low is None else basis,
            beyond,
        )


def _listed(seeds: Iterable[int]) -> str:
    return "seeds " + ", ".join(str(seed) for seed in sorted(seeds)[:5])


def _mean(values: Sequence[float]) -> float | None:
    mean = math.fsum(values) / len(values) if values else math.nan
    return None if math.isnan(mean) else mean


def _apart(one: Scoped, other: Scoped) -> bool:
    """Whether two runs have other figures, real time left out."""
    return any(
        not (value == other.get(key) or (math.isnan(value) and math.isnan(other.get(key, 0.0))))
        for key, value in one.items()
    )


def _same_requests(before: RunResult, after: RunResult) -> bool:
    """Whether two runs were asked the same, which sessions do as soon as they have an answer."""
    names = ["arrival_s", "prompt_tokens", "output_tokens"]
    if before.requests[names].equals(after.requests[names]):
        return True
    flat = [flat_scenario(run) for run in (before, after)]
    own = [{key: text for key, text in f.items() if key.startswith("workload.")} for f in flat]
    asked = [
        run.requests.set_index("request_id")[names[1:]].sort_index() for run in (before, after)
    ]
    return own[0] == own[1] and asked[0].equals(asked[1])


def _figures(result: RunResult) -> Scoped:
    """All figures of a run: of the whole, by tier, KV cache group, replica and prompt length."""
    figures: Scoped = {}
    for name, value in flat_figures(result.summary).items():
        scope = "all"
        short = name
        if name.startswith("tiers."):
            _, tier, short = name.split(".", 2)
            scope = f"tier {tier}"
            if short.startswith("by_group."):
                _, group, short = short.split(".", 2)
                scope = f"tier {tier}, group {group}"
        elif name.startswith("fleet."):
            scope, short = "fleet", name.removeprefix("fleet.")
            if short.startswith("replicas."):
                _, number, short = short.split(".", 2)
                scope = f"replica {number}"
        elif name == _REAL_TIME:
            continue
        figures[scope, short] = math.nan if value is None else float(value)
    parts = _Parts(result)(np.arange(len(result.requests)))
    return figures | {key: value for key, value in parts.items() if key not in figures}


def _stretch_intervals(
    before: RunResult, after: RunResult, notes: list[str]
) -> dict[tuple[str, str], tuple[float, float]]:
    """Intervals of differences over stretches, the same in both runs."""
    num_requests = len(before.requests)
    if num_requests != len(after.requests):
        notes.append("The runs have different numbers of requests, so there are no intervals.")
        return {}
    first, second = _Parts(before), _Parts(after)
    names: dict[str, tuple[str, str]] = {}

    def differences(rows: npt.NDArray[np.int64]) -> dict[str, float]:
        ours, theirs = second(rows), first(rows)
        gaps = {}
        for key in ours.keys() & theirs.keys():
            name = "\n".join(key)
            names[name] = key
            gaps[name] = ours[key] - theirs[key]
        return gaps

    intervals = over_stretches(num_requests, differences)
    if intervals:
        notes.append(
            "One seed: intervals are over stretches of the workload (block bootstrap). They tell "
            "whether a difference holds throughout it, not how it would be on other traffic."
        )
    else:
        notes.append(f"{num_requests} requests are too few for intervals from one seed.")
    return {names[name]: interval for name, interval in intervals.items()}


class _Parts:
    """Figures by scope, made of some requests of a run; called with their numbers."""

    def __init__(self, result: RunResult) -> None:
        self.columns: Columns = columns_of(result.requests, result.scenario.objective)
        lengths = self.columns["prompt_tokens"]
        self.classes = np.digitize(lengths, LENGTH_CLASSES)
        self.reaches = _reaches(result)

    def __call__(self, rows: npt.NDArray[np.int64]) -> Scoped:
        figures = dict(_scoped("all", column_figures(_taken(self.columns, rows))))
        looked_up = rows[~np.isnan(self.columns["hit_tokens"][rows])]
        num_tokens = self.columns["prompt_tokens"][looked_up].sum()
        for group, reach in enumerate(self.reaches):
            share = reach[looked_up].sum() / num_tokens if num_tokens else math.nan
            figures[f"group {group}", "reach_rate"] = float(share)
        for number, name in enumerate(_class_names()):
            inside = rows[self.classes[rows] == number]
            if not inside.size:
                continue
            scope = f"prompt {name}"
            figures |= _scoped(scope, column_figures(_taken(self.columns, inside)))
        return figures


def _taken(columns: Columns, rows: npt.NDArray[np.int64]) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def _scoped(scope: str, figures: Mapping[str, float]) -> Scoped:
    return {(scope, name): value for name, value in figures.items()}


def _class_names() -> list[str]:
    bounds = [f"{bound // 1000}k" for bound in LENGTH_CLASSES]
    between = [f"{low}-{high}" for low, high in zip(bounds, bounds[1:], strict=False)]
    return [f"<{bounds[0]}", *between, f">={bounds[-1]}"]


def _reaches(result: RunResult) -> list[npt.NDArray[np.float64]]:
    """Tokens that each KV cache group alone would have hit, a row a request."""
    hit_tokens = result.requests["hit_tokens"].to_numpy(dtype=np.float64, na_value=np.nan)
    num_groups = len(result.scenario.model_spec.groups)
    if num_groups < 2:
        return []
    reaches = [hit_tokens.copy() for _ in range(num_groups)]
    for row, tokens in enumerate(result.requests["group_hit_tokens"]):
        if tokens is not None and not isinstance(tokens, float):
            for group, reach in enumerate(tokens):
                reaches[group][row] = reach
    return reaches
