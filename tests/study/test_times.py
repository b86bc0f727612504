"""Measured points: read, expressed, simulated, fitted; and bad files."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import Problems
from kvsim.study.bench_times import as_json, errors_of, grouped, load_of, predict
from kvsim.study.fitting_times import errors, fit_constants, observe, tokens_a_step
from kvsim.study.measured import Point, read_measured
from kvsim.study.measured_names import gpu_name, model_name, precision_name
from kvsim.times.constants import (
    Constants,
    catalog_constants,
    constants_yaml,
    read_constants,
)
from kvsim.times.trust import trust_in_roofline

MEASURED = Path(__file__).parents[1] / "data" / "serving.csv"
"""Points whose sources allow it: NVIDIA's sweep, InferenceX's dump, SGLang's cookbook, NIM."""


@pytest.fixture(scope="module")
def points() -> list[Point]:
    return read_measured(MEASURED)


def row(**changes: Any) -> dict[str, Any]:
    given = {
        "id": "a",
        "model": "llama-3.3-70b",
        "gpu": "h200",
        "precision": "fp8",
        "engine": "vllm",
        "tp": 4,
        "isl": 1024,
        "osl": 128,
        "concurrency": 4,
        "len_low_ratio": 0.8,
        "num_prompts": 12,
        "chunk": 8192,
        "ttft_mean_s": 0.1,
        "tpot_mean_s": 0.01,
    }
    return given | changes


def write(path: Path, *rows: dict[str, Any]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for one in rows for key in one)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_bundled_points_are_expressed_and_predicted(points: list[Point]) -> None:
    assert {p.engine for p in points} == {"vllm", "sglang", "tensorrt-llm"}
    predictions = [predict(point) for point in points]
    ttft, tpot = errors_of(predictions)
    # a few points of each engine: far looser than the page of results says of all
    assert tpot.n > 15 and tpot.median < 0.2
    assert ttft.n > 10 and ttft.median < 0.4
    assert sum(error.n for _, _, error in grouped(predictions, "load")) == tpot.n
    found = as_json(predictions)
    assert set(found) == {"points", "ttft", "tpot"}
    assert set(found["points"][0]) == {
        "id", "ttft_s", "tpot_s", "ttft_error", "tpot_error", "left_out",
    }  # fmt: skip
    json.dumps(found, allow_nan=False)


def test_what_cannot_be_expressed_says_why(tmp_path: Path) -> None:
    rows = [
        row(id="split", disagg="True"),
        row(id="model", model="llama-9"),
        row(id="engine", engine="lmdeploy"),
        row(id="drafts", spec="dspark"),
        row(id="precision", precision="fp3"),
        row(id="untimed", ttft_mean_s="", tpot_mean_s=""),
        row(id="good"),
    ]
    left = {p.row["id"]: p.left_out for p in read_measured(write(tmp_path / "m.csv", *rows))}
    assert left.pop("good") is None
    assert "different engines" in str(left["split"])
    assert "unknown model 'llama-9'" in str(left["model"])
    assert "engine lmdeploy" in str(left["engine"])
    assert "drafts are not published" in str(left["drafts"])
    assert "'fp3' is none of" in str(left["precision"])
    assert "no time" in str(left["untimed"])


def test_points_are_left_out_by_what_they_are_alone(tmp_path: Path) -> None:
    rows = [
        row(id="queue", concurrency=512, num_prompts=5120, ttft_mean_s=100.0),
        row(id="slow", tpot_mean_s=9.0),
        row(id="fast", tpot_mean_s=1e-4),
    ]
    assert all(p.left_out is None for p in read_measured(write(tmp_path / "m.csv", *rows)))


def test_four_bits_without_their_tensor_cores_are_computed_with_in_bf16(tmp_path: Path) -> None:
    hopper, blackwell = read_measured(
        write(tmp_path / "m.csv", row(precision="fp4"), row(precision="NVFP4", gpu="b200"))
    )
    assert hopper.model is not None and blackwell.model is not None
    assert (hopper.model.precision, blackwell.model.precision) == ("bf16", "fp4")
    assert hopper.model.weight_bytes == blackwell.model.weight_bytes


