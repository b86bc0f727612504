from __future__ import annotations

import pickle

import pytest

from kvsim.errors import KvsimError, Problems, UnknownNameError, nearest, show, unknown_name


def test_problems_are_listed_under_their_place() -> None:
    found = Problems("a.yaml", ["seed: -1 is below 0. Use 0 or more.", "model: is missing."])
    assert isinstance(found, KvsimError)
    assert str(found) == (
        "a.yaml: 2 problems\n  seed: -1 is below 0. Use 0 or more.\n  model: is missing."
    )


def test_one_problem_is_singular() -> None:
    assert str(Problems("a.yaml", ["x"])) == "a.yaml: 1 problem\n  x"


def test_problems_cross_processes() -> None:
    found = pickle.loads(pickle.dumps(Problems("a.yaml", ["x", "y"])))
    assert (found.where, found.problems) == ("a.yaml", ["x", "y"])


def test_nearest_looks_past_case() -> None:
    assert nearest("B300", ["b300", "h200"]) == "b300"
    assert nearest("zzz", ["b300", "h200"]) is None
    assert nearest("x", []) is None
    assert nearest("mi300x", ["b300", "h200"]) is None  # another maker's, not a slip
    assert nearest("sliding", ["full", "sliding_window"]) == "sliding_window"


def test_unknown_name() -> None:
    known = ["deepseek-v4-pro", "deepseek-v4-flash"]
    near = "unknown model 'deepseek-v4-por'. Did you mean 'deepseek-v4-pro'?"
    assert unknown_name("model", "deepseek-v4-por", known) == near
    assert unknown_name("GPU", "tpu", ["b300", "h200"]) == "unknown GPU 'tpu'. Known: b300, h200."
    error = UnknownNameError("model", "deepseek-v4-por", known)
    assert (str(error), error.near) == (near, "deepseek-v4-pro")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (3, "3"),
        ("a", "'a'"),
        ({}, "an empty mapping"),
        ({"a": 1}, "a mapping"),
        ([], "an empty list"),
        ([1], "a list"),
        ("x" * 100, "'" + "x" * 56 + "..."),
    ],
)
def test_show(value: object, text: str) -> None:
    assert show(value) == text
