"""Calls from compiled code to policies: machine code where it can be, plain Python where not.

The core is compiled once. A policy is compiled by itself to a function at an address, which the
core is handed in an array; one that numba cannot compile stands behind an address as well, and is
called in Python. An error cannot pass through either: the call leaves no mark in the facts that it
has answered.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numba
import numba.np.arrayobj as numba_arrays
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core.errors import NumbaError
from numba.extending import intrinsic
from numba.np.numpy_support import from_dtype

# Numba's own doors for extensions, which have no types.
arrays: Any = numba_arrays
types: Any = numba.types
cgutils: Any = numba.core.cgutils
carray: Any = numba.carray  # type: ignore[attr-defined]

_C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def _call_policy(typing: Any, address: Any, facts: Any, rows: Any, num: Any) -> Any:
    """Call what stands at an address with the addresses of facts and of ``num`` rows."""
    i64 = types.int64

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.DoubleType(), [word, word, word])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.float64(i64, i64, i64, i64), generate


call_policy: Any = intrinsic(_call_policy)


def rows_at(dtype: np.dtype[Any]) -> Any:
    """For compiled code: a function from an address and a length to the rows that lie there."""
    array = types.Array(from_dtype(dtype), 1, "C")

    def view(typing: Any, address: Any, num: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            made = arrays.make_array(array)(context, builder)
            size = context.get_constant(types.intp, dtype.itemsize)
            arrays.populate_array(
                made,
                data=builder.inttoptr(args[0], made.data.type),
                shape=cgutils.pack_array(builder, [args[1]]),
                strides=cgutils.pack_array(builder, [size]),
                itemsize=size,
                meminfo=None,
            )
            return made._getvalue()

        return array(types.int64, types.int64), generate

    return intrinsic(view)


SCORE, KEEPS, EVENT, PICK = "score", "keeps", "event", "pick"
"""Forms of functions: facts to a number; facts to yes or no; facts and rows; rows to a block."""


@dataclass(frozen=True)
class Callback:
    """A function of a policy as compiled code calls it.

    Attributes:
        address: of the function.
        python: the function itself, with its parameters: takes facts, or facts and rows.
        is_compiled: machine code; else every call goes through Python.
        why_not: what kept it from being compiled, empty if nothing.
        keep: what has to stay alive as long as it may be called.
        errors: what it raised in plain Python.
    """

    address: int
    python: Callable[..., Any]
    is_compiled: bool
    why_not: str = ""
    keep: Any = field(default=None, repr=False)
    errors: list[Exception] = field(default_factory=list)

    @property
    def first_error(self) -> Exception | None:
        """What it raised first in plain Python, told once."""
        first = self.errors[0] if self.errors else None
        self.errors.clear()
        return first


@lru_cache(maxsize=256)
def callback(
    function: Callable[..., Any],
    parameters: tuple[Any, ...],
    facts: np.dtype[Any],
    rows: np.dtype[Any] | None,
    form: str = SCORE,
) -> Callback:
    """Make a policy's function callable from compiled code.

    Args:
        function: takes a row of facts, the rows where there are some, and the parameters.
        parameters: numbers, part of the compiled code.
        facts: of the row of facts, with a field ``answered``.
        rows: of the rows of a full form; None for a simple form, which has none.
        form: what it takes and answers: `SCORE`, `KEEPS`, `EVENT` or `PICK`.
    """
    try:
        compiled = _compile(function, parameters, facts, rows, form)
    except NumbaError as error:
        why_not = _in_short(str(error))
        return _interpreted(function, parameters, facts, rows, form, why_not)
    python = _bound(function, parameters, rows is not None, form)
    return Callback(compiled.address, python, True, keep=compiled)


def _in_short(error: str) -> str:
    """The line of one of numba's errors that says what it is about."""
    lines = [line.strip() for line in error.splitlines()]
    said = [line for line in lines if line and not line.startswith(("Failed in", "During", "^"))]
    return (said[0] if said else "numba cannot compile it")[:160].rstrip(": .")


def _bound(
    function: Callable[..., Any], parameters: tuple[Any, ...], has_rows: bool, form: str
) -> Callable[..., Any]:
    """The function with its parameters, taking facts and rows whatever it needs of them."""

    def bound(facts: Any, rows: Any) -> Any:
        given = (*([facts] if form != PICK else []), *([rows] if has_rows else []))
        return function(*given, *parameters)

    return bound


def _compile(
    function: Callable[..., Any],
    parameters: tuple[Any, ...],
    facts: np.dtype[Any],
    rows: Any,
    form: str,
) -> Any:
    inner: Any = numba.njit(function)
    facts_type = types.CPointer(from_dtype(facts))
    entry: Any
    if form == KEEPS:
        rows_type: Any = types.voidptr

        def entry(facts, rows, num):  # type: ignore[no-untyped-def]
            run = carray(facts, 1)[0]
            run.answered = 0
            answer = 1.0 if inner(run, *parameters) else 0.0
            run.answered = 1
            return answer

    elif form == SCORE:
        rows_type = types.voidptr

        def entry(facts, rows, num):  # type: ignore[no-untyped-def]
            block = carray(facts, 1)[0]
            block.answered = 0
            answer = float(inner(block, *parameters))
            block.answered = 1
            return answer

    elif form == EVENT:
        rows_type = types.CPointer(from_dtype(rows))

        def entry(facts, rows, num):  # type: ignore[no-untyped-def]
            block = carray(facts, 1)[0]
            block.answered = 0
            inner(block, carray(rows, num), *parameters)
            block.answered = 1
            return 0.0

    else:
        rows_type = types.CPointer(from_dtype(rows))

        def entry(facts, rows, num):  # type: ignore[no-untyped-def]
            block = carray(facts, 1)[0]
            block.answered = 0
            answer = float(inner(carray(rows, num), *parameters))
            block.answered = 1
            return answer

    made: Any = numba.cfunc(types.float64(facts_type, rows_type, types.int64))(entry)
    return made


def _interpreted(
    function: Callable[..., Any],
    parameters: tuple[Any, ...],
    facts: np.dtype[Any],
    rows: np.dtype[Any] | None,
    form: str,
    why_not: str,
) -> Callback:
    bound = _bound(function, parameters, rows is not None, form)
    errors: list[Exception] = []

    def call(facts_at: int, rows_at: int, num: int) -> float:
        block = _records(facts_at, 1, facts)[0]
        block.answered = 0
        try:
            answer = bound(block, None if rows is None else _records(rows_at, num, rows))
            answer = 0.0 if answer is None else float(answer)
        except Exception as error:
            if not errors:
                errors.append(error)
            return 0.0
        block.answered = 1
        return answer

    pointer = _C_FUNCTION(call)
    address = ctypes.cast(pointer, ctypes.c_void_p).value or 0
    return Callback(address, bound, False, why_not, (pointer, call), errors)


def _records(address: int, num: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Rows at an address, whose fields are attributes."""
    memory = (ctypes.c_char * (num * dtype.itemsize)).from_address(address)
    records: Any = np.frombuffer(memory, dtype=dtype)  # type: ignore[call-overload]
    return records.view(np.recarray)  # type: ignore[no-any-return]
