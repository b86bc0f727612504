"""A model written down in the scenario: its config, layers or groups, and what else is known.

The other fields are those of `kvsim.catalog.Model`; with constant step times and a given number of
blocks none of them is needed. What is given beats what a config says.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from kvsim import catalog
from kvsim.planning.config import read_json
from kvsim.planning.settings import Settings
from kvsim.scenario.fields import Bytes, Count, Positive, Tokens
from kvsim.scenario.layers import LayerConfig, layers_in_order
from kvsim.scenario.validation import Section

NUM_GROUPS_MAX = 64
"""Most KV cache groups a model can have; the core keeps a group's number in 6 bits."""
MAX_MODEL_LEN = 1_048_576
"""Longest sequence of a model given by groups or layers that does not say."""
NumExperts = Annotated[int, Field(ge=0, le=2**20)]


class KVGroupConfig(Section):
    """One KV cache group of a custom model: layers that share a block table."""

    kind: Literal["full", "sliding_window", "chunked_local", "mamba"] = Field(
        description="what its layers hold: full, sliding_window or chunked_local attention, or "
        "mamba states"
    )
    block_size: Tokens = Field(description="tokens a block holds")
    sliding_window: Tokens | None = Field(
        default=None, description="window in tokens; for sliding_window groups, and only there"
    )
    attention_chunk_size: Tokens | None = Field(
        default=None, description="tokens of a chunk; for chunked_local groups, and only there"
    )
    eagle: bool = Field(
        default=False,
        description="holds draft layers (EAGLE, MTP): hits drop a look-ahead block",
    )
    checkpoint_alignment: Tokens | None = Field(
        default=None,
        description="for mamba: a chunk can export its state after multiples of so many tokens; "
        "null where the kernel cannot",
    )
    bytes_per_block: Annotated[Bytes, Field(ge=1)] | None = Field(
        default=None,
        description="bytes a block of this group needs, all its layers and KV heads; "
        "needed to derive node.num_blocks and by the roofline",
    )


def _group(written: KVGroupConfig, settings: Settings, longest: int) -> catalog.KVGroup:
    group = catalog.KVGroup(**dict(written))
    if group.kind != "mamba":
        return group
    keeps = settings.state_mode == "align"
    exports = group.checkpoint_alignment if keeps else None
    kept = 1 + (exports is not None) if keeps else 0
    return replace(
        group,
        block_size=group.block_size if keeps else settings.max_model_len or longest,
        checkpoint_alignment=exports,
        blocks_held=1 + kept + settings.draft_tokens,
        draft_states=settings.draft_tokens,
        one_state=not keeps,
    )


class AttentionTermConfig(Section):
    """A part of the attention work of a custom model, for the roofline."""

    num_layers: Count = Field(description="layers that do this work")
    flops_per_context_token: Positive = Field(
        description="FLOPs of one new token in one layer, per token of its context"
    )
    max_context_tokens: Tokens | None = Field(
        default=None, description="most tokens of context that count; null for all"
    )
    split_over_ranks: bool = Field(
        default=True, description="false where every tensor-parallel rank does all of it"
    )


class KVReadConfig(Section):
    """A part of the KV traffic of a custom model, for the roofline."""

    num_layers: Count = Field(description="layers that read this")
    bytes_per_context_token: Positive = Field(
        description="bytes one layer reads for a sequence in a step, per token of its context"
    )
    max_context_tokens: Tokens | None = Field(
        default=None, description="most tokens of context that count; null for all"
    )


