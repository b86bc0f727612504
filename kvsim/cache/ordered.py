"""A free queue in another order than the engine's: a priority queue beside the linked one.

A pool with such an order has the address of its `ORDER_ROW` in the last entry of its totals; the
engine's orders have 0 there and touch nothing of this. In the simple form a block that is given
back waits in a heap by its score, or in the linked queue where that is ``FRONT``, which leaves
first. Blocks of one score that come one after another wait in a chain, which has one place in the
heap. In the full form all wait in the linked queue, uncached ones at its head, and the policy
picks who leaves.
"""

from __future__ import annotations

import math

import numpy as np

from kvsim.cache.ordered_rows import (
    ASK_AGAIN,
    FOUND_AGAIN,
    GIVEN_BACK,
    NEXT_OUT,
    NO_BLOCK,
    NOT_A_NUMBER,
    RAISED,
    drop,
    facts_at,
    heap_at,
    known_at,
    order_at,
    push,
    recall,
    remember,
    tags_at,
)
from kvsim.jit import njit, njit_apart
from kvsim.policies.calling import call_policy
from kvsim.policies.facts import (
    FRONT,
    FULL_ATTENTION,
    INTERVAL,
    JUNCTION,
    NO_BOUNDARY,
    NOT_GIVEN,
    REPLAY,
    Facts,
)

Rows = Facts

# --- what the pool asks for ---


@njit
def waits_in_heap(address: int, block: int) -> bool:
    """Whether a free block waits in the heap; else it stands in the linked queue."""
    order = order_at(address, 1)[0]
    chain: int = known_at(order.blocks, order.num_blocks)[block].chain
    return chain >= 0


@njit
def _wait(address: int, blocks: Rows, block: int, score: float) -> None:
    """Let a block wait behind all of its score."""
    order = order_at(address, 1)[0]
    heap = heap_at(order.heap, 2 * order.num_blocks)
    chain: int = order.newest
    if chain >= 0 and heap[heap[chain].place].score == score:
        last = heap[chain].last
        blocks[last].after = block
        blocks[block].before = last
    else:
        chain = order.unused
        order.unused = heap[chain].first
        order.newest = chain
        heap[chain].first = block
        blocks[block].before = 0
        order.num_pushed += 1
        push(heap, 0, order.num_waiting, chain, score, order.num_pushed)
        order.num_waiting += 1
    heap[chain].last = block
    blocks[block].after = 0
    known_at(order.blocks, order.num_blocks)[block].chain = chain


@njit
def leave_heaps(address: int, blocks: Rows, block: int) -> None:
    """A block waits no longer."""
    order = order_at(address, 1)[0]
    num = order.num_blocks
    heap = heap_at(order.heap, 2 * num)
    known = known_at(order.blocks, num)[block]
    chain: int = known.chain
    known.chain = -1
    before, after = blocks[block].before, blocks[block].after
    if before == 0:
        heap[chain].first = after
    else:
        blocks[before].after = after
    if after == 0:
        heap[chain].last = before
    else:
        blocks[after].before = before
    if before == 0 and after == 0:
        drop(heap, 0, order.num_waiting, chain)
        order.num_waiting -= 1
        heap[chain].first = order.unused
        order.unused = chain
        if order.newest == chain:
            order.newest = -1
    if order.num_to_ask > 0 and heap[num + block].place >= 0:
        drop(heap, num, order.num_to_ask, block)
        order.num_to_ask -= 1


@njit_apart
def note_wrong(address: int, wrong: int, call: int, block: int) -> None:
    """The policy did what none may do; the first such deed is kept."""
    order = order_at(address, 1)[0]
    if order.wrong == 0:
        order.wrong = wrong
        order.wrong_call = call
        order.wrong_block = block


@njit
def _ask(address: int, function: int, call: int) -> float:
    """Call one of the policy's functions about the block whose facts are in hand."""
    order = order_at(address, 1)[0]
    answer: float = call_policy(function, order.facts, order.rows, order.num_rows)
    block = facts_at(order.facts, 1)[0]
    if block.answered == 0 or math.isnan(answer):
        note_wrong(address, RAISED if block.answered == 0 else NOT_A_NUMBER, call, block.block)
        return 0.0
    return answer


