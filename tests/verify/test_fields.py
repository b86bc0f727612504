from __future__ import annotations

import pytest

from kvsim.verify.fields import (
    CONFIGS,
    OPS,
    SPANS,
    Kind,
    field_problem,
    list_of,
    mapping_to,
    num_answers,
    one_of,
    or_null,
    whole_number,
)


@pytest.mark.parametrize(
    ("kind", "fitting", "others"),
    [
        (whole_number(1, 3), [1, 3], [0, 4, 1.0, True, "1", None]),
        (list_of(whole_number(0), 2), [[0, 1]], [[0], [0, 1, 2], [0, -1], "01", {}]),
        (mapping_to(whole_number(0)), [{}, {"a": 1}], [{"a": "b"}, []]),
        (or_null(whole_number(0)), [None, 0], [False, -1]),
        (one_of(("lru", "arc")), ["lru"], ["LRU", "", None, []]),
        (SPANS, [[[0, 1]], [[5, 2], [6, 1]]], [[], [[1]], [[1, 0]], [[-1, 2]], [[2**35, 2]]]),
    ],
)
def test_kinds(kind: Kind, fitting: list[object], others: list[object]) -> None:
    assert all(kind.fits(value) for value in fitting)
    assert not any(kind.fits(value) for value in others)


def test_the_first_problem_of_a_record() -> None:
    fields = OPS["kvsim-transcript/1"]["reset"]
    assert field_problem({"ok": True}, fields) is None
    assert field_problem({}, fields) == "ok is missing"
    assert field_problem({"ok": "no"}, fields) == "ok: 'no' is not true or false"
    assert field_problem({"ok": True, "free": 1}, fields) == "unknown field 'free'. Known: ok"


@pytest.mark.parametrize(
    ("form", "op", "count"),
    [
        ("kvsim-transcript/1", "lookup", 3),
        ("kvsim-transcript/1", "append", 0),
        ("kvsim-transcript/1", "state", 5),
        ("kvsim-steps/1", "request", 0),
        ("kvsim-steps/1", "step", 6),
        ("kvsim-steps/1", "totals", 6),
        ("kvsim-masks/1", "store_mask", 1),
        ("kvsim-offload/1", "step", 12),
    ],
)
def test_answers_of_a_line(form: str, op: str, count: int) -> None:
    assert num_answers(OPS[form][op]) == count


def test_every_format_but_the_masks_has_a_configuration() -> None:
    assert set(OPS) - set(CONFIGS) == {"kvsim-masks/1", "kvsim-groups/1"}