class CustomModel(Section):
    """A model by its config, its layers or its groups; the rest is for memory and the roofline."""

    config: Annotated[str, Field(min_length=1)] | dict[str, Any] | None = Field(
        default=None, description="path of its config.json, or the fields of one"
    )
    layers: Annotated[tuple[LayerConfig, ...], Field(min_length=1), Strict(False)] | None = Field(
        default=None, description="its layers in the model's order, for an architecture not known"
    )
    repeat: Count = Field(default=1, description="how often the list of layers is repeated")
    query_heads: Count | None = Field(
        default=None, description="query heads of a layer, with layers:; null for the KV heads'"
    )
    groups: (
        Annotated[
            tuple[KVGroupConfig, ...],
            Field(min_length=1, max_length=NUM_GROUPS_MAX),
            Strict(False),
        ]
        | None
    ) = Field(default=None, description="its KV cache groups, in order, as the engine has them")
    max_model_len: Tokens | None = Field(
        default=None,
        description="longest sequence it takes, tokens; null for the config's, or 1,048,576",
    )
    kv_replicated: bool = Field(
        default=False,
        description="true where every tensor-parallel rank holds the same KV, as with MLA",
    )
    num_kv_heads: Count | None = Field(
        default=None, description="KV heads of one layer; a rank holds at least one of them"
    )
    total_parameters: Positive | None = Field(default=None, description="parameters, all of them")
    active_parameters: Positive | None = Field(
        default=None, description="parameters a token passes through; 2 FLOPs each"
    )
    weight_bytes: Annotated[Bytes, Field(ge=1)] | None = Field(
        default=None, description="weights as loaded, bytes of the whole model"
    )
    expert_bytes: Bytes | None = Field(
        default=None, description="the part of weight_bytes in routed experts; 0 for a dense model"
    )
    num_experts: NumExperts | None = Field(
        default=None, description="routed experts of a layer; 0 for a dense model"
    )
    experts_per_token: NumExperts | None = Field(
        default=None, description="routed experts a token passes; 0 for a dense model"
    )
    precision: Literal["fp8", "fp4", "bf16"] | None = Field(
        default=None,
        description="arithmetic of the matrix products, which picks the GPU's peak; null for the "
        "config's, or bf16",
    )
    attention: Annotated[tuple[AttentionTermConfig, ...], Strict(False)] | None = Field(
        default=None, description="attention work by part; null leaves it out of the step time"
    )
    kv_reads: Annotated[tuple[KVReadConfig, ...], Strict(False)] | None = Field(
        default=None,
        description="KV traffic by part; null for all that the groups hold of a sequence",
    )

    def spec(self, settings: Settings, directory: Path) -> catalog.Model:
        """The same as an entry of the catalog, named ``custom``.

        Args:
            settings: what a config's or layers' groups are planned for.
            directory: what a config's path is relative to.

        Raises:
            KvsimError: the config cannot be read or is not understood, or the engine would refuse
                the settings.
        """
        given = self._given()
        if self.config is not None:
            written = self.config
            data = read_json(directory / written) if isinstance(written, str) else written
            where = written if isinstance(written, str) else "config as given"
            return catalog.model_from_config("custom", data, settings, given, where)
        longest = given.pop("max_model_len", MAX_MODEL_LEN)
        if self.layers is not None:
            heads = [part.kv_heads or 1 for part in self.layers]
            return catalog.model_from_layers(
                "custom",
                layers_in_order(self.layers, self.repeat),
                settings,
                tuple(given.items()),
                self.query_heads or max(heads),
                longest,
            )
        groups = tuple(_group(group, settings, longest) for group in self.groups or ())
        return catalog.Model(
            "custom",
            groups=groups,
            max_model_len=longest,
            kv_replicated=self.kv_replicated,
            num_kv_heads=self.num_kv_heads,
            **given,
        )

    def _given(self) -> dict[str, Any]:
        """Fields of `kvsim.catalog.Model` that are written down and are not about the cache."""
        others = ("config", "layers", "repeat", "query_heads", "groups")
        of_groups = ("kv_replicated", "num_kv_heads")
        values = {
            key: getattr(self, key)
            for key in type(self).model_fields
            if key not in (*others, *of_groups) and getattr(self, key) is not None
        }
        if self.attention is not None:
            values["attention"] = tuple(
                catalog.AttentionTerm(f"attention {number}", **dict(term))
                for number, term in enumerate(self.attention)
            )
        if self.kv_reads is not None:
            values["kv_reads"] = tuple(
                catalog.KVRead(f"kv_reads {number}", **dict(term))
                for number, term in enumerate(self.kv_reads)
            )
        return values
