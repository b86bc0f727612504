"""Comparisons: paired by seed, never below the noise, with what changed in the scenario."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import kvsim
from kvsim.errors import Problems
from kvsim.results.store import RunResult
from kvsim.results.variants import write_variant
from kvsim.scenario import Scenario
from kvsim.study.comparison import TABLE_COLUMNS, compare

MODEL = {
    "groups": [
        {"kind": "full", "block_size": 16},
        {"kind": "sliding_window", "block_size": 16, "sliding_window": 64},
    ]
}


def made(directory: Path | None = None, **changes: Any) -> Scenario:
    data = {
        "name": "small",
        "model": MODEL,
        "node": {"num_blocks": 400},
        "step_time": {"kind": "constant", "step_s": 0.0, "token_s": 0.001},
        "workload": {"kind": "script", "requests": [{"prompt": [["A", 640]], "output": 2}]},
    }
    return Scenario.from_data({**data, **changes}, directory=directory)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """400 prompts, every second one a longer version of the one before."""
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    lines = []
    for n in range(200):
        ids = [1000 * n + k for k in range(8)]
        times = {"timestamp": 10_000 * n, "input_length": 2048, "output_length": 2}
        lines.append({**times, "hash_ids": ids[:4]})
        longer = {"timestamp": 10_000 * n + 5000, "input_length": 4096, "output_length": 2}
        lines.append({**longer, "hash_ids": ids})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made(
        path.parent, workload={"kind": "trace", "path": "t.jsonl"}, node={"num_blocks": 2000}
    )


def row(comparison: kvsim.Comparison, figure: str, scope: str = "all") -> dict[str, Any]:
    table = comparison.table
    rows = table[(table["figure"] == figure) & (table["scope"] == scope)]
    assert len(rows) == 1, f"{scope} {figure}"
    return dict(rows.iloc[0])


def test_one_seed_has_intervals_over_stretches(traced: Scenario) -> None:
    before = kvsim.run(traced.replace({"cache.enable_prefix_caching": True}))
    after = kvsim.run(traced.replace({"node.num_blocks": 420}))
    found = compare(before, after)
    assert list(found.table.columns) == list(TABLE_COLUMNS)
    assert found.scenario_changes.to_dict(orient="records") == [
        {"case": found.cases[0], "key": "node.num_blocks", "reference": "2000", "value": "420"}
    ]
    hits = row(found, "token_hit_rate")
    assert hits["reference"] == before.summary["token_hit_rate"] == pytest.approx(1 / 3, abs=0.005)
    assert hits["difference"] == after.summary["token_hit_rate"] - hits["reference"]
    assert hits["basis"] == "stretches"
    # All stretches are alike, so the difference is known closely.
    assert hits["low"] <= hits["difference"] <= hits["high"]
    counted = row(found, "evicted_blocks")
    assert counted["difference"] == after.summary["evicted_blocks"] - counted["reference"]
    assert pd.isna(counted["low"])
    assert pd.isna(counted["beyond_noise"])
    assert found.notes[-1].startswith("One seed: intervals are over stretches of the workload")
    assert "wall_s" not in set(found.table["figure"])


def test_the_same_run_twice_differs_in_nothing(traced: Scenario) -> None:
    found = compare(kvsim.run(traced), kvsim.run(traced.replace({"engine.max_num_seqs": 255})))
    assert (found.table["difference"].dropna() == 0).all()
    assert not found.table["beyond_noise"].fillna(value=False).any()


def test_groups_and_prompt_lengths_are_told_apart(traced: Scenario) -> None:
    dense = kvsim.run(traced.replace({"cache.retention_interval": None}))
    none = kvsim.run(traced.replace({"cache.enable_prefix_caching": False}))
    found = compare(dense, none)
    short, long = (row(found, "token_hit_rate", f"prompt {c}") for c in ("1k-4k", "4k-16k"))
    assert short["reference"] == 0.0
    requests = dense.requests[dense.requests["prompt_tokens"] == 4096]
    assert long["reference"] == pytest.approx(requests["hit_tokens"].sum() / (200 * 4096))
    assert long["difference"] == -long["reference"] < -0.4
    assert bool(long["beyond_noise"])
    for group in range(2):
        reach = row(found, "reach_rate", f"group {group}")
        assert reach["reference"] >= row(found, "token_hit_rate")["reference"]


def with_noise(seed: int, gain: float, *, shared: float, own: float) -> RunResult:
    """A run whose hit rate is drawn: part of it the same in every case of a seed."""
    drawn = np.random.default_rng(seed)
    rate = 0.5 + shared * drawn.normal() + own * np.random.default_rng(seed + 99).normal() * gain
    result = kvsim.run(made(seed=seed))
    return RunResult(
        "gain" if gain else "plain",
        {**result.summary, "token_hit_rate": rate + 0.01 * gain},
        result.requests,
        result.timeline,
        made(seed=seed, cache={"free_queue": "append" if gain else "prepend-uncached"}),
        {},
    )


def test_seeds_are_paired_so_that_what_they_share_cancels() -> None:
    plain = [with_noise(seed, 0, shared=0.2, own=0.0) for seed in range(5)]
    gain = [with_noise(seed, 1, shared=0.2, own=0.001) for seed in range(5)]
    found = compare(*plain, *gain)
    assert (found.reference, found.cases) == ("plain", ("gain",))
    hits = row(found, "token_hit_rate")
    assert hits["basis"] == "seeds"
    assert hits["difference"] == pytest.approx(0.01, abs=0.002)
    assert bool(hits["beyond_noise"])  # although rates differ by 20 points between seeds
    gaps = [
        b.summary["token_hit_rate"] - a.summary["token_hit_rate"]
        for a, b in zip(plain, gain, strict=True)
    ]
    width = 2.7764 * np.std(gaps, ddof=1) / np.sqrt(5)
    assert hits["high"] - hits["difference"] == pytest.approx(width, rel=1e-4)


def test_a_difference_within_the_noise_is_not_told_as_one() -> None:
    plain = [with_noise(seed, 0, shared=0.2, own=0.0) for seed in range(5)]
    noisy = [with_noise(seed, 1, shared=0.2, own=0.5) for seed in range(5)]
    hits = row(compare(*plain, *noisy), "token_hit_rate")
    assert hits["low"] < 0 < hits["high"]
    assert not bool(hits["beyond_noise"])


def test_only_common_seeds_are_compared() -> None:
    plain = [with_noise(seed, 0, shared=0.2, own=0.0) for seed in (1, 2, 3)]
    gain = [with_noise(seed, 1, shared=0.2, own=0.001) for seed in (2, 3, 4)]
    hits = row(compare(*plain, *gain), "token_hit_rate")
    both = [result.summary["token_hit_rate"] for result in plain[1:]]
    assert hits["reference"] == pytest.approx(np.mean(both))
    with pytest.raises(Problems) as caught:
        compare(plain[0], gain[2])
    assert caught.value.problems == [
        "gain: has no seed in common with plain (seeds 4 and seeds 1). Run both with the same."
    ]


def test_other_requests_are_noted(traced: Scenario) -> None:
    slower = traced.replace({"workload.time_scale": 2.0})
    found = compare(kvsim.run(traced), kvsim.run(slower))
    assert any("its requests are not those of" in note for note in found.notes)
    fewer = traced.replace({"workload.limit": 300})
    found = compare(kvsim.run(traced), kvsim.run(fewer))
    assert "The runs have different numbers of requests, so there are no intervals." in found.notes
    assert found.table["low"].isna().all()


def test_directories_stand_for_the_runs_in_them(tmp_path: Path, traced: Scenario) -> None:
    for name, interval in (("dense", None), ("boundary", 0)):
        result = kvsim.run(traced.replace({"cache.retention_interval": interval}))
        named = RunResult(
            name, result.summary, result.requests, result.timeline, result.scenario,
            result.provenance,
        )  # fmt: skip
        write_variant(tmp_path / "runs", named)
    found = compare(tmp_path / "runs")
    assert (found.reference, found.cases) == ("dense", ("boundary",))
    # The trace is the same file, from wherever it is named.
    assert list(found.scenario_changes["key"]) == ["cache.retention_interval"]
    swept = kvsim.sweep(traced, {"node.num_blocks": [500, 2000]}, out=tmp_path / "sweep", jobs=1)
    for runs in (swept, tmp_path / "sweep"):
        found = compare(runs)
        assert found.reference == "node.num_blocks=500"
        assert found.cases == ("node.num_blocks=2000",)


@pytest.mark.parametrize(
    ("what", "problems"),
    [
        ([], ["no run was given. Give runs of two scenarios or variants."]),
        (["x"], ["x: path: there is no such directory. Give the directory of a result."]),
        (
            ["x", "y"],
            [
                "x: path: there is no such directory. Give the directory of a result.",
                "y: path: there is no such directory. Give the directory of a result.",
            ],
        ),
    ],
)
def test_what_cannot_be_compared(
    what: list[str], problems: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Problems) as caught:
        compare(*what)
    assert caught.value.problems == problems


def test_one_scenario_is_no_comparison() -> None:
    with pytest.raises(Problems) as caught:
        compare(kvsim.run(made()))
    assert caught.value.problems == ["one run was given. Give runs of two scenarios or variants."]
    with pytest.raises(Problems) as caught:
        compare(kvsim.run(made()), kvsim.run(made(seed=1)))
    assert caught.value.problems == [
        "they are all runs of one scenario. Give runs of two scenarios or variants."
    ]


def test_tiers_have_scopes_of_their_own() -> None:
    def with_tier(num_bytes: int, free_queue: str) -> RunResult:
        result = kvsim.run(made())
        tier = {"bytes_stored": num_bytes, "by_group": [{"bytes_stored": num_bytes // 2}]}
        return RunResult(
            free_queue,
            {**result.summary, "tiers": {"cpu": tier}},
            result.requests,
            result.timeline,
            made(cache={"free_queue": free_queue}),
        )

    found = compare(with_tier(1000, "append"), with_tier(400, "prepend-uncached"))
    assert row(found, "bytes_stored", "tier cpu")["difference"] == -600
    assert row(found, "bytes_stored", "tier cpu, group 0")["difference"] == -300


def test_the_command_tells_it_in_points(tmp_path: Path, traced: Scenario) -> None:
    from typer.testing import CliRunner

    from kvsim.cli import app

    swept = kvsim.sweep(traced, {"cache.enable_prefix_caching": [True, False]}, out=tmp_path)
    shown = CliRunner().invoke(app, ["compare", str(tmp_path)])
    assert shown.exit_code == 0
    assert "cache.enable_prefix_caching: true -> false" in shown.output
    assert "-33.3" in shown.output or "-33 points" in shown.output
    assert "prompt 4k-16k" in shown.output
    printed = json.loads(CliRunner().invoke(app, ["compare", str(tmp_path), "--json"]).stdout)
    assert printed.keys() == {"reference", "cases", "scenario_changes", "table", "notes"}
    assert printed["table"][0].keys() == TABLE_COLUMNS.keys()
    assert "<table" in compare(swept)._repr_html_()


def test_tiers_are_compared_one_by_one(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from kvsim.cli import app

    shared = {"kind": "cpu", "num_chunks": 200, "link": {"bandwidth": "1 GB/s"}}
    disk = {**shared, "num_chunks": 60, "below": {"kind": "disk"}}
    prompts = [["A", 640]], [["B", 720]], [["A", 640], ["C", 16]]
    for name, tier in {"none": None, "cpu": shared, "disk": disk}.items():
        scenario = Scenario.from_data(
            {
                "name": "tiers",
                "model": {"groups": [{"kind": "full", "block_size": 16, "bytes_per_block": 4096}]},
                "node": {"num_blocks": 50},
                "offload": tier,
                "step_time": {"kind": "constant", "step_s": 0.01},
                "workload": {
                    "kind": "script",
                    "requests": [{"prompt": p, "at_s": 10 * n} for n, p in enumerate(prompts)],
                },
            }
        )
        write_variant(tmp_path, replace(kvsim.run(scenario), variant=name))
    made = compare(tmp_path / "cpu", tmp_path / "disk", tmp_path / "none")
    assert made.cases == ("disk", "none")
    rows = made.table.set_index(["case", "scope", "figure"])
    # B leaves 4 of A's 40 blocks on the device (49 - 45); 200 chunks hold the others, 60 do not.
    stored = rows.loc[("disk", "tier cpu", "bytes_stored")]
    loaded = rows.loc[("disk", "tier cpu, group 0", "chunks_loaded")]
    assert stored["reference"] > 0
    assert loaded["reference"] == 36
    assert rows.loc[("disk", "tier cpu", "chunks_evicted"), "value"] > 0
    assert rows.loc[("disk", "tier disk", "bytes_stored"), "value"] > 0
    assert math.isnan(rows.loc[("disk", "tier disk", "bytes_stored"), "reference"])
    assert math.isnan(rows.loc[("none", "tier cpu", "bytes_stored"), "value"])
    changes = made.scenario_changes
    of_disk = changes[changes["case"] == "disk"].set_index("key")
    assert of_disk.loc["offload.num_chunks"].to_dict() == {
        "case": "disk",
        "reference": "200",
        "value": "60",
    }
    # A key that is null in one and absent in the other is no change.
    assert (changes["reference"] != changes["value"]).all()
    shown = CliRunner().invoke(app, ["compare", *(str(tmp_path / n) for n in ("cpu", "disk"))])
    assert shown.exit_code == 0
    assert "tier disk, group 0" in shown.output


def test_a_length_that_some_stretches_lack_has_no_interval(tmp_path: Path) -> None:
    """One long prompt of 400: it is in one stretch of twenty, and so in no draw without that."""
    path = tmp_path / "t.jsonl"
    lines = [
        {"timestamp": 1000 * n, "input_length": 512, "output_length": 2, "hash_ids": [n // 2]}
        for n in range(399)
    ]
    longest = {"timestamp": 0, "input_length": 5120, "output_length": 2}
    lines.insert(0, {**longest, "hash_ids": list(range(1000, 1010))})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    scenario = made(
        tmp_path, workload={"kind": "trace", "path": "t.jsonl"}, node={"num_blocks": 900}
    )
    runs = [
        replace(kvsim.run(scenario.replace({"cache.free_queue": queue})), variant=queue)
        for queue in ("append", "prepend-uncached")
    ]
    comparison = compare(*runs)
    assert row(comparison, "ttft_s.p50", "prompt 4k-16k")["low"] is None or math.isnan(
        row(comparison, "ttft_s.p50", "prompt 4k-16k")["low"]
    )
    assert not math.isnan(row(comparison, "ttft_s.p50", "prompt <1k")["low"])


def test_a_length_that_one_seed_lacks_is_still_there() -> None:
    workload = {
        "kind": "synthetic",
        "num_sessions": 2,
        "sessions": {"starts": "constant(per_s=1)"},
        "content": [
            {
                "kind": "samples",
                "prompt_tokens": "lognormal(median=1000, sigma=0.3)",
                "num_samples": 1,
                "output_tokens": 2,
            }
        ],
    }
    runs = [
        replace(
            kvsim.run(made(workload=workload, seed=seed, cache={"free_queue": queue})),
            variant=queue,
        )
        for queue in ("append", "prepend-uncached")
        for seed in range(6)
    ]
    scopes = set(compare(*runs).table["scope"])
    assert {"prompt <1k", "prompt 1k-4k"} <= scopes
    first = compare(runs[0], runs[6]).table["scope"]
    assert len(scopes) > len(set(first)) or {"prompt <1k", "prompt 1k-4k"} <= set(first)


def test_goodput_has_an_interval_over_stretches(traced: Scenario) -> None:
    with_objective = traced.replace({"objective": {"ttft_s": 2.1}})
    base = kvsim.run(with_objective)
    other = replace(
        kvsim.run(with_objective.replace({"cache.enable_prefix_caching": False})), variant="none"
    )
    found = row(compare(base, other), "goodput")
    assert found["basis"] == "stretches"
    assert found["difference"] < 0
    assert found["beyond_noise"]
    assert base.summary["goodput"] == found["reference"]


def test_the_table_of_the_command_fits_80_columns(tmp_path: Path, monkeypatch: Any) -> None:
    from rich.console import Console
    from typer.testing import CliRunner

    from kvsim.cli import app, compare

    name = "a-variant-with-a-name-of-forty-characters"
    tier = {"kind": "cpu", "capacity": "8 GiB", "link": "pcie-gen5-x16"}
    model = {"groups": [{**group, "bytes_per_block": 4096} for group in MODEL["groups"]]}
    for variant, more in (("base", {}), (name, {"offload": tier})):
        write_variant(tmp_path, replace(kvsim.run(made(model=model, **more)), variant=variant))
    monkeypatch.setattr(compare, "make_console", lambda: Console(width=80))
    shown = CliRunner().invoke(
        app, ["compare", str(tmp_path / "base"), str(tmp_path / name), "--all"]
    )
    assert shown.exit_code == 0, shown.output
    table = [line for line in shown.output.splitlines() if not line.startswith("  offload")]
    assert max(len(line.rstrip()) for line in table) <= 80
    assert "tier cpu\n" in "\n".join(line.rstrip() for line in table) + "\n"
