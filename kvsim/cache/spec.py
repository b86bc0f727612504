"""The KV cache groups of a model, and what each needs to resume at a boundary."""

from __future__ import annotations

import math
from dataclasses import dataclass

FULL = "full"
SLIDING_WINDOW = "sliding_window"
CHUNKED_LOCAL = "chunked_local"
MAMBA = "mamba"

MAX_BLOCKS = 1 << 24
"""Most blocks of a pool: 160 times that of a node of today, and 2 GB of memory to simulate."""


@dataclass(frozen=True)
class GroupSpec:
    """One KV cache group: layers that share a block table.

    Attributes:
        kind: ``full``, ``sliding_window``, ``chunked_local`` or ``mamba``.
        block_size: tokens a block holds.
        sliding_window: tokens a window group attends to; None for the others.
        eagle: the group holds draft layers (EAGLE, MTP) and drops a look-ahead block.
        num_drafts: draft tokens of a step, each of which has its own state; for mamba groups.
        checkpoint_alignment: a chunk can export its state after any multiple of so many tokens to
            a further block; None where the kernel cannot. For mamba groups.
        one_state: a mamba group that keeps one state for a whole sequence (mamba_cache_mode none),
            which nothing can be resumed from; its block is the longest sequence.
        attention_chunk_size: tokens of a chunk of a chunked local group, whose tokens attend to
            what their own chunk holds before them; None for the others.

    Raises:
        ValueError: a size below 1, an unknown kind, or a field where none belongs.
    """

    kind: str
    block_size: int
    sliding_window: int | None = None
    eagle: bool = False
    num_drafts: int = 0
    checkpoint_alignment: int | None = None
    one_state: bool = False
    attention_chunk_size: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no engine could hold."""
        if self.kind not in (FULL, SLIDING_WINDOW, CHUNKED_LOCAL, MAMBA):
            raise ValueError(
                f"kind {self.kind!r} is none of full, sliding_window, chunked_local, mamba"
            )
        if self.block_size < 1:
            raise ValueError(f"block_size {self.block_size} is below 1 token")
        if (self.sliding_window is not None) != (self.kind == SLIDING_WINDOW):
            raise ValueError("sliding_window belongs to sliding_window groups, and only there")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window {self.sliding_window} is below 1 token")
        self._check_chunk()
        of_states = self.num_drafts, self.checkpoint_alignment, self.one_state
        if self.kind != MAMBA and of_states != (0, None, False):
            raise ValueError(
                "num_drafts, checkpoint_alignment and one_state belong to mamba groups, and only "
                "there"
            )
        if self.num_drafts < 0:
            raise ValueError(f"num_drafts {self.num_drafts} is below 0")
        if self.checkpoint_alignment is not None and self.checkpoint_alignment < 1:
            raise ValueError(f"checkpoint_alignment {self.checkpoint_alignment} is below 1 token")

    def _check_chunk(self) -> None:
        """Refuse a chunk that attention could not be cut into, or where none belongs."""
        chunk = self.attention_chunk_size
        if (chunk is not None) != (self.kind == CHUNKED_LOCAL):
            raise ValueError("attention_chunk_size belongs to chunked_local groups, and only there")
        if chunk is not None and (chunk < 1 or chunk % self.block_size):
            raise ValueError(
                f"attention_chunk_size {chunk} is not a multiple of block_size {self.block_size}"
            )

    @property
    def blocks_to_resume(self) -> int:
        """Blocks before a boundary that a window group needs there: ceil((window - 1) / block)."""
        if self.sliding_window is None:
            return 0
        return -(-(self.sliding_window - 1) // self.block_size)

    @property
    def lookup_spec(self) -> tuple[object, ...]:
        """What groups have in common that are looked up together."""
        return (
            self.kind,
            self.block_size,
            self.sliding_window,
            self.num_drafts,
            self.checkpoint_alignment,
            self.one_state,
            self.attention_chunk_size,
        )

    @property
    def blocks_held(self) -> int:
        """Blocks a mamba group counts for one request: its last state, the one before, drafts."""
        kept = 0 if self.one_state else 1 + (self.checkpoint_alignment is not None)
        return 1 + kept + self.num_drafts

    def state_blocks(self, num_tokens: int, room: int = 0) -> int:
        """Blocks a mamba group holds for so many tokens, ``room`` besides its last state."""
        return min(-(-num_tokens // self.block_size), 1 + room) + self.num_drafts

    def least_held(self, num_tokens: int) -> int:
        """Blocks a group cannot do without when so many tokens have been computed."""
        blocks = -(-num_tokens // self.block_size)
        if self.kind == MAMBA:  # the last state, and the one it is made from
            return self.state_blocks(num_tokens, 1)
        if self.attention_chunk_size is not None:
            before = max(0, num_tokens - 1) // self.attention_chunk_size
            return blocks - before * self.attention_chunk_size // self.block_size
        return blocks if self.kind == FULL else min(blocks, self.blocks_to_resume)

    def admission_cap(self, max_in_flight_tokens: int, max_model_len: int) -> int | None:
        """Most blocks a group counts for one request at admission; None where it keeps all.

        A window group gives blocks back as the window moves on, so it never holds more than the
        window, the tokens in flight and one block cut by both ends. A chunked local group holds
        its chunk and the tokens in flight; a chunk begins with a block.
        """
        if self.attention_chunk_size is not None:
            tokens = min(self.attention_chunk_size + max_in_flight_tokens, max_model_len)
            return -(-tokens // self.block_size)
        if self.sliding_window is None:
            return None
        tokens = min(self.sliding_window - 1 + max_in_flight_tokens, max_model_len)
        return -(-tokens // self.block_size) + 1


def scheduler_block_size(groups: tuple[GroupSpec, ...]) -> int:
    """Unit of prefix hits in tokens: the least common multiple of the groups' block sizes."""
    return math.lcm(*(group.block_size for group in groups))
