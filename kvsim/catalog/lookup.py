"""Looking things up by name: the files of the catalog, and the user's own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

from kvsim.catalog.derived import derived_model
from kvsim.catalog.entries import AttentionTerm, Gpu, KVGroup, KVRead, LinkSpec, Model
from kvsim.errors import KvsimError, show, unknown_name
from kvsim.planning.config import Config, read_json
from kvsim.planning.drafts import has_known_drafts
from kvsim.planning.layers import Layer
from kvsim.planning.plan import Plan, make_plan
from kvsim.planning.settings import Settings

OWN_CATALOG = "KVSIM_CATALOG"
"""Environment variable that names the user's own catalog file."""
_FOLDER = Path(__file__).parent
_SECTIONS = ("gpus", "models", "links")
_FIELDS = {
    "gpus": {name for name in Gpu.__dataclass_fields__ if name not in ("name", "origins")},
    "models": {
        name for name in Model.__dataclass_fields__ if name not in ("name", "origins", "plan")
    }
    | {"config", "source"},
    "links": {name for name in LinkSpec.__dataclass_fields__ if name not in ("name", "origins")},
}


def gpu_names() -> tuple[str, ...]:
    """Names of the GPUs, as in the files."""
    return tuple(_entries("gpus"))


def model_names() -> tuple[str, ...]:
    """Names of the models, in alphabetical order."""
    return tuple(sorted(_entries("models").keys() | _configs().keys()))


def link_names() -> tuple[str, ...]:
    """Names of the links, as in the files."""
    return tuple(_entries("links"))


def link(name: str) -> LinkSpec:
    """The link of this name.

    Raises:
        KvsimError: there is none; the message names the nearest.
    """
    values, origins = _quantities(_entry("link", "links", name))
    return LinkSpec(name=name, origins=origins, **values)


def gpu(name: str) -> Gpu:
    """The GPU of this name.

    Raises:
        KvsimError: there is none; the message names the nearest.
    """
    values, origins = _quantities(_entry("gpu", "gpus", name))
    capability = values.pop("capability", None)
    if capability is not None:
        major, _, minor = str(capability).partition(".")
        values["capability"] = (int(major), int(minor or 0))
    return Gpu(name=name, origins=origins, **values)


def model(name: str, settings: Settings | None = None) -> Model:
    """The model of this name.

    Args:
        name: of the catalog.
        settings: what its groups are planned for; None for one GPU of Hopper's generation.

    Raises:
        KvsimError: there is none, with the nearest; or the engine would refuse the settings.
    """
    own = os.environ.get(OWN_CATALOG)
    return _model(name, settings or Settings(), own, _changed(own) if own else 0)


@lru_cache(maxsize=512)
def _model(name: str, settings: Settings, own: str | None, changed: int) -> Model:
    entry = dict(_entries("models").get(name, {}))
    config, source = _config_of(name, entry)
    if not entry and config is None:
        raise KvsimError(unknown_name("model", name, model_names()))
    if config is not None:
        return _derived(name, config, settings, entry, source)
    groups = tuple(KVGroup(**_with_origin(part)) for part in entry.pop("groups"))
    values, origins = _given(entry)
    return Model(name=name, groups=groups, origins=origins, **values)


def model_from_config(
    name: str,
    data: object,
    settings: Settings | None = None,
    given: Mapping[str, Any] | None = None,
    source: str = "config.json",
) -> Model:
    """A model from the data of its config.json.

    Args:
        name: as it is shown.
        data: the parsed file.
        settings: what its groups are planned for; None for one GPU of Hopper's generation.
        given: fields of `Model` that are known otherwise, and beat what would be derived.
        source: where the config is from.

    Raises:
        KvsimError: it is no config, its architecture is not known, fields are wrong, or the engine
            would refuse the settings.
    """
    text = json.dumps(data, sort_keys=True, default=str)
    items = tuple((key, value) for key, value in (given or {}).items() if value is not None)
    return _from_config(name, text, settings or Settings(), items, source)


@lru_cache(maxsize=512)
def _from_config(
    name: str, text: str, settings: Settings, items: tuple[tuple[str, Any], ...], source: str
) -> Model:
    config = Config(json.loads(text), source)
    origins = {key: "as given" for key, _ in items}
    plan = _planned(config, settings)
    return derived_model(name, config, plan, dict(items), origins, source)


@lru_cache(maxsize=512)
def model_from_layers(
    name: str,
    layers: tuple[Layer, ...],
    settings: Settings,
    items: tuple[tuple[str, Any], ...],
    query_heads: int,
    max_model_len: int,
) -> Model:
    """A model from its layers, for an architecture that is not known.

    Args:
        name: as it is shown.
        layers: in the model's order.
        settings: what its groups are planned for.
        items: fields of `Model` that are known, and their values.
        query_heads: of a layer, for attention FLOPs and what ranks have to divide.
        max_model_len: longest sequence, tokens.

    Raises:
        KvsimError: the engine would refuse the settings.
    """
    config = Config(
        {
            "architectures": [name],
            "num_hidden_layers": max((x.decoder_layer for x in layers if not x.draft), default=0)
            + 1,
            "num_attention_heads": query_heads,
            "hidden_size": 1,
            "max_position_embeddings": max_model_len,
        },
        name,
    )
    plan = make_plan(config, settings, layers)
    return derived_model(
        name, config, plan, dict(items), dict.fromkeys(dict(items), "as given"), "layers as given"
    )


