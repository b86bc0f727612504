"""Runs as one frame: labels, policies, and the lines of a plot."""

from __future__ import annotations

import pandas as pd
import pytest

from kvsim.errors import KvsimError
from kvsim.policies.names import interval_name, policy_name
from kvsim.study.frames import needed, series_of


@pytest.mark.parametrize(
    ("free_queue", "interval", "name"),
    [
        ("append", None, "append, dense"),
        ("prepend-uncached-window", 0, "prepend window, boundary"),
        ("prepend-uncached", 4096, "prepend, every 4,096"),
    ],
)
def test_policies_have_names(free_queue: str, interval: int | None, name: str) -> None:
    assert policy_name(free_queue, interval) == name
    assert policy_name(free_queue, interval).endswith(interval_name(interval))


def test_what_changes_nothing_is_not_named() -> None:
    assert policy_name("append", 0, has_window_groups=False) == "append"
    assert policy_name("append", 0, enable_caching=False) == "no caching"


def frame(*rows: tuple[str, int, float, float | None]) -> pd.DataFrame:
    made = pd.DataFrame(rows, columns=["label", "seed", "num_blocks", "token_hit_rate"])
    return made.assign(policy="prepend, dense")


def test_lines_are_means_over_seeds_with_their_range() -> None:
    (line,) = series_of(
        frame(("a", 0, 20, 0.4), ("a", 0, 10, 0.1), ("a", 1, 10, 0.3), ("a", 1, 20, None)),
        "num_blocks",
        "token_hit_rate",
    )
    assert line.x.tolist() == [10, 20]
    assert line.y.tolist() == pytest.approx([0.2, 0.4])
    assert (line.low.tolist(), line.high.tolist()) == ([0.1, 0.4], [0.3, 0.4])
    assert line.num_seeds == 2


def test_an_axis_that_was_forgotten_is_not_averaged_away() -> None:
    with pytest.raises(KvsimError) as caught:
        series_of(frame(("a", 0, 10, 0.1), ("a", 0, 10, 0.3)), "num_blocks", "token_hit_rate")
    assert str(caught.value) == (
        "several runs of one label have the same num_blocks, so something else differs too. "
        "Keep the rows of one value of it."
    )


def test_missing_columns_are_named_together() -> None:
    with pytest.raises(KvsimError) as caught:
        needed(pd.DataFrame({"label": []}), "label", "x", "y")
    assert str(caught.value) == (
        "frame: has no column x, y. Make it with kvsim.plots.frame, or give the name of a column "
        "it has."
    )
