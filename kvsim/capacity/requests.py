"""Blocks that a request takes of each group, the longest that fits, and how many fit at once."""

from __future__ import annotations

from kvsim.catalog import KVGroup, Model


def blocks_of_group(group: KVGroup, num_tokens: int, max_in_flight_tokens: int) -> int:
    """Blocks a request of so many tokens takes of a group at most, as the engine counts them.

    Args:
        group: of a model.
        num_tokens: of the request, prompt and answer.
        max_in_flight_tokens: tokens scheduled and not yet processed.
    """
    if group.blocks_held is not None:
        return group.blocks_held
    if group.sliding_window is not None:
        held = min(group.sliding_window - 1 + max_in_flight_tokens, num_tokens)
        return -(-held // group.block_size) + 1
    if group.attention_chunk_size is not None:
        held = min(group.attention_chunk_size + max_in_flight_tokens, num_tokens)
        return -(-held // group.block_size)
    return -(-num_tokens // group.block_size)


def blocks_of_request(model: Model, num_tokens: int, max_in_flight_tokens: int) -> tuple[int, ...]:
    """The same of each group of a model."""
    return tuple(blocks_of_group(x, num_tokens, max_in_flight_tokens) for x in model.groups)


def concurrency(model: Model, num_blocks: int, num_tokens: int, max_in_flight_tokens: int) -> float:
    """Requests of so many tokens that fit at once, as vLLM 0.33 logs it (#48317).

    It says nothing about cached sessions.
    """
    return num_blocks / sum(blocks_of_request(model, num_tokens, max_in_flight_tokens))


def fits(model: Model, num_blocks: int, num_tokens: int, max_in_flight_tokens: int) -> bool:
    """Whether a pool holds one request of so many tokens beside block 0."""
    return sum(blocks_of_request(model, num_tokens, max_in_flight_tokens)) < num_blocks


def longest_in_pool(
    model: Model, num_blocks: int, max_model_len: int, max_in_flight_tokens: int
) -> int:
    """The longest request that a pool holds, up to ``max_model_len``; 0 where it holds none."""
    if not fits(model, num_blocks, 1, max_in_flight_tokens):
        return 0
    low, high = 1, max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if fits(model, num_blocks, middle, max_in_flight_tokens):
            low = middle
        else:
            high = middle - 1
    return low
