"""The scenarios that ship: each can be loaded whole, and its beginning runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.engine.simulation import simulate
from kvsim.scenario import ScriptWorkload, SyntheticWorkload
from kvsim.scenario.reading import expand_variants, load_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
FILES = sorted(set(SCENARIOS.glob("*.yaml")) - {SCENARIOS / "reference.yaml"})
CONTENTS = {"chat", "agentic", "rag", "document-qa", "few-shot", "samples", "one-off", "cycle"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_begins_to_run(path: Path) -> None:
    whole = load_scenario(path)
    assert whole.name == path.stem.replace("_", "-")
    workload = whole.workload
    if isinstance(workload, ScriptWorkload):
        return
    synthetic = isinstance(workload, SyntheticWorkload)
    few = load_scenario(path, ["workload.num_sessions=8" if synthetic else "workload.limit=30"])
    scenario = next(iter(expand_variants(few).values()))
    frame = simulate(scenario).requests.frame()
    assert len(frame) >= 8
    assert frame["refused"].isna().all()
    assert frame["end_s"].notna().all()


def test_every_content_has_a_scenario() -> None:
    workloads = [load_scenario(path).workload for path in FILES]
    shown = {
        content.kind
        for workload in workloads
        if isinstance(workload, SyntheticWorkload)
        for content in workload.content
    }
    assert shown == CONTENTS


def test_traces_are_small_and_have_their_source_named() -> None:
    readme = (SCENARIOS / "traces" / "README.md").read_text()
    for path in (SCENARIOS / "traces").iterdir():
        assert path.stat().st_size < 1e6
        assert path.name == "README.md" or f"`{path.name}`" in readme
