"""Heat maps: words, a bar of colours, darker is better, and no contrast made of noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import LogNorm

from kvsim import plots
from kvsim.plots.words import is_seconds, is_share, more_is_better, value_words, words

X, Y = "node.num_blocks", "cache.retention_interval"


def grid(figure: str, values: list[list[float]]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {X: 1000 * (column + 1), Y: 512 * (row + 1), figure: value}
            for row, line in enumerate(values)
            for column, value in enumerate(line)
        ]
    )


def shade(ax: Any, value: float) -> float:
    """How light a value is drawn, 0 to 1."""
    (image,) = ax.get_images()
    return float(np.dot(image.cmap(image.norm(value))[:3], (0.299, 0.587, 0.114)))


def bar(ax: Any) -> Any:
    (found,) = [other for other in ax.figure.axes if other.get_label() == "<colorbar>"]
    ax.figure.draw_without_rendering()
    return found


def test_words_instead_of_keys() -> None:
    ax = plots.heat_map(grid("ttft_s.p99", [[0.5, 1.0], [2.0, 4.0]]), X, Y, figure="ttft_s.p99")
    assert ax.get_xlabel() == "Blocks in the pool"
    assert ax.get_ylabel() == "Retention interval (tokens)"
    assert ax.get_title(loc="left") == "TTFT p99"
    assert bar(ax).get_ylabel() == "TTFT p99 (s), darker is better"
    assert [text.get_text() for text in ax.texts] == ["500 ms", "1.00 s", "2.00 s", "4.00 s"]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("tpot_s.p50", "TPOT p50"),
        ("queue_s.mean", "Time in the queue mean"),
        ("offload.capacity", "Capacity of the tier"),
        ("engine.some_new_key", "Engine, some new key"),
        ("workload.think_s", "Workload, think (s)"),
        ("tiers.cpu.used_bytes_max", "Tiers, cpu, used bytes max"),
    ],
)
def test_every_column_has_words(column: str, text: str) -> None:
    assert words(column) == text


def test_darker_is_better_for_hits_and_for_times() -> None:
    hits = plots.heat_map(grid("token_hit_rate", [[0.1, 0.4]]), X, Y)
    assert shade(hits, 0.4) < shade(hits, 0.1)
    assert not bar(hits).yaxis_inverted()
    times = plots.heat_map(grid("ttft_s.p50", [[0.1, 0.4]]), X, Y, figure="ttft_s.p50")
    assert shade(times, 0.1) < shade(times, 0.4)
    assert bar(times).yaxis_inverted()  # dark, and good, is at the top in both
    neither = plots.heat_map(grid("bytes_loaded", [[1e9, 4e9]]), X, Y, figure="bytes_loaded")
    assert shade(neither, 4e9) < shade(neither, 1e9)
    assert bar(neither).get_ylabel() == "Bytes loaded"


@pytest.mark.parametrize(
    ("figure", "values", "least"),
    [
        ("token_hit_rate", [0.400, 0.401], 0.05),
        ("token_hit_rate", [0.001, 0.002], 0.05),
        ("goodput", [0.999, 1.0], 0.05),
        ("ttft_s.p50", [0.500, 0.501], 0.1),
        ("evicted_blocks", [0, 0], 1.0),
    ],
)
def test_noise_is_no_contrast(figure: str, values: list[float], least: float) -> None:
    ax = plots.heat_map(grid(figure, [values]), X, Y, figure=figure)
    (image,) = ax.get_images()
    assert image.norm.vmax - image.norm.vmin == pytest.approx(least, rel=0.01)
    assert image.norm.vmin <= min(values)
    assert image.norm.vmax >= max(values)
    assert image.norm.vmin >= 0
    if is_share(figure):
        assert image.norm.vmax <= 1
    assert abs(shade(ax, values[0]) - shade(ax, values[1])) < 0.05


def test_differences_that_are_some_take_all_colours() -> None:
    (image,) = plots.heat_map(grid("token_hit_rate", [[0.1, 0.4]]), X, Y).get_images()
    assert (image.norm.vmin, image.norm.vmax) == (0.1, 0.4)
    wide = plots.heat_map(grid("ttft_s.p99", [[0.1, 90.0]]), X, Y, figure="ttft_s.p99")
    (image,) = wide.get_images()
    assert isinstance(image.norm, LogNorm)


def test_the_bar_tells_exactly_where_its_ticks_stand() -> None:
    ax = plots.heat_map(grid("token_hit_rate", [[0.1, 0.225]]), X, Y)
    axis = bar(ax).yaxis
    for value, label in zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True):
        assert float(label.get_text().removesuffix("%")) == pytest.approx(100 * value)


def test_many_cells_get_a_page_that_holds_them() -> None:
    values = np.linspace(0.1, 0.4, 360).reshape(12, 30).tolist()
    ax = plots.heat_map(grid("token_hit_rate", values), X, Y)
    width, height = ax.figure.get_size_inches()
    assert width / 30 > 0.7
    assert height / 12 > 0.4
    assert len(ax.texts) == 360
    assert min(text.get_size() for text in ax.texts) > 8


@pytest.mark.parametrize(
    ("column", "text"), [("token_hit_rate", "12.5%"), ("ttft_s.p50", "125 ms"), ("x", "0.12")]
)
def test_values_in_their_unit(column: str, text: str) -> None:
    assert value_words(column)(0.125) == text
    assert more_is_better("x") is None
    assert not is_seconds("requests_per_s")
