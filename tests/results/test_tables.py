"""The table of runs: readable in 120 columns, percent and short numbers for people."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from kvsim.results.tables import (
    difference_text,
    exact_size,
    figure_text,
    notes_by_name,
    percent,
    seconds,
    short,
    size,
    summary_table,
)


def summary(**changes: Any) -> dict[str, Any]:
    times = {"mean": 99.0, "p50": 12.34, "p90": 123.4, "p99": 1234.0}
    return {
        "token_hit_rate": 0.3736,
        "hit_tokens": 54_123_456,
        "queried_tokens": 144_793_823,
        "request_hit_rate": 0.9876,
        "num_refused": 0,
        "ttft_s": times,
        "tpot_s": {**times, "p50": 0.0213},
        "requests_per_s": 3.402,
        "output_tokens_per_s": 1165.4,
        "preemptions": 12_345,
        "evicted_blocks": 123_456_789,
        "bytes_stored": 1_234_567_890_123,
        "bytes_loaded": 0,
        "simulated_s": 3601.2,
        "wall_s": 24.07,
        **changes,
    }


def shown(summaries: dict[str, Any], width: int = 120) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(summary_table(summaries, width))
    return capture.get()


def test_every_figure_fits_in_120_columns() -> None:
    text = shown({"prepend-interval-32768": summary(), "append-dense": summary(num_refused=3)})
    (row,) = [line for line in text.splitlines() if line.startswith("prepend")]
    assert row.split() == [
        *("prepend-interval-32768", "37.4%", "54.1M/145M", "98.8%", "0", "12.3/123/1234"),
        *("21.3", "ms", "3.40", "1.17k", "12.3k", "123M", "1.23T/0", "3601/24.1"),
    ]
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 120


def test_headers() -> None:
    lines = shown({"a": summary(num_refused=1)}).splitlines()
    words = " ".join(lines[:3]).split()
    for word in ("variant", "token", "request", "TTFT", "TPOT", "p50/p90/p99", "evicted", "bytes"):
        assert word in words
    assert "fused" in words


def test_refused_requests_are_shown_where_there_are_any() -> None:
    assert "fused" not in shown({"a": summary(), "b": summary()})
    assert "fused" in shown({"a": summary(), "b": summary(num_refused=1)})


def test_what_does_not_exist_is_a_dash() -> None:
    nothing = dict.fromkeys(("mean", "p50", "p90", "p99"))
    text = shown({"a": summary(token_hit_rate=None, ttft_s=nothing, tpot_s=nothing)})
    row = text.splitlines()[-2 if not text.splitlines()[-1].strip() else -1].split()
    assert row[1] == "-"
    assert "-/-/-" in row
    assert "None" not in text


def test_no_runs_make_an_empty_table() -> None:
    assert "variant" in shown({})


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_where_it_does_not_fit(width: int) -> None:
    name = "a-very-long-name-of-a-variant-that-nobody-should-choose"
    text = shown({name: summary()}, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    rows = [line for line in text.splitlines()[3:] if "more columns" not in line]
    first_columns = "".join(line.split(" ")[0] for line in rows)
    assert first_columns.replace("─", "") == name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (999, "999"),
        (1000, "1.00k"),
        (999_499, "999k"),
        (999_600, "1.00M"),
        (0.5, "0.50"),
        (12.345, "12.3"),
        (99.96, "100"),
        (144_793_823, "145M"),
        (3e9, "3.00G"),
        (2.5e16, "25.0P"),
    ],
)
def test_short(value: float | None, text: str) -> None:
    assert short(value) == text


def test_percent_and_seconds() -> None:
    assert (percent(None), percent(0.0), percent(0.3736)) == ("-", "0.0%", "37.4%")
    assert (seconds(None), seconds(0.0213), seconds(1.0)) == ("-", "21.3 ms", "1.00 s")


@pytest.mark.parametrize(
    ("difference", "low", "high", "beyond", "text"),
    [
        (0.2188, 0.1912, 0.2471, True, "+22 points (+19 to +25)"),
        (0.00412, -0.00031, 0.0081, False, "within noise (0.0 to +0.8 points)"),
        (0.0012, 0.0011, 0.0013, True, "+0.120 points (+0.110 to +0.130)"),
        (-0.05, -0.099, -0.0004, True, "-5.00 points (-9.90 to -0.04)"),
        (0.0, 0.0, 0.0, False, "same"),
        (0.0, None, None, None, "same"),
        (-0.0241, None, None, None, "-2.4 points"),
        (float("nan"), None, None, None, "-"),
    ],
)
def test_no_finer_digits_than_the_noise(
    difference: float, low: Any, high: Any, beyond: Any, text: str
) -> None:
    row = {"figure": "token_hit_rate", "difference": difference, "low": low, "high": high}
    assert difference_text({**row, "beyond_noise": beyond}) == text


def test_differences_of_times_and_counts() -> None:
    row = {"difference": 0.128, "low": 0.112, "high": 0.146, "beyond_noise": True}
    assert difference_text({**row, "figure": "ttft_s.p50"}) == "+128 ms (+112 to +146)"
    row = {"difference": 1200.0, "low": None, "high": None, "beyond_noise": None}
    assert difference_text({**row, "figure": "evicted_blocks"}) == "+1.20k"


def test_80_columns_keep_what_matters_and_say_what_is_left_out() -> None:
    runs = {"prepend-interval-32768": summary(goodput=0.5, tiers={"cpu": {}}), "b": summary()}
    text = shown(runs, 80)
    assert max(map(len, text.splitlines())) <= 80
    row = next(line for line in text.splitlines() if line.startswith("prepend"))
    for figure in ("37.4%", "12.3/123/1234", "21.3 ms", "50.0%"):
        assert figure in row
    assert "sim/real" not in text
    assert "more columns with --wide" in text
    assert "more columns" not in shown(runs, 200)


def test_thirty_variants_of_one_name_length_stay_a_line_each() -> None:
    text = shown({f"variant-{number:02}": summary() for number in range(30)}, 80)
    assert sum(line.startswith("variant-") for line in text.splitlines()) == 30


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1_523_456_789_012, "1.52 TB"), (64e9, "64.0 GB")],
)
def test_sizes_that_were_counted(num_bytes: float | None, text: str) -> None:
    assert size(num_bytes) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (8 * 2**30, "8 GiB"),
        (2000 * 2**30, "2000 GiB"),
        (1.5e12, "1.5 TB"),
        (512, "512 B"),
        (4096, "4 KiB"),
        (1_523_456_789, "1.52 GB"),
    ],
)
def test_sizes_that_were_asked_for(num_bytes: float, text: str) -> None:
    assert exact_size(num_bytes) == text


def test_notes_name_their_runs() -> None:
    notes = {"a": ["both", "one", "one"], "b": ["both"], "c": ["both", "one"]}
    assert notes_by_name(notes) == ["both", "a, c: one"]


@pytest.mark.parametrize(
    ("figure", "value", "text"),
    [
        ("token_hit_rate", 0.123, "12.3%"),
        ("ttft_s.p99", 0.25, "250 ms"),
        ("bytes_stored", 2e9, "2.00 GB"),
        ("break_even_bytes_per_s", 4e9, "4.00 GB/s"),
        ("evicted_blocks", 0.0, "0"),
        ("requests_per_s", 2.0, "2.00"),
    ],
)
def test_figures_by_name(figure: str, value: float, text: str) -> None:
    assert figure_text(figure, value) == text


def test_differences_of_bytes_and_of_next_to_nothing() -> None:
    bytes_stored = {"figure": "bytes_stored", "difference": -2e9, "low": None, "beyond_noise": None}
    assert difference_text(bytes_stored) == "-2.00 GB"
    noisy = {**bytes_stored, "low": -3e9, "high": 1e9, "beyond_noise": False}
    assert difference_text(noisy) == "within noise (-3.00 GB to +1.00 GB)"
    ttft = {"figure": "ttft_s.p99", "difference": 9.7e-11, "low": None, "beyond_noise": None}
    assert difference_text(ttft) == "same"
