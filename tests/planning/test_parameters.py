"""Parameters counted from configs against totals that were published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim import catalog
from kvsim.planning.config import read_json

# Total and active parameters in billions, of the model cards or papers; not used in counting.
PUBLISHED = {
    "llama-3.1-8b": (8.03, 8.03),
    "llama-3.1-70b": (70.6, 70.6),
    "deepseek-v3": (671.0, 37.0),
    "kimi-k2": (1000.0, 32.0),
    "mixtral-8x7b": (46.7, 12.9),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-coder-480b-a35b": (480.0, 35.0),
    "qwen3-next-80b-a3b": (80.0, 3.0),
    "qwen3.5-397b": (397.0, 17.0),
    "gpt-oss-20b": (20.91, 3.61),
    "nemotron-3-nano-30b-a3b": (31.6, 3.2),
    "nemotron-3-ultra-550b-a55b": (550.0, 55.0),
    "mimo-v2-flash": (309.0, 15.0),
    "jamba-v0.1": (52.0, 12.0),
    "granite-4.0-h-small": (32.0, 9.0),
    "llama-4-maverick": (400.0, 17.0),
    "gemma-4-26b-a4b": (25.2, 3.8),
    "gemma-4-31b-nvfp4": (30.7, 30.7),
    "qwen3-235b-a22b-fp8": (235.0, 22.0),
    "qwen3.5-122b-a10b": (122.0, 10.0),
    "llama-3.1-405b": (405.0, 405.0),
    "mixtral-8x22b": (141.0, 39.0),
    "glm-5": (744.0, 40.0),
    "nemotron-3-super-120b-a12b-fp8": (120.0, 12.0),
    "phi-4": (14.7, 14.7),
    "phi-4-mini": (3.84, 3.84),
    "magistral-small": (23.6, 23.6),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counted_parameters_are_near_the_published(name: str) -> None:
    config, source = catalog.model_source(name)
    assert config is not None
    assert source
    counted = catalog.model_from_config(name, config)
    total, active = PUBLISHED[name]
    assert counted.total_parameters == pytest.approx(total * 1e9, rel=0.03)
    # "A3B" and the like are rounded, and count the embedding or not.
    assert counted.active_parameters == pytest.approx(active * 1e9, rel=0.2)


def test_weights_follow_from_the_quantization() -> None:
    v3 = catalog.model("deepseek-v3")
    assert v3.weight_bytes == pytest.approx(673e9, rel=0.005)
    assert v3.precision == "fp8"
    # The checkpoint of gpt-oss-20b is 12.8 GiB (its model card).
    config, _ = catalog.model_source("gpt-oss-20b")
    counted = catalog.model_from_config("x", config)
    assert counted.weight_bytes == pytest.approx(12.8 * 2**30, rel=0.01)


def test_weights_of_packed_and_partly_quantized_checkpoints() -> None:
    # Kimi K2.5 is released in 4 bits with scales, attention and shared experts in BF16: 595 GB
    # (size of its files); the NVFP4 checkpoint of Gemma 4 31B leaves attention in BF16.
    assert catalog.model("kimi-k2.5").weight_bytes == pytest.approx(595e9, rel=0.01)
    config, _ = catalog.model_source("gemma-4-31b-nvfp4")
    assert config is not None
    spared = catalog.model_from_config("x", config).weight_bytes
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    everything = catalog.model_from_config("y", config).weight_bytes
    assert spared is not None and everything is not None
    assert spared > 1.3 * everything


def test_quantization_beside_the_config_counts(tmp_path: Path) -> None:
    config, _ = catalog.model_source("qwen3-8b")
    assert config is not None
    (tmp_path / "config.json").write_text(json.dumps(config))
    plain = catalog.model_from_config("x", read_json(tmp_path)).weight_bytes
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})
    )
    packed = catalog.model_from_config("x", read_json(tmp_path))
    assert plain is not None and packed.weight_bytes is not None
    assert packed.weight_bytes < 0.6 * plain
    assert packed.plan is not None and packed.plan.backend is not None
    assert packed.plan.backend.kv_cache_dtype == "fp8"
