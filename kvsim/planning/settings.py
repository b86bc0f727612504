"""How the engine is started, as far as its KV cache depends on it."""

from __future__ import annotations

from dataclasses import dataclass

HOPPER = (9, 0)
BLACKWELL = (10, 0)

KV_DTYPES = (
    "auto",
    "bfloat16",
    "float16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_per_token_head",
    "int8_per_token_head",
    "nvfp4",
)
STATE_DTYPES = ("auto", "bfloat16", "float16", "float32")
CACHE_MODES = ("auto", "align", "none")


@dataclass(frozen=True)
class Settings:
    """What the engine is told.

    Attributes:
        tensor_parallel: ranks that split heads and states.
        pipeline_parallel: stages that split layers.
        decode_context_parallel: ranks that split the tokens of full attention and latents.
        kv_cache_dtype: one of ``KV_DTYPES``; ``auto`` is the model's, or its checkpoint's.
        block_size: tokens of an attention block; None lets the engine choose.
        enable_prefix_caching: whether prefixes are found again.
        max_model_len: longest request, tokens; None for the model's.
        max_num_batched_tokens: most tokens of a step.
        async_scheduling: a step is planned while the one before runs.
        prefix_match_unit: finest unit of hits, tokens; None for the engine's.
        mamba_cache_mode: ``align``, ``none`` or ``auto``: align with prefix caching.
        mamba_block_size: tokens of a state's block; None for the engine's.
        mamba_cache_dtype: of convolution states.
        mamba_ssm_cache_dtype: of recurrent states.
        draft_tokens: drafts of a step by the model's own MTP layers; 0 without.
        hybrid_manager: False allocates windows and chunks as full attention, in one group.
        capability: CUDA compute capability of the GPU, as in (9, 0).
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    decode_context_parallel: int = 1
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    enable_prefix_caching: bool = True
    max_model_len: int | None = None
    max_num_batched_tokens: int = 8192
    async_scheduling: bool = True
    prefix_match_unit: int | None = None
    mamba_cache_mode: str = "auto"
    mamba_block_size: int | None = None
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    draft_tokens: int = 0
    hybrid_manager: bool = True
    capability: tuple[int, int] = HOPPER

    @property
    def is_blackwell(self) -> bool:
        """Blackwell data-centre GPUs choose other attention backends than Hopper and before."""
        return self.capability >= BLACKWELL

    @property
    def max_in_flight_tokens(self) -> int:
        """Tokens scheduled and not yet done: a step's, once for each step under way."""
        stages = self.pipeline_parallel
        steps = stages + 1 if self.async_scheduling else stages
        return steps * self.max_num_batched_tokens

    @property
    def state_mode(self) -> str:
        """``align`` or ``none``."""
        if self.mamba_cache_mode != "auto":
            return self.mamba_cache_mode
        return "align" if self.enable_prefix_caching else "none"
