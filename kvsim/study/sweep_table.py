"""A sweep on disk: the table of its runs, written, read again, and each run by its name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError, Problems, show
from kvsim.metrics.figures import flat_figures
from kvsim.metrics.summary import SUMMARY_KEYS
from kvsim.results.store import RESULT_FILES, RunResult, load_result, summary_of
from kvsim.scenario import Scenario
from kvsim.scenario.reading import load_scenario, resolved_yaml
from kvsim.scenario.writing import replacing, write_text
from kvsim.study.sweep_points import Point

if TYPE_CHECKING:
    import pandas as pd

DONE, FAILED, NOT_RUN = "done", "failed", "not run"
"""Values of `status`."""
SWEEP_FILE = "sweep.parquet"
"""The table of a sweep; its directory also has the base as `scenario.yaml` and the runs."""
RUN_COLUMNS: dict[str, str] = {
    "run": "directory of the run: the first 12 digits of the hash of its resolved scenario",
    "variant": "variant of the scenario; `default` where there are none",
    "seed": "seed of the run",
    "status": "done, failed, or not run where the sweep was cut short",
    "message": "why it failed; null where it is done",
}
"""First columns of the table, each with its meaning; axes and the summary's figures follow."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """A sweep on disk.

    Attributes:
        path: its directory.
        scenario: the base, with its sweep and variants.
        axes: dotted keys of the axes, in order; each is a column of the table.
        table: a row a run, with `RUN_COLUMNS`, the axes and the figures of the summaries.
        notes: sentences for people about how it was run.
    """

    path: Path
    scenario: Scenario
    axes: tuple[str, ...]
    table: pd.DataFrame = field(repr=False)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of runs, failed ones and those not run included."""
        return len(self.table)

    def __repr__(self) -> str:
        """One line: how many runs, along which axes."""
        counts = {word: int((self.table["status"] == word).sum()) for word in (FAILED, NOT_RUN)}
        others = "".join(f", {count} {word}" for word, count in counts.items() if count)
        axes = ", ".join(self.axes) or "variants"
        return f"SweepResult({self.scenario.name!r}: {len(self)} runs over {axes}{others})"

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
        if (known["status"] == FAILED).all():
            raise KvsimError(f"{self.path}: run {show(run)} failed: {known['message'].iloc[0]}")
        if (known["status"] == NOT_RUN).all():
            raise KvsimError(f"{self.path}: run {show(run)} was not run. Run kvsim sweep again.")
        return load_result(self.path / run)

    def results(self) -> Iterator[RunResult]:
        """Every run that is done, in order of the table, read one at a time."""
        done = self.table.loc[self.table["status"] == DONE, "run"]
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
    return SweepResult(path, scenario, axes, _with_late_runs(path, table))


def _with_late_runs(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """The table with runs that were finished after it was written, as where a sweep was killed."""
    late = table["status"] == NOT_RUN
    summaries = kept_summaries(path, table.loc[late, "run"].dropna())
    if not summaries:
        return table
    flat = {run: flat_figures(summary) for run, summary in summaries.items()}
    figures = dict.fromkeys(name for figures in flat.values() for name in figures)
    rows: list[dict[Any, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")
    for row in rows:
        if row["status"] == NOT_RUN and row["run"] in flat:
            row |= {"status": DONE, **flat[row["run"]]}
    import pandas as pd

    known = [name for name in table if name in RUN_COLUMNS or name not in figures]
    columns = {name: table[name] for name in known}
    columns["status"] = pd.Series([row["status"] for row in rows], dtype="string")
    for name in dict.fromkeys([*table, *figures]):
        if name not in columns:
            columns[name] = _column([row.get(name) for row in rows])
    return pd.DataFrame(columns)


def kept_summaries(out_dir: Path, runs: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Summaries of those runs that are there and whole, by run; a run without a name is none."""
    kept: dict[str, dict[str, Any]] = {}
    for run in {run for run in runs if run}:
        directory = out_dir / run
        summary = summary_of(directory)
        whole = all((directory / name).is_file() for name in RESULT_FILES)
        if whole and summary.keys() >= SUMMARY_KEYS.keys():
            kept[run] = summary
    return kept


def table_of(
    points: Sequence[Point],
    axes: Sequence[str],
    summaries: Mapping[str, Mapping[str, Any]],
    messages: Mapping[str, str],
) -> pd.DataFrame:
    """A row a point, with `RUN_COLUMNS`, the axes and the figures.

    Args:
        points: what is run.
        axes: dotted keys of the axes.
        summaries: of the runs that are done, by run.
        messages: why others failed, by run; a run with neither is not run yet.
    """
    import pandas as pd

    flat = {run: flat_figures(summary) for run, summary in summaries.items()}
    failed = [messages.get(point.run, point.message) for point in points]
    figures = list(dict.fromkeys(name for figures in flat.values() for name in figures))
    columns: dict[str, pd.Series[Any]] = {
        "run": pd.Series([point.run or None for point in points], dtype="string"),
        "variant": pd.Series([point.variant for point in points], dtype="string"),
        "seed": pd.Series([point.seed for point in points], dtype="Int64"),
        "status": pd.Series(
            [
                DONE if point.run in flat else FAILED if why is not None else NOT_RUN
                for point, why in zip(points, failed, strict=True)
            ],
            dtype="string",
        ),
        "message": pd.Series(failed, dtype="string"),
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


def write_sweep(out_dir: Path, scenario: Scenario, table: pd.DataFrame) -> None:
    """Write the table and the scenario beside it, each whole or not at all.

    Raises:
        KvsimError: the place cannot be written to.
    """
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
