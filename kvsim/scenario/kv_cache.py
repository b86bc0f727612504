"""Keys of the engine that shape its KV cache: block sizes, dtypes, states."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvsim.scenario.fields import TOKENS_MAX
from kvsim.scenario.validation import Section

BlockTokens = Annotated[int, Field(ge=1, le=TOKENS_MAX)]
StateDtype = Literal["auto", "bfloat16", "float16", "float32"]


class KVCacheKeys(Section):
    """What the engine is told of its KV cache; models given by their groups have it in them."""

    kv_cache_dtype: Literal[
        "auto",
        "bfloat16",
        "float16",
        "fp8",
        "fp8_e4m3",
        "fp8_e5m2",
        "fp8_per_token_head",
        "int8_per_token_head",
        "nvfp4",
    ] = Field(default="auto", description="dtype of keys and values; auto is the checkpoint's")
    block_size: BlockTokens | None = Field(
        default=None,
        description="tokens of an attention block; null for what the backend prefers. States "
        "enlarge it",
    )
    prefix_match_unit: BlockTokens | None = Field(
        default=None, description="finest unit of hits in tokens; null for what the blocks allow"
    )
    mamba_cache_mode: Literal["auto", "align", "none"] = Field(
        default="auto",
        description="whether states at block boundaries are kept; auto: with prefix caching",
    )
    mamba_block_size: BlockTokens | None = Field(
        default=None, description="tokens of a state's block; null for that of attention"
    )
    mamba_cache_dtype: StateDtype = Field(
        default="auto", description="dtype of convolution states; auto is the model's"
    )
    mamba_ssm_cache_dtype: StateDtype = Field(
        default="auto", description="dtype of recurrent states; auto is the model's"
    )
    hybrid_kv_cache_manager: bool = Field(
        default=True,
        description="false allocates windows and chunks as full attention, in one group",
    )
