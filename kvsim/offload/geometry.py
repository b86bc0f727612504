"""Chunks and blocks: how large a chunk is, in tokens and in bytes, and what fits together.

A chunk is ``blocks_per_chunk`` blocks of one KV cache group. Chunks and blocks are numbered apart:
block ``i`` of a group lies in its chunk ``i // blocks_per_chunk``.
The engine's rules: vLLM 0.33.0, ``SchedulerOffloadConfig`` and ``CPUOffloadingSpec``.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.cache.spec import FULL, MAMBA, GroupSpec
from kvsim.policies.chunks import (
    MEMORY_PAGE_BYTES,
    chunk_bytes,
    interval_problem,
    num_chunks_in,
    tokens_per_chunk,
)


@dataclass(frozen=True)
class GroupChunks:
    """One group's chunks.

    Attributes:
        tokens: what a chunk holds.
        window: chunks that a hit needs at its end; None where it needs all before it.
        sliding_window: tokens, for window groups.
        eagle: the group's last chunk is volatile while the request decodes.
    """

    tokens: int
    window: int | None
    sliding_window: int | None
    eagle: bool

    def window_at(self, num_tokens: int) -> int | None:
        """Chunks a hit of so many tokens needs: more than ``window`` where the last is partial."""
        if self.window is None or self.sliding_window is None:
            return self.window
        beyond = -num_tokens % self.tokens
        return max(self.window, -(-(self.sliding_window - 1 + beyond) // self.tokens))


def group_chunks(group: GroupSpec, blocks_per_chunk: int, dcp_world_size: int = 1) -> GroupChunks:
    """The chunks of a group."""
    tokens = tokens_per_chunk(group, blocks_per_chunk, dcp_world_size)
    window = None
    if group.sliding_window is not None:
        window = -(-group.sliding_window // tokens)
    elif group.attention_chunk_size is not None:  # as many as its first chunks together, at any hit
        window = -(-group.attention_chunk_size // tokens)
    elif group.kind == MAMBA:
        window = 1
    return GroupChunks(tokens, window, group.sliding_window, group.eagle)


def alignment_tokens(
    groups: tuple[GroupSpec, ...], blocks_per_chunk: int, dcp_world_size: int = 1
) -> int | None:
    """Unit of the boundaries that are worth keeping, in tokens.

    The chunk of the full-attention groups where they agree; where they do not, None: everything is
    kept. Without full attention the largest chunk of all groups.
    """
    full = {
        tokens_per_chunk(group, blocks_per_chunk, dcp_world_size)
        for group in groups
        if group.kind == FULL
    }
    if len(full) == 1:
        return full.pop()
    if full:
        return None
    return max(tokens_per_chunk(group, blocks_per_chunk, dcp_world_size) for group in groups)


def blocks_per_chunk_problem(blocks_per_chunk: int) -> str | None:
    """Why a tier could not have chunks of so many blocks, or None."""
    if blocks_per_chunk < 1:
        return f"{blocks_per_chunk} is below 1. A chunk is at least one block."
    return None


__all__ = [
    "MEMORY_PAGE_BYTES",
    "GroupChunks",
    "alignment_tokens",
    "blocks_per_chunk_problem",
    "chunk_bytes",
    "group_chunks",
    "interval_problem",
    "num_chunks_in",
    "tokens_per_chunk",
]
