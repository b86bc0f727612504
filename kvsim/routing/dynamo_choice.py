"""The compiled part of `kvsim.routing.dynamo`: one loop for a choice, one for what follows it."""

from __future__ import annotations

from kvsim.cache.content import Ints
from kvsim.cache.span_table import MOST_TOKENS, NUM_FREE, last_block, overlap_runs
from kvsim.jit import njit
from kvsim.routing.prefix_index import add_active, count_active, remove_active
from kvsim.routing.views import Floats

# Rows of `state`, by number of the replica: what is booked there (tokens to prefill, decode blocks,
# requests) and what was seen for the last prompt. Whoever keeps decisions or hears of tiers fills
# `DECIDED`, `HOST` and `DISK` before with the leading tokens found there. Row `EQUALS` lists the
# replicas of least cost; the last ones are for own use.
(
    PREFILL, DECODE, ACTIVE, OVERLAP, DECIDED, HOST, DISK, BLOCKS, EQUALS, _FOUND, _MOST, ROWS,
) = range(12)  # fmt: skip

# Entries of `weights`: see `DynamoKvParameters`; credits are a token's share of a block's.
(
    CREDIT, CREDIT_DECAY, HOST_CREDIT, DISK_CREDIT, PREFILL_SCALE, REQUEST_WEIGHT, COUNTS_PREFILL,
    COUNTS_DECODE, NUM_WEIGHTS,
) = range(9)  # fmt: skip


@njit
def choose_least(
    uids: Ints,
    ends: Ints,
    num_tokens: int,
    numbers: Ints,
    unit: int,
    weights: Floats,
    state: Ints,
    costs: Floats,
    heads: Ints,
    cells: Ints,
    active_heads: Ints,
    active_cells: Ints,
) -> int:
    """Write what the costs of a prompt are made of, the costs, and who has the least.

    Args:
        uids: of the prompt's spans.
        ends: of the prompt's spans.
        num_tokens: its length.
        numbers: replicas that can be chosen.
        unit: tokens of a block.
        weights: of the sum.
        state: by replica.
        costs: by replica; only those of `numbers` are written.
        heads: of the events of devices.
        cells: of the events of devices.
        active_heads: of active requests.
        active_cells: of active requests.

    Returns:
        The replica of least cost; or where several are equal, minus how many (in row `EQUALS`).
    """
    overlap = state[OVERLAP]
    if weights[COUNTS_PREFILL] != 0.0:
        overlap_runs(heads, cells, uids, ends, unit, 0, MOST_TOKENS, overlap)
    count_active(active_heads, active_cells, uids, ends, unit, state[_MOST], state[_FOUND])
    num_blocks = last_block(ends[-1], unit, 0) // unit if len(ends) > 0 else 0
    least_prefill = state[PREFILL, numbers[0]]
    for replica in numbers:
        overlap[replica] = max(overlap[replica], state[DECIDED, replica])
        state[HOST, replica] = max(0, state[HOST, replica] - overlap[replica])
        known = overlap[replica] + state[HOST, replica]
        state[DISK, replica] = max(0, state[DISK, replica] - known)
        state[BLOCKS, replica] = state[DECODE, replica] + num_blocks - state[_FOUND, replica]
        least_prefill = min(least_prefill, state[PREFILL, replica])
    least, num_equals = 0.0, 0
    for replica in numbers:
        cost = 0.0
        if weights[COUNTS_PREFILL] != 0.0:
            credit = weights[CREDIT] * overlap[replica]
            if weights[CREDIT_DECAY] != 0.0:
                queued = (state[PREFILL, replica] - least_prefill) / unit
                prompt = max(1, -(-num_tokens // unit))
                credit = credit / (1.0 + weights[CREDIT_DECAY] * queued / prompt)
            credit = (
                credit
                + weights[HOST_CREDIT] * state[HOST, replica]
                + weights[DISK_CREDIT] * state[DISK, replica]
            )
            prefill = (state[PREFILL, replica] + num_tokens) / unit
            cost = weights[PREFILL_SCALE] * max(prefill - credit, 0.0)
        if weights[COUNTS_DECODE] != 0.0:
            cost = cost + state[BLOCKS, replica]
        if weights[REQUEST_WEIGHT] != 0.0:
            cost = cost + weights[REQUEST_WEIGHT] * state[ACTIVE, replica]
        costs[replica] = cost
        if num_equals == 0 or cost < least:
            least, num_equals = cost, 0
        if cost == least:
            state[EQUALS, num_equals] = replica
            num_equals += 1
    return state[EQUALS, 0] if num_equals == 1 else -num_equals


@njit
def book(
    uids: Ints,
    ends: Ints,
    num_tokens: int,
    replica: int,
    unit: int,
    weights: Floats,
    state: Ints,
    active_heads: Ints,
    active_cells: Ints,
) -> int:
    """A request goes to a replica: book it there.

    Args:
        uids: of the prompt's spans.
        ends: of the prompt's spans.
        num_tokens: its length.
        replica: where it goes.
        unit: tokens of a block.
        weights: of the sum.
        state: by replica; row `OVERLAP` is this prompt's.
        active_heads: of active requests.
        active_cells: of active requests.

    Returns:
        Tokens that count there until its first one; -1 where nothing was done, because cells could
        be too few.
    """
    if active_cells[0, NUM_FREE] < len(uids):
        return -1
    tokens = 0
    if weights[COUNTS_PREFILL] != 0.0:
        tokens = num_tokens - state[OVERLAP, replica]
        state[PREFILL, replica] += tokens
    if weights[COUNTS_DECODE] != 0.0:
        new = add_active(active_heads, active_cells, replica, uids, ends, unit)
        state[DECODE, replica] += new
    state[ACTIVE, replica] += 1
    return tokens


@njit
def unbook(
    uids: Ints,
    ends: Ints,
    tokens: int,
    replica: int,
    unit: int,
    weights: Floats,
    state: Ints,
    active_heads: Ints,
    active_cells: Ints,
) -> None:
    """A request is done, with so many tokens that still count for its prefill."""
    state[PREFILL, replica] -= tokens
    if weights[COUNTS_DECODE] != 0.0:
        gone = remove_active(active_heads, active_cells, replica, uids, ends, unit)
        state[DECODE, replica] -= gone
    state[ACTIVE, replica] -= 1
