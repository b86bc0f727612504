"""Entries of the catalog in words and as plain data, and models added to the user's own file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from kvsim.catalog import Gpu, LinkSpec, Model
from kvsim.catalog.lookup import OWN_CATALOG
from kvsim.errors import KvsimError

_SKIPPED = ("name", "groups", "attention", "kv_reads", "origins", "plan")


def model_data(model: Model) -> dict[str, Any]:
    """A model as JSON knows it, with where its numbers are from."""
    found = {key: getattr(model, key) for key in Model.__dataclass_fields__ if key not in _SKIPPED}
    parts = {
        key: None if value is None else [asdict(part) for part in value]
        for key, value in (
            ("groups", model.groups),
            ("attention", model.attention),
            ("kv_reads", model.kv_reads),
        )
    }
    return {"name": model.name, **found, **parts, "origins": dict(model.origins)}


def entry_data(entry: Gpu | LinkSpec) -> dict[str, Any]:
    """A GPU or a link as JSON knows it, with where its numbers are from."""
    return {**asdict(entry), "origins": dict(entry.origins)}


def model_text(model: Model) -> str:
    """A model in words: groups, what is known besides, and where it is from."""
    lines = [f"{model.name}: KV cache groups, in order"]
    for number, group in enumerate(model.groups):
        window = "" if group.sliding_window is None else f", window {group.sliding_window:,}"
        if group.attention_chunk_size is not None:
            window = f", chunks of {group.attention_chunk_size:,}"
        size = "" if group.bytes_per_block is None else f", {group.bytes_per_block:,} bytes a block"
        layers = "" if group.num_layers is None else f"{group.num_layers} layers, "
        lines.append(
            f"  {number}  {group.name or group.kind}: {layers}blocks of {group.block_size:,} "
            f"tokens{window}{size}"
        )
    plan = model.plan
    if plan is not None and plan.backend is not None and plan.block_sizes is not None:
        settings, units = plan.settings, plan.units
        major, minor = settings.capability
        lines.append(
            f"  planned for tensor_parallel {settings.tensor_parallel} on compute capability "
            f"{major}.{minor}: {', '.join(plan.backend.names)}; "
            f"KV dtype {plan.backend.kv_cache_dtype}"
        )
        lines.append(
            f"  hits in units of {units.hit_alignment:,} tokens, scheduler block "
            f"{units.scheduler_block_size:,}, {plan.bytes_per_block[0]:,} bytes a block and rank"
        )
    lines.append("Known besides:")
    for key in Model.__dataclass_fields__:
        value = getattr(model, key)
        if key in _SKIPPED or value in (None, 0, False, ()):
            continue
        lines.append(f"  {key}: {_shown(value)}{_because(model.origins, key)}")
    for key in ("attention", "kv_reads"):
        for part in getattr(model, key) or ():
            unit = "flops" if key == "attention" else "bytes"
            amount = getattr(part, f"{unit}_per_context_token")
            cap = part.max_context_tokens
            upto = "" if cap is None else f", up to {cap:,}"
            lines.append(
                f"  {key} {part.name}: {part.num_layers} layers, {amount:,.6g} {unit} a token of "
                f"context{upto} ({part.origin})"
            )
    source = _shared_source(lines)
    if source:
        lines = [line.replace(f" ({source})", "") for line in lines]
        lines.append(f"From {source}")
    return "\n".join(lines)


def _shared_source(lines: list[str]) -> str:
    """What stands in brackets at the end of three lines or more; the longest such, or empty."""
    ends = [line[:-2].rpartition(" (")[2] for line in lines if line.endswith("))")]
    often = [end for end in set(ends) if ends.count(end) >= 3]
    return max(often, key=len, default="")


def entry_text(entry: Gpu | LinkSpec) -> str:
    """A GPU or a link in words, with sources."""
    lines = [entry.name]
    for key in type(entry).__dataclass_fields__:
        if key not in ("name", "origins"):
            lines.append(f"  {key}: {_shown(getattr(entry, key))}{_because(entry.origins, key)}")
    return "\n".join(lines)


def save_model(name: str, config: Mapping[str, Any], source: str) -> Path:
    """Add a config to the user's own catalog file, which is made where there is none.

    Raises:
        KvsimError: no file is named, it has a model of this name, or it cannot be written.
    """
    own = os.environ.get(OWN_CATALOG)
    if not own:
        raise KvsimError(
            f"--save: {OWN_CATALOG} names no file. Set it to the file to keep your models in, as "
            f"in {OWN_CATALOG}=my-catalog.yaml."
        )
    place = Path(own)
    data: Any = {}
    if place.exists():
        data = yaml.safe_load(place.read_text(encoding="utf-8")) or {}
    if not isinstance(data, dict):
        raise KvsimError(f"{place}: is not a mapping. A catalog has gpus:, models: and links:.")
    models = data.setdefault("models", {}) or {}
    if name in models:
        raise KvsimError(f"--save: {place} has a model '{name}' already. Use another name.")
    data["models"] = {**models, name: {"source": source, "config": dict(config)}}
    place.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return place


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ".".join(str(part) for part in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "none" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _because(origins: Mapping[str, str], key: str) -> str:
    return f" ({origins[key]})" if key in origins else ""
