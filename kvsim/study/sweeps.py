"""Runs of one scenario that differ: expanded, run in parallel, kept, and put in one table.

A run is kept in a directory named after the hash of its resolved scenario, so a sweep that was
interrupted, or gets more axes, runs only what is not there yet.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim import __version__
from kvsim.errors import KvsimError, Problems, show
from kvsim.metrics.figures import flat_figures
from kvsim.metrics.summary import SUMMARY_KEYS
from kvsim.results.provenance import file_sha256
from kvsim.results.store import RESULT_FILES, RunResult, load_result
from kvsim.scenario import Scenario, Sweep
from kvsim.scenario.reading import base_data, load_scenario, resolved_data, resolved_yaml
from kvsim.scenario.validation import lay_over
from kvsim.scenario.writing import replacing, write_text

if TYPE_CHECKING:
    import pandas as pd

SWEEP_FILE = "sweep.parquet"
"""The table of a sweep; its directory also has the base as `scenario.yaml` and the runs."""
RUN_COLUMNS: dict[str, str] = {
    "run": "directory of the run: the first 12 digits of the hash of its resolved scenario",
    "variant": "variant of the scenario; `default` where there are none",
    "seed": "seed of the run",
    "status": "done or failed",
    "message": "why it failed; null where it is done",
}
"""First columns of the table, each with its meaning; axes and the summary's figures follow."""
NUM_RUNS_MAX = 100_000
"""Most runs of one sweep."""
_LOCK_FILE = ".lock"


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep before it is run.

    Attributes:
        variant: name of its variant.
        seed: its seed.
        axes: values of the axes by dotted key, resolved; as written where the scenario is wrong.
        scenario: what to run; None where it is wrong.
        run: name of its directory; empty where the scenario is wrong.
        message: what is wrong with it.
    """

    variant: str
    seed: int
    axes: Mapping[str, Any]
    scenario: Scenario | None
    run: str = ""
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep is.

    Attributes:
        num_done: runs that ended now, failed ones included.
        num_to_do: runs that had to be run, without those that were there already.
        num_failed: runs that failed.
    """

    num_done: int
    num_to_do: int
    num_failed: int


@dataclass(frozen=True, slots=True)
class SweepResult:
    """A sweep on disk.

    Attributes:
        path: its directory.
        scenario: the base, with its sweep and variants.
        axes: dotted keys of the axes, in order; each is a column of the table.
        table: a row a run, with `RUN_COLUMNS`, the axes and the figures of the summaries.
    """

    path: Path
    scenario: Scenario
    axes: tuple[str, ...]
    table: pd.DataFrame = field(repr=False)

    def __len__(self) -> int:
        """Number of runs, failed ones included."""
        return len(self.table)

    def __repr__(self) -> str:
        """One line: how many runs, along which axes."""
        num_failed = int((self.table["status"] == "failed").sum())
        failed = f", {num_failed} failed" if num_failed else ""
        axes = ", ".join(self.axes) or "variants"
        return f"SweepResult({self.scenario.name!r}: {len(self)} runs over {axes}{failed})"

    def _repr_html_(self) -> str:
        """The table's main columns, for a cell of a notebook."""
        from html import escape

        wanted = ["variant", "seed", *self.axes, *_SHOWN, "status"]
        shown: str = self.table[[name for name in wanted if name in self.table]].to_html(
            index=False, max_rows=60, na_rep="", float_format="{:.4g}".format
        )
        return f"<p>{escape(repr(self))}</p>{shown}"

    def result(self, run: str) -> RunResult:
        """A run by the name of its directory.

        Raises:
            KvsimError: it is none of this sweep's, failed, or is damaged.
        """
        known = self.table.loc[self.table["run"] == run]
        if known.empty:
            raise KvsimError(f"{self.path}: run {show(run)} is not in its table.")
        if (known["status"] == "failed").all():
            raise KvsimError(f"{self.path}: run {show(run)} failed: {known['message'].iloc[0]}")
        return load_result(self.path / run)

    def results(self) -> Iterator[RunResult]:
        """Every run that is done, in order of the table, read one at a time."""
        done = self.table.loc[self.table["status"] == "done", "run"]
        for run in dict.fromkeys(done):
            yield self.result(run)

    def __getitem__(self, variant: str) -> RunResult:
        """The run of a variant.

        Raises:
            KvsimError: none of the runs has that variant, or several have.
        """
        rows = self.table.loc[self.table["variant"] == variant, "run"]
        if len(rows) != 1:
            known = ", ".join(dict.fromkeys(self.table["variant"]))
            what = f"{len(rows)} runs have variant {show(variant)}"
            remedy = "Choose one by its run: result(run)." if len(rows) else f"Known: {known}."
            raise KvsimError(f"{self.path}: {what}. {remedy}")
        return self.result(rows.iloc[0])