@njit
def _know(address: int, block: int, key: int) -> None:
    """A content is met for the first time since a block holds it."""
    order = order_at(address, 1)[0]
    known = known_at(order.blocks, order.num_blocks)[block]
    if known.key != key:
        known.key = key
        known.score = FRONT
        known.last_hit_s = FRONT
        known.num_hits = 0
        known.ghost_tag = NOT_GIVEN
        if order.ghosts != 0:
            recall(address, block, key)


@njit_apart
def note_holder(
    address: int,
    group: int,
    kind: int,
    tokens: int,
    offset: int,
    run_blocks: int,
    ahead_blocks: int,
    num_prompt: int,
    junction: int,
    priority: int,
    keep_priority: int,
    keep_tokens: int,
    keep_s: float,
    admitted_s: float,
) -> None:
    """Who gives back the blocks that come next, see `BLOCK_FACTS`.

    Args:
        address: of the order.
        group: the blocks'.
        kind: of the group.
        tokens: of a block.
        offset: added to a place in the list that is given back it makes the block's position.
        run_blocks: blocks of a run that is kept.
        ahead_blocks: how many of them lie behind the boundary.
        num_prompt: tokens of the prompt.
        junction: where siblings diverge, in tokens; 0 for none.
        priority: the request's.
        keep_priority: its retention priority.
        keep_tokens: how many of its first tokens that is about.
        keep_s: for how long.
        admitted_s: when it was admitted.
    """
    order = order_at(address, 1)[0]
    row = facts_at(order.facts, 1)[0]
    row.group = group
    row.kind = kind
    row.tokens = tokens
    row.priority = priority
    row.keep_s = keep_s
    row.admitted_s = admitted_s
    order.offset = offset
    order.run_tokens = run_blocks * tokens
    order.ahead_tokens = ahead_blocks * tokens
    order.num_prompt = num_prompt
    order.junction = junction
    order.keep_priority = keep_priority
    order.keep_tokens = keep_tokens


