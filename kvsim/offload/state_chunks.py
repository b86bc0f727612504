"""States in a tier: which of them are offered, and prompts whose end lies inside a block.

A state is no part of a block table that could be looked at later: the cache says of every state
that is entered which block holds it, and it is offered then or never, each by itself. With hits
inside a block the end of a prompt is stored as well: a block of every group under the prefix that
ends there, all together; a lookup that has come to the last whole chunk then looks on inside the
next block. vLLM 0.33.0, ``OffloadingConnectorScheduler``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content, Ints
from kvsim.cache.manager import KVCache
from kvsim.cache.spec import FULL, MAMBA
from kvsim.offload.cpu_tier import ChunkTier
from kvsim.offload.request_chunks import RequestChunks, tail_key
from kvsim.policies.host_chunks import BEING_WRITTEN


@dataclass(frozen=True)
class StateRules:
    """How a model's states lie in a tier.

    Attributes:
        groups: the groups of states.
        chunk_tokens: a hit is a multiple of it; 0 without such groups.
        tail_unit: tokens of which the end of a prompt that is stored is a multiple; 0 where only
            whole chunks are stored. Chunks are blocks where it is not.
    """

    groups: frozenset[int]
    chunk_tokens: int
    tail_unit: int


def check_keeps_states(config: CacheConfig) -> None:
    """Refuse a cache that keeps no states to be stored.

    Raises:
        ValueError: it keeps none.
    """
    if any(group.one_state for group in config.groups):
        raise ValueError("states are kept one a request (mode none): there is none to store")


def state_rules(config: CacheConfig, blocks_per_chunk: int, dcp_world_size: int) -> StateRules:
    """The rules of a cache whose chunks are so many blocks.

    Raises:
        ValueError: what the engine would not accept: states that are not kept at boundaries, or
            chunks of states that differ in length.
    """
    groups = frozenset(i for i, group in enumerate(config.groups) if group.kind == MAMBA)
    if not groups:
        return StateRules(groups, 0, 0)
    check_keeps_states(config)
    sizes = {config.groups[g].block_size for g in groups}
    if len(sizes) > 1:
        raise ValueError(f"groups of states have different blocks ({sorted(sizes)})")
    block = sizes.pop()
    has_tails = (
        blocks_per_chunk == 1
        and dcp_world_size == 1
        and config.hash_block_tokens < block
        and all(group.block_size == block for group in config.groups)
        and all(group.kind in (FULL, MAMBA) for group in config.groups)
    )
    unit = config.hash_block_tokens if has_tails else 0
    return StateRules(groups, block * blocks_per_chunk, unit)


def by_request(
    offers: Sequence[tuple[int, int, int, int]],
) -> dict[int, list[tuple[int, int, int]]]:
    """States that were entered, by the slot of whose they are, in the order of first mention.

    Args:
        offers: as ``KVCache.take_offers`` has them.

    Returns:
        For each slot the group, the block and the tokens of each.
    """
    found: dict[int, list[tuple[int, int, int]]] = {}
    for slot, *state in offers:
        found.setdefault(slot, []).append((state[0], state[1], state[2]))
    return found


def states_to_offer(
    cache: KVCache, rules: StateRules, requests: Iterable[RequestChunks], prompt_only: bool
) -> Iterator[tuple[RequestChunks, Ints, list[int]]]:
    """What requests offer of the states that were entered since the last call, offer by offer.

    Args:
        cache: with or without groups of states.
        rules: its own.
        requests: that have arrived and are not finished.
        prompt_only: states behind the prompt are not offered.

    Yields:
        A request, which of its chunks it offers, and the block of each.
    """
    if not rules.groups:
        return
    offers = by_request(cache.take_offers())
    if not offers:
        return
    chunk = rules.chunk_tokens
    of_slot = {request.sequence.slot: request for request in requests}
    for slot, states in offers.items():
        request = of_slot[slot]
        most = cache.num_tokens(request.sequence)
        if prompt_only:
            most = min(most, request.sequence.num_prompt)
        for group, block, tokens in states:
            if tokens <= most and tokens % chunk == 0:
                yield request, request.chunks(group, tokens // chunk - 1, tokens // chunk), [block]
    if not rules.tail_unit:
        return
    for slot, states in offers.items():
        request, progress = of_slot[slot], of_slot[slot].progress
        parts = {group: block for group, block, tokens in states if tokens % chunk}
        if not parts:
            continue
        end = next(tokens for _, _, tokens in states if tokens % chunk)
        index = end // chunk
        groups = list(range(len(progress.pointers)))
        others = [g for g in groups if g not in rules.groups]
        if any(index >= progress.lengths[g] for g in others):
            continue
        for g in others:
            parts[g] = int(progress.table[progress.starts[g] + index])
        chunks = request.tail_chunks(end, groups, rules.tail_unit)
        yield request, chunks, [parts[g] for g in groups]


def extended_hit(
    tier: ChunkTier, rules: StateRules, request: RequestChunks, num_local: int, hit: int
) -> int | None:
    """A hit that goes on inside the next block where the tier has the end of a prompt there.

    Args:
        tier: where it is looked for.
        rules: with a ``tail_unit``.
        request: whose ``tail`` is written.
        num_local: its local hit in tokens.
        hit: tokens that the tier has beyond it in whole chunks.

    Returns:
        The tokens; None where there are none yet: to be asked again.
    """
    num_groups = len(request.progress.pointers)
    start, most = num_local + hit, request.sequence.num_prompt - 1
    end, pending = longest_tail(tier, rules, request.sequence.content, num_groups, start, most)
    if not end:
        return None if pending and not hit else hit
    request.tail = end
    return end - num_local


def longest_tail(
    tier: ChunkTier, rules: StateRules, content: Content, num_groups: int, start: int, most: int
) -> tuple[int, bool]:
    """The longest end of a prompt inside the block at ``start`` that the tier has in whole.

    Args:
        tier: where it is looked for.
        rules: with a ``tail_unit``.
        content: of the request.
        num_groups: of the model.
        start: tokens before the block.
        most: nothing beyond so many tokens counts.

    Returns:
        Its tokens, 0 where there is none; and whether something that it, or a longer one, needs is
        still being written.
    """
    unit = rules.tail_unit
    pending = False
    for end in range(min(most, start + rules.chunk_tokens - 1) // unit * unit, start, -unit):
        keys = [tail_key(content, end, group, unit) for group in range(num_groups)]
        complete = True
        waits = False
        for loads in tier.loads_of(np.array(keys, dtype=np.int64)):
            if loads is None:
                complete = False
                break
            waits = waits or loads == BEING_WRITTEN
        if complete and not waits:
            return end, pending
        pending = pending or waits
    return 0, pending
