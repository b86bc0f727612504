"""Advice: what is tried, on how much of the workload, and what counts as a gain."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvsim.errors import KvsimError
from kvsim.policies import table
from kvsim.scenario import Scenario
from kvsim.scenario.validation import lay_over
from kvsim.study import advice_field
from kvsim.study.advice import advise
from kvsim.study.advice_field import combinations, single_changes, stretch
from kvsim.study.advice_files import advice_json, publish, working_directory
from kvsim.study.advice_gains import classes_of, gain_of

GROUPS = [
    {"kind": "full", "block_size": 16},
    {"kind": "sliding_window", "block_size": 16, "sliding_window": 32},
]


def scenario(groups: Any = None, **keys: Any) -> Scenario:
    data = {
        "name": "small",
        "model": {"groups": groups or GROUPS},
        "node": {"num_blocks": 60},
        "step_time": {"kind": "constant", "step_s": 0.01},
        "engine": {"max_num_batched_tokens": 256},
        "workload": {
            "kind": "synthetic",
            "num_sessions": 60,
            "sessions": {"starts": "poisson(per_s=2)"},
            "content": [
                {
                    "kind": "chat",
                    "system_tokens": 64,
                    "user_tokens": 30,
                    "output_tokens": 20,
                    "think_s": "exponential(mean_s=1)",
                }
            ],
        },
        **keys,
    }
    return Scenario.from_data(data)


def test_the_field_changes_one_thing_each() -> None:
    made = scenario()
    field = {one.label: one for one in single_changes(made)}
    assert {"append", "lru", "s3-fifo", "dense", "interval-1024", "hit-driven"} <= set(field)
    assert "priority" not in field  # requests say none
    assert "prepend-uncached" not in field  # it is set already
    assert "interval-0" not in field
    assert field["append"].is_engine
    assert not field["lru"].is_engine
    assert all(len(one.parts) == 1 for one in field.values())
    both = combinations(made, {"order": [field["lru"]], "retention": [field["dense"]]})
    assert [one.label for one in both] == ["lru", "dense", "lru+dense"]
    assert not both[-1].is_engine


def test_full_attention_alone_has_no_retention() -> None:
    field = single_changes(scenario(GROUPS[:1]))
    assert field
    assert {part for one in field for part in one.parts} == {"order"}


@pytest.mark.parametrize(
    ("starts", "shorter"),
    [
        ("uniform(span_s=2 h)", "uniform(span_s=1800)"),
        ("ramp(from_per_s=1, to_per_s=5, over_s=100)", "ramp(from_per_s=1, to_per_s=5, over_s=25)"),
        ("poisson(per_s=2)", "poisson(per_s=2)"),
    ],
)
def test_a_stretch_keeps_the_load(starts: str, shorter: str) -> None:
    made = scenario().replace({"workload.sessions.starts": starts})
    part = stretch(made, 0.25, 1000)
    assert part is not None
    assert part.workload.num_sessions == 15  # type: ignore[union-attr]
    assert part.workload.sessions.starts == shorter  # type: ignore[union-attr]
    script = {"kind": "script", "requests": [{"prompt": [["A", 100]]}]}
    assert stretch(scenario(workload=script), 0.25, 1000) is None


def run_of(hit_tokens: Any, made: Scenario) -> Any:
    """What gains are made of, of a run with these hits."""
    requests = pd.DataFrame(
        {
            "request_id": [f"{number:04}" for number in range(len(hit_tokens))],
            "arrival_s": np.arange(len(hit_tokens), dtype=float),
            "prompt_tokens": 100,
            "hit_tokens": hit_tokens,
            "external_hit_tokens": float("nan"),
        }
    )
    summary = dict.fromkeys(
        ("num_refused", "scheduled_tokens", "bytes_stored", "bytes_loaded"), 0
    ) | {"ttft_s": {"p50": 1.0, "p99": 2.0}}
    return SimpleNamespace(requests=requests, summary=summary, scenario=made)


@pytest.fixture
def without_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.study.advice_gains.classes_of", lambda *_: {})


@pytest.mark.usefixtures("without_classes")
def test_gains_are_paired_and_leave_out_what_was_chosen_on() -> None:
    made = scenario()
    rng = np.random.default_rng(1)
    before = rng.integers(0, 80, 800).astype(float)
    better = before + 10
    better[:400] = 100  # which it was chosen on
    known = pd.DataFrame({"request_id": [f"{number:04}" for number in range(400)]})
    gain = gain_of("x", {0: run_of(better, made)}, {0: run_of(before, made)}, known)
    assert gain.num_requests == 400
    assert gain.gain == pytest.approx(0.1)
    assert (gain.low, gain.high) == (pytest.approx(0.1), pytest.approx(0.1))
    assert gain.is_better


@pytest.mark.usefixtures("without_classes")
def test_a_burst_and_few_requests_are_no_gain() -> None:
    made = scenario()
    before = np.full(800, 10.0)
    burst = before.copy()
    burst[100:130] = 90  # all that is gained falls into one stretch
    gain = gain_of("x", {0: run_of(burst, made)}, {0: run_of(before, made)}, None)
    assert gain.gain > 0.02
    assert not gain.is_better
    few = gain_of("x", {0: run_of(before[:50] + 5, made)}, {0: run_of(before[:50], made)}, None)
    assert few.low is None
    assert not few.is_better
    same = gain_of("x", {0: run_of(before, made)}, {0: run_of(before, made)}, None)
    assert not same.is_better
    assert not same.is_worse
    two = {seed: run_of(before + 5 * seed, made) for seed in (1, 2)}
    over_seeds = gain_of("x", two, {seed: run_of(before, made) for seed in (1, 2)}, None)
    assert over_seeds.gain == pytest.approx(0.075)
    assert over_seeds.low is not None
    assert over_seeds.low < 0  # two seeds that differ tell little


def test_classes_of_requests() -> None:
    script = {
        "kind": "script",
        "requests": [
            {"prompt": [["A", 200]], "output": 40, "output_name": "A1"},
            {"prompt": [["A", 200], ["A1", 40], ["B", 50]], "at_s": 1},
            {"prompt": [["A", 100], ["C", 100]], "at_s": 2},
            {"prompt": [["D", 100]], "at_s": 3},
        ],
    }
    made = scenario(workload=script)
    requests = pd.DataFrame({"request_id": [], "arrival_s": []})
    kinds = list(classes_of(made, requests).values())
    assert kinds == ["new prompts", "next turns", "branches", "new prompts"]


@pytest.fixture
def few_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small field: what is compiled for each policy takes longer than these runs."""
    orders = {name: table.TABLE["free_queue"][name] for name in ("hit-first",)}
    kept = {name: table.TABLE["retention"][name] for name in ("next-turn",)}
    few = {**table.TABLE, "free_queue": orders, "retention": kept}
    monkeypatch.setattr(advice_field, "TABLE", few)


