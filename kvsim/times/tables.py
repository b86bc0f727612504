"""Tables of measured steps: decode over batch and context, prompts over tokens and KV read.

A table is a CSV file with the columns of ``COLUMNS``; a row is one measured step. Between its
points it is interpolated, linearly in both directions, in compiled code. Outside of them it goes
on as its last two points do, and that is counted (``StepTables.outside``), so that a run can say
it. A step with prompts and decodes takes the prompts' time at all its tokens, and what attention
adds to a decode::

    mixed = prompt(tokens, KV read) + decode(batch, context) - decode(batch, least context)
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.errors import Problems, show
from kvsim.jit import njit

Floats = npt.NDArray[np.float64]

COLUMNS = {
    "kind": "decode (one token a sequence) or prompt",
    "batch": "decode: sequences; prompt: empty or 1",
    "tokens": "prompt: tokens computed in the step; decode: empty",
    "context_tokens": "decode: tokens of context of one sequence; prompt: KV read, tokens before",
    "seconds": "of the step",
}
"""Columns of a table of steps and what they hold."""


class StepTables(NamedTuple):
    """Two grids; all empty where there is no table.

    Attributes:
        decode_batch: float64 [b], sequences, ascending.
        decode_context: float64 [c], tokens of context a sequence, ascending.
        decode_s: float64 [b, c], seconds.
        prompt_tokens: float64 [t], tokens of a step, ascending.
        prompt_context: float64 [k], tokens read, ascending.
        prompt_s: float64 [t, k], seconds.
        outside: int64 [2]: steps answered, and those of them outside of the table.
    """

    decode_batch: Floats
    decode_context: Floats
    decode_s: Floats
    prompt_tokens: Floats
    prompt_context: Floats
    prompt_s: Floats
    outside: npt.NDArray[np.int64]


def no_tables() -> StepTables:
    """Of size 0: another provider answers."""
    axis, grid = np.zeros(0), np.zeros((0, 0))
    return StepTables(axis, axis, grid, axis, axis, grid, np.zeros(2, np.int64))


@njit
def _place(axis: Floats, value: float) -> tuple[int, float]:
    """Index of the cell, and where in it: 0 to 1 inside, beyond that outside of the axis."""
    if axis.size == 1:
        return 0, 0.0
    cell: int = min(max(int(np.searchsorted(axis, value)) - 1, 0), axis.size - 2)
    return cell, (value - axis[cell]) / (axis[cell + 1] - axis[cell])


@njit
def _is_outside(axis: Floats, value: float) -> bool:
    return bool(value < axis[0] or value > axis[-1])


@njit
def _at(rows: Floats, columns: Floats, grid: Floats, row: float, column: float) -> float:
    r, x = _place(rows, row)
    k, y = _place(columns, column)
    r1, k1 = min(r + 1, rows.size - 1), min(k + 1, columns.size - 1)
    low = grid[r, k] + (grid[r, k1] - grid[r, k]) * y
    high = grid[r1, k] + (grid[r1, k1] - grid[r1, k]) * y
    # Going on beyond the ends must not end below nothing.
    seconds: float = max(low + (high - low) * x, 0.0)
    return seconds


@njit
def mixed_seconds(
    tables: StepTables, batch: float, context: float, tokens: float, read: float
) -> float:
    """Seconds of a step.

    Args:
        tables: not empty.
        batch: sequences that decode.
        context: tokens of context of all of them together.
        tokens: tokens of prompts.
        read: tokens computed before of these prompts, together.
    """
    t = tables
    seconds, outside = 0.0, False
    each = context / batch if batch > 0 else 0.0
    if tokens > 0:
        seconds = _at(t.prompt_tokens, t.prompt_context, t.prompt_s, tokens + batch, read)
        outside = _is_outside(t.prompt_tokens, tokens + batch)
        outside = outside or _is_outside(t.prompt_context, read)
    if batch > 0:
        seconds += _at(t.decode_batch, t.decode_context, t.decode_s, batch, each)
        outside = outside or _is_outside(t.decode_batch, batch)
        outside = outside or _is_outside(t.decode_context, each)
        if tokens > 0:
            least = t.decode_context[0]
            seconds -= _at(t.decode_batch, t.decode_context, t.decode_s, batch, least)
    t.outside[0] += 1
    if outside:
        t.outside[1] += 1
    return seconds


def read_tables(path: Path) -> StepTables:
    """Read a table of steps.

    Raises:
        Problems: the file is missing, a column or a point of a grid is missing, or a value is none.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            # Lines that begin with # say where a table is from.
            reader = csv.DictReader(line for line in file if not line.startswith("#"))
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                need = ", ".join(COLUMNS)
                raise Problems(
                    str(path),
                    [
                        f"column {name}: is missing. A table of steps has {need}."
                        for name in missing
                    ],
                )
            rows = list(reader)
    except OSError as error:
        raise Problems(str(path), [f"cannot be read: {error.strerror}."]) from None
    problems: list[str] = []
    decode: dict[tuple[float, float], float] = {}
    prompt: dict[tuple[float, float], float] = {}
    for line, row in enumerate(rows, start=2):
        _enter(row, line, decode, prompt, problems)
    for name, points in (("decode", decode), ("prompt", prompt)):
        if not problems and len({key[0] for key in points}) < 2:
            problems.append(f"kind {name}: needs at least two different "
                            f"{'batches' if name == 'decode' else 'tokens'}.")  # fmt: skip
    if problems:
        raise Problems(str(path), problems)
    batch, context, decode_s = _grid(decode, path, "decode", "batch")
    tokens, read, prompt_s = _grid(prompt, path, "prompt", "tokens")
    return StepTables(batch, context, decode_s, tokens, read, prompt_s, np.zeros(2, np.int64))


def _enter(
    row: dict[str, str],
    line: int,
    decode: dict[tuple[float, float], float],
    prompt: dict[tuple[float, float], float],
    problems: list[str],
) -> None:
    kind = row["kind"]
    if kind not in ("decode", "prompt"):
        problems.append(f"line {line}, kind: {show(kind)} is neither decode nor prompt.")
        return
    of = {"batch" if kind == "decode" else "tokens": 1.0, "context_tokens": 0.0, "seconds": 0.0}
    values = []
    for name, least in of.items():
        try:
            value = float(row[name] or "nan")
        except ValueError:
            value = float("nan")
        if not (value >= least and np.isfinite(value)) or (name == "seconds" and value == 0.0):
            above = "above 0 s" if name == "seconds" else f"of at least {least:g}"
            problems.append(f"line {line}, {name}: {show(row[name])} is not a number {above}.")
        values.append(value)
    (decode if kind == "decode" else prompt)[values[0], values[1]] = values[2]


def _grid(
    points: dict[tuple[float, float], float], path: Path, kind: str, rows: str
) -> tuple[Floats, Floats, Floats]:
    first = np.array(sorted({key[0] for key in points}))
    second = np.array(sorted({key[1] for key in points}))
    lacking = [(a, b) for a in first for b in second if (a, b) not in points]
    if lacking:
        a, b = lacking[0]
        raise Problems(
            str(path),
            [
                f"kind {kind}: {len(lacking)} points of the grid are missing, the first at {rows} "
                f"{a:g}, context_tokens {b:g}. Give every {rows} at every context_tokens."
            ],
        )
    return first, second, np.array([[points[a, b] for b in second] for a in first])
