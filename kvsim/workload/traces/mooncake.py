"""Mooncake's trace format: times, lengths, and one content id for every 512 prompt tokens.

A line is a JSON object with `timestamp` (ms), `input_length`, `output_length` (tokens) and
`hash_ids`, `ceil(input_length / 512)` of them, the last for what is left of the prompt. Ids are
chained: an id stands for the whole prompt up to its end. Answers have no ids, so each answer is
content of its own. Other keys are ignored.

Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.cache.content import Content
from kvsim.errors import Problems
from kvsim.workload.request import Request, Workload
from kvsim.workload.traces.lines import TraceLines

BLOCK_TOKENS = 512
"""Prompt tokens that one id of Mooncake's published traces stands for."""
MAX_LENGTH_TOKENS = 2**31 - 1
"""Longer prompts and answers than this are taken for a mistake in the trace."""
_MAX_PROBLEMS = 10

# Ids below the first mark are uids as they are; larger ones (hashes) are numbered as they come,
# up to the second; from there on each answer has its own. All stay below the core's 2**35.
_FIRST_NUMBERED_UID = 2**33
_FIRST_OUTPUT_UID = 2**34


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Which part of a trace is replayed, and how fast.

    Attributes:
        limit: number of requests to replay, None for all.
        time_scale: factor on all times; 2 halves the request rate.
        start_s: seconds on the trace's own clock, before scaling: requests before it are left out,
            and it is where the run's clock starts, so `arrival = (time - start_s) * time_scale`.
    """

    limit: int | None = None
    time_scale: float = 1.0
    start_s: float = 0.0


def open_mooncake(
    path: Path,
    options: TraceOptions,
    scheduler_block_tokens: int,
    *,
    block_tokens: int = BLOCK_TOKENS,
    shown: str | None = None,
) -> Workload:
    """Open a Mooncake trace, JSONL, plain or gzip.

    A request's id is its line number in seven digits. Memory does not grow with the trace, except
    for ids of 2**33 and more, which are numbered and remembered.

    Args:
        path: the trace file.
        options: which part, and how fast.
        scheduler_block_tokens: the unit of the model's prefix hits; coarser ids get a warning.
        block_tokens: prompt tokens that one id stands for.
        shown: how messages name the file, by default its path.

    Raises:
        KvsimError: the file cannot be read, holds no request to replay, or its first one is wrong;
            the same for later lines while the requests are read. Names file and line.
    """
    lines = TraceLines(path, shown)
    requests = _read(lines, options, block_tokens)
    # The first request now, so that a useless file is refused before anything is simulated.
    first = next(requests)
    num_read = 0

    def stream() -> Iterator[Request]:
        nonlocal num_read
        for request in chain([first], requests):
            num_read += 1
            yield request

    def share_read() -> float:
        by_limit = 0.0 if options.limit is None else num_read / options.limit
        return max(by_limit, lines.share_read())

    warnings = []
    if block_tokens > scheduler_block_tokens:
        warnings.append(coarse_ids_warning(lines.shown, block_tokens, scheduler_block_tokens))
    return Workload(
        requests=stream(),
        warnings=warnings,
        block_tokens=block_tokens,
        share_read=share_read,
    )


def coarse_ids_warning(trace: str, block_tokens: int, scheduler_block_tokens: int) -> str:
    """What a trace hides whose ids cover more tokens than the unit of the model's prefix hits."""
    return (
        f"{trace}: one id stands for {block_tokens} tokens, but this model's hits come in units of "
        f"{scheduler_block_tokens}. Where a prompt ends inside an id, the next turn's id differs "
        "although the text goes on, so the trace hides the hits for which a replay boundary is "
        "kept: hit rates of retention_interval 0 are a lower bound, and its rank against an "
        "interval may turn around on finer ids."
    )


def _read(lines: TraceLines, options: TraceOptions, block_tokens: int) -> Iterator[Request]:
    """Yield the requests; from the first bad line on only look for more problems, then raise."""
    line_reader = _LineReader(block_tokens)
    problems: list[str] = []
    number = num_requests = 0
    try:
        for number, line in lines:
            found = line_reader.problems(line)
            problems += [f"line {number}: {problem}" for problem in found]
            if len(problems) >= _MAX_PROBLEMS:
                break
            time_s = line_reader.time_s
            if found or time_s < options.start_s:
                continue
            num_requests += 1
            if not problems:
                yield line_reader.request(number, (time_s - options.start_s) * options.time_scale)
            if num_requests == options.limit:
                break
    except Problems as unreadable:
        problems += unreadable.problems
    if problems:
        raise Problems(lines.shown, problems)
    if number == 0:
        raise Problems(lines.shown, ["line 1: the trace is empty. It needs at least one request."])
    if num_requests == 0:
        rule = f"no request at or after start_s ({options.start_s:g} s)"
        problem = f"line {number}: {rule}; the last one is at {line_reader.time_s:g} s."
        raise Problems(lines.shown, [f"{problem} Choose an earlier start_s."])


