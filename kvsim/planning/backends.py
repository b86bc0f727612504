"""Which attention backends the engine picks, and the block sizes they take.

Names and sizes as recorded of vLLM 0.33.0 on compute capability 9.0 and 10.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvsim.errors import KvsimError
from kvsim.planning import states
from kvsim.planning.config import Config
from kvsim.planning.layers import INDEXER, Layer
from kvsim.planning.settings import Settings
from kvsim.planning.specs import CHUNKED, STATE, WINDOW, WINDOW_MLA

LAYER_OUTER = "LBNHC"
HEADS_BEFORE_TOKENS = "LBHNC"
BLOCK_OUTER = "BLHNC"

_STATE_NAMES = {
    states.MAMBA1: "MAMBA1_ATTN",
    states.MAMBA2: "MAMBA2_ATTN",
    states.GDN: "GDN_ATTN",
    states.KDA: "KIMI_K3_KDA",
    states.SHORT_CONV: "SHORT_CONV_ATTN",
}
_V4_NAMES = (
    "CompressorBackend",
    "DEEPSEEK_SPARSE_SWA",
    "DEEPSEEK_V4_INDEXER",
    "FLASHMLA_SPARSE_DSV4",
)
_MANY_QUERY_HEADS = 16
"""Query heads of a rank above which Blackwell's sparse MLA in BF16 takes FlashMLA's kernel."""


@dataclass(frozen=True)
class Backend:
    """What runs the attention layers.

    Attributes:
        names: of all backends of the model, sorted.
        layout: order of layers, blocks, heads and tokens in memory.
        kv_cache_dtype: as resolved.
        smallest: tokens of its smallest kernel block; a block is a multiple of it.
        preferred: tokens of a block where nobody asks for one.
        powers_of_two: its kernel blocks are powers of two, so a block that is none is made of
            several, whose bytes the distance of two blocks is a multiple of.
        kernel: tokens of its only kernel block, where that has the same consequence.
        largest: tokens of its largest kernel block; None without a bound.
        only: it takes blocks of ``preferred`` tokens alone.
    """

    names: tuple[str, ...]
    layout: str
    kv_cache_dtype: str
    smallest: int
    preferred: int
    powers_of_two: bool = False
    kernel: int | None = None
    largest: int | None = None
    only: bool = False

    def kernel_tokens(self, block_size: int) -> int:
        """Tokens of the kernel blocks that a block of this size is made of."""
        if self.kernel is not None:
            return self.kernel
        if not self.powers_of_two:
            return block_size
        largest_power = block_size & -block_size
        return largest_power if self.largest is None else min(largest_power, self.largest)


def resolve_kv_cache_dtype(config: Config, layers: Sequence[Layer], settings: Settings) -> str:
    """The KV dtype where ``auto`` was asked for: the checkpoint's, or the family's; else as asked.

    Raises:
        KvsimError: a dtype that the family does not take.
    """
    asked = settings.kv_cache_dtype
    if any(layer.fixed_dtype for layer in layers):
        return "fp8_ds_mla"
    if asked == "auto":
        if _has_fp8_scheme(config):
            asked = "fp8"
        elif config.architecture == "GlmMoeDsaForCausalLM" and settings.is_blackwell:
            asked = "fp8_e4m3"
    latent = any(layer.is_latent for layer in layers)
    if latent and asked not in ("auto", "bfloat16", "float16") and not asked.startswith("fp8"):
        raise KvsimError(f"engine.kv_cache_dtype: {asked} is not for MLA. Use auto or fp8.")
    if latent and asked.endswith("per_token_head"):
        raise KvsimError(f"engine.kv_cache_dtype: {asked} is not for MLA. Use auto or fp8.")
    sparse = any(layer.kind == INDEXER for layer in layers)
    if sparse and asked.startswith("fp8") and not settings.is_blackwell:
        return "fp8_ds_mla"
    return asked


def _has_fp8_scheme(config: Config) -> bool:
    """Whether the checkpoint's quantization names FP8 for the KV cache."""
    given = config.quantization
    scheme, algorithm = given.get("kv_cache_scheme"), given.get("kv_cache_quant_algo")
    if isinstance(scheme, dict):
        return (scheme.get("num_bits"), scheme.get("type")) == (8, "float")
    return isinstance(algorithm, str) and algorithm.lower() == "fp8"


