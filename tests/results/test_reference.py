"""References: written by the command alone, the same bytes again, and they say when they differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvsim.cli import app
from kvsim.errors import KvsimError
from kvsim.report.reference_plots import draw_reference
from kvsim.results.reference import (
    Difference,
    check_reference,
    read_reference,
    references,
    update_reference,
)

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "results" / "reference"
SCENARIO = """\
name: small
model: {groups: [{kind: full, block_size: 16}]}
node: {num_blocks: 100}
step_time: {kind: constant, step_s: 0.01}
workload:
  kind: script
  requests:
    - {prompt: [[A, 100]], output: 2}
    - {prompt: [[A, 100]], output: 2, at_s: 1}
variants:
  cached: {cache.enable_prefix_caching: true}
  uncached: {cache.enable_prefix_caching: false}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scenarios" / "small.yaml"
    path.parent.mkdir()
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def reference(file: Path, tmp_path: Path) -> Path:
    return update_reference(file, tmp_path / "reference", draw_reference)


def edited(reference: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = reference / "summary.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_what_is_kept(reference: Path) -> None:
    content = read_reference(reference)
    assert content["command"] == "kvsim reference update scenarios/small.yaml"
    assert content["scenario"] == "../../scenarios/small.yaml"
    assert list(content["variants"]) == ["cached", "uncached"]
    assert content["variants"]["cached"]["hit_tokens"] == 96
    assert "wall_s" not in content["variants"]["cached"]
    names = {path.name for path in reference.iterdir()}
    assert names == {"summary.json", "policies.png", "ttft.png", "survival.png"}


def test_the_same_runs_write_the_same_bytes(file: Path, reference: Path) -> None:
    before = {path.name: path.read_bytes() for path in reference.iterdir()}
    update_reference(file, reference.parent, draw_reference)
    assert {path.name: path.read_bytes() for path in reference.iterdir()} == before


def test_a_reference_that_holds(reference: Path) -> None:
    check = check_reference(reference)
    assert check.holds
    assert not check.scenario_changed
    assert check.num_figures > 60
    assert check.sentence() == f"small: holds ({check.num_figures} figures compared)"


def test_comments_change_nothing(file: Path, reference: Path) -> None:
    file.write_text("# said in passing\n" + SCENARIO)
    check = check_reference(reference)
    assert check.holds
    assert not check.scenario_changed


def test_differences_are_named(reference: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        content["variants"]["cached"]["hit_tokens"] = 80
        content["variants"]["cached"]["gone"] = 1
        content["variants"]["uncached"]["simulated_s"] *= 1 + 1e-12  # rounds alike
        content["variants"]["uncached"]["ttft_s"]["p50"] += 1e-6

    edited(reference, change)
    check = check_reference(reference)
    p50 = read_reference(reference)["variants"]["uncached"]["ttft_s"]["p50"]
    assert check.differences == (
        Difference("cached", "hit_tokens", 80, 96),
        Difference("cached", "gone", 1, None),
        Difference("uncached", "ttft_s.p50", p50, p50 - 1e-6),
    ) or [difference.figure for difference in check.differences] == [
        "hit_tokens",
        "gone",
        "ttft_s.p50",
    ]
    assert str(check.differences[0]) == "cached: hit_tokens was 80, is 96"
    assert check_reference(reference, ["uncached"]).differences == check.differences[2:]
    assert check.sentence() == f"small: differs in 3 of {check.num_figures} figures"


def test_a_changed_scenario_is_said(file: Path, reference: Path) -> None:
    file.write_text(SCENARIO.replace("num_blocks: 100", "num_blocks: 101"))
    check = check_reference(reference)
    assert check.scenario_changed
    assert check.sentence().endswith("figures; its scenario has changed since")


def test_a_new_and_a_lost_variant_differ(file: Path, reference: Path) -> None:
    file.write_text(SCENARIO.replace("uncached:", "other:"))
    check = check_reference(reference)
    changed = {(d.variant, d.reference is None, d.now is None) for d in check.differences}
    assert ("uncached", False, True) in changed
    assert ("other", True, False) in changed


def test_what_is_no_reference(tmp_path: Path, reference: Path) -> None:
    def message(call: Callable[[], object]) -> str:
        with pytest.raises(KvsimError) as caught:
            call()
        return str(caught.value).replace(str(tmp_path), ".")

    assert message(lambda: read_reference(tmp_path / "no")) == (
        "./no: 1 problem\n  path: is no reference. Make it with kvsim reference update."
    )
    assert message(lambda: references(tmp_path / "no")) == (
        "./no: 1 problem\n  path: holds no reference. Give the directory with --in."
    )
    assert message(lambda: check_reference(reference, ["cashed"])) == (
        "./reference/small: 1 problem\n  --only: unknown variant 'cashed'. Did you mean 'cached'?"
    )
    (reference / "summary.json").write_text("{}")
    assert message(lambda: read_reference(reference)) == (
        "./reference/small: 1 problem\n  summary.json: lacks command, kvsim, scenario, "
        "scenario_sha256, variants. Make it with kvsim reference update."
    )


def test_the_commands(file: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    out = str(tmp_path / "reference")
    done = runner.invoke(app, ["reference", "update", str(file), "--out", out])
    assert (done.exit_code, done.output) == (0, f"Reference: {out}/small\n")
    done = runner.invoke(app, ["reference", "check", "--in", out])
    assert done.exit_code == 0
    assert done.output.startswith("small: holds (")
    edited(Path(out) / "small", lambda c: c["variants"]["cached"].update(num_steps=1))
    done = runner.invoke(app, ["reference", "check", "small", "--in", out])
    assert done.exit_code == 1
    assert done.output.splitlines()[1] == "  cached: num_steps was 1, is 4"
    done = runner.invoke(app, ["reference", "check", "--in", out, "--json"])
    (found,) = json.loads(done.output)
    assert (found["name"], found["holds"]) == ("small", False)
    assert found["differences"] == [
        {"variant": "cached", "figure": "num_steps", "reference": 1, "now": 4}
    ]


def test_shipped_references_hold() -> None:
    """One variant of each, to be quick; `kvsim reference check` takes all."""
    for directory in references(SHIPPED):
        variants = list(read_reference(directory)["variants"])
        check = check_reference(directory, variants[-1:])
        assert check.holds, "\n".join([check.sentence(), *map(str, check.differences)])
        assert not check.scenario_changed


def test_shipped_references_are_small_and_complete() -> None:
    for directory in references(SHIPPED):
        content = read_reference(directory)
        assert (directory / content["scenario"]).is_file()
        assert content["command"].startswith("kvsim reference update scenarios/")
        assert sum(path.stat().st_size for path in directory.iterdir()) < 600_000
