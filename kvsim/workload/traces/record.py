"""What a line of a trace says, in the same words for every format, and the checks of its values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_LENGTH_TOKENS = 2**31 - 1
"""Longer prompts and answers than this are taken for a mistake in the trace."""


MAX_TIME = 2**53
"""Later times than this, in whatever unit, are no longer exact."""
_HEXADECIMAL = re.compile(r"(?:0[xX])?[0-9a-fA-F]+").fullmatch


LeaveOut = Callable[[str], None]
"""Told what is wrong with a request that is left out of its session."""


@dataclass(slots=True)
class Row:
    """A request as a line has it.

    Attributes:
        time_s: seconds on the trace's clock; None where the line has no time.
        num_prompt_tokens: length of the prompt (of what a turn adds, in delta formats).
        num_output_tokens: length of the answer; 0 where the line says so, None where it does not
            say.
        ids: an id for every block of the prompt, chained; None where nothing is said about content.
        session_id: the session it belongs to; None where the line names none.
        parent: the earlier request it follows, by `name`; None for none.
        name: what later lines call this one.
        delay_s: seconds after the end of the turn before; None where not recorded.
        answer_ids: ids of blocks that end in the answer, where its text is known.
        keep_priority: 0 to 100, how much its blocks are to be kept; -1 where nothing is said.
        keep_tokens: how many of its first tokens that is about; None for all.
        keep_s: seconds for which that holds after its end; infinite for ever.
    """

    time_s: float | None
    num_prompt_tokens: int
    num_output_tokens: int | None
    ids: list[int] | None = None
    session_id: str | None = None
    parent: str | None = None
    name: str | None = None
    delay_s: float | None = None
    answer_ids: list[int] | None = None
    keep_priority: int = -1
    keep_tokens: int | None = None
    keep_s: float = math.inf


def missing_problems(row: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    """Keys that a line lacks, in one problem."""
    missing = [name for name in names if name not in row]
    if missing:
        yield f"{', '.join(missing)}: missing. A line needs {', '.join(names)}."


def length_problems(row: Mapping[str, Any], name: str, *, least: int = 1) -> Iterator[str]:
    """What is wrong with a number of tokens."""
    value = row[name]
    if type(value) is not int:
        yield f"{name}: {shown(value)} is not an integer number of tokens."
    elif not least <= value <= MAX_LENGTH_TOKENS:
        yield (
            f"{name}: {shown(value)} is out of range. A request has {least} to "
            f"{MAX_LENGTH_TOKENS} tokens; remove the line."
        )


def with_integer_ids(row: dict[str, Any], name: str) -> dict[str, Any]:
    """The row with ids in hexadecimal as integers, where all of them are written so."""
    ids = row.get(name)
    if type(ids) is not list or not ids or type(ids[0]) is not str:
        return row
    if not all(type(content_id) is str and _HEXADECIMAL(content_id) for content_id in ids):
        return row
    return {**row, name: [int(content_id, 16) for content_id in ids]}


def id_problems(row: Mapping[str, Any], name: str) -> Iterator[str]:
    """What is wrong with a list of content ids."""
    ids = row[name]
    if type(ids) is not list:
        yield f"{name}: {shown(ids)} is not a list of integers."
    elif set(map(type, ids)) - {int}:
        wrong = next(content_id for content_id in ids if type(content_id) is not int)
        yield f"{name}: {shown(wrong)} is not an integer."
    elif ids and min(ids) < 0:
        yield f"{name}: {shown(min(ids))} is negative. Ids are integers from 0."


def number_problems(row: Mapping[str, Any], name: str, unit: str) -> Iterator[str]:
    """What is wrong with a time or a delay from 0 on; numbers in quotes are taken."""
    value = as_number(row[name])
    if value is None:
        yield f"{name}: {shown(row[name])} is not a number of {unit}."
    elif value < 0:
        yield f"{name}: {shown(row[name])} is negative. Times are {unit} from 0."
    elif value > MAX_TIME:
        yield f"{name}: {shown(row[name])} is above 2**53 {unit}, where times are no longer exact."


def as_number(value: object) -> float | None:
    """A finite number, also one in quotes as some exporters write times; None for anything else."""
    if type(value) is str:
        try:
            value = float(value)
        except ValueError:
            return None
    if type(value) not in (int, float):
        return None
    try:
        return float(value) if math.isfinite(value) else None  # type: ignore[arg-type]
    except OverflowError:  # an integer beyond the floats
        return None


def is_length(value: object, least: int = 1) -> bool:
    """Whether it can be a number of tokens."""
    return type(value) is int and least <= value <= MAX_LENGTH_TOKENS


def shown(value: object) -> str:
    """A JSON value as the file has it, cut to a readable length."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError, TypeError):  # such as an integer with too many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:37] + "..."
