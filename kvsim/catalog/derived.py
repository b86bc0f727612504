"""Models of the catalog from a config: groups as the engine plans them, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.catalog.entries import AttentionTerm, KVGroup, KVRead, Model
from kvsim.planning.config import Config
from kvsim.planning.groups import Group
from kvsim.planning.parameters import Weights, count_parameters, count_weights
from kvsim.planning.plan import Plan
from kvsim.planning.specs import CHUNKED, FULL, MLA, STATE, WINDOW, WINDOW_MLA
from kvsim.planning.work import work_of

_CORE_KINDS = {
    FULL: "full",
    MLA: "full",
    WINDOW: "sliding_window",
    WINDOW_MLA: "sliding_window",
    CHUNKED: "chunked_local",
    STATE: "mamba",
}


def derived_model(
    name: str,
    config: Config,
    plan: Plan,
    given: Mapping[str, Any],
    origins: Mapping[str, str],
    source: str,
) -> Model:
    """A model from its config and plan; what is given beats what would be derived.

    Args:
        name: as it is shown.
        config: of the checkpoint.
        plan: the engine's, for the settings in force.
        given: fields of `Model` that are known otherwise.
        origins: where these are from.
        source: where the config is from.

    Raises:
        Problems: fields of the config that are missing or wrong.
    """
    values = dict(given)
    where = dict(origins)
    share = plan.rank_share(plan.settings.tensor_parallel)

    def fill(key: str, value: object, reason: str) -> None:
        if key not in values and value is not None:
            values[key] = value
            where[key] = f"{reason} ({source})"

    parameters = count_parameters(config)
    fill("max_model_len", config.max_model_len, "max_position_embeddings")
    fill("num_layers", config.num_layers, "num_hidden_layers")
    if config.has("hidden_size") and config.has("vocab_size"):
        fill("hidden_size", config.hidden_size, "hidden_size")
        fill("vocab_size", config.count("vocab_size"), "vocab_size")
    weights: Weights | None = None
    if parameters is not None:
        counted = "counted from the sizes of the matrices"
        fill("total_parameters", float(parameters.total), counted)
        fill("active_parameters", parameters.active, counted)
        if parameters.num_experts:
            fill("num_experts", parameters.num_experts, "routed experts of a layer")
            fill("expert_parameters", float(parameters.experts), counted)
            fill("experts_per_token", parameters.experts_per_token, "num_experts_per_tok")
        weights = count_weights(config, parameters)
    if weights is not None:
        fill("weight_bytes", round(weights.total), f"counted, {weights.reason}")
        fill("precision", weights.precision, weights.reason)
        if parameters is not None and parameters.num_experts:
            fill("expert_bytes", round(weights.experts), f"counted, {weights.reason}")
    fill("family", _family(config, plan), "which constants of step times it shares")
    values.setdefault("precision", "bf16")
    unread = "whose quantization_config is not understood" if config.quantization else "without one"
    where.setdefault("precision", f"assumption: BF16 for a config {unread}")
    work = work_of(config, plan)
    if "attention" not in values and work:
        values["attention"] = tuple(
            AttentionTerm(
                one.name,
                one.flops_per_context_token,
                one.num_layers,
                one.max_context_tokens,
                one.split_over_ranks,
                origin=f"heads and sizes of the config ({source})",
            )
            for one in work
            if one.flops_per_context_token
        )
    if "kv_reads" not in values and work:
        values["kv_reads"] = tuple(
            KVRead(
                one.name,
                one.bytes_per_context_token / share,
                one.num_layers,
                one.max_context_tokens,
                origin=f"bytes a token of one layer, as planned ({source})",
            )
            for one in work
        )
    return Model(
        name=name,
        groups=_groups(plan, share),
        kv_replicated=share == 1.0,
        plan=plan,
        origins=where,
        **values,
    )


_FAMILIES = {
    "DeepseekV4": "deepseek-v4",
    "GptOss": "gpt-oss",
    "Qwen3Next": "gated-delta-net",
    "Qwen3_5": "gated-delta-net",
    "KimiLinear": "gated-delta-net",
}
"""What architectures begin with whose layers do the work of a family of step times."""


def _family(config: Config, plan: Plan) -> str | None:
    for begin, family in _FAMILIES.items():
        if config.architecture.startswith(begin):
            return family
    return "mla" if any(group.kind == MLA for group in plan.groups) else None


def _groups(plan: Plan, share: float) -> tuple[KVGroup, ...]:
    labels = [_label(group) for group in plan.groups]
    context = plan.settings.decode_context_parallel
    found = []
    for number, (group, label) in enumerate(zip(plan.groups, labels, strict=True)):
        same = labels.count(label)
        letter = f" {chr(ord('a') + labels[:number].count(label) % 26)}" if same > 1 else ""
        is_state = group.kind == STATE
        sharded = group.kind in (FULL, MLA) and group.specs[0].sharded
        found.append(
            KVGroup(
                _CORE_KINDS.get(group.kind, group.kind),
                group.block_size * (context if sharded else 1),
                group.window,
                eagle=group.has_draft,
                bytes_per_block=round(group.num_bytes / share),
                num_layers=len(group.layers),
                name=f"{label}{letter}",
                attention_chunk_size=group.chunk,
                blocks_held=group.blocks_of_request(1, 1) if is_state else None,
                draft_states=group.specs[0].speculative_blocks if is_state else 0,
                checkpoint_alignment=_exports(group) if is_state else None,
                one_state=is_state and not group.specs[0].keeps_boundaries,
                origin="as the engine groups its layers",
            )
        )
    return tuple(found)


def _exports(group: Group) -> int | None:
    """Alignment in tokens of states that a chunk can export; None where it cannot."""
    spec = group.specs[0]
    keeps = spec.keeps_boundaries and spec.checkpoint_blocks
    return spec.checkpoint_alignment or 1 if keeps else None


def _label(group: Group) -> str:
    spec = group.specs[0]
    if group.kind == WINDOW_MLA and spec.dtype == "float32":
        return f"compress-{group.window if spec.block_size == 8 else spec.block_size} state"
    names = {WINDOW: "window", WINDOW_MLA: "window", CHUNKED: "chunk", STATE: "state"}
    return names.get(group.kind, "full")
