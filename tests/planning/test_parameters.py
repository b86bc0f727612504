"""Parameters counted from configs against totals that were published."""

from __future__ import annotations

import pytest

from kvsim import catalog

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