class _LineReader:
    """Checks a line, then makes its request: the state that goes from line to line."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._row: dict[str, Any] = {}
        self._time_ms: float = -math.inf
        self._numbered_uids: dict[int, int] = {}
        self._num_outputs = 0
        self._ends = np.arange(1, 257, dtype=np.int64) * block_tokens

    @property
    def time_s(self) -> float:
        """Time of the last good line, in seconds on the trace's clock."""
        return self._time_ms / 1000

    def problems(self, line: str) -> list[str]:
        """What is wrong with a line; nothing when it can be used."""
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            return [f"not JSON: {error.msg} at column {error.colno}. Write one object a line."]
        except (ValueError, RecursionError):
            return ["not JSON: a number too long or lists too deep. Write one object a line."]
        if not isinstance(row, dict):
            return [f"{_shown(row)} is not a JSON object. Write one object a line."]
        missing = [name for name in _FIELDS if name not in row]
        if missing:
            return [f"{', '.join(missing)}: missing. A line needs {', '.join(_FIELDS)}."]
        found = [*_length_problems(row), *self._id_problems(row), *self._time_problems(row)]
        if not found:
            self._row = row
            self._time_ms = row["timestamp"]
        return found

    def request(self, number: int, arrival_s: float) -> Request:
        """The request of the last good line."""
        row = self._row
        ids, num_tokens = row["hash_ids"], row["input_length"]
        if max(ids) >= _FIRST_NUMBERED_UID:
            ids = [self._uid(content_id) for content_id in ids]
        if len(ids) > len(self._ends):
            self._ends = np.arange(1, 2 * len(ids) + 1, dtype=np.int64) * self._block_tokens
        ends = self._ends[: len(ids)].copy()
        ends[-1] = num_tokens
        output_uid = _FIRST_OUTPUT_UID + self._num_outputs
        self._num_outputs += 1
        return Request(
            request_id=f"{number:07d}",
            arrival_s=arrival_s,
            content=Content(np.array(ids, dtype=np.int64), ends),
            num_prompt_tokens=num_tokens,
            num_output_tokens=row["output_length"],
            output_uid=output_uid,
        )

    def _uid(self, content_id: int) -> int:
        if content_id < _FIRST_NUMBERED_UID:
            return content_id
        next_uid = _FIRST_NUMBERED_UID + len(self._numbered_uids)
        return self._numbered_uids.setdefault(content_id, next_uid)

    def _id_problems(self, row: dict[str, Any]) -> Iterator[str]:
        ids, num_tokens = row["hash_ids"], row["input_length"]
        if type(ids) is not list:
            yield f"hash_ids: {_shown(ids)} is not a list of integers."
            return
        if set(map(type, ids)) - {int}:
            wrong = next(content_id for content_id in ids if type(content_id) is not int)
            yield f"hash_ids: {_shown(wrong)} is not an integer."
        elif ids and min(ids) < 0:
            yield f"hash_ids: {_shown(min(ids))} is negative. Ids are integers from 0."
        if not _is_length(num_tokens):
            return
        expected = -(-num_tokens // self._block_tokens)
        if len(ids) != expected:
            yield (
                f"hash_ids: {len(ids)} ids for {num_tokens} tokens, where one id for every "
                f"{self._block_tokens} tokens makes {expected}. Use a trace with ids of "
                f"{self._block_tokens} tokens."
            )

    def _time_problems(self, row: dict[str, Any]) -> Iterator[str]:
        time_ms = row["timestamp"]
        if type(time_ms) not in (int, float) or not _is_finite(time_ms):
            yield f"timestamp: {_shown(time_ms)} is not a number of milliseconds."
        elif time_ms < 0:
            yield f"timestamp: {_shown(time_ms)} is negative. Times are milliseconds from 0."
        elif time_ms < self._time_ms:
            yield (
                f"timestamp: {time_ms} is before the {self._time_ms} of the request above. "
                "Sort the trace by timestamp."
            )


_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


def _length_problems(row: dict[str, Any]) -> Iterator[str]:
    for name in ("input_length", "output_length"):
        value = row[name]
        if type(value) is not int:
            yield f"{name}: {_shown(value)} is not an integer number of tokens."
        elif not _is_length(value):
            yield (
                f"{name}: {_shown(value)} is out of range. A request has 1 to "
                f"{MAX_LENGTH_TOKENS} tokens; remove the line."
            )


def _is_length(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_LENGTH_TOKENS


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the floats
        return False


def _shown(value: object) -> str:
    """A JSON value as the file has it, cut to a readable length."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):  # an integer with more digits than Python prints
        text = f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:37] + "..."
