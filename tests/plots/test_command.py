"""`kvsim plot`: what it draws, and errors in the words of its options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

import kvsim
from kvsim.cli import app
from kvsim.errors import KvsimError
from kvsim.results.store import RunResult
from kvsim.results.variants import write_variant
from kvsim.scenario import Scenario
from kvsim.study.probe import retention_probe


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, results: dict[str, RunResult]) -> Path:
    directory = tmp_path_factory.mktemp("plotted") / "runs"
    for result in results.values():
        write_variant(directory, result)
    return directory


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve runs over three axes."""
    scenario = Scenario.from_data(
        {
            "name": "probe",
            "model": "deepseek-v4-pro",
            "node": {"num_blocks": 8_000},
            "step_time": {"kind": "constant", "step_s": 0.01},
            "workload": retention_probe(4, 6_000, 5),
        }
    )
    grid = {
        "node.num_blocks": [4_000, 8_000, 16_000],
        "cache.retention_interval": [None, 0],
        "cache.free_queue": ["append", "prepend-uncached"],
    }
    out = tmp_path_factory.mktemp("swept") / "sweep"
    return Path(kvsim.sweep(scenario, grid, out=out, jobs=1).path)


def invoke(*arguments: Any) -> str:
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, words, catch_exceptions=False).output


def problem(*arguments: Any) -> str:
    with pytest.raises(KvsimError) as caught:
        invoke("plot", *arguments)
    return re.sub(r"\S*/(?=runs|sweep|x\.)", "", str(caught.value))


def test_the_command_draws(tmp_path: Path, runs: Path) -> None:
    out = tmp_path / "pool.svg"
    assert invoke("plot", "pool", runs, "--run", "dense", "--out", out) == f"Plot: {out}\n"
    assert out.read_text().lstrip().startswith("<?xml")


def test_problems_of_runs(runs: Path) -> None:
    assert problem("pol", runs) == "KIND: unknown kind of plot 'pol'. Did you mean 'pool'?"
    assert problem("pool", runs) == (
        "runs: this plot shows one run. Name one with --run: append, dense, boundary."
    )
    assert problem("pool", runs, "--run", "dens") == (
        "runs: --run: unknown run 'dens'. Did you mean 'dense'?"
    )
    assert problem("hit-rate", runs) == (
        "runs: this plot needs a capacity that was varied (node.num_blocks, offload.capacity, "
        "offload.num_chunks), and none is. Sweep one of them, or name a column with --x."
    )
    assert problem("heat-map", runs) == (
        "runs: a heat map needs two axes, and none was varied. Sweep two keys, or name columns "
        "with --x and --y."
    )
    assert problem("pool", runs, "--out", runs.parent / "x.bmp").startswith("x.bmp: ending")
    assert problem("retention", runs) == (
        "runs: append, dense, boundary: no run of the retention probe. Write its scenario with "
        "kvsim new probe.yaml --retention-probe, and run that."
    )


def test_problems_name_options_and_no_arguments_of_python(runs: Path, sweep: Path) -> None:
    assert problem("tiers", runs) == "runs: no run has a tier. Set offload: in the scenario."
    assert problem("links", runs, "--run", "dense") == (
        "runs: there is no link. Set offload: in the scenario."
    )
    assert problem("hit-rate", sweep, "--x", "num_block") == (
        "sweep: --x: unknown column 'num_block'. Did you mean 'num_blocks'?"
    )
    assert problem("hit-rate", sweep, "--x", "policy") == (
        "sweep: --x: policy holds no numbers. Use a figure, as ttft_s.p99."
    )
    assert problem("heat-map", sweep, "--figure", "zzzz").startswith(
        "sweep: --figure: unknown column 'zzzz'. Use a key that was varied (node.num_blocks, "
    )
    assert problem("ttft", runs, "--figure", "ttft_s.p50") == (
        "--figure: plot ttft has no such option. It is for heat-map."
    )
    said = problem("ttft-rate", sweep)
    assert "a request rate that was varied (workload.time_scale), and none is" in said


def test_several_axes_are_cut_down_with_where(sweep: Path, tmp_path: Path) -> None:
    assert problem("heat-map", sweep) == (
        "sweep: several runs have the same node.num_blocks and cache.retention_interval: "
        "cache.free_queue varies too. Keep those of one value, as with --where "
        "cache.free_queue=append."
    )
    out = tmp_path / "x.png"
    invoke("plot", "heat-map", sweep, "--where", "cache.free_queue=append", "--out", out)
    axes = plt.gcf().axes
    assert len([text for text in axes[0].texts if text.get_text() != "no run"]) == 6
    assert problem("ttft", sweep) == (
        "sweep: this plot reads runs one by one, 8 at most, and the sweep has 12. Keep those of "
        "one value, as with --where node.num_blocks=4000."
    )
    keep = ("--where", "node.num_blocks=8,000", "--where", "cache.retention_interval=null")
    assert invoke("plot", "ttft", sweep, *keep, "--out", out) == f"Plot: {out}\n"
    legend = plt.gcf().axes[0].get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["append, dense", "prepend, dense"]
    assert problem("ttft", sweep, "--where", "node.num_blocks=5") == (
        "--where: no run has node.num_blocks '5'. Use one of '4000', '8000', '16000'."
    )
    assert problem("ttft", sweep, "--where", "num_blocks") == (
        "--where: 'num_blocks' is no KEY=VALUE. Write node.num_blocks=25000."
    )


def test_an_axis_of_ones_own_is_not_in_the_labels_too(sweep: Path, tmp_path: Path) -> None:
    invoke("plot", "hit-rate", sweep, "--x", "num_blocks", "--out", tmp_path / "x.png")
    lines = [line for line in plt.gcf().axes[0].get_lines() if len(line.get_xdata()) == 3]
    assert len(lines) == 4


def test_the_retention_probe_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ("--sessions", 5, "--session-tokens", 6000)
    assert invoke("new", "probe.yaml", "--retention-probe", *sizes) == (
        "Written: probe.yaml\nRun it:  kvsim run probe.yaml\n"
    )
    only = ("--only", "append, dense", "--only", "boundary", "--set", "node.num_blocks=16000")
    invoke("run", "probe.yaml", *only)
    assert invoke("plot", "retention", "results/probe") == "Plot: retention.png\n"
    panels = plt.gcf().axes
    assert [ax.get_title(loc="left") for ax in panels][:2] == ["Sessions kept", "Resend"]
    kept = [patch.get_width() for patch in panels[0].patches]
    assert len(kept) == 2
    assert kept[1] == 5 >= kept[0]
    assert imread("retention.png").std() > 0.05
    with pytest.raises(KvsimError) as caught:
        invoke("new", "other.yaml", "--sessions", 5)
    assert str(caught.value) == (
        "--sessions: is for the retention probe alone. Add --retention-probe."
    )


def test_the_help_explains_every_kind() -> None:
    from kvsim.cli.plot import _KINDS

    text = invoke("plot", "--help")
    for name, kind in _KINDS.items():
        assert re.search(rf"{name} +{re.escape(kind.shows)}", text), name
    assert max(len(line) for line in text.splitlines()) <= 80