def choose_backend(config: Config, layers: Sequence[Layer], settings: Settings) -> Backend:
    """The attention backends of a model on a GPU.

    Raises:
        KvsimError: which the engine would pick is not known, or it has none.
    """
    dtype = resolve_kv_cache_dtype(config, layers, settings)
    attention = [layer for layer in layers if layer.kind != STATE]
    extra = tuple(
        sorted({_STATE_NAMES[layer.state.kind] for layer in layers if layer.state is not None})
    )
    is_fp8, blackwell = dtype.startswith("fp8"), settings.is_blackwell
    if any(layer.fixed_block for layer in attention):
        _refuse_old(settings, "DeepSeek V4")
        return Backend(_V4_NAMES, BLOCK_OUTER, dtype, 256, 256, only=True)
    if any(layer.is_latent for layer in attention):
        _refuse_old(settings, "MLA")
        if any(layer.kind == INDEXER for layer in attention):
            return _sparse(config, settings, dtype)
        if blackwell:
            backend = Backend(("FLASHINFER_MLA",), LAYER_OUTER, dtype, 32, 32, True, largest=64)
        elif is_fp8:
            backend = Backend(("FLASHMLA",), LAYER_OUTER, dtype, 64, 64, kernel=64)
        else:
            backend = Backend(("FLASH_ATTN_MLA",), LAYER_OUTER, dtype, 16, 16)
    elif any(layer.head_size_v not in (None, layer.head_size) for layer in attention):
        if blackwell and is_fp8:
            raise KvsimError(
                f"engine.kv_cache_dtype: {dtype}: values of another size than keys have no FP8 "
                "kernel on Blackwell. Use auto."
            )
        backend = Backend(("FLASH_ATTN_DIFFKV",), LAYER_OUTER, dtype, 16, 16)
    elif any(layer.head_size > 256 for layer in attention):
        if blackwell:
            backend = Backend(("TRITON_FLASHINFER",), HEADS_BEFORE_TOKENS, dtype, 64, 64, True)
        else:
            size = 64 if is_fp8 else 16
            backend = Backend(("TRITON_FLASH_ATTN",), LAYER_OUTER, dtype, size, size)
    elif blackwell:
        backend = Backend(("FLASHINFER",), HEADS_BEFORE_TOKENS, dtype, 16, 16, True)
    else:
        backend = Backend(("FLASH_ATTN",), LAYER_OUTER, dtype, 16, 16)
    names = backend.names * (2 if any(layer.kind == CHUNKED for layer in attention) else 1)
    return replace(backend, names=tuple(sorted((*names, *extra))))


def _sparse(config: Config, settings: Settings, dtype: str) -> Backend:
    if settings.decode_context_parallel > 1 and not settings.is_blackwell and dtype == "auto":
        raise KvsimError(
            "node.decode_context_parallel: sparse MLA in BF16 has none on Hopper. Use "
            "engine.kv_cache_dtype: fp8."
        )
    is_fp8 = dtype.startswith("fp8")
    heads = config.query_heads // settings.tensor_parallel
    name, kernel = "FLASH_ATTN_MLA_SPARSE", None if is_fp8 else 1
    if settings.is_blackwell and (is_fp8 or heads <= _MANY_QUERY_HEADS):
        name, kernel = "FLASHINFER_MLA_SPARSE", 32
    elif settings.is_blackwell or is_fp8:
        name = "FLASHMLA_SPARSE"
    names = tuple(sorted(("DEEPSEEK_V32_INDEXER", name)))
    return Backend(names, LAYER_OUTER, dtype, 64, 64, kernel=kernel, only=True)


def _refuse_old(settings: Settings, what: str) -> None:
    if settings.capability[0] not in (9, 10):
        major, minor = settings.capability
        raise KvsimError(
            f"node.gpu: which backend runs {what} on compute capability {major}.{minor} is not "
            "known, so the block size is not. Known: 9.0 (Hopper) and 10.x (Blackwell)."
        )


def check_parallel(config: Config, layers: Sequence[Layer], settings: Settings) -> None:
    """Refuse sizes that do not divide what they split, as the engine does.

    Raises:
        KvsimError: the first of them, with the rule.
    """
    ranks = settings.tensor_parallel
    if config.query_heads % ranks:
        raise KvsimError(
            f"node.tensor_parallel: {ranks} does not divide the {config.query_heads} query heads "
            f"of {config.architecture}. Use one that does."
        )
    for layer in layers:
        if layer.is_latent or layer.kind == STATE:
            continue
        if (layer.kv_heads > ranks and layer.kv_heads % ranks) or (
            layer.kv_heads <= ranks and ranks % layer.kv_heads
        ):
            raise KvsimError(
                f"node.tensor_parallel: {ranks} neither divides the {layer.kv_heads} KV heads of "
                f"{config.architecture} nor is a multiple of them. Use one that does."
            )
    for layer in layers:
        if layer.state is None:
            continue
        heads = layer.state.recurrent[0] if layer.state.recurrent else layer.state.channels
        if heads % ranks:
            raise KvsimError(
                f"node.tensor_parallel: {ranks} does not divide the {heads} heads of a state of "
                f"{config.architecture}. Use one that does."
            )
    context = settings.decode_context_parallel
    if context > 1:
        if ranks % context:
            raise KvsimError(
                f"node.decode_context_parallel: {context} does not divide tensor_parallel "
                f"({ranks}). Use one that does."
            )
        if any(layer.kind in (WINDOW, WINDOW_MLA, CHUNKED) for layer in layers):
            raise KvsimError(
                f"node.decode_context_parallel: {config.architecture} has windows or chunks, "
                "whose tokens are not divided. Use 1."
            )
        heads = min((x.kv_heads for x in layers if not x.is_latent and x.kv_heads), default=1)
        if ranks // context < heads:
            raise KvsimError(
                f"node.decode_context_parallel: {context} is more than tensor_parallel "
                f"({ranks}) over {heads} KV heads. Use {max(1, ranks // heads)} or less."
            )
    stages, number = settings.pipeline_parallel, config.num_layers
    if stages > number:
        raise KvsimError(
            f"node.pipeline_parallel: {stages} stages for {number} layers. Use {number} or less."
        )
