"""Layers written down in a scenario, for a model whose architecture is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from kvsim.planning.layers import Layer
from kvsim.planning.specs import CHUNKED, FULL, MLA, STATE, WINDOW
from kvsim.planning.states import GDN, KDA, MAMBA1, MAMBA2, StateKind
from kvsim.scenario.fields import Bytes, Count, Tokens
from kvsim.scenario.validation import Section

_STATE_KINDS = (MAMBA1, MAMBA2, GDN, KDA)
_NEEDS = {
    FULL: ("kv_heads", "head_size"),
    WINDOW: ("kv_heads", "head_size", "sliding_window"),
    CHUNKED: ("kv_heads", "head_size", "attention_chunk_size"),
    MLA: ("head_size",),
    **dict.fromkeys(_STATE_KINDS, ("state_bytes",)),
}


class LayerConfig(Section):
    """Equal layers in a row."""

    kind: Literal[
        "full", "sliding_window", "chunked_local", "mla", "mamba1", "mamba2", "gdn", "kda"
    ] = Field(description="what they keep")
    count: Count = Field(default=1, description="how many in a row")
    kv_heads: Count | None = Field(default=None, description="KV heads, all ranks together")
    head_size: Count | None = Field(
        default=None, description="elements of a key; of mla those of the latent, its rope included"
    )
    head_size_v: Count | None = Field(
        default=None, description="elements of a value; null for as many as of a key"
    )
    sliding_window: Tokens | None = Field(default=None, description="window in tokens")
    attention_chunk_size: Tokens | None = Field(
        default=None, description="tokens of a chunk of chunked_local"
    )
    state_bytes: Annotated[Bytes, Field(ge=1)] | None = Field(
        default=None, description="bytes of all states of one layer, all ranks together"
    )
    draft: bool = Field(default=False, description="layers of the drafter")

    def problems(self) -> list[tuple[str, str]]:
        """Keys that the kind needs and lacks, or has and does not take, with what is wrong."""
        needed = _NEEDS[self.kind]
        found = [
            (key, f"is missing. A {self.kind} layer needs it.")
            for key in needed
            if getattr(self, key) is None
        ]
        taken = {*needed, *(("head_size_v",) if self.kind in (FULL, WINDOW) else ())}
        keys = "kv_heads", "head_size", "head_size_v", "sliding_window", "state_bytes"
        return found + [
            (key, f"{getattr(self, key)} stands on a {self.kind} layer. Leave it out.")
            for key in (*keys, "attention_chunk_size")
            if key not in taken and getattr(self, key) is not None
        ]

    def layer(self, number: int) -> Layer:
        """One of them, as the decoder layer of this number."""
        if self.kind in _STATE_KINDS:
            width = 1 if self.kind != KDA else 4  # KDA's recurrent states are float32
            dtype = "uint8" if self.kind != KDA else "float32"
            state = StateKind(
                self.kind,
                1,
                0,
                recurrent=(-(-(self.state_bytes or 1) // width),),
                recurrent_dtype=dtype,
            )
            return Layer(STATE, number, 0, state=state, draft=self.draft)
        return Layer(
            self.kind,
            number,
            self.kv_heads or 1,
            self.head_size or 1,
            0 if self.kind == MLA else self.head_size_v,
            window=self.sliding_window,
            chunk=self.attention_chunk_size,
            draft=self.draft,
        )


def layers_in_order(written: Sequence[LayerConfig], repeat: int) -> tuple[Layer, ...]:
    """The layers one by one, the whole list as often as said; drafts once, at the end."""
    own = [part for _ in range(repeat) for part in written if not part.draft]
    drafts = [part for part in written if part.draft]
    every = [part for part in (*own, *drafts) for _ in range(part.count)]
    return tuple(part.layer(number) for number, part in enumerate(every))
