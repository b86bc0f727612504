"""A user's own points: files of benchmark clients, and what they do not say from elsewhere.

A client knows what it sent and what came back, not what served. The rest of the columns comes from
settings (which stand above everything), and from a scenario (below what a file says).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvsim import catalog
from kvsim.errors import KvsimError, Problems, show, unknown_name
from kvsim.scenario import RooflineStepTime, Scenario
from kvsim.study.client_results import ClientRow, catalog_name, read_rows
from kvsim.study.measured import REQUIRED, TIMES, Point, bad_cells, bad_columns, make_point
from kvsim.times.quantized import BYTES
from kvsim.times.work import ENGINES

SETTINGS = {
    "model": "name of the catalog",
    "gpu": "name of the catalog",
    "precision": "bf16, fp8 or fp4",
    "engine": "vllm, sglang or tensorrt-llm",
    "version": "of the engine",
    "tp": "tensor-parallel GPUs",
    "dp": "data-parallel ranks",
    "ep": "expert-parallel ranks",
    "dp_attention": "true where ranks of attention have requests of their own",
    "spec": "draft tokens a step; none without",
    "chunk": "tokens a step",
    "max_num_seqs": "requests running at once",
    "async_scheduling": "true or false",
    "concurrency": "requests at once",
    "num_prompts": "requests in all",
    "isl": "tokens of a prompt",
    "osl": "tokens of an answer",
    "len_low_ratio": "lengths are drawn from this times the named ones to these",
}
"""Columns that can be set, each with its meaning."""
_SHOWN = 30  # problems of cells, beyond which they are counted


def parse_settings(written: Sequence[str]) -> dict[str, str]:
    """``COLUMN=VALUE`` each.

    Raises:
        Problems: everything that is wrong with them.
    """
    found: dict[str, str] = {}
    problems = []
    for setting in written:
        column, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not column or not value:
            problems.append(f"--set {setting}: is no COLUMN=VALUE. Write it as in gpu=h200.")
        elif column not in SETTINGS:
            problems.append(f"--set {column}: {unknown_name('column', column, SETTINGS)}")
        else:
            found[column] = value
            problems += _bad_name(column, value, f"--set {column}")
    if problems:
        raise Problems("kvsim calibrate", problems)
    return found


def read_points(
    paths: Sequence[Path], settings: Mapping[str, str], scenario: Scenario | None = None
) -> list[Point]:
    """All points of files, left out or not.

    Args:
        paths: files, or directories of them.
        settings: columns that stand above what the files say.
        scenario: says what served, where nothing else does.

    Raises:
        Problems: everything that is wrong with them.
    """
    rows = [row for path in _files(paths) for row in read_rows(path)]
    where = ", ".join(path.name for path in paths[:3]) + (", ..." if len(paths) > 3 else "")
    given = {} if scenario is None else scenario_columns(scenario)
    problems = [problem for row in rows for problem in row.problems]
    for number, row in enumerate(rows, start=1):
        problems += _complete(row, number, settings, given)
    # What cannot be simulated anyway need not be complete.
    used = [row for row in rows if row.left_out is None]
    problems += _missing(used) if used else []
    if not problems:
        problems = list(dict.fromkeys(text for row in used for text in _wrong(row, given)))
    if problems:
        more = len(problems) - _SHOWN
        raise Problems(
            where, problems[:_SHOWN] + ([f"and {more} more like these."] if more > 0 else [])
        )
    return [_point(row, settings, given, scenario) for row in rows]


def scenario_columns(scenario: Scenario) -> dict[str, str]:
    """What a scenario says of what served."""
    chosen, drafts = scenario.step_time, scenario.engine.speculative
    columns = {
        "model": scenario.model_spec.name,
        "precision": scenario.model_spec.precision,
        "tp": str(scenario.num_ranks),
        "engine": chosen.engine if isinstance(chosen, RooflineStepTime) else "",
        "gpu": "" if scenario.gpu_spec is None else scenario.gpu_spec.name,
        "chunk": str(scenario.max_num_batched_tokens),
        "max_num_seqs": str(scenario.max_num_seqs),
        "async_scheduling": str(scenario.async_scheduling).lower(),
        "spec": "none" if drafts is None else str(drafts.tokens),
    }
    return {key: value for key, value in columns.items() if value}


def _files(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    problems = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        inside = [p for p in sorted(path.iterdir()) if p.name.endswith(_ENDINGS)]
        if not inside:
            problems.append(f"{path}: holds no file that ends in {', '.join(_ENDINGS)}.")
        files += inside
    problems += [f"{file}: there is no such file." for file in files if not file.is_file()]
    if problems:
        raise Problems("kvsim calibrate", problems)
    return files


_ENDINGS = (".json", ".jsonl", ".csv", ".csv.gz")


def _complete(
    row: ClientRow, number: int, settings: Mapping[str, str], given: Mapping[str, str]
) -> list[str]:
    """Fill in the row's cells; what its file and the scenario say otherwise is a problem."""
    said = {column: cell for column, cell in row.cells.items() if cell}
    named = catalog_name(row.served)
    if named is not None and given.get("model", named) in catalog.model_names():
        said.setdefault("model", named)
    differ = [
        f"{row.place}{column}: {show(said[column])}, and the scenario says {show(given[column])}. "
        f"Give --set {column}=... to choose, or another scenario."
        for column in ("model", "gpu", "tp", "engine")
        if column in said
        and column in given
        and column not in settings
        and given[column] != said[column]
    ]
    row.cells = {**given, **said, **settings}
    row.cells.setdefault("id", row.place.removesuffix(": ").removesuffix(", ") or str(number))
    row.cells.setdefault("ep", "1")
    return differ


