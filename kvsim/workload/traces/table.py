"""Tables whose columns are named: CSV, JSON lines or Parquet, with a request a row.

`columns` says which column is what; what it leaves out is looked for under usual names. Only the
time and the length of the prompt are needed. Vidur's files (`arrived_at`, `num_prefill_tokens`,
`num_decode_tokens`) are such tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvsim.errors import Problems, unknown_name
from kvsim.workload.traces.clock import Clock
from kvsim.workload.traces.lengths_only import as_count, count_problems
from kvsim.workload.traces.record import (
    MAX_LENGTH_TOKENS,
    MAX_TIME,
    Row,
    as_number,
    id_problems,
    shown,
    with_integer_ids,
)

COLUMNS: dict[str, tuple[str, ...]] = {
    "time": ("timestamp", "time", "arrived_at", "arrival_time", "arrival", "created", "start_time"),
    "prompt": (
        "num_prefill_tokens",
        "prompt_tokens",
        "input_tokens",
        "input_length",
        "prompt_length",
        "prompt_len",
        "input_len",
        "context_tokens",
    ),
    "output": (
        "num_decode_tokens",
        "completion_tokens",
        "output_tokens",
        "output_length",
        "output_len",
        "generated_tokens",
    ),
    "session": ("session_id", "conversation_id", "chat_id"),
    "ids": ("hash_ids", "block_hashes"),
    "delay": ("delay", "think_time"),
    "keep_priority": ("keep_priority", "retention_priority"),
    "keep_tokens": ("keep_tokens",),
    "keep_s": ("keep_s",),
}
"""What a column can be, with the names it usually has."""
_UNITS = (("_ms", "ms"), ("_us", "us"), ("_ns", "ns"), ("_s", "s"))


def found_columns(names: Iterable[str]) -> dict[str, str]:
    """The columns that have usual names."""
    known = {name.lower(): name for name in reversed(list(names))}
    return {
        what: known[usual]
        for what, usuals in COLUMNS.items()
        for usual in usuals[::-1]
        if usual in known
    }


def chosen_columns(given: Mapping[str, str] | None, names: list[str], shown: str) -> dict[str, str]:
    """The column of each part of a row.

    Args:
        given: as the scenario says.
        names: of the file's columns.
        shown: how messages name the file.

    Raises:
        Problems: a column is not there, or the time or the prompt has none.
    """
    given = given or {}
    problems = [
        f"columns.{what}: {unknown_name('column', name, names)}"
        for what, name in given.items()
        if name not in names
    ]
    columns = {**found_columns(names), **given}
    problems += [
        f"columns.{what}: no column of this file has a usual name for it ({', '.join(names)}). "
        f"Say which it is, as in workload.columns: {{{what}: NAME}} (--columns {what}=NAME)."
        for what in ("time", "prompt")
        if what not in columns
    ]
    if problems:
        raise Problems(shown, problems)
    return columns


def unit_of(column: str) -> str | None:
    """The unit that the name of a column says."""
    return next((unit for ending, unit in _UNITS if column.lower().endswith(ending)), None)


class TableRows:
    """Rows of a table; numbers may stand in quotes, lists of ids as JSON or with spaces."""

    name = "table"

    def __init__(self, columns: Mapping[str, str], clock: Clock) -> None:
        """Start at the first row, with times on this clock."""
        self.time_names: tuple[str, ...] = (columns["time"],)
        self.seconds = clock.seconds
        self._columns = columns
        self._clock = clock

    def parse(self, fields: dict[str, Any]) -> Row | list[str]:
        """What the row says, or everything that is wrong with it."""
        columns = self._columns
        missing = [columns[what] for what in ("time", "prompt") if columns[what] not in fields]
        if missing:
            return [f"{', '.join(missing)}: missing. A row needs a time and a prompt's length."]
        values = {what: fields.get(name) for what, name in columns.items()}
        problems = list(count_problems(fields, columns["prompt"]))
        num_output: int | None = None
        if values.get("output") not in (None, ""):
            problems += count_problems(fields, columns["output"], least=0)
            num_output = as_count(values["output"])
        problems += self._clock.problems(fields, columns["time"])
        delay_s = None
        if values.get("delay") not in (None, ""):
            problems += self._clock.duration_problems(fields, columns["delay"])
            delay_s = self._clock.duration_s(values["delay"])
        ids = None
        if "ids" in columns and not problems:
            listed = with_integer_ids({columns["ids"]: as_list(values["ids"])}, columns["ids"])
            problems += id_problems(listed, columns["ids"])
            ids = listed[columns["ids"]]
        problems += _keep_problems(fields, columns)
        if problems:
            return problems
        session = values.get("session")
        return Row(
            self.seconds(values["time"]),
            as_count(values["prompt"]),
            num_output,
            ids,
            None if session in (None, "") else str(session),
            delay_s=delay_s,
            **_kept(values),
        )


def _keep_problems(fields: Mapping[str, Any], columns: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with a retention priority, and with what and how long it is about."""
    for what, low, high, kind in (
        ("keep_priority", 0, 100, "a whole number"),
        ("keep_tokens", 1, MAX_LENGTH_TOKENS, "a whole number"),
        ("keep_s", 0, MAX_TIME, "seconds"),
    ):
        name = columns.get(what)
        value = None if name is None else fields.get(name)
        if value in (None, ""):
            continue
        number = as_number(value)
        if number is None or not low <= number <= high or kind != "seconds" and number % 1:
            yield f"{name}: {shown(value)} is not {kind} from {low} to {high}."


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a row says about keeping; nothing where it says nothing."""
    found: dict[str, Any] = {}
    for what, kind in (("keep_priority", int), ("keep_tokens", int), ("keep_s", float)):
        number = as_number(values.get(what))
        if number is not None:
            found[what] = kind(number)
    return found


def as_list(value: Any) -> Any:
    """A list as it is, or from a text of JSON or with spaces between."""
    if type(value) is not str:
        return [] if value is None else value
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parts = value.split()
        return [int(part) if part.isdecimal() and len(part) < 40 else part for part in parts]
    return [parsed] if type(parsed) is int else parsed
