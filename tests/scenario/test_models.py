"""Models by config and by layers, GPUs by mapping, and nodes that could not start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim import catalog
from kvsim.engine.simulation import simulate
from kvsim.errors import KvsimError, Problems
from kvsim.scenario import Scenario
from kvsim.scenario.keys import derive_blocks
from kvsim.scenario.reading import load_scenario, resolved_yaml

WORKLOAD = {"kind": "script", "requests": [{"prompt": [["A", 100]]}]}
H100 = {"gpu": "h100"}


def scenario(model: Any, node: dict[str, Any], **other: Any) -> Scenario:
    data = {"name": "s", "model": model, "node": node, "workload": WORKLOAD, **other}
    return Scenario.from_data(data)


def config_of(name: str) -> dict[str, Any]:
    config, _ = catalog.model_source(name)
    assert config is not None
    return dict(config)


def test_a_config_given_by_path_moves_with_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of("qwen3-32b")))
    file = tmp_path / "mine.yaml"
    text = {"model": {"config": "config.json"}, "node": {"gpu": "h200"}, "workload": WORKLOAD}
    file.write_text(json.dumps(text))
    loaded = load_scenario(file)
    named = scenario("qwen3-32b", {"gpu": "h200"})
    assert loaded.model_spec.groups == named.model_spec.groups
    # The catalog has the published weights, the config the counted.
    near = pytest.approx(derive_blocks(named).num_blocks, rel=0.005)
    assert derive_blocks(loaded).num_blocks == near
    (tmp_path / "further").mkdir()
    copy = tmp_path / "further" / "copy.yaml"
    copy.write_text(resolved_yaml(loaded, copy.parent))
    assert load_scenario(copy).model_spec.groups == named.model_spec.groups


def test_a_config_that_is_not_there_or_not_known() -> None:
    with pytest.raises(Problems, match="there is no such file"):
        scenario({"config": "absent.json"}, H100)
    with pytest.raises(Problems, match="'Unheard' is not known"):
        scenario({"config": {"architectures": ["Unheard"]}}, H100)


def test_one_way_of_three() -> None:
    with pytest.raises(Problems, match="config and groups are given. Keep one"):
        scenario({"config": {}, "groups": [{"kind": "full", "block_size": 16}]}, H100)
    with pytest.raises(Problems, match="model: is not described"):
        scenario({"weight_bytes": 1}, H100)


def test_layers_by_hand_are_grouped_as_those_of_the_config() -> None:
    layers = [
        {"kind": "sliding_window", "sliding_window": 128, "kv_heads": 8, "head_size": 64},
        {"kind": "full", "kv_heads": 8, "head_size": 64},
    ]
    by_hand = {"layers": layers, "repeat": 12, "query_heads": 64, "weight_bytes": 13_743_895_347}
    hand = scenario({**by_hand, "active_parameters": 3.6e9}, H100).model_spec
    known = catalog.model("gpt-oss-20b")
    assert [(g.kind, g.block_size, g.bytes_per_block) for g in hand.groups] == [
        (g.kind, g.block_size, g.bytes_per_block) for g in known.groups
    ]
    assert sum(t.flops_per_token(10_000) for t in hand.attention or ()) == sum(
        t.flops_per_token(10_000) for t in known.attention or ()
    )
    with pytest.raises(Problems, match=r"model.layers.0.sliding_window: is missing"):
        scenario({"layers": [{"kind": "sliding_window", "kv_heads": 1, "head_size": 64}]}, H100)


def test_states_by_hand_enlarge_the_block() -> None:
    model = {
        "layers": [
            {"kind": "gdn", "count": 3, "state_bytes": 1_097_728},
            {"kind": "full", "kv_heads": 2, "head_size": 256},
        ],
        "repeat": 12,
        "query_heads": 16,
    }
    node = {"num_blocks": 1000}
    made = scenario(model, node, step_time={"kind": "constant", "step_s": 0.1})
    assert [group.block_size for group in made.model_spec.groups] == [576] * 4
    assert simulate(made).requests.frame()["refused"].isna().all()


def test_the_sizes_follow_the_settings_of_the_engine() -> None:
    node = {"gpu": "h100", "gpus": 8}
    fp8 = scenario("deepseek-v3", node, engine={"kv_cache_dtype": "fp8", "max_model_len": 8192})
    assert fp8.model_spec.groups[0].block_size == 64
    b200 = scenario("deepseek-v3", {"gpu": "b200", "gpus": 8})
    assert b200.model_spec.groups[0].block_size == 32
    with pytest.raises(Problems, match="engine.block_size: 24 is none that FLASH_ATTN takes"):
        scenario("qwen3-32b", node, engine={"block_size": 24})
    with pytest.raises(Problems, match="node.tensor_parallel: 3 does not divide the 64 query"):
        scenario("qwen3-32b", {"gpu": "h100", "gpus": 3})


def test_a_node_that_holds_no_request_is_refused_with_the_longest_that_fits() -> None:
    node = {"gpu": "h100", "gpu_memory_utilization": 0.95}
    with pytest.raises(Problems, match="the engine would not start. Use ") as e:
        scenario("gpt-oss-120b", {**node, "activation_reserve": "7 GiB"})
    longest = int(str(e.value).rpartition("Use ")[2].split()[0])
    tight = {**node, "activation_reserve": "7 GiB"}
    assert scenario("gpt-oss-120b", tight, engine={"max_model_len": longest}).max_model_len
    with pytest.raises(Problems, match="the engine would not start"):
        scenario("gpt-oss-120b", tight, engine={"max_model_len": longest + 16})
    small = scenario("gpt-oss-120b", {**node, "gpu_memory_utilization": 0.85})
    with pytest.raises(KvsimError, match="0.85; weights of gpt-oss-120b .* nothing is left"):
        derive_blocks(small)
    auto = scenario("gpt-oss-120b", tight, engine={"max_model_len": "auto"})
    assert auto.max_model_len == longest


def test_a_gpu_as_a_mapping_needs_units() -> None:
    l40s = {"hbm": "48 GiB", "bandwidth": "864 GB/s", "bf16": "362 TFLOP/s"}
    made = scenario("qwen3-0.6b", {"gpu": l40s})
    assert made.gpu_spec is not None
    assert made.gpu_spec.hbm_bytes == 48 * 2**30
    assert Scenario.from_data(made.resolved()).gpu_spec == made.gpu_spec
    with pytest.raises(Problems, match=r"node.gpu.hbm: 48 has no unit. Write one, as in '48 GiB'"):
        scenario("qwen3-0.6b", {"gpu": {**l40s, "hbm": 48}})
    with pytest.raises(Problems, match=r"node.gpu.bf16: '362 TB' has an unknown unit"):
        scenario("qwen3-0.6b", {"gpu": {**l40s, "bf16": "362 TB"}})
    with pytest.raises(Problems, match="node.gpu.bandwidth: is missing"):
        scenario("qwen3-0.6b", {"gpu": {"hbm": "48 GiB", "bf16": "362 TFLOP/s"}})


def test_what_is_planned_and_not_simulated() -> None:
    both = {"gpu": "h100", "gpus": 4, "pipeline_parallel": 2, "data_parallel": 2}
    made = scenario("qwen3-0.6b", both)
    assert made.num_ranks == 1
    with pytest.raises(Problems, match="2 stages beside node.data_parallel are not simulated"):
        simulate(made)


def test_a_catalog_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvsim.scenario.model_report import save_model

    config = config_of("qwen3-0.6b")
    monkeypatch.setenv("KVSIM_CATALOG", str(tmp_path / "mine.yaml"))
    save_model("mine", config, "a public place")
    assert "mine" in catalog.model_names()
    assert catalog.model("mine").groups == catalog.model("qwen3-0.6b").groups
    assert scenario("mine", H100).model_spec.max_model_len == 40_960
