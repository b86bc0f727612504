"""Bytes of a block, number of blocks, and whether a request fits (vLLM 0.33.0)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.planning.groups import Group


@dataclass(frozen=True)
class Fit:
    """What a pool of blocks holds.

    Attributes:
        num_blocks: block 0 included; the smallest over all stages.
        blocks_of_request: for each group, of the longest request.
        max_concurrency: requests of that length at once, as the engine logs it.
        kv_cache_tokens: that many requests' tokens.
    """

    num_blocks: int
    blocks_of_request: tuple[int, ...]
    max_concurrency: float
    kv_cache_tokens: int


def bytes_per_block(groups: Sequence[Group], *, block_outer: bool) -> int:
    """Bytes one block of the pool costs a rank: the widest group's."""
    widest = max((group.num_bytes for group in groups), default=0)
    if not block_outer:
        return widest
    step = math.lcm(*(s.page_align * s.stride_align for group in groups for s in group.specs))
    return -(-widest // step) * step


def blocks_of_request(
    groups: Sequence[Group], num_tokens: int, in_flight: int, context_parallel: int
) -> tuple[int, ...]:
    """Blocks a request of so many tokens takes of each group."""
    return tuple(
        group.blocks_of_request(num_tokens, in_flight, context_parallel) if group.specs else 0
        for group in groups
    )


def longest_that_fits(
    groups: Sequence[Group],
    block_bytes: int,
    available_bytes: int,
    max_model_len: int,
    in_flight: int,
    context_parallel: int,
) -> int:
    """The longest request that fits beside block 0, up to ``max_model_len``; 0 where none does."""

    def fits(num_tokens: int) -> bool:
        blocks = sum(blocks_of_request(groups, num_tokens, in_flight, context_parallel))
        return block_bytes * blocks <= available_bytes - block_bytes

    if not fits(1):
        return 0
    low, high = 1, max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def fit(num_blocks: int, blocks: tuple[int, ...], max_model_len: int) -> Fit:
    """A pool of so many blocks, in requests of ``max_model_len`` tokens."""
    whole = sum(blocks)
    return Fit(num_blocks, blocks, num_blocks / whole, num_blocks * max_model_len // whole)
