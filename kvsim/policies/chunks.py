"""Chunks of blocks, the unit of the CPU tier: how large they are, and which intervals fit them.

A chunk is ``blocks_per_chunk`` blocks of one KV cache group.
The engine's rules: vLLM 0.33.0, ``SchedulerOffloadConfig`` and ``CPUOffloadingSpec``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

MEMORY_PAGE_BYTES = 4096
"""A chunk takes whole memory pages of the tier."""


class Group(Protocol):
    """What is asked of a KV cache group."""

    @property
    def kind(self) -> str:
        """``full``, ``sliding_window``, ``chunked_local`` or ``mamba``."""

    @property
    def block_size(self) -> int:
        """Tokens a block holds."""


def tokens_per_chunk(group: Group, blocks_per_chunk: int, dcp_world_size: int = 1) -> int:
    """Tokens of a group's chunk.

    With decode context parallelism every rank holds its share of a block's tokens, so that a block
    counts that many times its size; a Mamba state is not shared out.
    """
    scale = 1 if group.kind == "mamba" else dcp_world_size
    return group.block_size * scale * blocks_per_chunk


def interval_problem(
    groups: Sequence[Group],
    blocks_per_chunk: int,
    retention_interval: int | None,
    dcp_world_size: int = 1,
) -> str | None:
    """Why the tier refuses a retention interval, or None where it does not.

    Args:
        groups: the model's.
        blocks_per_chunk: at least 1.
        retention_interval: tokens, 0, or None for dense.
        dcp_world_size: decode context parallelism.
    """
    if retention_interval is None:
        return None
    if retention_interval < 0:
        return f"{retention_interval} is negative. Use 0, a positive number of tokens, or null."
    for number, group in enumerate(groups):
        if group.kind == "full":
            continue
        unit = tokens_per_chunk(group, blocks_per_chunk, dcp_world_size)
        if retention_interval % unit:
            kind = {"mamba": "Mamba", "chunked_local": "chunked local"}.get(
                group.kind, "sliding-window"
            )
            return (
                f"{retention_interval} is not a multiple of the chunk of group {number} ({kind}: "
                f"{unit} tokens). Use 0, {unit}, {2 * unit}, ... or null, or fewer blocks a chunk."
            )
    return None


def chunk_bytes(pool_block_bytes: int, blocks_per_chunk: int, num_copies: int) -> int:
    """What a chunk takes from the tier, in bytes, whichever group it is of.

    Args:
        pool_block_bytes: width of the pool's blocks on one rank.
        blocks_per_chunk: at least 1.
        num_copies: 1 where all ranks hold the same KV (as with MLA), else the number of ranks.
    """
    wanted = pool_block_bytes * blocks_per_chunk * num_copies
    return -(-wanted // MEMORY_PAGE_BYTES) * MEMORY_PAGE_BYTES


def num_chunks_in(capacity_bytes: int, bytes_per_chunk: int) -> int:
    """Chunks a tier of so many bytes has room for; 0 where not even one fits."""
    return capacity_bytes // bytes_per_chunk
