"""The catalog: GPUs, models and links by name, every number with its source.

The numbers live in ``gpus.yaml``, ``models.yaml`` and ``links.yaml``. Each stands beside a
``source`` or an ``assumption``; what is read keeps both, so that a report can say where a number
is from.
May come in: the ground alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kvsim.errors import KvsimError, unknown_name

PRECISIONS = ("fp4", "fp8", "bf16")
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: as written in a scenario.
        hbm_bytes: memory that can be allocated.
        hbm_bytes_per_s: peak memory bandwidth.
        fp8_flops_per_s: peak without sparsity, likewise the other two; None where there is none.
        fp4_flops_per_s: see above.
        bf16_flops_per_s: see above.
        nvlink_bytes_per_s: to the other GPUs of the node, each way; None where not said.
        generation: GPUs of one generation share constants of the step time; None where not said.
        origins: field name to its source, or to ``assumption: reason``.
    """

    name: str
    hbm_bytes: int
    hbm_bytes_per_s: float
    fp8_flops_per_s: float | None = None
    fp4_flops_per_s: float | None = None
    bf16_flops_per_s: float | None = None
    nvlink_bytes_per_s: float | None = None
    generation: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def flops_per_s(self, precision: str) -> float | None:
        """Peak FLOPs a second at ``fp4``, ``fp8`` or ``bf16``; None where the GPU has none."""
        peaks = {
            "fp4": self.fp4_flops_per_s,
            "fp8": self.fp8_flops_per_s,
            "bf16": self.bf16_flops_per_s,
        }
        return peaks[precision]


@dataclass(frozen=True)
class KVGroup:
    """One KV cache group of a model: layers that share a block table.

    Attributes:
        kind: ``full``, ``sliding_window`` or ``mamba``.
        block_size: tokens a block holds.
        sliding_window: tokens a window group attends to; None for the others.
        eagle: the group holds draft layers and drops a look-ahead block.
        bytes_per_block: bytes a block of this group needs, all its layers and KV heads; None
            where a custom model does not say.
        num_layers: layers of the group, for display; None where not said.
        name: for display.
        draft_bytes_per_block: what the model's draft layer adds to a block of this group, where it
            is loaded and belongs here; None otherwise.
        origin: source of the numbers, or ``assumption: reason``.
    """

    kind: str
    block_size: int
    sliding_window: int | None = None
    eagle: bool = False
    draft_bytes_per_block: int | None = None
    bytes_per_block: int | None = None
    num_layers: int | None = None
    name: str = ""
    origin: str = field(default="", compare=False, repr=False)

    def with_draft_layer(self) -> KVGroup:
        """The group with the model's draft layer; the same where that is in another."""
        added = self.draft_bytes_per_block
        if added is None or self.bytes_per_block is None:
            return self
        return replace(
            self,
            eagle=True,
            bytes_per_block=self.bytes_per_block + added,
            num_layers=None if self.num_layers is None else self.num_layers + 1,
            draft_bytes_per_block=None,
            origin=f"{self.origin}; the draft layer {added:,}",
        )


@dataclass(frozen=True)
class AttentionTerm:
    """Attention work that grows with the context, up to a cap.

    Attributes:
        name: for display.
        flops_per_context_token: FLOPs of one new token in one layer, per token of its context.
        num_layers: layers that do it.
        max_context_tokens: context beyond this adds nothing; None for no cap.
        split_over_ranks: tensor parallelism divides it; False where every rank does it all.
        prompt_flops_per_context_token: the same where a token is one of many of a prompt; None
            where it is no different.
        origin: source of the numbers, or ``assumption: reason``.
    """

    name: str
    flops_per_context_token: float
    num_layers: int = 1
    max_context_tokens: int | None = None
    split_over_ranks: bool = True
    prompt_flops_per_context_token: float | None = None
    origin: str = field(default="", compare=False, repr=False)

    def flops_per_token(self, context_tokens: int) -> float:
        """FLOPs of one new token over all layers, its context (itself included) being given."""
        seen = context_tokens
        if self.max_context_tokens is not None:
            seen = min(seen, self.max_context_tokens)
        return self.num_layers * self.flops_per_context_token * seen


