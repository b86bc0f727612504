"""Plots: axes out, what they show, units, one style, and the same bytes for the same runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from kvsim import plots
from kvsim.errors import KvsimError
from kvsim.plots.style import policy_styles, styled
from kvsim.policies.names import policy_name
from kvsim.results.store import RunResult
from kvsim.results.variants import run_variant
from kvsim.scenario import Scenario
from kvsim.study.probe import read_probe, retention_probe
from kvsim.study.reuse import reuse
from tests.plots.conftest import POLICIES, ROOT


def texts(ax: Any) -> list[str]:
    return [text.get_text().strip() for text in ax.texts]


def legend(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def lines_by_label(ax: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in ax.get_lines()}


def capacity_frame() -> pd.DataFrame:
    rows = [
        {"label": policy, "policy": policy, "num_blocks": 1000 * 2**n, "token_hit_rate": rate}
        for policy, rates in {
            "append, dense": [0.01, 0.02, 0.1],
            "prepend, boundary": [0.1, 0.29, 0.3],
        }.items()
        for n, rate in enumerate(rates)
    ]
    return pd.DataFrame(rows)


# --- style ---


def test_a_policy_has_one_colour_everywhere(results: dict[str, RunResult]) -> None:
    color = plots.policy_style("prepend, boundary").color
    by_capacity = plots.hit_rate_by_capacity(capacity_frame())
    assert lines_by_label(by_capacity)["prepend, boundary"].get_color() == color
    bars = plots.policies_side_by_side(plots.frame(results))[0].patches
    assert mpl.colors.to_hex(bars[2].get_facecolor()) == color
    assert lines_by_label(plots.ttft_distribution(results))["boundary"].get_color() == color


def test_policies_differ_without_colour_too() -> None:
    names = [
        policy_name(queue, interval)
        for queue in ("append", "prepend-uncached-window", "prepend-uncached")
        for interval in (None, 4096, 0)
    ]
    styles = policy_styles(names)
    assert len({style.color for style in styles}) == len(names)
    for group in (styles[6:], styles[::3]):
        assert len({str(style.dash) for style in group}) == 3
        assert len({style.hatch for style in group}) == 3
        assert len({style.marker for style in group}) == 3


def test_longer_intervals_are_darker() -> None:
    colors = [plots.policy_style(f"prepend, every {2**n:,}").color for n in range(8, 19, 2)]
    lightness = [np.dot(to_rgb(color), (0.299, 0.587, 0.114)) for color in colors]
    assert all(one > other for one, other in zip(lightness, lightness[1:], strict=False))


def test_entries_of_one_policy_share_its_colour_alone() -> None:
    one, other = policy_styles(["prepend, dense", "prepend, dense"])
    assert one.color == other.color
    assert one.dash != other.dash
    assert one.hatch != other.hatch


def test_the_callers_settings_are_left_alone() -> None:
    before = mpl.rcParams.copy()
    plots.hit_rate_by_capacity(capacity_frame())
    assert mpl.rcParams == before


def test_a_way_of_showing_figures_loaded_by_a_plot_stays() -> None:
    before = mpl.is_interactive()

    @styled
    def first_plot_of_a_notebook() -> None:
        mpl.interactive(True)  # as the notebook's backend does once pyplot is loaded
        mpl.rcParams["lines.linewidth"] = 7.0

    width = mpl.rcParams["lines.linewidth"]
    try:
        first_plot_of_a_notebook()
        assert mpl.is_interactive()
        assert mpl.rcParams["lines.linewidth"] == width
    finally:
        mpl.interactive(before)


# --- what plots show ---


def test_axes_in_axes_out(scenario: Scenario, results: dict[str, RunResult]) -> None:
    result = results["dense"]
    draws: list[Callable[[Any], Any]] = [
        lambda ax: plots.hit_rate_by_capacity(capacity_frame(), ax=ax),
        lambda ax: plots.ttft_distribution(results, ax=ax),
        lambda ax: plots.tpot_distribution(results, ax=ax),
        lambda ax: plots.pool_by_state(result, ax=ax),
        lambda ax: plots.pool_by_group(result, ax=ax),
        lambda ax: plots.evictions(result, ax=ax),
        lambda ax: plots.prefix_survival(results, reuse(scenario), ax=ax),
    ]
    for draw in draws:
        ax = Figure().subplots()
        assert draw(ax) is ax
    three = list(Figure().subplots(1, 3))
    assert plots.policies_side_by_side(plots.frame(results), axes=three) == three
    with pytest.raises(KvsimError) as caught:
        plots.policies_side_by_side(plots.frame(results), axes=three[:2])
    assert str(caught.value) == "axes: 2 were given, and this plot needs 3."
    assert plt.get_fignums() == []


def test_hit_rate_against_capacity() -> None:
    ax = plots.hit_rate_by_capacity(capacity_frame(), ceiling=0.35)
    assert ax.get_xlabel() == "Blocks in the pool"
    assert ax.get_ylabel() == "Token hit rate (%)"
    assert legend(ax) == ["append, dense", "prepend, boundary", "knee: 95% of the line's best"]
    knee = lines_by_label(ax)["knee: 95% of the line's best"]
    assert (list(knee.get_xdata()), list(knee.get_ydata())) == ([2000], [0.29])
    assert texts(ax) == ["infinite cache 35.0%"]
    assert ax.get_ylim()[0] == 0
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1k", "2k", "4k"]


def test_the_band_is_in_the_legend() -> None:
    seeds = [
        capacity_frame().assign(
            seed=seed, token_hit_rate=capacity_frame()["token_hit_rate"] + shift
        )
        for seed, shift in enumerate([0.0, 0.01, 0.05])
    ]
    frame = pd.concat(seeds).assign(arrivals_per_s=lambda rows: rows["num_blocks"] / 1000)
    band = "band: least to most of\n3 seeds; line: their mean"
    ax = plots.hit_rate_by_capacity(frame)
    assert [text.replace("\n", " ") for text in legend(ax)][-1] == band.replace("\n", " ")
    low, high = ax.collections[0].get_paths()[0].get_extents().get_points()[:, 1]
    assert (low, high) == pytest.approx((0.01, 0.15))
    ttft = frame.assign(**{"ttft_s.p50": frame["token_hit_rate"], "ttft_s.p99": 1.0})
    assert legend(plots.ttft_by_rate(ttft))[-1].startswith("band: least to most of")
    assert "band" not in " ".join(legend(plots.hit_rate_by_capacity(capacity_frame())))


def test_a_size_has_its_unit_at_the_ticks() -> None:
    frame = capacity_frame().assign(capacity=lambda rows: rows["num_blocks"] / 1000 * 2**34)
    frame = frame.rename(columns={"capacity": "offload.capacity"})
    ax = plots.hit_rate_by_capacity(frame, capacity="offload.capacity")
    ax.figure.draw_without_rendering()
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["16 GiB", "32 GiB", "64 GiB"]
    assert ax.get_xlabel() == "Capacity of the tier"


def test_policies_side_by_side(results: dict[str, RunResult]) -> None:
    hits, ttft, evicted = plots.policies_side_by_side(plots.frame(results))
    assert [label.get_text() for label in hits.get_yticklabels()] == list(results)
    assert [bar.get_width() for bar in hits.patches] == [
        result.summary["token_hit_rate"] for result in results.values()
    ]
    assert texts(hits) == [f"{r.summary['token_hit_rate']:.1%}" for r in results.values()]
    assert ttft.get_xlabel() == "TTFT (s): bar p50, ticks p90 and p99"
    assert evicted.get_xlabel() == "Cached blocks evicted"


def test_ceilings_are_marked_where_they_are_known(results: dict[str, RunResult]) -> None:
    frame = plots.frame(results)
    known = frame.assign(**{"ceiling.infinite": 0.5, "ceiling.optimum": [0.4, None, 0.6]})
    hits = plots.policies_side_by_side(known)[0]
    assert [line.get_xdata()[0] for line in hits.lines] == [0.4, 0.5, 0.5]
    assert hits.get_title(loc="left") == "Prompt tokens found (mark: the ceiling)"
    plain = plots.policies_side_by_side(frame)[0]
    assert plain.get_title(loc="left") == "Prompt tokens found"


def test_bytes_stored_take_the_third_panel_where_there_are_any(
    results: dict[str, RunResult],
) -> None:
    frame = plots.frame(results).assign(bytes_stored=[4e12, 2e12, 0])
    stored = plots.policies_side_by_side(frame)[2]
    assert stored.get_xlabel() == "Bytes stored (GB)"
    assert [bar.get_width() for bar in stored.patches] == [4000, 2000, 0]
    assert texts(stored) == ["4,000", "2,000", "0"]


def test_too_many_runs_for_one_figure(results: dict[str, RunResult]) -> None:
    frame = pd.concat([plots.frame(results)] * 14)
    with pytest.raises(KvsimError) as caught:
        plots.policies_side_by_side(frame)
    assert str(caught.value) == ("frame: 42 runs are too many side by side. Keep 40 rows or fewer.")


def test_the_distribution_of_ttft(results: dict[str, RunResult]) -> None:
    ax = plots.ttft_distribution(results, objective_s=0.5)
    assert legend(ax) == [*results, "objective 0.5 s"]
    assert ax.get_xlabel() == "TTFT (s); marks at p50, p90 and p99; bands: error of step times"
    marks = [line for line in ax.get_lines() if line.get_linestyle() == "None"]
    p50, p90, p99 = marks[0].get_xdata()
    ttft = results["append"].summary["ttft_s"]
    assert (p50, p90, p99) == pytest.approx((ttft["p50"], ttft["p90"], ttft["p99"]))


def test_more_runs_than_bands_have_the_error_in_words(results: dict[str, RunResult]) -> None:
    ax = plots.tpot_distribution(dict.fromkeys("abcd", results["append"]))
    error = results["append"].summary["step_times"]["tpot"]["error"]
    assert f"step times: {error:.0%} off in the median" in ax.get_xlabel()
    assert not ax.collections


def test_the_distribution_of_tpot_has_its_own_band(results: dict[str, RunResult]) -> None:
    ax = plots.tpot_distribution({"append": results["append"]}, objective_s=0.05)
    assert legend(ax) == ["append", "objective 0.05 s"]
    assert ax.get_xlabel() == "TPOT (s); marks at p50, p90 and p99; bands: error of step times"
    error = results["append"].summary["step_times"]["tpot"]["error"]
    [band] = ax.collections
    edges = band.get_paths()[0].vertices[:, 0]
    tpot_s = results["append"].requests["tpot_s"]
    assert edges.min() == pytest.approx(tpot_s.min() * (1 - error))
    assert edges.max() == pytest.approx(tpot_s.max() * (1 + error))


def test_ttft_against_rate() -> None:
    frame = pd.DataFrame(
        {
            "label": "prepend, dense",
            "policy": "prepend, dense",
            "arrivals_per_s": [1.0, 2.0, 4.0],
            "ttft_s.p50": [0.2, 0.3, 30.0],
            "ttft_s.p99": [0.5, 0.9, 90.0],
        }
    )
    ax = plots.ttft_by_rate(frame, objective_s=2)
    assert legend(ax) == ["prepend, dense, p50", "prepend, dense, p99", "objective 2 s"]
    assert ax.get_xlabel() == "Requests arriving (1/s)"
    assert ax.get_ylabel() == "TTFT (s)"
    assert ax.get_yscale() == "log"
    p50, p99, _ = ax.get_lines()
    assert list(p99.get_ydata()) == [0.5, 0.9, 90.0]
    assert p50.get_linewidth() < p99.get_linewidth()


@pytest.mark.parametrize("worst", [0.9, 3.0, 90.0])
def test_with_an_objective_times_are_on_a_log_axis(worst: float) -> None:
    frame = pd.DataFrame(
        {
            "label": "a",
            "policy": "prepend, dense",
            "arrivals_per_s": [1.0, 2.0],
            "ttft_s.p50": [0.4, 0.5],
            "ttft_s.p99": [0.5, worst],
        }
    )
    ax = plots.ttft_by_rate(frame, objective_s=2)
    assert ax.get_yscale() == "log"
    assert plots.ttft_by_rate(frame).get_yscale() == ("log" if worst == 90.0 else "linear")
    (beyond,) = ax.patches  # tinted, from the objective to the top
    assert beyond.get_y() == 2.0
    assert beyond.get_y() + beyond.get_height() == pytest.approx(ax.get_ylim()[1])


def test_plots_of_one_run_name_it(results: dict[str, RunResult]) -> None:
    result = with_tier(results["dense"])
    for draw, what in (
        (plots.pool_by_state, "Blocks of the pool by state"),
        (plots.pool_by_group, "Cached blocks by KV cache group"),
        (plots.evictions, "What evicted what, "),
        (plots.link_utilization, "Link utilization"),
    ):
        titles = [
            draw(run, **named).get_title(loc="left").replace("\n", " ")
            for run, named in (
                (result, {}),
                (result, {"name": "mine"}),
                (replace(result, variant="default"), {}),
            )
        ]
        assert all(title.startswith(what) for title in titles)
        # A run without variants goes by its scenario.
        assert [title.split(": ")[1] for title in titles] == ["dense", "mine", "plots"]
        with pytest.raises(KvsimError) as caught:
            draw(result.timeline)  # type: ignore[arg-type]
        assert "Give the result whole." in str(caught.value)


def test_the_pool_by_state_fills_the_pool(results: dict[str, RunResult]) -> None:
    result = results["dense"]
    ax = plots.pool_by_state(result)
    assert legend(ax) == ["blank", "free, cached", "in use"]
    assert ax.get_ylim() == (0, result.summary["num_blocks"] - 1)
    tops = [layer.get_paths()[0].get_extents().y1 for layer in ax.collections]
    assert tops[2] == pytest.approx(result.summary["num_blocks"] - 1)
    assert ax.get_xlabel() == "Simulated time (s)"


def test_a_long_timeline_is_drawn_as_means_of_neighbours() -> None:
    from kvsim.plots.pool import thinned

    timeline = pd.DataFrame({"time_s": np.arange(8000.0), "used_blocks": np.arange(8000)})
    times, (used,), unit = thinned(timeline, ["used_blocks"])
    assert unit == "h"
    assert len(times) == len(used) == 500
    assert used[0] == np.arange(16).mean()
    assert used.mean() == timeline["used_blocks"].mean()


def test_the_pool_by_group(results: dict[str, RunResult]) -> None:
    ax = plots.pool_by_group(results["dense"])
    names = [group.name for group in results["dense"].scenario.model_spec.groups]
    assert legend(ax) == [f"{number} {name}" for number, name in enumerate(names)][::-1]


def test_what_evicted_what(results: dict[str, RunResult]) -> None:
    result = results["dense"]
    ax = plots.evictions(result)
    (image,) = ax.get_images()
    assert image.get_array().sum() == result.summary["evicted_blocks"] > 0
    assert ax.get_xlabel() == "Group that lost cached blocks"
    assert ax.get_ylabel() == "Group that took them"


def test_survival(scenario: Scenario, results: dict[str, RunResult]) -> None:
    offered = reuse(scenario)
    ax = plots.prefix_survival(results, offered)
    assert legend(ax) == list(results)
    shares = np.concatenate([line.get_ydata() for line in ax.get_lines()])
    assert ((shares >= 0) & (shares <= 1)).all()
    assert shares.max() > 0.5
    other = offered.assign(request_id="other")
    with pytest.raises(KvsimError) as caught:
        plots.prefix_survival(results, other)
    assert str(caught.value) == (
        "reuse: append ran another workload. Draw runs of one workload, with its own reuse."
    )


def test_the_retention_tradeoff() -> None:
    probe = Scenario.from_data(
        {
            "name": "probe",
            "model": "deepseek-v4-pro",
            "node": {"num_blocks": 8_000},
            "step_time": {"kind": "constant", "step_s": 0.01},
            "workload": retention_probe(5, 6_000, 5),
        }
    )
    table = read_probe({name: run_variant(probe.replace(k)) for name, k in POLICIES.items()})
    axes = plots.retention_tradeoff(table)
    assert [ax.get_title(loc="left") for ax in axes] == [
        "Sessions kept",
        "Resend",
        "Next turn",
        "Branch in the middle",
    ]
    assert [bar.get_width() for bar in axes[3].patches] == list(table["branch"])
    assert axes[3].get_xlabel() == "Of the shared half, found (%)"


def test_a_heat_map_orders_intervals_from_dense_to_boundary() -> None:
    rows = [
        {"node.num_blocks": blocks, "cache.retention_interval": interval, "token_hit_rate": rate}
        for blocks, interval, rate in [
            (200, 0, 0.3),
            (200, None, 0.1),
            (100, 4096, 0.2),
            (200, 512, None),
            (100, None, 0.05),
        ]
    ]
    ax = plots.heat_map(pd.DataFrame(rows), "node.num_blocks", "cache.retention_interval")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["100", "200"]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "dense",
        "every 512",
        "every 4,096",
        "boundary",
    ]
    assert texts(ax) == ["5.0%", "10.0%", "no run", "no run", "20.0%", "no run", "no run", "30.0%"]


def test_a_heat_map_averages_seeds_and_nothing_else() -> None:
    frame = pd.DataFrame({"x": [1, 1], "y": [2, 2], "seed": [0, 1], "ttft_s.p50": [0.1, 0.3]})
    assert texts(plots.heat_map(frame, "x", "y", figure="ttft_s.p50")) == ["200 ms"]
    with pytest.raises(KvsimError) as caught:
        plots.heat_map(frame.assign(seed=0), "x", "y", figure="ttft_s.p50")
    assert str(caught.value) == (
        "several runs have the same x and y, so something else differs too. "
        "Keep the rows of one value of it."
    )


def with_tier(result: RunResult) -> RunResult:
    cpu = {"bytes_stored": 4e12, "bytes_loaded": 1e12}
    busy = np.linspace(0, 0.9, len(result.timeline))
    return replace(
        result,
        summary={**result.summary, "tiers": {"cpu": cpu}},
        timeline=result.timeline.assign(store_utilization=busy, load_utilization=busy / 100),
    )


def test_tiers_and_links(results: dict[str, RunResult]) -> None:
    result = with_tier(results["dense"])
    ax = plots.bytes_by_tier(result)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["dense: cpu"]
    assert [bar.get_width() for bar in ax.patches] == [4000, 1000]
    ax = plots.link_utilization(result)
    assert legend(ax) == ["device to tier", "tier to device"]
    assert ax.get_ylim() == (0, 1.05)
    idle = replace(result, timeline=result.timeline.assign(store_utilization=0.01))
    assert plots.link_utilization(idle).get_ylim() == pytest.approx((0, 0.012))
    assert ax.get_ylabel() == "Link busy (%)"


def test_what_runs_do_not_have_is_said(results: dict[str, RunResult]) -> None:
    dense = results["dense"]
    for draw, message in (
        (
            lambda: plots.bytes_by_tier(results),
            "results: no run has a tier. Set offload: in the scenario.",
        ),
        (
            lambda: plots.link_utilization(dense),
            "timeline: there is no link. Set offload: in the scenario.",
        ),
        (lambda: plots.frame([]), "results: there are none. Give one or more."),
        (
            lambda: plots.frame([results["dense"], results["dense"]]),
            "results: two have the same variant. Give a mapping from name to result.",
        ),
        (
            lambda: plots.pool_by_state(replace(dense, timeline=dense.timeline.iloc[:0])),
            "timeline: has no row, so there is nothing to draw.",
        ),
    ):
        with pytest.raises(KvsimError) as caught:
            draw()
        assert str(caught.value) == message


# --- files ---


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_plot_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    written = [
        plots.save(plots.hit_rate_by_capacity(capacity_frame()), tmp_path / f"{n}{suffix}")
        for n in range(2)
    ]
    one, other = (path.read_bytes() for path in written)
    assert one == other
    assert len(one) > 1000


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KvsimError) as caught:
        plots.save(plots.hit_rate_by_capacity(capacity_frame()), tmp_path / "a.gif")
    assert str(caught.value) == (
        f"{tmp_path / 'a.gif'}: ending '.gif' is none of .png, .svg, .pdf. Use one of them."
    )


def test_matplotlib_is_imported_by_plots_alone() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "kvsim").rglob("*.py")
        if "import matplotlib" in (text := path.read_text()) or "from matplotlib" in text
    }
    assert found
    assert all(path.startswith("kvsim/plots/") for path in found)


def test_drawing_is_loaded_only_by_those_who_draw() -> None:
    code = "import sys, kvsim, kvsim.cli; assert 'matplotlib' not in sys.modules; kvsim.plots.save"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