_SHOWN = (
    "token_hit_rate",
    "ttft_s.p50",
    "ttft_s.p99",
    "tpot_s.p50",
    "output_tokens_per_s",
    "evicted_blocks",
)


def expand_sweep(scenario: Scenario) -> list[Point]:
    """Every run of a sweep, in order: variants, then grid, zip and list, then seeds.

    A value that is wrong in every run it is part of is refused; where only some combinations are
    wrong, those are points with a message.

    Raises:
        Problems: all values that are wrong, each at its place.
    """
    sweep = scenario.sweep or Sweep()
    base = base_data(scenario)
    axes = list(_axes(sweep))
    seeds = sweep.seeds_from(scenario.seed)
    variants = scenario.variants or {"default": {}}
    num_runs = len(variants) * len(seeds)
    for _, steps in axes:
        num_runs *= len(steps)
    if num_runs > NUM_RUNS_MAX:
        problem = f"sweep: makes {num_runs} runs. Use at most {NUM_RUNS_MAX}."
        raise Problems(f"scenario {scenario.name}", [problem])
    hashes: dict[Path, str] = {}
    points: list[Point] = []
    choices: list[tuple[int, ...]] = []
    for variant, overrides in variants.items():
        laid, _ = lay_over(base, overrides)
        for choice in itertools.product(*(range(len(steps)) for _, steps in axes)):
            values: dict[str, Any] = {}
            for (_, steps), number in zip(axes, choice, strict=True):
                values |= steps[number]
            for seed in seeds:
                points.append(_point(scenario, laid, variant, seed, values, hashes))
                choices.append(choice)
    if problems := _wrong_everywhere(axes, points, choices):
        raise Problems(f"scenario {scenario.name}", problems)
    return points


