"""Reading a model's config.json: the text part, and its fields with what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError, Problems, show

FILE_BYTES_MAX = 16 * 2**20
TEXT_PARTS = ("text_config", "llm_config", "language_config")
BY_HAND = (
    "Give its layers by hand, in the model's order: model: {layers: [{kind: full, count: 32, "
    "kv_heads: 8, head_size: 128}]}."
)


class Config:
    """The fields of a model's config.json, of the text part where there are several.

    Attributes:
        where: what its problems are reported under.
        architecture: the first of ``architectures``, of the text part where it names one.
        fields: all fields of the text part.
    """

    def __init__(self, data: object, where: str = "config.json") -> None:
        """Take the parsed file.

        Raises:
            KvsimError: it is no mapping, or names no architecture.
        """
        self.where = where
        if not isinstance(data, Mapping):
            raise KvsimError(f"{where}: {show(data)} is not a mapping. Give a model's config.json.")
        outer = data.get("architectures")
        if not (isinstance(outer, list) and outer and isinstance(outer[0], str)):
            raise KvsimError(
                f"{where}: architectures: {show(outer)} names no model class. Give the config.json "
                f"of a checkpoint, which has one. {BY_HAND}"
            )
        part = next((data[key] for key in TEXT_PARTS if isinstance(data.get(key), Mapping)), None)
        self.fields: dict[str, Any] = dict(data if part is None else part)
        inner = self.fields.get("architectures")
        named = isinstance(inner, list) and inner and isinstance(inner[0], str)
        self.architecture = str(inner[0]) if named and isinstance(inner, list) else str(outer[0])
        self.is_part = part is not None
        for key in ("quantization_config", "torch_dtype", "dtype", "tie_word_embeddings"):
            if part is not None and key in data:
                self.fields.setdefault(key, data[key])
        self.problems: list[str] = []

    @property
    def model_type(self) -> str:
        """``model_type`` of the text part, or empty."""
        value = self.fields.get("model_type")
        return value if isinstance(value, str) else ""

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self.fields.get(name) is not None

    def count(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number by the first of several names that is there.

        A number that is missing or wrong is noted, and stands as ``least``; see `raise_problems`.
        """
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                self._note(f"{name}: {show(value)} is not a whole number from {least} up.")
                return least
            return value
        if default is None:
            self._note(f"{names[0]}: is missing. The layers follow from it.")
            return least
        return default

    def number(self, name: str, default: float) -> float:
        """A number above 0."""
        value = self.fields.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            self._note(f"{name}: {show(value)} is not a number above 0.")
            return default
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, bool):
            self._note(f"{name}: {show(value)} is neither true nor false.")
        return value if isinstance(value, bool) else default

    def text(self, name: str) -> str | None:
        """A word, or None where there is none."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, str):
            self._note(f"{name}: {show(value)} is not a word.")
        return value if isinstance(value, str) else None

    def entries(self, name: str, length: int, known: Sequence[Any]) -> list[Any] | None:
        """A list with an entry a layer, each of a few known ones; None where there is none."""
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length:
            size = f"has {len(value)} entries" if isinstance(value, list) else "is no list"
            self._note(f"{name}: {size}, and the model has {length} layers.")
            return None
        odd = [entry for entry in value[:length] if entry not in known]
        if odd:
            choices = ", ".join(str(entry) for entry in known)
            self._note(f"{name}: {show(odd[0])} is not understood. Known: {choices}. {BY_HAND}")
            return None
        return value[:length]

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A mapping; empty where there is none."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, Mapping):
            self._note(f"{name}: {show(value)} is not a mapping.")
        return value if isinstance(value, Mapping) else {}

    def wrong(self, problem: str) -> None:
        """Note what contradicts itself."""
        self._note(problem)

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def raise_problems(self) -> None:
        """End here if anything was wrong.

        Raises:
            Problems: everything that was noted.
        """
        if self.problems:
            raise Problems(self.where, self.problems)

    @property
    def num_layers(self) -> int:
        """Decoder layers: as given, or as many as a pattern has."""
        if not self.has("num_hidden_layers"):
            for name in ("hybrid_override_pattern", "layers_block_type"):
                if isinstance(pattern := self.fields.get(name), str | list) and pattern:
                    return len(pattern)
        return self.count("num_hidden_layers", "n_layer", "num_layers")

    @property
    def hidden_size(self) -> int:
        """Width of the model."""
        return self.count("hidden_size", "n_embd", "d_model")

    @property
    def query_heads(self) -> int:
        """Query heads of a layer."""
        return self.count("num_attention_heads", "n_head")

    @property
    def kv_heads(self) -> int:
        """KV heads of a layer."""
        names = "num_key_value_heads", "n_head_kv", "num_kv_heads"
        more = "multi_query_group_num", "num_attention_groups"
        return self.count(*names, *more, default=self.query_heads)

    @property
    def head_size(self) -> int:
        """Elements of a head."""
        given = self.fields.get("head_dim") or self.fields.get("attention_head_dim")
        if given is not None:
            return self.count("head_dim", "attention_head_dim")
        return max(1, self.hidden_size // self.query_heads)

    @property
    def max_model_len(self) -> int | None:
        """Longest sequence, tokens; None where the config does not say."""
        names = "max_position_embeddings", "n_positions", "max_seq_len", "seq_length"
        if not any(self.has(name) for name in (*names, "model_max_length")):
            return None
        longest = self.count(*names, "model_max_length")
        return self._scaled(longest)

    def _scaled(self, longest: int) -> int:
        """With rope scaling, unless ``max_position_embeddings`` counts it in already."""
        rope = self.fields.get("rope_scaling") or self.fields.get("rope_parameters")
        if not isinstance(rope, Mapping) or "factor" not in rope:
            return longest
        kind, factor = rope.get("rope_type", rope.get("type")), rope["factor"]
        if "gemma3" in self.model_type or not isinstance(factor, int | float):
            return longest
        if kind in ("yarn", "deepseek_yarn"):
            original = rope.get("original_max_position_embeddings", longest)
            return int(original * factor) if isinstance(original, int) else longest
        return int(longest * factor) if kind in ("linear", "dynamic") else longest

    @property
    def dtype(self) -> str:
        """Of weights and activations; bfloat16 where it says nothing or float32, as served."""
        value = self.fields.get("dtype") or self.fields.get("torch_dtype")
        return value if value in ("bfloat16", "float16") else "bfloat16"

    @property
    def quantization(self) -> Mapping[str, Any]:
        """How the checkpoint's weights are quantized; empty where they are not."""
        return self.mapping("quantization_config")


