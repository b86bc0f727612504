"""Variants on several cores: the same results, in any order, with what is wrong beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import KvsimError
from kvsim.results.store import RunResult
from kvsim.results.variants import run_variant
from kvsim.scenario import Scenario
from kvsim.scenario.reading import expand_variants
from kvsim.study import side_by_side
from kvsim.study.parallel import each
from kvsim.study.side_by_side import run_side_by_side

WORKLOAD = {
    "kind": "script",
    "concurrency": 1,
    "requests": [{"prompt": [["a", 200]], "output": 4}] * 3,
}
SCRIPT = {
    "name": "script",
    "model": {"groups": [{"kind": "full", "block_size": 16}]},
    "node": {"num_blocks": 50},
    "step_time": {"kind": "constant", "step_s": 0.01},
    "workload": WORKLOAD,
    "variants": {
        "small": {"node.num_blocks": 5},  # no request fits
        "large": {"node.num_blocks": 90},
        "off": {"cache.enable_prefix_caching": False},
    },
}


def test_two_jobs_give_what_one_gives() -> None:
    variants = expand_variants(Scenario.from_data(SCRIPT))
    told: list[tuple[str, float]] = []
    outcomes = dict(run_side_by_side(variants, jobs=2, on_progress=lambda *what: told.append(what)))
    assert set(outcomes) == set(variants)
    assert isinstance(outcomes["small"], KvsimError)
    for name in ("large", "off"):
        result = outcomes[name]
        assert isinstance(result, RunResult)
        alone = run_variant(variants[name], name)
        assert result.requests.equals(alone.requests)
        assert {**result.summary, "wall_s": 0} == {**alone.summary, "wall_s": 0}
    assert {name for name, _ in told} <= set(variants)


FLEET = {
    **{key: value for key, value in SCRIPT.items() if key != "variants"},
    "workload": {**WORKLOAD, "concurrency": None},
    "fleet": {"nodes": 2, "router": "round-robin"},
    "output": {"compare_caches": False},
}


@pytest.mark.parametrize("compares", [False, True])
def test_one_variant_runs_where_it_was_told_to(
    compares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet that cannot be split goes to the cluster whole, one that can in parts."""
    asked: list[tuple[int, dict[str, Any]]] = []

    def spy(work: Any, tasks: Sequence[Any], **options: Any) -> Iterator[tuple[int, Any]]:
        asked.append((len(tasks), options))
        return each(work, tasks, jobs=1)

    monkeypatch.setattr("kvsim.study.side_by_side.each", spy)
    monkeypatch.setattr("kvsim.study.side_by_side.check_backend", lambda *_: None)
    scenario = Scenario.from_data(FLEET)
    scenario = scenario.replace({"output.compare_caches": compares})
    ((_, result),) = run_side_by_side({"one": scenario}, jobs=2, backend="ray")
    assert asked == [(1 if compares else 2, {"jobs": 2, "backend": "ray"})]
    assert isinstance(result, RunResult)
    assert result.requests.equals(run_variant(scenario).requests)


def test_a_worker_on_another_machine_finds_no_file_of_shares(tmp_path: Path) -> None:
    scenario = Scenario.from_data(FLEET)
    task = side_by_side._Task("one", scenario, (), str(tmp_path / "shares"), 0, 1)
    assert isinstance(side_by_side._run(task), RunResult)