@njit
def _describe(address: int, place: int) -> None:
    """Write into the facts in hand what follows from where a block stands in its request."""
    order = order_at(address, 1)[0]
    row = facts_at(order.facts, 1)[0]
    end = (place + order.offset + 1) * row.tokens
    before = end - row.tokens
    row.end_tokens = end
    row.in_answer = end > order.num_prompt
    row.keep_priority = order.keep_priority if end <= order.keep_tokens else NOT_GIVEN
    row.prefix_s = end * (order.linear_s + order.square_s * end)
    row.own_s = row.prefix_s - before * (order.linear_s + order.square_s * before)
    row.boundary = NO_BOUNDARY
    row.boundary_tokens = 0
    if row.kind != FULL_ATTENTION:
        unit = order.unit_tokens
        behind = end - order.ahead_tokens
        junction = order.junction // unit * unit
        replay = (order.num_prompt - 1) // unit * unit
        if order.junction > 0 and junction - order.run_tokens < behind <= junction:
            row.boundary = JUNCTION
            row.boundary_tokens = junction
        elif replay - order.run_tokens < behind <= replay:
            row.boundary = REPLAY
            row.boundary_tokens = replay
        else:
            row.boundary = INTERVAL
            row.boundary_tokens = -(-behind // unit) * unit


@njit
def wants_front(address: int, blocks: Rows, place: int, block: int, key: int) -> bool:
    """A block is given back: let it wait in the heap by what the policy says of it.

    Args:
        address: of the order.
        blocks: the pool's.
        place: of the block in the list that is given back.
        block: its id.
        key: of its content; 0 for none.

    Returns:
        Whether it goes to the front of the linked queue instead.
    """
    order = order_at(address, 1)[0]
    row = facts_at(order.facts, 1)[0]
    known = known_at(order.blocks, order.num_blocks)[block]
    _know(address, block, key)
    _describe(address, place)
    row.block = block
    row.cached = key != 0
    row.now_s = order.now_s
    row.given_back_s = order.now_s
    row.floor = order.floor
    row.num_hits = known.num_hits
    row.last_hit_s = known.last_hit_s
    row.score = known.score
    row.ghost_tag = known.ghost_tag
    row.ghost_age = known.ghost_age
    score = _ask(address, order.given_back, GIVEN_BACK)
    if order.is_full != 0:
        return False
    known.score = score
    if order.ask_again != 0:
        saved = facts_at(order.saved, order.num_blocks)
        saved[block] = row
    return _place(address, blocks, block, score)


@njit
def _place(address: int, blocks: Rows, block: int, score: float) -> bool:
    """Let a block, whose facts are in hand, wait by its score; whether it goes to the front."""
    order = order_at(address, 1)[0]
    if score == FRONT:
        return True
    num = order.num_blocks
    _wait(address, blocks, block, score)
    if order.ask_again != 0:
        again_s = _ask(address, order.ask_again, ASK_AGAIN)
        if order.now_s < again_s < math.inf:
            heap = heap_at(order.heap, 2 * num)
            order.num_pushed += 1
            push(heap, num, order.num_to_ask, block, again_s, order.num_pushed)
            order.num_to_ask += 1
    return False


@njit_apart
def due_again(address: int, blocks: Rows) -> int:
    """A block that is to be asked about again by now, out of the heaps; 0 for none."""
    order = order_at(address, 1)[0]
    if order.num_to_ask == 0:
        return 0
    first = heap_at(order.heap, 2 * order.num_blocks)[order.num_blocks]
    if first.score > order.now_s:
        return 0
    block: int = first.item
    leave_heaps(address, blocks, block)
    return block


@njit_apart
def wants_front_now(address: int, blocks: Rows, block: int) -> bool:
    """As `wants_front`, for a block that waits already and is asked about again."""
    order = order_at(address, 1)[0]
    facts = facts_at(order.facts, 1)
    facts[0] = facts_at(order.saved, order.num_blocks)[block]
    row = facts[0]
    row.now_s = order.now_s
    row.floor = order.floor
    score = _ask(address, order.given_back, GIVEN_BACK)
    known_at(order.blocks, order.num_blocks)[block].score = score
    return _place(address, blocks, block, score)


@njit
def lowest(address: int, blocks: Rows) -> int:
    """Take the block out of the heap that leaves first; 0 where it is empty."""
    order = order_at(address, 1)[0]
    if order.num_waiting == 0:
        return 0
    heap = heap_at(order.heap, 2 * order.num_blocks)
    order.floor = heap[0].score
    block: int = heap[heap[0].item].first
    leave_heaps(address, blocks, block)
    return block


@njit
def _whole(number: float) -> int:
    whole: int = np.int64(number)  # type: ignore[assignment]
    return whole


@njit
def picked(address: int) -> int:
    """The block that the policy lets leave, by its own account; 0 where it made no sense."""
    order = order_at(address, 1)[0]
    facts_at(order.facts, 1)[0].block = 0
    answer = _ask(address, order.next_out, NEXT_OUT)
    if order.wrong != 0:
        return 0
    if not (1 <= answer < order.num_blocks) or answer != math.floor(answer):
        note_wrong(address, NO_BLOCK, NEXT_OUT, _whole(min(max(answer, -1.0), 2.0**40)))
        return 0
    return _whole(answer)


@njit
def evicted(address: int, block: int, key: int) -> None:
    """What a block held under a key is gone."""
    order = order_at(address, 1)[0]
    known_at(order.blocks, order.num_blocks)[block].key = 0
    if order.ghosts != 0:
        tag = 0
        if order.is_full != 0:
            tag = tags_at(order.rows + block * order.row_bytes, 1)[0].tag
        remember(address, key, tag)


@njit
def found_again(address: int, block: int, key: int) -> None:
    """A lookup's hit takes a block along."""
    order = order_at(address, 1)[0]
    _know(address, block, key)
    known = known_at(order.blocks, order.num_blocks)[block]
    known.num_hits += 1
    known.last_hit_s = order.now_s
    if order.found_again != 0:
        row = facts_at(order.facts, 1)[0]
        row.block = block
        row.num_hits = known.num_hits
        row.now_s = order.now_s
        _ask(address, order.found_again, FOUND_AGAIN)


@njit_apart
def set_now(address: int, now_s: float) -> None:
    """It is later."""
    order_at(address, 1)[0].now_s = now_s