@pytest.mark.parametrize(
    ("changes", "ranks", "drafts"),
    [
        ({"tp": 8, "dp": 8, "ep": 8, "dp_attention": "True"}, 8, 0),
        ({"tp": 8, "ep": 8, "dp_attention": "True"}, 8, 0),
        ({"tp": 1, "dp": 64, "ep": 8, "dp_attention": "True"}, 8, 0),
        ({"tp": 2, "dp": 4}, 4, 0),
        ({"tp": 8, "spec": "eagle-3-1-4"}, 1, 3),
        ({"tp": 8, "spec": "MTP"}, 1, 2),
        ({"tp": 8, "spec": "mtp3"}, 1, 3),
        ({"tp": 8, "spec": "off"}, 1, 0),
    ],
)
def test_layouts(changes: dict[str, Any], ranks: int, drafts: int, tmp_path: Path) -> None:
    named = {"model": "deepseek-ai/DeepSeek-R1-0528", "gpu": "NVIDIA B200", "engine": "TRTLLM"}
    expected = drafts if drafts != 2 else 3  # what TensorRT-LLM's public scripts draft
    [point] = read_measured(write(tmp_path / "m.csv", row(**named, **changes)))
    assert point.left_out is None and point.layout is not None and point.model is not None
    assert point.model.name == "deepseek-r1" and point.engine == "tensorrt-llm"
    assert (point.layout.data_parallel, point.layout.draft_tokens) == (ranks, expected)


def test_sglang_of_deepseek_v4_as_it_is_published(tmp_path: Path) -> None:
    wide = {"tp": 8, "dp": 8, "ep": 8, "dp_attention": "True", "chunk": ""}
    rows = [
        row(gpu="b200", tp=8),
        row(gpu="b300", **wide),
        row(gpu="b300", **wide, spec="eagle-1-1-2"),
        row(gpu="gb300", **(wide | {"tp": 4, "dp": 4, "ep": 4})),
    ]
    rows = [one | {"model": "deepseek-v4-pro", "engine": "sglang"} for one in rows]
    loops = [p.loop() for p in read_measured(write(tmp_path / "m.csv", *rows))]
    assert [loop.max_sequences for loop in loops] == [256, 32, 32, 64]
    assert [loop.step_tokens for loop in loops] == [8192, 8192, 4096, 4096]
    assert [loop.hold_steps for loop in loops] == [0, 30, 0, 0]


def test_first_tokens_that_are_not_compared(tmp_path: Path) -> None:
    rows = [
        row(id="many", concurrency=300),
        row(id="polls", model="deepseek-r1", engine="sglang", tp=8),
        row(id="median", ttft_mean_s="", ttft_p50_s=0.2),
    ]
    many, polls, median = read_measured(write(tmp_path / "m.csv", *rows))
    assert math.isnan(many.ttft_s) and math.isnan(polls.ttft_s)
    assert median.ttft_s == 0.2 and median.ttft_is_median and not median.tpot_is_median
    assert (load_of(many), load_of(median)) == ("above 256", "2-4")


