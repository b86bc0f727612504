"""Compiled code finds in a bundle what was put there."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from kvsim.bundles import COMPILES, Bundle, typeof, unbundle
from kvsim.jit import njit

pytestmark = pytest.mark.skipif(not COMPILES, reason="nothing is compiled")


class Part(NamedTuple):
    """Some arrays."""

    rows: Any
    weights: Any
    number: int


ROW = np.dtype([("one", np.int64), ("two", np.int32)], align=True)


def values(rows: int = 3, columns: int = 4) -> tuple[Any, ...]:
    table = np.arange(rows * columns, dtype=np.int64).reshape(rows, columns)
    part = Part(np.zeros(rows, dtype=ROW), np.linspace(0.0, 1.0, columns), -7)
    return (table, (part, np.array([True, False])))


KIND = typeof(values())
_unbundle = unbundle(KIND)


@njit
def _look(words: Any, out: Any) -> None:
    table, (part, flags) = _unbundle(words)
    out[0] = table.shape[0]
    out[1] = table.shape[1]
    out[2] = table[table.shape[0] - 1, 1]
    out[3] = len(part.rows)
    out[4] = part.weights[len(part.weights) - 1] * 100
    out[5] = part.number
    out[6] = flags[0]
    part.rows[1].one = 5
    part.rows[1].two = 6
    table[0, 0] = 9


@pytest.mark.parametrize(("rows", "columns"), [(3, 4), (2, 2), (50, 7)])
def test_arrays_come_out_with_their_shapes(rows: int, columns: int) -> None:
    held = values(rows, columns)
    words = Bundle(KIND).hold(*held)
    out = np.zeros(7, dtype=np.int64)
    _look(words, out)
    assert out.tolist() == [rows, columns, (rows - 1) * columns + 1, rows, 100, -7, 1]
    assert held[1][0].rows[1].item() == (5, 6), "it is the very array"
    assert held[0][0, 0] == 9


def test_the_same_values_are_told_once() -> None:
    bundle, held = Bundle(KIND), values()
    first = bundle.hold(*held)
    assert first is not None
    assert bundle.hold(*held) is None
    other = values()
    second = bundle.hold(*other)
    assert second is not None
    assert (first != second).any(), "they lie elsewhere"


@pytest.mark.parametrize(
    "wrong",
    [
        (np.zeros((3, 4)), values()[1]),
        (np.zeros(3, dtype=np.int64), values()[1]),
        (np.zeros((4, 3), dtype=np.int64).T, values()[1]),
        (values()[0], (values()[1][0],)),
        (values()[0], (values()[1][0]._replace(number=1.5), values()[1][1])),
    ],
    ids=["dtype", "dimensions", "order", "length", "number"],
)
def test_values_of_another_type_are_refused(wrong: tuple[Any, ...]) -> None:
    bundle = Bundle(KIND)
    with pytest.raises(TypeError, match="cannot hold"):
        bundle.hold(*wrong)
    bundle.hold(*values())
    with pytest.raises(TypeError, match="cannot hold"):
        bundle.hold(*wrong)


def test_a_bundle_keeps_what_it_points_at_alive() -> None:
    bundle = Bundle(KIND)
    words = bundle.hold(*values())
    rubbish = [np.full(12, -1, dtype=np.int64) for _ in range(100)]
    out = np.zeros(7, dtype=np.int64)
    _look(words, out)
    assert out[2] == 9
    assert len(rubbish) == 100