@pytest.mark.usefixtures("few_policies")
def test_advice_resumes_and_appears_whole(tmp_path: Path) -> None:
    made = scenario()
    out = tmp_path / "advice"
    work = working_directory(out)
    told: list[int] = []
    first = advise(
        made, work, num_seeds=2, jobs=1, on_progress=lambda name, p: told.append(p.num_to_do)
    )
    assert sum(told) > 0
    assert not out.exists()
    told.clear()
    again = advise(
        made, work, num_seeds=2, jobs=1, on_progress=lambda name, p: told.append(p.num_to_do)
    )
    assert sum(told) == 0  # an interrupted one goes on where it was
    assert advice_json(again) == advice_json(first)
    publish(again, work, out)
    assert (out / "advice.json").is_file()
    assert (out / "setting.yaml").is_file()
    assert not work.exists()
    assert working_directory(out) == work  # seeded from what is there
    assert (work / "whole").is_dir()
    assert out.is_dir()
    # The stretches are of the same seed, the judgement of others.
    assert {one.round for one in first.tried} >= {"stretch 1/2", "whole"}
    assert first.judged_on == "2 seeds that nothing was chosen on"
    assert all(one.num_requests > 0 for one in first.gains)
    if first.set_to != "as-set":
        assert first.gains[0].label == first.set_to
        assert first.gains[0].is_better


@pytest.mark.usefixtures("few_policies")
def test_where_nothing_is_evicted_no_order_is_tried(tmp_path: Path) -> None:
    made = scenario(GROUPS[:1], node={"num_blocks": 5000})
    found = advise(made, tmp_path / "work", num_seeds=2, jobs=1)
    assert found.set_to == "as-set"
    assert found.keys == {}
    assert found.gains == []
    assert any("Nothing is evicted" in note for note in found.notes)


def test_caching_that_is_off(tmp_path: Path) -> None:
    made = scenario(cache={"enable_prefix_caching": False})
    with pytest.raises(KvsimError, match="finds nothing again"):
        advise(made, tmp_path / "work")


def test_other_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(KvsimError, match="is no advice"):
        working_directory(tmp_path / "mine")


def test_keys_as_sections() -> None:
    keys = {"cache.free_queue": "lru", "cache.retention": None, "offload.eviction": "arc"}
    assert lay_over({}, keys)[0] == {
        "cache": {"free_queue": "lru", "retention": None},
        "offload": {"eviction": "arc"},
    }