def _axes(sweep: Sweep) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The axes, each with its place in the scenario and what its steps set."""
    for key, values in sweep.grid.items():
        yield f"sweep.grid.{key}", [{key: value} for value in values]
    if sweep.zip:
        steps = [
            dict(zip(sweep.zip, values, strict=True))
            for values in zip(*sweep.zip.values(), strict=True)
        ]
        yield "sweep.zip", steps
    if sweep.list:
        yield "sweep.list", [dict(point) for point in sweep.list]


def _point(
    scenario: Scenario,
    laid: Mapping[str, Any],
    variant: str,
    seed: int,
    values: Mapping[str, Any],
    hashes: dict[Path, str],
) -> Point:
    data, problems = lay_over(laid, {**values, "seed": seed})
    message = "; ".join(str(problem) for problem in problems)
    if not problems:
        try:
            made = Scenario.from_data(data, variant, scenario.directory, check_files=True)
        except Problems as error:
            message = "; ".join(error.problems)
        else:
            resolved = made.resolved()
            axes = scenario.sweep.axes if scenario.sweep else ()
            at = {key: _value_at(resolved, key) for key in axes}
            return Point(variant, seed, at, made, run_hash(made, hashes))
    return Point(variant, seed, values, None, message=message)


def _value_at(data: Any, key: str) -> Any:
    """The value at a dotted key, None where there is none."""
    for step in key.split("."):
        if isinstance(data, list) and step.isdecimal() and int(step) < len(data):
            data = data[int(step)]
        elif isinstance(data, Mapping):
            data = data.get(step)
        else:
            return None
    return data


def _wrong_everywhere(
    axes: Sequence[tuple[str, list[dict[str, Any]]]],
    points: Sequence[Point],
    choices: Sequence[tuple[int, ...]],
) -> list[str]:
    """A problem for each step of an axis of which no run stands."""
    messages: dict[tuple[int, int], list[str | None]] = {}
    for point, choice in zip(points, choices, strict=True):
        for step in enumerate(choice):
            messages.setdefault(step, []).append(point.message)
    found: dict[str, str] = {}
    of_its_own: set[str] = set()
    for (axis, number), texts in messages.items():
        if any(text is None for text in texts):
            continue
        place, steps = axes[axis]
        text = str(texts[0])
        # Said of the axis that sets the key in question, not of every axis around it.
        own = [key for key in steps[number] if text.startswith(key)]
        if text not in found or (own and text not in of_its_own):
            short = text.removeprefix(f"{own[0]}: ") if own and place.endswith(own[0]) else text
            found[text] = f"{place}.{number}: {short}"
        if own:
            of_its_own.add(text)
    if not axes:
        found = {str(point.message): str(point.message) for point in points if point.message}
    return list(found.values())


def run_hash(scenario: Scenario, hashes: dict[Path, str] | None = None) -> str:
    """The name of a run: 12 digits of the hash of all that its result follows from.

    That is the resolved scenario, the content of the files it reads (not where they are) and the
    version of kvsim.

    Args:
        scenario: one without variants.
        hashes: SHA-256 by file, taken from and added to.

    Raises:
        KvsimError: a file cannot be read.
    """
    known = {} if hashes is None else hashes

    def content(path: str) -> str:
        file = (scenario.directory / path).resolve()
        if file not in known:
            known[file] = file_sha256(file)
        return known[file]

    data = {"kvsim": __version__, **resolved_data(scenario, content)}
    text = json.dumps(data, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def sweep(
    scenario: Scenario,
    out_dir: Path,
    *,
    jobs: int | None = None,
    backend: str = "loky",
    on_progress: Callable[[Progress], None] | None = None,
    arguments: Sequence[str] = (),
) -> SweepResult:
    """Run what is not there yet of a sweep, and write its table.

    Args:
        scenario: with its `sweep` and `variants`.
        out_dir: where the runs and the table go.
        jobs: simulations at once; None is all cores.
        backend: one of `kvsim.study.parallel.BACKENDS`.
        on_progress: told at the start and after each run.
        arguments: the command line after the program's name, for the provenance.

    Raises:
        KvsimError: the sweep is wrong, the place cannot be written to or another sweep is writing
            there, or a worker was killed. Runs that were finished are kept.
    """
    from kvsim.results.variants import write_variant
    from kvsim.study.parallel import check_backend, each

    check_backend(backend, jobs)
    points = expand_sweep(scenario)
    told = on_progress or (lambda progress: None)
    with _claimed(out_dir):
        summaries = _kept_summaries(out_dir, points)
        to_do = {
            point.run: point
            for point in points
            if point.scenario is not None and point.run not in summaries
        }
        messages: dict[str, str] = {}
        tasks = [
            (point.scenario, point.variant, tuple(arguments))
            for point in to_do.values()
            if point.scenario is not None
        ]
        runs = list(to_do)
        told(Progress(0, len(runs), 0))
        if tasks:
            ended = each(_simulate, tasks, jobs=jobs, backend=backend)
            with contextlib.closing(ended):
                for num_done, (number, outcome) in enumerate(ended, start=1):
                    if isinstance(outcome, str):
                        messages[runs[number]] = outcome
                    else:
                        write_variant(out_dir, outcome, runs[number])
                        summaries[runs[number]] = outcome.summary
                    told(Progress(num_done, len(runs), len(messages)))
        axes = scenario.sweep.axes if scenario.sweep else ()
        table = _table(points, axes, summaries, messages)
        _write(out_dir, scenario, table)
    return SweepResult(out_dir, scenario, axes, table)


def load_sweep(path: Path | str) -> SweepResult:
    """Read a sweep that `sweep` wrote.

    Raises:
        KvsimError: there is none, or its table or scenario is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    file = path / SWEEP_FILE
    if not file.is_file():
        raise Problems(str(path), [f"path: holds no {SWEEP_FILE}. Run kvsim sweep first."])
    try:
        table: pd.DataFrame = pq.read_table(pa.BufferReader(file.read_bytes())).to_pandas()
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        problem = f"{SWEEP_FILE}: damaged ({reason}). Run kvsim sweep again."
        raise Problems(str(path), [problem]) from None
    scenario = load_scenario(path / "scenario.yaml", check_files=False)
    axes = scenario.sweep.axes if scenario.sweep else ()
    missing = [name for name in (*RUN_COLUMNS, *axes) if name not in table]
    if missing:
        problem = f"{SWEEP_FILE}: lacks {', '.join(missing)}. Run kvsim sweep again."
        raise Problems(str(path), [problem])
    return SweepResult(path, scenario, axes, table)


