"""A model written down in the scenario: its KV cache groups, and what memory and time need.

The fields are those of `kvsim.catalog.Model`; only the groups are needed with constant step times
and a given number of blocks.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Strict

from kvsim import catalog
from kvsim.scenario.fields import Bytes, Count, Positive, Tokens
from kvsim.scenario.validation import Section

NUM_GROUPS_MAX = 16
"""Most KV cache groups a model can have; the core keeps a group's number in 4 bits."""
NumExperts = Annotated[int, Field(ge=0, le=2**20)]


def _group_kind(value: object) -> object:
    if value == "mamba":
        raise ValueError(
            "'mamba' groups cannot be simulated yet, only their masks can be verified. "
            "Use full or sliding_window."
        )
    return value


class KVGroupConfig(Section):
    """One KV cache group of a custom model: layers that share a block table."""

    kind: Annotated[Literal["full", "sliding_window"], BeforeValidator(_group_kind)] = Field(
        description="attention of its layers: full or sliding_window"
    )
    block_size: Tokens = Field(description="tokens a block holds")
    sliding_window: Tokens | None = Field(
        default=None, description="window in tokens; for sliding_window groups, and only there"
    )
    eagle: bool = Field(
        default=False,
        description="holds draft layers (EAGLE, MTP): hits drop a look-ahead block",
    )
    bytes_per_block: Annotated[Bytes, Field(ge=1)] | None = Field(
        default=None,
        description="bytes a block of this group needs, all its layers and KV heads; "
        "needed to derive node.num_blocks and by the roofline",
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
    """A model given by its KV cache groups; the rest is for block numbers and the roofline."""

    groups: Annotated[tuple[KVGroupConfig, ...], Strict(False)] = Field(
        min_length=1,
        max_length=NUM_GROUPS_MAX,
        description="its KV cache groups, in order",
    )
    max_model_len: Tokens = Field(
        default=1_048_576, description="longest sequence it takes, tokens"
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
    expert_bytes: Bytes = Field(
        default=0, description="the part of weight_bytes in routed experts; 0 for a dense model"
    )
    num_experts: NumExperts = Field(
        default=0, description="routed experts of a layer; 0 for a dense model"
    )
    experts_per_token: NumExperts = Field(
        default=0, description="routed experts a token passes; 0 for a dense model"
    )
    precision: Literal["fp8", "fp4", "bf16"] = Field(
        default="bf16",
        description="arithmetic of the matrix products, which picks the GPU's peak",
    )
    attention: Annotated[tuple[AttentionTermConfig, ...], Strict(False)] | None = Field(
        default=None, description="attention work by part; null leaves it out of the step time"
    )
    kv_reads: Annotated[tuple[KVReadConfig, ...], Strict(False)] | None = Field(
        default=None,
        description="KV traffic by part; null for all that the groups hold of a sequence",
    )

    def spec(self) -> catalog.Model:
        """The same as an entry of the catalog, named ``custom``."""
        values = {key: getattr(self, key) for key in type(self).model_fields}
        values["groups"] = tuple(catalog.KVGroup(**dict(group)) for group in self.groups)
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
        return catalog.Model("custom", **values)