def read_config(path: str | Path) -> Config:
    """Read a config.json.

    Raises:
        KvsimError: there is no such file, or it is not a config.
    """
    return Config(read_json(path), str(path))


def read_json(path: str | Path) -> Any:
    """The data of a config.json, with what a ``hf_quant_config.json`` beside it adds.

    Raises:
        KvsimError: there is no such file, or it is not JSON.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise KvsimError(f"{file}: is larger than {FILE_BYTES_MAX} bytes: no config.json.")
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise KvsimError(f"{file}: there is no such file. Give a model's config.json.") from None
    except UnicodeDecodeError:
        raise KvsimError(f"{file}: is not UTF-8 text. Give a model's config.json.") from None
    except OSError as error:
        raise KvsimError(f"{file}: cannot be read: {error.strerror}.") from None
    data = _parsed(file, text)
    beside = file.with_name("hf_quant_config.json")
    if isinstance(data, dict) and "quantization_config" not in data and beside.is_file():
        given = _parsed(beside, beside.read_text(encoding="utf-8", errors="replace"))
        if isinstance(given, dict) and isinstance(given.get("quantization"), dict):
            data["quantization_config"] = {"quant_method": "modelopt", **given["quantization"]}
    return data


def _parsed(file: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise KvsimError(f"{file}: {place}: is not JSON: {error.msg}.") from None
    except (ValueError, RecursionError) as error:
        raise KvsimError(f"{file}: is not JSON that can be read: {error}.") from None
