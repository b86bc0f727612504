"""Results of a run on disk.

A result is a directory with the files of `RESULT_FILES`. It appears whole or not at all, and an
older result is given up only once the new one is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import Problems
from kvsim.metrics.records import REQUEST_COLUMNS, TIMELINE_COLUMNS
from kvsim.metrics.summary import SUMMARY_KEYS
from kvsim.results.tables import percent, seconds, short

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from kvsim.scenario import Scenario

RESULT_FILES = (
    "summary.json",
    "requests.parquet",
    "timeline.parquet",
    "scenario.yaml",
    "provenance.json",
)
"""The files of a result; nothing else is kept in its directory."""


_NOT_BEFORE: dict[str, Any] = {"ceiling": None}
"""Keys of a summary that older results lack, with what they mean there."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of one variant.

    Attributes:
        variant: name of the variant.
        summary: the figures, with the keys of `kvsim.metrics.summary.SUMMARY_KEYS`.
        requests: a row a request in order of arrival, with the columns of
            `kvsim.metrics.records.REQUEST_COLUMNS`.
        timeline: a row a moment, with the columns of `TIMELINE_COLUMNS` there.
        scenario: the scenario as resolved for this variant.
        provenance: versions, seed, hashes, start and command of the run.
    """

    variant: str
    summary: dict[str, Any]
    requests: pd.DataFrame
    timeline: pd.DataFrame
    scenario: Scenario
    provenance: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: the variant, its token hit rate and its median TTFT."""
        rate = percent(self.summary["token_hit_rate"])
        ttft = seconds(self.summary["ttft_s"]["p50"])
        num_requests = self.summary["num_requests"]
        return (
            f"RunResult({self.variant!r}: {num_requests} requests, token hit rate {rate}, "
            f"TTFT p50 {ttft})"
        )

    def _repr_html_(self) -> str:
        """The main figures as a table, for a cell of a notebook."""
        from html import escape

        summary = self.summary
        shown = {
            "token hit rate": percent(summary["token_hit_rate"]),
            **{f"TTFT {key}": seconds(summary["ttft_s"][key]) for key in ("p50", "p90", "p99")},
            "TPOT p50": seconds(summary["tpot_s"]["p50"]),
            "output tokens/s": short(summary["output_tokens_per_s"]),
            "evicted blocks": short(summary["evicted_blocks"]),
            "bytes stored": short(summary["bytes_stored"]),
            "refused": short(summary["num_refused"]),
        }
        head = "".join(f"<th>{escape(name)}</th>" for name in ("", *shown))
        cells = "".join(f"<td>{escape(text)}</td>" for text in shown.values())
        return f"<table><tr>{head}</tr><tr><th>{escape(self.variant)}</th>{cells}</tr></table>"


def check_destination(out_dir: Path, variants: Iterable[str]) -> None:
    """Refuse a place for results before anything is simulated for them.

    Raises:
        KvsimError: a variant's name is no file name, its directory holds files that are not a
            result's, or the place cannot be written. All problems at once.
    """
    problems = []
    for variant in variants:
        problems += _destination_problems(out_dir, variant)
    existing = out_dir
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        problems.append(f"{existing}: is a file, not a directory. Give another --out.")
    elif not os.access(existing, os.W_OK | os.X_OK):
        problems.append(f"{existing}: cannot be written to. Give another --out.")
    if problems:
        raise Problems(str(out_dir), problems)


def write_run(
    out_dir: Path, result: RunResult, scenario_yaml: str, directory: str | None = None
) -> Path:
    """Write a result to `out_dir/<directory>`, replacing an older result there.

    Args:
        out_dir: directory of the scenario's results; made if it is not there.
        result: the run; its `scenario` is not written, `scenario_yaml` is.
        scenario_yaml: the resolved scenario as text.
        directory: name of the result's directory; None for the variant's name.

    Returns:
        The directory of the result.

    Raises:
        KvsimError: as `check_destination`, or writing fails (a full disk, say); what was there
            before is then still there.
    """
    name = result.variant if directory is None else directory
    check_destination(out_dir, [name])
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        target = out_dir.resolve() / name
        with _replacement(target) as new:
            _write_files(new, result, scenario_yaml)
    except OSError as error:
        reason = error.strerror or str(error)
        problem = f"{name}: cannot be written: {reason}. Give another --out."
        raise Problems(str(out_dir), [problem]) from error
    return out_dir / name


