"""What one layer keeps in the KV cache: its kind, its block and the bytes of a block."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from kvsim.errors import KvsimError

FULL = "full"
MLA = "mla"
WINDOW = "sliding_window"
WINDOW_MLA = "sliding_window_mla"
CHUNKED = "chunked_local"
STATE = "mamba"
CROSS = "cross"

KINDS = (FULL, MLA, WINDOW, WINDOW_MLA, CHUNKED, STATE, CROSS)
LATENT_KINDS = (MLA, WINDOW_MLA)

DTYPE_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "uint8": 1,
}
QUANT_SCALES = "fp8_per_token_head", "int8_per_token_head"
"""KV dtypes with two 4-byte scales, of K and V, a head and token."""


@dataclass(frozen=True)
class LayerSpec:
    """One layer's part of the KV cache, on one tensor-parallel rank.

    Attributes:
        kind: one of ``KINDS``.
        block_size: tokens a block holds.
        kv_heads: KV heads of the rank; 1 for a latent; 0 for states.
        head_size: elements of a key.
        head_size_v: elements of a value; 0 for latents.
        dtype: of the elements; ``uint8`` is any one-byte KV.
        quant: ``none``, ``fp8_per_tensor`` or a KV dtype with scales of its own.
        window: tokens a window layer attends to.
        chunk: tokens of a chunk of chunked local attention.
        tokens_per_state: tokens that one state stands for (compression).
        bytes_per_state: bytes of one, where they do not follow from heads and dtype.
        page_align: a page is rounded up to whole ones of these bytes; 1 for none.
        stride_align: bytes that the distance of two blocks is a multiple of.
        padded_bytes: bytes of a block after padding; None without.
        shapes: of a layer's states.
        state_dtypes: likewise.
        speculative_blocks: state blocks a request keeps for drafts.
        checkpoint_blocks: state blocks it keeps for a checkpoint inside a prefill.
        checkpoint_alignment: tokens that a checkpoint's offset is a multiple of.
        keeps_boundaries: states at block boundaries are kept for others to find (mode align).
        sharded: decode context parallelism divides its tokens.
        draft: a layer of the drafter.
    """

    kind: str
    block_size: int
    kv_heads: int = 0
    head_size: int = 0
    head_size_v: int = 0
    dtype: str = "bfloat16"
    quant: str = "none"
    window: int | None = None
    chunk: int | None = None
    tokens_per_state: int = 1
    bytes_per_state: int | None = None
    page_align: int = 1
    stride_align: int = 1
    padded_bytes: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    state_dtypes: tuple[str, ...] = ()
    speculative_blocks: int = 0
    checkpoint_blocks: int = 0
    checkpoint_alignment: int | None = None
    keeps_boundaries: bool = False
    sharded: bool = True
    draft: bool = False

    @property
    def state_bytes(self) -> int:
        """Bytes of all states of a layer, without padding."""
        return sum(
            math.prod(shape) * DTYPE_BYTES[dtype]
            for shape, dtype in zip(self.shapes, self.state_dtypes, strict=True)
        )

    @property
    def token_bytes(self) -> float:
        """Bytes of one token of an attention layer, without padding."""
        return self.unpadded_bytes / self.block_size

    @property
    def unpadded_bytes(self) -> int:
        """Bytes of a block's contents."""
        if self.kind == STATE:
            return self.state_bytes
        num_states = -(-self.block_size // self.tokens_per_state)
        if self.bytes_per_state is not None:
            return num_states * self.bytes_per_state
        sides = self.head_size + self.head_size_v
        if self.quant == "nvfp4":
            of_head = sides // 2 + sides // 16
        else:
            of_head = sides * DTYPE_BYTES[self.dtype] + 8 * (self.quant in QUANT_SCALES)
        return num_states * self.kv_heads * of_head

    @property
    def page_bytes(self) -> int:
        """Bytes a block takes of one layer, padding included."""
        if self.padded_bytes is not None:
            return self.padded_bytes
        return -(-self.unpadded_bytes // self.page_align) * self.page_align

    def padded(self, num_bytes: int) -> LayerSpec:
        """The same with blocks of so many bytes."""
        return replace(self, padded_bytes=num_bytes)

    def with_block(self, block_size: int) -> LayerSpec:
        """The same with blocks of so many tokens."""
        return replace(self, block_size=block_size)

    @property
    def same_as(self) -> LayerSpec:
        """What has to be equal for two layers to be alike: all but who they belong to."""
        return replace(self, draft=False)

    @property
    def type_of(self) -> tuple[Any, ...] | None:
        """What has to be equal for layers of several sizes to share a block table; None if none."""
        if self.kind in (FULL, MLA):
            return ("full", self.block_size)
        if self.kind in (WINDOW, WINDOW_MLA):
            return ("window", self.block_size, self.window)
        if self.kind == CHUNKED:
            return ("chunk", self.block_size, self.chunk)
        if self.kind == STATE:
            blocks = self.speculative_blocks, self.checkpoint_blocks
            return ("state", self.block_size, self.page_bytes, *blocks)
        return None

    def blocks_of_request(
        self, num_tokens: int, max_in_flight_tokens: int, context_parallel: int = 1
    ) -> int:
        """Blocks that a request of ``num_tokens`` tokens takes at most.

        Raises:
            KvsimError: a kind whose blocks do not follow from a length (cross attention).
        """
        if self.kind == STATE:
            kept = 1 + self.checkpoint_blocks if self.keeps_boundaries else 0
            return 1 + self.speculative_blocks + kept
        if self.kind in (FULL, MLA):
            tokens = -(-num_tokens // context_parallel) if self.sharded else num_tokens
            return -(-tokens // self.block_size)
        if self.window is not None:
            held = min(self.window - 1 + max_in_flight_tokens, num_tokens)
            return -(-held // self.block_size) + 1
        if self.chunk is not None:
            return -(-min(self.chunk + max_in_flight_tokens, num_tokens) // self.block_size)
        raise KvsimError(f"layers: blocks of {self.kind} attention do not follow from a length.")


def described(spec: LayerSpec) -> dict[str, Any]:
    """A layer in plain words, as recordings of the engine's planning describe it."""
    out: dict[str, Any] = {
        "kind": spec.kind,
        "block_size": spec.block_size,
        "page_bytes": spec.page_bytes,
    }
    if spec.kind == STATE:
        out |= {
            "state_shapes": [list(shape) for shape in spec.shapes],
            "state_dtypes": list(spec.state_dtypes),
            "state_bytes": spec.state_bytes,
            "speculative_blocks": spec.speculative_blocks,
            "checkpoint_blocks": spec.checkpoint_blocks,
            "checkpoint_alignment": spec.checkpoint_alignment,
        }
    else:
        out |= {
            "kv_heads": spec.kv_heads,
            "head_size": spec.head_size,
            "head_size_v": spec.head_size_v,
            "dtype": spec.dtype,
            "quant": spec.quant,
            "unpadded_bytes": spec.unpadded_bytes,
        }
        if spec.tokens_per_state != 1:
            out["tokens_per_state"] = spec.tokens_per_state
        if spec.bytes_per_state is not None:
            out["bytes_per_state"] = spec.bytes_per_state
        if not spec.sharded:
            out["dcp_sharded"] = False
    if spec.window is not None:
        out["sliding_window"] = spec.window
    if spec.chunk is not None:
        out["attention_chunk_size"] = spec.chunk
    if spec.stride_align != 1:
        out["block_stride_alignment"] = spec.stride_align
    if spec.draft:
        out["draft"] = True
    return out