@dataclass(frozen=True)
class KVRead:
    """KV that a step reads for a sequence, growing with its context up to a cap.

    Attributes:
        name: for display.
        bytes_per_context_token: bytes one layer reads per token of context, all KV heads.
        num_layers: layers that read it.
        max_context_tokens: context beyond this adds nothing; None for no cap.
        split_over_ranks: tensor parallelism divides it evenly; None: as the KV heads are.
        origin: source of the numbers, or ``assumption: reason``.
    """

    name: str
    bytes_per_context_token: float
    num_layers: int = 1
    max_context_tokens: int | None = None
    split_over_ranks: bool | None = None
    origin: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Model:
    """A model: its KV cache groups, and what memory and time need to know of it.

    Only the groups are needed to run with constant step times; a custom model may leave out the
    rest, and what then cannot be computed says which keys it misses.

    Attributes:
        name: as written in a scenario.
        groups: the KV cache groups, in the engine's order.
        max_model_len: longest sequence in tokens.
        total_parameters: all parameters, for display.
        active_parameters: parameters one token goes through.
        weight_bytes: weights of the whole model as loaded.
        expert_bytes: the part of ``weight_bytes`` in routed experts; 0 for a dense model.
        num_experts: routed experts of a layer; 0 for a dense model.
        experts_per_token: routed experts a token goes through.
        kv_replicated: every tensor-parallel rank holds the same KV.
        num_kv_heads: KV heads of a layer, where they are split; None splits evenly.
        precision: of the matrix products: ``fp4``, ``fp8`` or ``bf16``.
        expert_parameters: parameters of all routed experts; 0 where not said.
        expert_precision: arithmetic of the experts' products on GPUs that have it; None: precision.
        num_layers: layers of the transformer; None where not said, likewise the next two.
        hidden_size: width of the residual stream.
        vocab_size: rows of the embedding and of the output head.
        family: models whose layers do the same work share constants of the step time; None: plain.
        attention: attention FLOPs; None where not said (left out of the step time, with a note).
        kv_reads: KV a step reads; None stands for all that the groups hold of a sequence.
        origins: field name to its source, or to ``assumption: reason``.
    """

    name: str
    groups: tuple[KVGroup, ...]
    max_model_len: int | None = None
    total_parameters: float | None = None
    active_parameters: float | None = None
    weight_bytes: float | None = None
    expert_bytes: float = 0.0
    num_experts: int = 0
    experts_per_token: int = 0
    kv_replicated: bool = False
    num_kv_heads: int | None = None
    precision: str = "bf16"
    expert_parameters: float = 0.0
    expert_precision: str | None = None
    num_layers: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    family: str | None = None
    attention: tuple[AttentionTerm, ...] | None = None
    kv_reads: tuple[KVRead, ...] | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def bytes_per_block(self) -> int | None:
        """Bytes of a block of the pool, all KV heads: the largest group's; None if one is unknown.

        All groups draw from one pool, so a block costs the same whichever group holds it.
        """
        sizes = [group.bytes_per_block for group in self.groups]
        known = [size for size in sizes if size is not None]
        return max(known) if known and len(known) == len(sizes) else None

    def with_draft_layer(self) -> Model:
        """The model with its draft layer loaded: one more layer in the group it belongs to."""
        return replace(self, groups=tuple(group.with_draft_layer() for group in self.groups))

    def kv_share(self, tensor_parallel: int) -> float:
        """Part of the KV that one rank holds: all where replicated, else its share of the heads.

        With more ranks than KV heads every rank still holds one head.

        Raises:
            KvsimError: the heads cannot be split over this many ranks.
        """
        if self.kv_replicated or tensor_parallel == 1:
            return 1.0
        if self.num_kv_heads is None:
            return 1.0 / tensor_parallel
        if self.num_kv_heads % tensor_parallel and tensor_parallel % self.num_kv_heads:
            raise KvsimError(
                f"node.tensor_parallel: {tensor_parallel} neither divides the {self.num_kv_heads} "
                f"KV heads of {self.name} nor is a multiple of them. Use one that does."
            )
        return max(1, self.num_kv_heads // tensor_parallel) / self.num_kv_heads


@dataclass(frozen=True)
class LinkSpec:
    """A link between a GPU's memory, or the host's, and a tier.

    Attributes:
        name: as written in a scenario.
        store_bytes_per_s: nominal bandwidth away from the GPU.
        load_bytes_per_s: nominal bandwidth towards the GPU; both directions are used at once.
        efficiency: fraction of the nominal bandwidth that is reached, above 0 and up to 1.
        latency_s: seconds before the first byte arrives, once for each transfer.
        sharing: ``fifo``, one transfer of a direction after another; ``fair``, all at once, each
            with an equal part of the bandwidth.
        span: ``rank``, every tensor-parallel rank has a link of its own; ``node``, one for all.
        origins: field name to its source, or to ``assumption: reason``.
    """

    name: str
    store_bytes_per_s: float
    load_bytes_per_s: float
    efficiency: float
    latency_s: float
    sharing: str
    span: str
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


def gpu_names() -> tuple[str, ...]:
    """Names of the GPUs, as in the file."""
    return tuple(_read("gpus.yaml"))


def model_names() -> tuple[str, ...]:
    """Names of the models, as in the file."""
    return tuple(_read("models.yaml"))


def link_names() -> tuple[str, ...]:
    """Names of the links, as in the file."""
    return tuple(_read("links.yaml"))


def link(name: str) -> LinkSpec:
    """The link of this name.

    Raises:
        KvsimError: there is none; the message names the nearest.
    """
    values, origins = _quantities(_entry("link", "links.yaml", name))
    return LinkSpec(name=name, origins=origins, **values)


def gpu(name: str) -> Gpu:
    """The GPU of this name.

    Raises:
        KvsimError: there is none; the message names the nearest.
    """
    values, origins = _quantities(_entry("gpu", "gpus.yaml", name))
    return Gpu(name=name, origins=origins, **values)


def model(name: str) -> Model:
    """The model of this name.

    Raises:
        KvsimError: there is none; the message names the nearest.
    """
    entry = dict(_entry("model", "models.yaml", name))
    groups = tuple(KVGroup(**_with_origin(part)) for part in entry.pop("groups"))
    attention = tuple(AttentionTerm(**_with_origin(part)) for part in entry.pop("attention"))
    reads = entry.pop("kv_reads", None)
    kv_reads = None if reads is None else tuple(KVRead(**_with_origin(part)) for part in reads)
    values, origins = _quantities(entry)
    return Model(
        name=name,
        groups=groups,
        attention=attention,
        kv_reads=kv_reads,
        origins=origins,
        **values,
    )


@cache
def _read(file_name: str) -> Mapping[str, Mapping[str, Any]]:
    entries: Mapping[str, Mapping[str, Any]] = yaml.safe_load((_FOLDER / file_name).read_text())
    return entries


def _entry(what: str, file_name: str, name: str) -> Mapping[str, Any]:
    entries = _read(file_name)
    if name not in entries:
        raise KvsimError(unknown_name(what, name, entries))
    return entries[name]


def _quantities(entry: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    values = {key: quantity["value"] for key, quantity in entry.items()}
    return values, {key: _origin(quantity) for key, quantity in entry.items()}


def _origin(part: Mapping[str, Any]) -> str:
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
