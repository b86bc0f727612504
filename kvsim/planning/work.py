"""What layers cost a step: attention FLOPs and KV bytes that grow with the context."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.planning.config import Config
from kvsim.planning.layers import INDEXER, Layer
from kvsim.planning.plan import Plan
from kvsim.planning.specs import CHUNKED, FULL, MLA, WINDOW, LayerSpec


@dataclass(frozen=True)
class Work:
    """Work of equal layers for one new token.

    Attributes:
        name: for display.
        num_layers: how many.
        flops_per_context_token: FLOPs in one layer, per token of the context, all ranks.
        bytes_per_context_token: KV bytes that one layer reads, per token of the context, one rank.
        max_context_tokens: context beyond this adds nothing; None without a cap.
        split_over_ranks: tensor parallelism divides the FLOPs.
    """

    name: str
    num_layers: int
    flops_per_context_token: float
    bytes_per_context_token: float
    max_context_tokens: int | None
    split_over_ranks: bool = True


def work_of(config: Config, plan: Plan) -> tuple[Work, ...]:
    """The work of a planned model, by kinds of layers in order of first appearance.

    Formulas: 2 FLOPs for each multiplication of a query with a key, and of a weight with a value;
    MLA in its absorbed form, so keys are the whole latent and values its part without rope.
    Drafters and DeepSeek V4, whose work is given in the catalog, are left out.
    """
    counts: dict[Work, int] = {}
    sparse = any(layer.kind == INDEXER for layer in plan.layers)
    for layer, spec in zip(plan.layers, plan.specs, strict=True):
        if not layer.draft and (one := _work(config, layer, spec, sparse)) is not None:
            counts[one] = counts.get(one, 0) + 1
    return tuple(
        Work(
            one.name,
            num,
            one.flops_per_context_token,
            one.bytes_per_context_token,
            one.max_context_tokens,
            one.split_over_ranks,
        )
        for one, num in counts.items()
    )


def _work(config: Config, layer: Layer, spec: LayerSpec, sparse: bool) -> Work | None:
    heads, of_token = config.query_heads, spec.unpadded_bytes / spec.block_size
    if layer.state is not None:  # read and written as a whole, however long the context is
        return Work("state", 1, 0.0, float(spec.state_bytes), 1)
    if layer.fixed_block is not None:
        return None
    if layer.kind == INDEXER:
        flops = 2.0 * config.count("index_n_heads") * config.count("index_head_dim")
        return Work("indexer", 1, flops, of_token, None, split_over_ranks=False)
    if layer.kind == MLA:
        values = layer.head_size - config.count("qk_rope_head_dim", default=0, least=0)
        flops = 2.0 * heads * (layer.head_size + values)
        top = config.count("index_topk") if sparse else None
        return Work("sparse latent" if sparse else "latent", 1, flops, of_token, top)
    value_size = layer.head_size if layer.head_size_v is None else layer.head_size_v
    flops = 2.0 * heads * (layer.head_size + value_size)
    names = {FULL: "full", WINDOW: "window", CHUNKED: "chunked"}
    cap = layer.window if layer.kind == WINDOW else layer.chunk
    return Work(names.get(layer.kind, layer.kind), 1, flops, of_token, cap)