def load_result(path: Path | str) -> RunResult:
    """Read a result that `write_run` wrote; the trace of its scenario may be gone.

    Raises:
        KvsimError: there is no result, or a file of it is missing or damaged. All problems at once.
    """
    path = Path(path)
    if not path.is_dir():
        what = "it is a file" if path.exists() else "there is no such directory"
        raise Problems(str(path), [f"path: {what}. Give the directory of a result."])
    missing = [name for name in RESULT_FILES if not (path / name).is_file()]
    if len(missing) == len(RESULT_FILES):
        inside = sorted(entry.parent.name for entry in path.glob("*/summary.json"))
        remedy = f"Give one of those in it: {', '.join(inside)}." if inside else "Run it first."
        raise Problems(str(path), [f"path: this directory is not a result. {remedy}"])
    if missing:
        remedy = "missing, so the result is damaged. Run it again."
        raise Problems(str(path), [f"{name}: {remedy}" for name in missing])

    problems: list[str] = []
    required = [key for key in SUMMARY_KEYS if key not in _NOT_BEFORE]
    summary = {**_NOT_BEFORE, **_read_json(path / "summary.json", required, problems)}
    provenance = _read_json(path / "provenance.json", (), problems)
    requests = _read_frame(path / "requests.parquet", REQUEST_COLUMNS, problems)
    timeline = _read_frame(path / "timeline.parquet", TIMELINE_COLUMNS, problems)
    if problems:
        raise Problems(str(path), problems)

    from kvsim.scenario.reading import load_scenario

    scenario = load_scenario(path / "scenario.yaml", check_files=False)
    variant = provenance.get("variant", path.resolve().name)
    return RunResult(variant, summary, requests, timeline, scenario, provenance)


def load_requests(path: Path | str) -> pd.DataFrame:
    """The requests of a result alone.

    Raises:
        KvsimError: they are missing or damaged.
    """
    path, problems = Path(path), list[str]()
    requests = _read_frame(path / "requests.parquet", REQUEST_COLUMNS, problems)
    if problems:
        raise Problems(str(path), problems)
    return requests


def summary_of(path: Path) -> dict[str, Any]:
    """The summary of a result as it is, empty where there is none that can be read."""
    try:
        content = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _destination_problems(out_dir: Path, variant: str) -> list[str]:
    if variant != Path(variant).name or variant.startswith(".") or "\\" in variant or not variant:
        return [
            f"variants.{variant}: {variant!r} is no name for a directory. "
            "Use a name without / and \\ that does not start with a dot."
        ]
    target = out_dir / variant
    if not target.exists():
        return []
    if not target.is_dir():
        return [f"{variant}: is a file, not a result. Move it away or give another --out."]
    try:
        foreign = sorted({entry.name for entry in target.iterdir()} - set(RESULT_FILES))
    except OSError as error:
        return [f"{variant}: cannot be read: {error.strerror}. Give another --out."]
    if not foreign:
        return []
    shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
    return [
        f"{variant}: holds files that are not a result's ({shown}), and is not replaced. "
        "Move them away or give another --out."
    ]


@contextlib.contextmanager
def _replacement(target: Path) -> Iterator[Path]:
    """An empty directory that takes the target's place when the block ends without an error."""
    token = secrets.token_hex(4)
    new, old = (target.with_name(f".{target.name}.{age}-{token}") for age in ("new", "old"))
    new.mkdir()
    try:
        yield new
        if target.exists():
            target.rename(old)
        try:
            new.rename(target)
        except BaseException:
            if old.exists():
                old.rename(target)
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)


def _write_files(directory: Path, result: RunResult, scenario_yaml: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, frame, schema in (
        ("requests.parquet", result.requests, _requests_schema()),
        ("timeline.parquet", result.timeline, _timeline_schema()),
    ):
        for column in frame.columns:
            if column not in schema.names:  # those of a fleet
                kind = pa.float64() if column.endswith("_s") else pa.int64()
                schema = schema.append(pa.field(column, kind))
        table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
        pq.write_table(table, directory / name, compression="zstd")
    provenance = {"variant": result.variant, **result.provenance}
    for name, content in (("summary.json", result.summary), ("provenance.json", provenance)):
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        (directory / name).write_text(text + "\n", encoding="utf-8")
    (directory / "scenario.yaml").write_text(scenario_yaml, encoding="utf-8")


def _requests_schema() -> pa.Schema:
    import pyarrow as pa

    other = {
        "request_id": pa.string(),
        "hit_ended": pa.string(),
        "group_hit_tokens": pa.list_(pa.int64()),
        "refused": pa.string(),
        "shared_with": pa.string(),
        "evicted_for": pa.string(),
    }
    return pa.schema(
        [
            (name, other.get(name, pa.float64() if name.endswith("_s") else pa.int64()))
            for name in REQUEST_COLUMNS
        ]
    )


def _timeline_schema() -> pa.Schema:
    import pyarrow as pa

    other = {"group_cached_blocks": pa.list_(pa.int64())}
    return pa.schema(
        [
            (
                name,
                pa.float64()
                if name.endswith(("_s", "_utilization"))
                else other.get(name, pa.int64()),
            )
            for name in TIMELINE_COLUMNS
        ]
    )


def _read_json(path: Path, keys: Iterable[str], problems: list[str]) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name}: damaged ({error}). Run it again.")
        return {}
    if not isinstance(content, dict):
        problems.append(f"{path.name}: damaged (not a JSON object). Run it again.")
        return {}
    missing = [key for key in keys if key not in content]
    if missing:
        problems.append(f"{path.name}: lacks {', '.join(missing)}. Run it again.")
    return content


def _read_frame(path: Path, columns: Iterable[str], problems: list[str]) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        frame: pd.DataFrame = pq.read_table(pa.BufferReader(path.read_bytes())).to_pandas()
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        problems.append(f"{path.name}: damaged ({reason}). Run it again.")
        return pd.DataFrame()
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        problems.append(f"{path.name}: lacks {', '.join(missing)}. Run it again.")
    return frame
