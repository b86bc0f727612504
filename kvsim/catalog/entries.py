"""What the catalog's entries are: GPUs, models and links, every number with its origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvsim.errors import KvsimError
from kvsim.planning.plan import Plan

PRECISIONS = ("fp4", "fp8", "bf16")


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
        capability: CUDA compute capability, which attention backends go by; None where it is no
            CUDA device.
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
    capability: tuple[int, int] | None = None
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
        kind: ``full``, ``sliding_window``, ``chunked_local`` or ``mamba``.
        block_size: tokens a block holds.
        sliding_window: tokens a window group attends to; None for the others.
        eagle: the group holds draft layers and drops a look-ahead block.
        bytes_per_block: bytes a block of this group needs, all its layers and KV heads; None
            where a custom model does not say.
        num_layers: layers of the group, for display; None where not said.
        name: for display.
        draft_bytes_per_block: what the model's draft layer adds to a block of this group, where it
            is loaded and belongs here; None otherwise, and where the groups were planned with it.
        attention_chunk_size: tokens of a chunk of chunked local attention.
        blocks_held: blocks of a state group that a request holds, whatever its length.
        draft_states: of these those that draft tokens write to.
        checkpoint_alignment: a state can be exported from inside a chunk, after any multiple of so
            many tokens; None where the kernel cannot.
        one_state: a state group that keeps one state for a whole request, for nobody to find.
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
    attention_chunk_size: int | None = None
    blocks_held: int | None = None
    draft_states: int = 0
    checkpoint_alignment: int | None = None
    one_state: bool = False
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
        plan: what the groups were made of, for the settings they hold for; None where given.
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
    plan: Plan | None = field(default=None, compare=False, repr=False)
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
        if self.plan is not None:
            return self.plan.rank_share(tensor_parallel)
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
