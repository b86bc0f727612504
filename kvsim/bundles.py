"""Many arrays handed to compiled code as one.

Every array in a call costs compiled code a fraction of a microsecond before it begins, and named
tuples three times as much. A bundle is one array of numbers with the address and the shape of each:
compiled code makes the arrays of it for nothing.
"""

from __future__ import annotations

from typing import Any

import numba
import numba.np.arrayobj as numba_arrays
import numpy as np
import numpy.typing as npt
from numba.extending import intrinsic

Ints = npt.NDArray[np.int64]

# Numba's own doors for extensions, which have no types.
arrays: Any = numba_arrays
types: Any = numba.types
cgutils: Any = numba.core.cgutils
typeof: Any = numba.typeof

COMPILES = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]
"""Whether there is compiled code that a bundle could be handed to."""


class Bundle:
    """The arrays and integers of a nested tuple, as one array of int64.

    It has the address and the shape of each array, and the integers, in the order of the tuple.
    """

    def __init__(self, kind: Any) -> None:
        """Empty.

        Args:
            kind: numba's type of what it is filled with.
        """
        self._kind = kind
        self._held: Any = None
        self._shapes: list[Any] = []

    def hold(self, *values: Any) -> Ints | None:
        """Take in values, which are kept alive.

        Returns:
            The words; None where the values are those it held already.

        Raises:
            TypeError: they are not of the bundle's type.
        """
        held = self._held
        if held is not None and all(a is b for a, b in zip(held, values, strict=True)):
            return None
        words: list[int] = []
        shapes: list[Any] = []
        _write(values, words, shapes)
        if shapes != self._shapes:  # numba's own look at a type takes a while
            if typeof(values) != self._kind:
                raise TypeError(f"a bundle of {self._kind} cannot hold {typeof(values)}")
            self._shapes = shapes
        self._held = values
        return np.array(words, dtype=np.int64)


def _write(value: Any, words: list[int], shapes: list[Any]) -> None:
    """Write what compiled code is handed of a value, and what tells its type."""
    if isinstance(value, tuple):
        shapes.append(len(value))
        for part in value:
            _write(part, words, shapes)
    elif isinstance(value, np.ndarray):
        words.extend((value.ctypes.data, *value.shape))
        flags = value.flags
        shapes.append((value.dtype, value.ndim, flags.c_contiguous, flags.writeable, flags.aligned))
    else:
        words.append(int(value))
        shapes.append(type(value))


def unbundle(kind: Any) -> Any:
    """For compiled code: a function from a bundle's words to the values of such a type."""

    def view(typing: Any, words: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            made = arrays.make_array(signature.args[0])(context, builder, args[0])
            words = _Words(context, builder, made.data)
            return words.take(kind)

        return kind(words), generate

    return intrinsic(view)


class _Words:
    """Reads a bundle's words one after another, in generated code."""

    def __init__(self, context: Any, builder: Any, data: Any) -> None:
        self._context = context
        self._builder = builder
        self._data = data
        self._next = 0

    def take(self, kind: Any) -> Any:
        """The value of a type that comes next."""
        context, builder = self._context, self._builder
        if isinstance(kind, types.BaseTuple):
            return context.make_tuple(builder, kind, [self.take(part) for part in kind.types])
        if not isinstance(kind, types.Array):
            return self._word()
        made = arrays.make_array(kind)(context, builder)
        data = self._word()
        shape = [self._word() for _ in range(kind.ndim)]
        size = context.get_constant(types.intp, arrays.get_itemsize(context, kind))
        strides = [size]
        for length in reversed(shape[1:]):
            strides.insert(0, builder.mul(strides[0], length))
        arrays.populate_array(
            made,
            data=builder.inttoptr(data, made.data.type),
            shape=cgutils.pack_array(builder, shape),
            strides=cgutils.pack_array(builder, strides),
            itemsize=size,
            meminfo=None,
        )
        return made._getvalue()

    def _word(self) -> Any:
        place = self._context.get_constant(types.intp, self._next)
        self._next += 1
        return self._builder.load(self._builder.gep(self._data, [place]))
