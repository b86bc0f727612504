"""Legends, titles and names stay on the page, with many series and long names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim import plots
from kvsim.plots.layout import NAME_CHARS, figure_of, folded, spread
from kvsim.results.store import RunResult
from kvsim.scenario import Scenario
from kvsim.study.reuse import reuse

POLICIES = ["append, dense", "prepend, dense", "prepend, every 4,096", "prepend, boundary"]


def long_name(number: int) -> str:
    name = f"a run of which somebody wrote down everything, {'x_' * 30}"[:93] + f"{number:03d}"
    assert len(name) == 96
    return name


def frame(count: int, *, long: bool) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "label": long_name(number) if long else f"run {number}",
                "policy": POLICIES[number % 4],
                "num_blocks": 1000 * 2**step,
                "arrivals_per_s": 1.0 + step,
                "token_hit_rate": 0.05 + 0.1 * step + 0.001 * number,
                "ttft_s.p50": 0.1 * 2**step * (1 + 0.1 * number),
                "ttft_s.p99": 0.3 * 3**step * (1 + 0.1 * number),
            }
            for number in range(count)
            for step in range(3)
        ]
    )


def many(results: dict[str, RunResult], count: int, *, long: bool) -> dict[str, RunResult]:
    runs = list(results.values())
    return {
        long_name(number) if long else f"run {number}": runs[number % len(runs)]
        for number in range(count)
    }


def check_on_page(figure: Figure) -> None:
    """Everything drawn lies on the page, and the axes have kept a plot's size."""
    figure.draw_without_rendering()
    page = figure.bbox
    for ax in figure.axes:
        legend = ax.get_legend()
        boxes = [ax.get_tightbbox(), *([legend.get_window_extent()] if legend else [])]
        for box in boxes:
            assert box is not None
            assert box.x0 >= page.x0 - 1
            assert box.y0 >= page.y0 - 1
            assert box.x1 <= page.x1 + 1
            assert box.y1 <= page.y1 + 1
        if ax.get_label() != "<colorbar>":
            assert ax.get_window_extent().width / figure.dpi > 1.5


def legend_texts(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


CASES = [(3, False), (12, True), (30, False)]


@pytest.mark.parametrize(("count", "long"), CASES)
def test_lines_and_their_legend(count: int, long: bool) -> None:
    data = frame(count, long=long)
    draws: list[Callable[[Any], Any]] = [
        lambda ax: plots.hit_rate_by_capacity(data, ceiling=0.4, ax=ax),
        lambda ax: plots.ttft_by_rate(data, objective_s=2, ax=ax),
    ]
    for draw in draws[: 1 if count == 12 else 2]:
        figure = figure_of(draw)
        check_on_page(figure)
        ax = figure.axes[0]
        numbers = [text.get_text() for text in ax.texts if text.get_text().isdigit()]
        assert numbers == ([str(n) for n in range(1, count + 1)] if count > 8 else [])
        texts = [text.replace("\n", "") for text in legend_texts(ax)]
        for number, label in enumerate(dict.fromkeys(data["label"]), 1):
            begin = f"{number}  " if count > 8 else ""
            wanted = (begin + label).replace(" ", "")
            assert any(text.replace(" ", "").startswith(wanted) for text in texts)


def test_runs_and_their_legend(scenario: Scenario, results: dict[str, RunResult]) -> None:
    runs, offered = many(results, 30, long=True), reuse(scenario)
    check_on_page(figure_of(lambda ax: plots.ttft_distribution(runs, objective_s=0.5, ax=ax)))
    check_on_page(figure_of(lambda ax: plots.prefix_survival(runs, offered, ax=ax)))
    runs = dict(list(runs.items())[:12])
    side = figure_of(
        lambda axes: plots.policies_side_by_side(plots.frame(runs), axes=axes), num_axes=3
    )
    check_on_page(side)
    name = next(reversed(runs))
    assert side.axes[0].get_yticklabels()[-1].get_text().replace("\n", "") == folded(name).replace(
        "\n", ""
    )


def test_names_in_titles_are_folded(results: dict[str, RunResult]) -> None:
    result = replace(results["dense"], variant=long_name(1))
    for draw in (plots.pool_by_state, plots.pool_by_group, plots.evictions):
        figure = figure_of(lambda ax, d=draw: d(result, ax=ax))
        check_on_page(figure)
        title = figure.axes[0].get_title(loc="left")
        assert "somebody wrote down" in title.replace("\n", " ")
        assert "001" in title


@pytest.mark.parametrize("layout", [None, "constrained"])
def test_on_axes_of_a_caller_the_legend_shrinks(layout: Any) -> None:
    figure = Figure(figsize=(9, 4), layout=layout)
    one, other = figure.subplots(1, 2)
    plots.hit_rate_by_capacity(frame(3, long=False), ax=one)
    plots.hit_rate_by_capacity(frame(12, long=True), ax=other)
    assert tuple(figure.get_size_inches()) == (9, 4)
    figure.draw_without_rendering()
    for ax in (one, other):
        legend = ax.get_legend()
        assert legend is not None
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1 + 1
        assert box.y0 >= 0
        assert box.y1 <= figure.bbox.y1 + 1
        assert ax.get_window_extent().width / figure.dpi > 1.0
    ends = [text.replace("\n", "")[-3:] for text in legend_texts(other)][:12]
    assert ends == [f"{number:03d}" for number in range(12)]  # told apart, though cut


def test_folded_names_keep_every_letter() -> None:
    name = long_name(7)
    lines = folded(name).split("\n")
    assert all(len(line) <= NAME_CHARS for line in lines)
    assert "".join(lines).replace(" ", "") == name.replace(" ", "")


def test_places_are_moved_apart_as_little_as_needed() -> None:
    assert spread(np.array([0.1, 0.9, 0.5]), 0.2).tolist() == pytest.approx([0.1, 0.9, 0.5])
    assert spread(np.array([0.5, 0.5, 0.5]), 0.1).tolist() == pytest.approx([0.4, 0.5, 0.6])
    crowded = spread(np.array([1.0, 0.99, 0.0, 0.98]), 0.1)
    assert crowded.tolist() == pytest.approx([1.0, 0.9, 0.0, 0.8])
    thirty = np.sort(spread(np.full(30, 0.97), 1 / 30))
    assert np.diff(thirty) == pytest.approx(1 / 30)
    assert thirty[0] >= 0
    assert thirty[-1] <= 1