def model_source(name: str) -> tuple[Mapping[str, Any] | None, str]:
    """The config of a model of the catalog and where it is from; None where it has no config.

    Raises:
        KvsimError: there is no such model.
    """
    entry = dict(_entries("models").get(name, {}))
    config, source = _config_of(name, entry)
    if not entry and config is None:
        raise KvsimError(unknown_name("model", name, model_names()))
    return config, source


def _planned(config: Config, settings: Settings) -> Plan:
    """The plan; of a drafter that is not the model's own nothing is known, so it is left out."""
    if settings.draft_tokens and not has_known_drafts(config):
        settings = replace(settings, draft_tokens=0)
    return make_plan(config, settings)


def _derived(
    name: str, data: Mapping[str, Any], settings: Settings, entry: Mapping[str, Any], source: str
) -> Model:
    values, origins = _given(entry)
    config = Config(data, f"model {name}")
    return derived_model(name, config, _planned(config, settings), values, origins, source)


def _config_of(name: str, entry: dict[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
    """A model's config and its source, the keys of which are taken from its entry."""
    written, said = entry.pop("config", None), entry.pop("source", None)
    if "groups" in entry:
        return None, ""
    if written is None:
        found = _configs().get(name)
        return (None, "") if found is None else (found["config"], found["source"])
    if isinstance(written, str):
        own = os.environ.get(OWN_CATALOG)
        path = Path(own or ".").parent / written
        return read_json(path), said or str(path)
    return written, said or "as given"


@cache
def _configs() -> dict[str, dict[str, Any]]:
    files = sorted((_FOLDER / "configs").glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


@cache
def _read(file_name: str) -> Mapping[str, Mapping[str, Any]]:
    entries: Mapping[str, Mapping[str, Any]] = yaml.safe_load((_FOLDER / file_name).read_text())
    return entries


def _entries(section: str) -> Mapping[str, Mapping[str, Any]]:
    """Entries of a section by name; the user's own come last and beat those of the same name."""
    own = os.environ.get(OWN_CATALOG)
    files = ["accelerators.yaml", "gpus.yaml"] if section == "gpus" else [f"{section}.yaml"]
    entries: dict[str, Mapping[str, Any]] = {}
    for file in reversed(files):
        for name, entry in _read(file).items():
            entries[name] = {**entry, **entries.get(name, {})}
    return {**entries, **(_own(own, _changed(own))[section] if own else {})}


def _changed(file_name: str) -> int:
    """When a file was changed last; 0 where it is not there."""
    try:
        return Path(file_name).stat().st_mtime_ns
    except OSError:
        return 0


@cache
def _own(file_name: str, changed: int) -> dict[str, Mapping[str, Mapping[str, Any]]]:
    """The user's catalog file, as it is since a time, in sections as the files here are."""
    path = Path(file_name)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KvsimError(f"{OWN_CATALOG}: {path}: {error.strerror}. Name a catalog file.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise KvsimError(f"{path}: is not YAML: {error}.") from None
    sections = data if isinstance(data, Mapping) else {}
    odd = [key for key in sections if key not in _SECTIONS]
    if odd or not isinstance(data, Mapping):
        what = f"unknown section {show(odd[0])}" if odd else f"{show(data)} is not a mapping"
        raise KvsimError(f"{path}: {what}. A catalog has gpus:, models: and links:.")
    found = {}
    for section in _SECTIONS:
        entries = sections.get(section) or {}
        for name, entry in entries.items():
            if not isinstance(entry, Mapping):
                raise KvsimError(f"{path}: {section}.{name}: {show(entry)} is not a mapping.")
            for key in entry:
                if key not in _FIELDS[section]:
                    text = unknown_name("key", str(key), sorted(_FIELDS[section]))
                    raise KvsimError(f"{path}: {section}.{name}: {text}")
        found[section] = entries
    return found


def _entry(what: str, section: str, name: str) -> Mapping[str, Any]:
    entries = _entries(section)
    if name not in entries:
        raise KvsimError(unknown_name(what, name, entries))
    return entries[name]


def _given(entry: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Fields of a model and where they are from, its lists of work made."""
    rest = dict(entry)
    attention, reads = rest.pop("attention", None), rest.pop("kv_reads", None)
    values, origins = _quantities(rest)
    if attention is not None:
        values["attention"] = tuple(AttentionTerm(**_with_origin(part)) for part in attention)
    if reads is not None:
        values["kv_reads"] = tuple(KVRead(**_with_origin(part)) for part in reads)
    return values, origins


def _quantities(entry: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    values, origins = {}, {}
    for key, quantity in entry.items():
        plain = not isinstance(quantity, Mapping)
        values[key] = quantity if plain else quantity["value"]
        origins[key] = "as given" if plain else _origin(quantity)
    return values, origins


def _origin(part: Mapping[str, Any]) -> str:
    if "source" not in part and "assumption" not in part:
        return "as given"
    return part["source"] if "source" in part else f"assumption: {part['assumption']}"


def _with_origin(part: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {key: part[key] for key in part if key not in ("source", "assumption")}
    return {**numbers, "origin": _origin(part)}


def step_times(path: Path | None = None) -> Mapping[str, Any]:
    """Constants of the step time and what their fit says, as in the file.

    Args:
        path: a file of the same form; None for the catalog's.

    Raises:
        KvsimError: the file cannot be read, or is no such file.
    """
    if path is None:
        return _read("step_times.yaml")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KvsimError(f"{path}: cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise KvsimError(f"{path}: is no YAML file of constants.") from None
    if not isinstance(content, dict) or not isinstance(content.get("constants"), dict):
        raise KvsimError(f"{path}: constants: is missing. Use a file that kvsim calibrate wrote.")
    return content