def _simulate(task: tuple[Scenario, str, tuple[str, ...]]) -> RunResult | str:
    """A run, or why there is none."""
    from kvsim.results.variants import run_variant

    scenario, variant, arguments = task
    try:
        return run_variant(scenario, variant, arguments=arguments)
    except Problems as error:
        return "; ".join(error.problems)
    except KvsimError as error:
        return str(error)
    except Exception as error:  # one run's defect must not take the others with it
        return f"{type(error).__name__}: {error}. This is a defect of kvsim."


@contextlib.contextmanager
def _claimed(out_dir: Path) -> Iterator[None]:
    """The directory for this sweep alone, without what one that was killed left half done."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        lock = (out_dir / _LOCK_FILE).open("w")
    except OSError as error:
        problem = f"out: cannot be written to: {error.strerror}. Give another --out."
        raise Problems(str(out_dir), [problem]) from None
    with lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on Windows: two sweeps there do the same work twice
            pass
        except OSError:
            problem = "out: another sweep is writing there. Wait for it, or give another --out."
            raise Problems(str(out_dir), [problem]) from None
        for left in itertools.chain(out_dir.glob(".*.new-*"), out_dir.glob(".*.old-*")):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        yield


def _kept_summaries(out_dir: Path, points: Sequence[Point]) -> dict[str, dict[str, Any]]:
    """Summaries of the runs that are there and whole, by run."""
    kept: dict[str, dict[str, Any]] = {}
    for run in {point.run for point in points if point.run}:
        directory = out_dir / run
        try:
            summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        whole = all((directory / name).is_file() for name in RESULT_FILES)
        if whole and isinstance(summary, dict) and summary.keys() >= SUMMARY_KEYS.keys():
            kept[run] = summary
    return kept


def _table(
    points: Sequence[Point],
    axes: Sequence[str],
    summaries: Mapping[str, Mapping[str, Any]],
    messages: Mapping[str, str],
) -> pd.DataFrame:
    import pandas as pd

    flat = {run: flat_figures(summary) for run, summary in summaries.items()}
    figures = list(dict.fromkeys(name for figures in flat.values() for name in figures))
    columns: dict[str, pd.Series[Any]] = {
        "run": pd.Series([point.run or None for point in points], dtype="string"),
        "variant": pd.Series([point.variant for point in points], dtype="string"),
        "seed": pd.Series([point.seed for point in points], dtype="Int64"),
        "status": pd.Series(
            ["done" if point.run in flat else "failed" for point in points], dtype="string"
        ),
        "message": pd.Series(
            [messages.get(point.run, point.message) for point in points], dtype="string"
        ),
    }
    for key in axes:
        columns[key] = _column([point.axes.get(key) for point in points])
    for name in figures:
        values = [flat[point.run].get(name) if point.run in flat else None for point in points]
        columns[name] = _column(values)
    return pd.DataFrame(columns)


def _column(values: Sequence[Any]) -> pd.Series[Any]:
    """Values as a column of one type; what is of several types, or nested, as JSON."""
    import pandas as pd

    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pd.Series(list(values), dtype="boolean")
    if kinds == {int} and all(abs(value) < 2**63 for value in values if value is not None):
        return pd.Series(list(values), dtype="Int64")
    if kinds <= {int, float}:
        return pd.Series(list(values), dtype="float64")
    if kinds == {str}:
        return pd.Series(list(values), dtype="string")
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return pd.Series(texts, dtype="string")


def _write(out_dir: Path, scenario: Scenario, table: pd.DataFrame) -> None:
    """Write the table and the scenario beside it, each whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        write_text(out_dir / "scenario.yaml", resolved_yaml(scenario, out_dir))
        with replacing(out_dir / SWEEP_FILE) as new:
            arrow = pa.Table.from_pandas(table, preserve_index=False)
            pq.write_table(arrow, new, compression="zstd")
    except OSError as error:
        problem = f"{SWEEP_FILE}: cannot be written: {error.strerror}. Give another --out."
        raise Problems(str(out_dir), [problem]) from None
