"""Files of benchmark clients as points, and what is said of those that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.errors import Problems
from kvsim.scenario.reading import load_scenario
from kvsim.study.measured import Point
from kvsim.study.measured_files import parse_settings, read_points

CLIENTS = Path(__file__).parents[1] / "data" / "clients"
SERVED = {"gpu": "h100", "precision": "bf16", "engine": "vllm", "tp": "1"}
SCENARIO = """\
model: llama-3.1-8b
node: {gpu: h100, gpus: 2}
engine: {max_num_batched_tokens: 4096, max_num_seqs: 64}
step_time: {kind: roofline, engine: sglang}
workload: {kind: trace, path: none.jsonl}
"""


def one(name: str, **settings: str) -> Point:
    (point,) = read_points([CLIENTS / name], SERVED | settings)
    assert point.left_out is None
    return point


def test_vllm_says_what_each_request_held() -> None:
    point = one("vllm.json")
    assert point.set_up == "llama-3.1-8b|h100|vllm|bf16|1|1"
    assert (point.ttft_s, point.tpot_s, point.concurrency) == pytest.approx((0.06375, 0.0079, 2))
    loop = point.loop()
    # The request that failed is in neither list.
    assert loop.prompts.tolist() == [1000, 1040, 1080, 1010]
    assert loop.outputs.tolist() == [64, 66, 60, 70]


def test_sglang_says_its_server_and_leaves_arrivals_at_a_rate_out() -> None:
    named = {"gpu": "h200", "precision": "bf16"}
    closed, at_a_rate = read_points([CLIENTS / "sglang.jsonl"], named)
    assert closed.set_up == "llama-3.1-8b|h200|sglang|bf16|2|1"
    prompts = closed.loop().prompts
    assert len(prompts) == 12 and prompts.min() >= 512 and prompts.max() <= 1024
    assert at_a_rate.left_out == "requests arrive at 2.5 a second: no closed loop"


def test_aiperf_json_spreads_lengths_as_measured() -> None:
    point = one("aiperf.json")
    assert (point.ttft_s, point.tpot_s, point.concurrency) == pytest.approx((0.064, 0.0084, 8))
    prompts = point.loop().prompts
    assert len(prompts) == 40
    assert prompts.mean() == pytest.approx(800, rel=0.1)
    assert prompts.std() == pytest.approx(160, rel=0.2)


def test_aiperf_csv_lacks_model_and_concurrency() -> None:
    with pytest.raises(Problems) as caught:
        read_points([CLIENTS / "aiperf.csv"], SERVED)
    assert "concurrency (requests at once): is missing" in str(caught.value)
    assert "model (name of the catalog): is missing" in str(caught.value)
    point = one("aiperf.csv", model="llama-3.1-8b", concurrency="4")
    assert (point.ttft_s, point.tpot_s) == pytest.approx((0.064, 0.0084))
    assert point.loop().prompts.mean() == pytest.approx(1000, rel=0.05)


def test_guidellm_takes_the_latency_without_the_first_token() -> None:
    alone, eight, constant = read_points([CLIENTS / "guidellm.json"], SERVED)
    assert (alone.concurrency, alone.tpot_s) == (1, pytest.approx(0.0071))
    assert (eight.concurrency, eight.ttft_s) == (8, pytest.approx(0.06))
    assert constant.left_out == "requests arrive by themselves (constant): no closed loop"


def test_a_scenario_says_what_served(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SCENARIO, encoding="utf-8")
    scenario = load_scenario(tmp_path / "mine.yaml", check_files=False)
    (point,) = read_points([CLIENTS / "vllm.json"], {}, scenario)
    assert point.set_up == "llama-3.1-8b|h100|sglang|bf16|2|1"
    loop = point.loop()
    assert (loop.step_tokens, loop.max_sequences) == (4096, 64)
    text = SCENARIO.replace("llama-3.1-8b", "qwen3-32b")
    (tmp_path / "other.yaml").write_text(text, encoding="utf-8")
    other = load_scenario(tmp_path / "other.yaml", check_files=False)
    with pytest.raises(Problems, match="'llama-3.1-8b', and the scenario says 'qwen3-32b'"):
        read_points([CLIENTS / "vllm.json"], {}, other)


def test_a_directory_stands_for_its_files() -> None:
    with pytest.raises(Problems, match="concurrency"):
        read_points([CLIENTS], SERVED)
    chosen = read_points([CLIENTS], SERVED | {"model": "llama-3.1-8b", "concurrency": "4"})
    assert len(chosen) == 8


def test_all_that_is_missing_is_said_at_once() -> None:
    with pytest.raises(Problems) as caught:
        read_points([CLIENTS / "vllm.json"], {})
    assert [line.split()[0] for line in caught.value.problems] == [
        "gpu",
        "precision",
        "engine",
        "tp",
    ]
    assert all("Give --set" in line for line in caught.value.problems)


def written(folder: Path, **changes: object) -> Path:
    result = json.loads((CLIENTS / "vllm.json").read_text(encoding="utf-8"))
    path = folder / "result.json"
    path.write_text(json.dumps(result | changes), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean_ttft_ms": -3}, "ttft_mean_s: -3 is not above 0"),
        ({"mean_tpot_ms": 0}, "tpot_mean_s: 0 is not above 0"),
        ({"mean_tpot_ms": "fast"}, "tpot_mean_s: 'fast' is not a number"),
        ({"completed": 0}, "completed: 0: no request was answered"),
        ({"model_id": "me/Unheard-Of-7B"}, "The files say 'me/Unheard-Of-7B', which the catalog"),
        ({"max_concurrency": 2.5}, "concurrency: '2.5' is not a whole number from 1"),
    ],
)
def test_results_that_cannot_be_used(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(Problems, match=message.replace(".", r"\.")):
        read_points([written(tmp_path, **changes)], SERVED)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no result that is known"),
        ("{}", "is no result that is known"),
        ("{", "line 1: is not JSON"),
        ("a,b\n1,2\n", "is no result that is known"),
        ("id,isl,osl,concurrency,ttft_mean_ms\n1,8,8,1,30\n", "Give ttft_mean_s, in seconds"),
        ("id,isl,osl,concurrency\n1,8,8,1\n", "no column with times"),
        ("id,isl,osl,concurrency,ttft_mean_s\n1,8,x,1,-1\n", "osl: 'x' is not a whole number"),
        ("id,isl,osl,concurrency,ttft_mean_s\n1,8,8,1,-1\n", "'-1' is no plausible time"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "points.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Problems) as caught:
        read_points([path], SERVED | {"model": "llama-3.1-8b"})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gpu", "is no COLUMN=VALUE"),
        ("gqu=h100", "unknown column 'gqu'. Did you mean 'gpu'?"),
        ("gpu=b201", "unknown GPU 'b201'. Did you mean 'b200'?"),
        ("model=llama-3.1-9b", "unknown model 'llama-3.1-9b'"),
    ],
)
def test_settings_that_cannot_be_used(setting: str, message: str) -> None:
    with pytest.raises(Problems) as caught:
        parse_settings([setting, "tp=8"])
    assert message in str(caught.value)


def test_a_scenarios_own_model_is_what_served(tmp_path: Path) -> None:
    own = """{groups: [{kind: full, block_size: 16, bytes_per_block: 2097152}], num_kv_heads: 8,
      total_parameters: 8e9, active_parameters: 8e9, weight_bytes: 16e9}"""
    path = tmp_path / "own.yaml"
    path.write_text(
        SCENARIO.replace("llama-3.1-8b", own).replace("gpus: 2", "gpus: 2, num_blocks: 90000"),
        encoding="utf-8",
    )
    scenario = load_scenario(path, check_files=False)
    (point,) = read_points([CLIENTS / "vllm.json"], {}, scenario)
    assert point.set_up == "custom|h100|sglang|bf16|2|1"
    assert point.work().dense_bytes == pytest.approx(8e9)
