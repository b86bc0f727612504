"""Ticks say exactly where they stand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from kvsim.plots.scales import (
    bytes_tick,
    count_axis,
    log_axis,
    number_axis,
    percent_axis,
    percent_tick,
    scale_x,
    tick,
)

SIZES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def axes() -> Any:
    return Figure(figsize=(6, 4)).subplots()


def shown(axis: Any) -> list[tuple[float, str]]:
    """Ticks inside of the limits, each with its label."""
    axis.axes.figure.draw_without_rendering()
    low, high = sorted(axis.get_view_interval())
    ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    return [(value, label.get_text()) for value, label in ticks if low <= value <= high]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2.5, "2.5"),
        (2.5e6, "2.5M"),
        (1e5, "100k"),
        (12_345, "12.345k"),
        (0.5, "0.5"),
        (1.5e9, "1.5G"),
    ],
)
def test_ticks(value: float, text: str) -> None:
    assert tick(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (16 * 2**30, "16 GiB"),
        (1.5 * 2**40, "1.5 TiB"),
        (80e9, "80 GB"),
        (500, "500B"),
        (123_456_789, "123.457MB"),
    ],
)
def test_sizes_in_the_unit_that_says_them_exactly(value: float, text: str) -> None:
    assert bytes_tick(value) == text


@pytest.mark.parametrize("top", [0.012, 0.03, 0.125, 0.13, 0.3, 0.45, 0.6, 1.0])
def test_percent_is_what_stands_there(top: float) -> None:
    ax = axes()
    ax.set_ylim(0, top)
    percent_axis(ax.yaxis)
    ticks = shown(ax.yaxis)
    assert 3 <= len(ticks) <= 8
    for value, text in ticks:
        assert float(text.removesuffix("%")) == pytest.approx(100 * value, abs=1e-9)


def test_steps_of_two_and_a_half_percent() -> None:
    ax = axes()
    ax.set_ylim(0, 0.13)
    percent_axis(ax.yaxis)
    assert [text for _, text in shown(ax.yaxis)] == ["0%", "2.5%", "5%", "7.5%", "10%", "12.5%"]
    assert percent_tick(0.075) == "7.5%"


@pytest.mark.parametrize("top", [3, 7, 12, 12.5, 130, 999, 12_500, 730_000, 2.6e9])
def test_counts_are_whole_and_what_stands_there(top: float) -> None:
    ax = axes()
    ax.set_ylim(0, top)
    count_axis(ax.yaxis)
    ticks = shown(ax.yaxis)
    assert len(ticks) >= 2
    for value, text in ticks:
        letter = text[-1] if text[-1].isalpha() else ""
        assert float(text.removesuffix(letter)) * SIZES[letter] == pytest.approx(value, rel=1e-9)
        assert value == round(value)


def test_amounts_may_have_fractions() -> None:
    ax = axes()
    ax.set_xlim(0, 12.6)
    number_axis(ax.xaxis)
    assert [text for _, text in shown(ax.xaxis)] == ["0", "2.5", "5", "7.5", "10", "12.5"]


@pytest.mark.parametrize(("low", "high"), [(0.21, 0.24), (0.05, 3), (0.3, 9), (1e-3, 500)])
def test_a_log_axis_has_plain_numbers(low: float, high: float) -> None:
    ax = axes()
    ax.plot([0, 1], [low, high])
    log_axis(ax, "y")
    assert ax.get_yscale() == "log"
    ticks = shown(ax.yaxis)
    assert len(ticks) >= 2
    for value, text in ticks:
        assert float(text) == pytest.approx(value, rel=1e-5)


def test_few_values_have_a_tick_each_and_no_labels_that_collide() -> None:
    ax = axes()
    values = [6_000, 12_345, 25_000, 25_500, 100_000, 200_000]
    ax.plot(values, np.arange(6))
    scale_x(ax, values)
    assert ax.get_xscale() == "log"
    assert shown(ax.xaxis) == [
        (6_000, "6k"),
        (12_345, "12.345k"),
        (25_000, "25k"),
        (25_500, ""),
        (100_000, "100k"),
        (200_000, "200k"),
    ]


def test_many_values_have_ticks_of_their_own() -> None:
    ax = axes()
    values = list(range(100, 130))
    ax.plot(values, values)
    scale_x(ax, values)
    assert [text for _, text in shown(ax.xaxis)] == ["100", "110", "120", "130"]