def _missing(rows: Sequence[ClientRow]) -> list[str]:
    problems = []
    for column in REQUIRED:
        lacking = [row for row in rows if not row.cells.get(column)]
        if not lacking:
            continue
        served = next((row.served for row in lacking if row.served), "")
        why = ""
        if column == "model" and served:
            why = f" The files say {show(served)}, which the catalog does not have by this name."
        elsewhere = (
            " or --scenario FILE"
            if column in ("model", "gpu", "precision", "engine", "tp")
            else ", or a column of the file"
        )
        which = (
            "no point says it"
            if len(lacking) == len(rows)
            else f"{len(lacking)} of {len(rows)} points do not say it, the first "
            f"{lacking[0].cells['id']}"
        )
        problems.append(
            f"{column} ({SETTINGS.get(column, 'name of the point')}): is missing: {which}.{why} "
            f"Give --set {column}=...{elsewhere}."
        )
    columns = {column for row in rows for column, cell in row.cells.items() if cell}
    return problems + bad_columns(columns)


def _wrong(row: ClientRow, given: Mapping[str, str]) -> list[str]:
    problems = bad_cells(row.cells, row.place)
    for column in ("model", "gpu", "precision"):
        if row.cells[column] != given.get(column):  # a scenario may have its own
            problems += _bad_name(column, row.cells[column], f"{row.place}{column}")
    if not any(row.cells.get(name) for name in TIMES):
        problems.append(f"{row.place}no time. Give at least one of {', '.join(TIMES)}.")
    return problems


def _bad_name(column: str, value: str, place: str) -> list[str]:
    known: dict[str, Sequence[str]] = {
        "model": catalog.model_names(),
        "gpu": catalog.gpu_names(),
        "precision": (*BYTES, "nvfp4"),
        "engine": ENGINES,
    }
    if column not in known or value in known[column]:
        return []
    what = "GPU" if column == "gpu" else column
    return [f"{place}: {unknown_name(what, value, known[column])}"]


def _point(
    row: ClientRow,
    settings: Mapping[str, str],
    given: Mapping[str, str],
    scenario: Scenario | None,
) -> Point:
    cells = row.cells
    if row.left_out is not None:
        shown = dict.fromkeys((*REQUIRED, *TIMES), "") | cells
        return Point(shown, math.nan, math.nan, False, False, left_out=row.left_out)
    model, gpu = None, None
    if scenario is not None and cells["gpu"] == given.get("gpu"):
        gpu = scenario.gpu_spec
    if scenario is not None and cells["model"] == given["model"]:
        if cells["precision"] == given["precision"]:
            model = scenario.model_spec
        elif not isinstance(scenario.model, str):
            text = "the model that the scenario writes down has one precision. Leave it."
            raise KvsimError(f"--set precision: {text}")
    lengths = None if {"isl", "osl", "num_prompts"} & set(settings) else row.lengths
    return make_point(cells, model=model, gpu=gpu, lengths=lengths)