def test_bad_files(tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.csv", row(tp="two", ttft_mean_s=-1, isl=0), row(chunk="x"))
    with pytest.raises(Problems) as e:
        read_measured(bad)
    assert e.value.problems == [
        "line 2, tp: 'two' is not a whole number from 1.",
        "line 2, isl: '0' is not a whole number from 1.",
        "line 2, ttft_mean_s: '-1' is no plausible time. Give seconds.",
        "line 3, chunk: 'x' is not a number.",
    ]
    lacking = {key: value for key, value in row().items() if key not in ("isl", "gpu")}
    with pytest.raises(Problems, match="column gpu: is missing[^$]*column isl: is missing"):
        read_measured(write(tmp_path / "lacking.csv", lacking))
    with pytest.raises(Problems, match="cannot be read"):
        read_measured(tmp_path / "none.csv")
    (tmp_path / "binary").write_bytes(b"\x00\xff\xfe")
    with pytest.raises(Problems, match="is no CSV file"):
        read_measured(tmp_path / "binary")


def changed(constants: Constants, **factors: float) -> Constants:
    values = [
        entry.value * (1 if entry.condition else factors.get(entry.name, 1.0))
        for entry in constants.entries
    ]
    return constants.with_values(np.array(values))


def test_a_calibration_recovers_constants_it_was_given(tmp_path: Path) -> None:
    true = changed(catalog_constants(), layer_s=1.5, peak_dense=0.7, request_s=3.0)
    rows = [
        row(id=f"{tp}-{isl}-{n}", tp=tp, isl=isl, osl=64, concurrency=n, num_prompts=3 * n)
        for tp in (1, 8)
        for isl in (256, 4096)
        for n in (1, 16)
    ]
    seen = [observe(p, true) for p in read_measured(write(tmp_path / "m.csv", *rows))]
    exact = errors(seen, true)
    made = [
        dataclasses.replace(
            one,
            point=dataclasses.replace(
                one.point,
                ttft_s=one.point.ttft_s * (1 + ttft),
                tpot_s=one.point.tpot_s * (1 + tpot),
            ),
        )
        for one, ttft, tpot in zip(seen, exact.ttft, exact.tpot, strict=True)
    ]
    before = errors(made, catalog_constants())
    fitted = fit_constants(made, catalog_constants().held_here(), most_steps=8)
    after = errors(made, fitted)
    assert np.abs(before.ttft).max() > 0.3 > 0.1 > np.abs(after.ttft).max()
    assert np.abs(after.tpot).max() < 0.08 < 0.2 < np.abs(before.tpot).max()
    # what the points say nothing about stays where it was
    silent = {e.name: e.value for e in fitted.entries if not e.condition}
    own = {e.name: e.value for e in catalog_constants().entries if not e.condition}
    assert silent["hbm_experts"] == pytest.approx(own["hbm_experts"], rel=1e-6)


def test_one_set_up_with_one_point_stays_near_the_catalog(tmp_path: Path) -> None:
    point = read_measured(write(tmp_path / "m.csv", row(ttft_mean_s=0.2, tpot_mean_s=0.02)))[0]
    seen = [observe(point, catalog_constants())]
    before, after = (
        errors(seen, constants)
        for constants in (
            catalog_constants(),
            fit_constants(seen, catalog_constants().held_here(0.5)),
        )
    )
    assert abs(after.tpot[0]) < abs(before.tpot[0])


def test_constants_are_written_as_they_are_read() -> None:
    import yaml

    once = catalog_constants()
    again = read_constants(yaml.safe_load(constants_yaml(once)))
    assert [e.condition for e in again.entries] == [e.condition for e in once.entries]
    assert [e.value for e in again.entries] == pytest.approx([e.value for e in once.entries])
    assert again.fit == once.fit


def test_accepted_drafts() -> None:
    assert tokens_a_step(0.5, 0) == 1.0
    assert tokens_a_step(0.5, 2) == pytest.approx(1.75)
    assert tokens_a_step(1.0, 3) == pytest.approx(4.0, rel=0.01)


def test_what_a_run_says_of_its_step_times() -> None:
    from kvsim import catalog

    model, gpu = catalog.model("llama-3.3-70b"), catalog.gpu("h200")
    trust = trust_in_roofline(model, gpu, "vllm")
    assert trust.ttft is not None and trust.ttft.set_ups >= 3 and 0 < trust.ttft.error < 0.5
    assert trust.tpot is not None and trust.as_json()["tpot"]["near"].startswith("same model")
    assert "TTFT within" in trust.sentence and "near this one" in trust.sentence
    bare = Constants(catalog_constants().entries, {})
    assert "no measured set-up" in trust_in_roofline(model, gpu, "vllm", bare).sentence


def test_a_model_that_is_off_elsewhere_is_not_told_by_others_under_its_engine() -> None:
    """DeepSeek V4 has no TTFT measured under vLLM; it is far off under SGLang, others are not."""
    from kvsim import catalog

    model, gpu = catalog.model("deepseek-v4-pro"), catalog.gpu("b300")
    ttft = trust_in_roofline(model, gpu, "vllm").ttft
    assert ttft is not None
    assert ttft.near == "same model, other engines"
    assert ttft.error > 0.4


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("nvidia/DeepSeek-R1-0528-FP4", "deepseek-r1"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b"),
        ("Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("zai-org/GLM-5", "glm-5.2"),
        ("qwen3-8b", "qwen3-8b"),  # none of the catalog: not taken for a larger one
        ("llama-3.1-405b", "llama-3.1-405b"),
    ],
)
def test_names_of_models(given: str, known: str) -> None:
    assert model_name(given) == known


def test_names_of_gpus_and_precisions() -> None:
    assert [gpu_name(name) for name in ("NVIDIA H200", "H100-SXM5-80GB", "GB200 NVL72")] == [
        "h200",
        "h100",
        "gb200",
    ]
    assert [precision_name(name) for name in ("NVFP4", "bfloat16", "int3")] == [
        "fp4",
        "bf16",
        "int3",
    ]
