"""Configs that are wrong, unknown or contradict themselves, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import KvsimError, Problems
from kvsim.planning.config import Config, read_config
from kvsim.planning.families import layers_of
from kvsim.planning.plan import make_plan
from kvsim.planning.settings import Settings

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
    "max_position_embeddings": 8192,
}


def without(*keys: str, **other: Any) -> dict[str, Any]:
    return {**{key: value for key, value in LLAMA.items() if key not in keys}, **other}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], "an empty list is not a mapping"),
        (without("architectures"), "architectures: null names no model class"),
        (without(architectures=["LlamaForCausalML"]), "Did you mean 'LlamaForCausalLM'"),
        (without(architectures=["Unheard"]), "'Unheard' is not known.*model: {layers:"),
        (without(architectures=["MiniMaxM1ForCausalLM"]), "lightning attention.*0.33 does not"),
        (without(architectures=["T5ForConditionalGeneration"]), "encoder and a decoder"),
    ],
)
def test_what_is_no_known_model_says_so(data: object, text: str) -> None:
    with pytest.raises(KvsimError, match=text):
        layers_of(Config(data))


def test_all_wrong_fields_are_named_at_once() -> None:
    data = without("num_hidden_layers", num_attention_heads="many", sliding_window=-1)
    with pytest.raises(Problems) as e:
        layers_of(Config(data))
    assert {problem.split(":")[0] for problem in e.value.problems} == {
        "num_hidden_layers",
        "num_attention_heads",
        "sliding_window",
    }


def test_fields_that_contradict_each_other() -> None:
    kinds = ["full_attention", "sideways_attention"] * 2
    with pytest.raises(Problems, match="'sideways_attention' is not understood"):
        layers_of(Config(without(layer_types=kinds)))
    with pytest.raises(Problems, match="layer_types: has 2 entries, and the model has 4 layers"):
        layers_of(Config(without(layer_types=kinds[:2])))
    with pytest.raises(Problems, match="num_key_value_heads: 5 does not divide the 32"):
        layers_of(Config(without(num_key_value_heads=5)))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tensor_parallel": 3}, "3 does not divide the 32 query heads"),
        ({"pipeline_parallel": 5}, "5 stages for 4 layers"),
        ({"block_size": 24}, "24 is none that FLASH_ATTN takes. Use multiples of 16"),
        ({"tensor_parallel": 8, "decode_context_parallel": 2}, "over 8 KV heads. Use 1 or less"),
        ({"draft_tokens": 1}, "has no MTP layers to draft with"),
        ({"max_model_len": None, "prefix_match_unit": 8}, "8 is not the only group's block"),
    ],
)
def test_what_the_engine_would_refuse(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(KvsimError, match=text):
        _ = make_plan(Config(LLAMA), Settings(**settings)).units


def test_a_text_part_is_found_and_its_family_by_model_type() -> None:
    inner = without("architectures", model_type="llama")
    config = Config({"architectures": ["LlavaForConditionalGeneration"], "text_config": inner})
    assert len(layers_of(config)) == 4
    odd = {"architectures": ["LlavaForConditionalGeneration"], "text_config": {"model_type": "x"}}
    with pytest.raises(KvsimError, match="with a text part of model_type 'x'"):
        layers_of(Config(odd))


def test_files_that_are_no_config(tmp_path: Path) -> None:
    with pytest.raises(KvsimError, match="there is no such file"):
        read_config(tmp_path / "absent.json")
    broken = tmp_path / "config.json"
    broken.write_text('{"architectures": [,]}')
    with pytest.raises(KvsimError, match="line 1, column 20: is not JSON"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16_384),
        ({"type": "linear", "factor": 2.0}, 16_384),
        ({"rope_type": "llama3", "factor": 8.0}, 8192),
    ],
)
def test_rope_scaling_lengthens_the_longest_sequence(rope: dict[str, Any], length: int) -> None:
    assert Config(without(rope_scaling=rope)).max_model_len == length
