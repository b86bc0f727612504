"""What a model's layers are, before ranks, dtypes and block sizes are known."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvsim.planning.specs import CHUNKED, CROSS, FULL, MLA, STATE, WINDOW, WINDOW_MLA
from kvsim.planning.states import StateKind

INDEXER = "indexer"
"""A sparse MLA layer's index of keys: one latent of one byte an element, whatever the KV dtype."""


@dataclass(frozen=True)
class Layer:
    """One layer that holds KV or states.

    Attributes:
        kind: as in `kvsim.planning.specs`, or ``INDEXER``.
        decoder_layer: number of the decoder layer it is part of, from 0, which is what pipeline
            stages divide.
        kv_heads: KV heads, all ranks together.
        head_size: elements of a key.
        head_size_v: elements of a value; None for as many as a key's.
        window: tokens, for windows.
        chunk: tokens, for chunked local attention.
        state: for states.
        compress: tokens that one state stands for.
        fixed_block: tokens of its block where the model fixes it (DeepSeek V4).
        fixed_dtype: likewise.
        row_bytes: bytes of a state where the layout has a format of its own.
        page_align: a page is rounded up to a multiple of so many bytes.
        draft: a layer of the drafter.
    """

    kind: str
    decoder_layer: int
    kv_heads: int = 1
    head_size: int = 0
    head_size_v: int | None = None
    window: int | None = None
    chunk: int | None = None
    state: StateKind | None = None
    compress: int = 1
    fixed_block: int | None = None
    fixed_dtype: str | None = None
    row_bytes: int | None = None
    page_align: int = 1
    draft: bool = False

    @property
    def is_latent(self) -> bool:
        """One latent head for all query heads: every rank holds all of it."""
        return self.kind in (MLA, WINDOW_MLA, INDEXER)

    def as_draft(self, decoder_layer: int) -> Layer:
        """The same as a layer of the drafter."""
        return replace(self, draft=True, decoder_layer=decoder_layer)


def full(number: int, kv_heads: int, head_size: int, head_size_v: int | None = None) -> Layer:
    """Full attention."""
    return Layer(FULL, number, kv_heads, head_size, head_size_v)


def window(
    number: int, tokens: int, kv_heads: int, head_size: int, head_size_v: int | None = None
) -> Layer:
    """Sliding-window attention."""
    return Layer(WINDOW, number, kv_heads, head_size, head_size_v, window=tokens)


def chunked(number: int, tokens: int, kv_heads: int, head_size: int) -> Layer:
    """Chunked local attention."""
    return Layer(CHUNKED, number, kv_heads, head_size, chunk=tokens)


def latent(number: int, head_size: int) -> Layer:
    """Multi-head latent attention."""
    return Layer(MLA, number, 1, head_size, 0)


def states(number: int, kind: StateKind) -> Layer:
    """A layer of states."""
    return Layer(STATE, number, 0, state=kind)


def indexer(number: int, head_size: int) -> Layer:
    """The index of keys of a sparse MLA layer: a key and a 4-byte scale."""
    return Layer(INDEXER, number, 1, head_size + 4, 0)


def cross(number: int, kv_heads: int, head_size: int) -> Layer:
    """Cross attention to an encoder."""
    return Layer(CROSS, number, kv_heads, head_size)


ROW_BYTES_V4 = 584
PAGE_ALIGN_V4 = 576


def deepseek_v4(number: int, compress: int, head_size: int, index_size: int) -> list[Layer]:
    """One decoder layer of DeepSeek V4, in the order in which the engine builds its caches.

    Block sizes, rows of 584 bytes in pages of whole 576: vLLM 0.33.0, models/deepseek_v4.
    """
    swa = Layer(
        WINDOW_MLA,
        number,
        1,
        head_size,
        0,
        window=128,
        fixed_block=64,
        fixed_dtype="uint8",
        row_bytes=ROW_BYTES_V4,
        page_align=PAGE_ALIGN_V4,
    )
    if not compress:
        return [swa]
    kept = replace(swa, kind=MLA, window=None, fixed_block=256, compress=compress)
    tokens = 4 if compress == 4 else 8
    wide = 4 if compress == 4 else 2
    state = Layer(
        WINDOW_MLA,
        number,
        1,
        wide * head_size,
        0,
        window=2 * compress if compress == 4 else compress,
        fixed_block=tokens,
        fixed_dtype="float32",
        page_align=PAGE_ALIGN_V4,
    )
    if compress != 4:
        return [swa, kept, state]
    index = replace(kept, kind=INDEXER, head_size=index_size + 4, row_bytes=None)
    index_state = replace(state, head_size=wide * index_size)
    return [index, index_state, swa, kept, state]
