"""From layers to specs: heads and states of a rank, block sizes, pages.

Follows vLLM 0.33.0's Platform.update_block_size_for_backend and get_kv_cache_spec of each layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvsim.errors import KvsimError
from kvsim.planning.backends import Backend
from kvsim.planning.config import Config
from kvsim.planning.layers import INDEXER, Layer
from kvsim.planning.settings import Settings
from kvsim.planning.specs import MLA, STATE, WINDOW, LayerSpec
from kvsim.planning.states import GDN

_LATENT_ALIGNMENT = 128
"""Tokens that blocks of latents are a multiple of where states stand beside them."""


@dataclass(frozen=True)
class BlockSizes:
    """Block sizes as resolved.

    Attributes:
        attention: tokens of an attention block, before groups may scale it.
        state: tokens of a state's block; None without states.
        state_page_bytes: bytes that a state's block is padded to; None without.
    """

    attention: int
    state: int | None = None
    state_page_bytes: int | None = None


def resolve_block_sizes(
    config: Config,
    layers: Sequence[Layer],
    settings: Settings,
    backend: Backend,
    max_model_len: int,
) -> BlockSizes:
    """The block size that was asked for or the backend prefers, made large enough for states.

    Raises:
        KvsimError: a block size that no kernel takes, or that states cannot have.
    """
    block = settings.block_size
    if block is None:
        block = backend.preferred
    elif block % backend.smallest or (backend.only and block != backend.preferred):
        takes = f"{backend.preferred}" if backend.only else f"multiples of {backend.smallest}"
        raise KvsimError(
            f"engine.block_size: {block} is none that {backend.names[0]} takes. Use {takes}, or "
            "leave it out."
        )
    kinds = [layer for layer in layers if layer.state is not None]
    if not kinds:
        return BlockSizes(block)
    align = settings.state_mode == "align"
    if align and not settings.enable_prefix_caching:
        raise KvsimError(
            "engine.mamba_cache_mode: align keeps states to be found again, and prefix caching is "
            "off. Use none, or cache.enable_prefix_caching: true."
        )
    attention = [layer for layer in layers if layer.kind != STATE]
    dtype = backend.kv_cache_dtype
    states = [_state_spec(layer, config, settings, 1, max_model_len) for layer in kinds]
    state_bytes = max(spec.state_bytes for spec in states)
    page: int | None = None
    if attention:
        whole = [_attention_spec(x, config, settings, dtype, backend.smallest) for x in attention]
        token_bytes = max(spec.unpadded_bytes for spec in whole) // backend.smallest
        step = max(backend.smallest, block)
        if any(layer.kind == MLA for layer in attention):
            step = max(step, _LATENT_ALIGNMENT)
        if align:
            alignments = [x.state.alignment(settings) for x in kinds if x.state is not None]
            step = math.lcm(step, *alignments)
        wanted = step * -(-state_bytes // (step * token_bytes))
        wanted = -(-wanted // backend.smallest) * backend.smallest
        block = max(block, wanted)
        page = block * token_bytes
    own = block if align else max_model_len
    asked = settings.mamba_block_size
    if asked is not None and asked != own:
        raise KvsimError(
            f"engine.mamba_block_size: {asked}, and a state's block is {own} tokens: "
            + ("that of attention, in mode align." if align else "the whole request, in mode none.")
            + " Leave it out."
        )
    return BlockSizes(block, own, page)


def spec_of(
    layer: Layer,
    config: Config,
    settings: Settings,
    backend: Backend,
    sizes: BlockSizes,
) -> LayerSpec:
    """What a layer keeps on a rank, with the resolved block sizes."""
    if layer.state is not None:
        spec = _state_spec(layer, config, settings, sizes.attention, sizes.state or 1)
        return replace(spec, padded_bytes=sizes.state_page_bytes)
    block = layer.fixed_block or sizes.attention
    if layer.kind == WINDOW and backend.largest is not None:
        block = min(block, backend.largest)
    spec = _attention_spec(layer, config, settings, backend.kv_cache_dtype, block)
    if layer.fixed_block or layer.kind == INDEXER:
        return spec
    kernel = backend.kernel_tokens(block)
    if kernel == block:
        return spec
    return replace(spec, stride_align=kernel * spec.unpadded_bytes // block)


def _state_spec(
    layer: Layer, config: Config, settings: Settings, attention_block: int, block: int
) -> LayerSpec:
    kind = layer.state
    if kind is None:
        raise TypeError("a layer without states")
    checkpoints = kind.checkpoints(settings)
    alignment = kind.alignment(settings) if checkpoints else None
    if checkpoints and kind.kind == GDN:
        unit = settings.prefix_match_unit
        alignment = attention_block if unit is None else math.lcm(unit, 64)
    return LayerSpec(
        STATE,
        block,
        shapes=kind.shapes(settings.tensor_parallel, settings.draft_tokens),
        state_dtypes=kind.dtypes(config.dtype, settings),
        speculative_blocks=settings.draft_tokens,
        checkpoint_blocks=checkpoints,
        checkpoint_alignment=alignment,
        keeps_boundaries=settings.state_mode == "align",
        draft=layer.draft,
    )


def _attention_spec(
    layer: Layer, config: Config, settings: Settings, kv_cache_dtype: str, block: int
) -> LayerSpec:
    heads = layer.kv_heads
    if not layer.is_latent:
        heads = max(1, heads // settings.tensor_parallel)
    dtype, quant, row_bytes = _element(layer, config, kv_cache_dtype)
    return LayerSpec(
        MLA if layer.kind == INDEXER else layer.kind,
        block,
        kv_heads=heads,
        head_size=layer.head_size,
        head_size_v=layer.head_size if layer.head_size_v is None else layer.head_size_v,
        dtype=dtype,
        quant=quant,
        window=layer.window,
        chunk=layer.chunk,
        tokens_per_state=layer.compress,
        bytes_per_state=row_bytes,
        page_align=layer.page_align,
        draft=layer.draft,
    )


_ROW_BYTES_V32 = 656
"""FlashMLA's row of a sparse latent in FP8: 512 bytes, 16 of scales, 128 of rope in BF16."""


def _element(layer: Layer, config: Config, kv_cache_dtype: str) -> tuple[str, str, int | None]:
    """Dtype, quantization and bytes of a state of a layer."""
    if layer.kind == INDEXER:
        return "uint8", "none", layer.row_bytes
    if layer.fixed_dtype is not None:
        quant = "fp8_per_tensor" if layer.fixed_dtype == "uint8" else "none"
        return layer.fixed_dtype, quant, layer.row_bytes
    if kv_cache_dtype == "fp8_ds_mla":
        return "uint8", "fp8_per_tensor", _ROW_BYTES_V32
    if kv_cache_dtype in ("fp8_per_token_head", "int8_per_token_head", "nvfp4"):
        return "uint8", kv_cache_dtype, None
    if kv_cache_dtype.startswith("fp8"):
        return "uint8", "fp8_per_tensor", None
    return (config.dtype if kv_cache_dtype == "auto" else kv_cache_dtype), "none", None
