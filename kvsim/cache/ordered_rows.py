"""The arrays behind a free queue in another order: rows, views of them, two heaps, and ghosts."""

from __future__ import annotations

import numpy as np

from kvsim.jit import njit, njit_apart
from kvsim.policies.calling import rows_at
from kvsim.policies.facts import BLOCK_ROW_FACTS, Facts

ORDER_ROW = np.dtype(
    [
        ("num_blocks", np.int64),
        ("is_full", np.int64),
        # Addresses of the policy's functions, 0 where there is none.
        ("given_back", np.int64),
        ("ask_again", np.int64),
        ("found_again", np.int64),
        ("next_out", np.int64),
        # Addresses of arrays; 0 where there is none.
        ("facts", np.int64),
        ("saved", np.int64),
        ("blocks", np.int64),
        ("rows", np.int64),
        ("num_rows", np.int64),
        ("row_bytes", np.int64),
        ("heap", np.int64),
        ("ghosts", np.int64),
        ("ghosts_mask", np.int64),
        ("num_waiting", np.int64),  # chains in the first heap, by score
        ("newest", np.int64),  # the chain that was pushed last; -1 where it is gone
        ("unused", np.int64),  # the first chain that is not in use; -1 for none
        ("num_to_ask", np.int64),  # in the second, by the time to ask again
        ("num_pushed", np.int64),
        ("asks_uncached", np.int64),
        ("unit_tokens", np.int64),
        ("now_s", np.float64),
        ("floor", np.float64),
        ("linear_s", np.float64),  # seconds to compute a token, and
        ("square_s", np.float64),  # those that each token before it adds
        # Who gives blocks back now: how far its positions lie behind those of the list in hand,
        # and what tells boundaries.
        ("offset", np.int64),
        ("run_tokens", np.int64),
        ("ahead_tokens", np.int64),
        ("num_prompt", np.int64),
        ("junction", np.int64),
        ("keep_priority", np.int64),
        ("keep_tokens", np.int64),
        # What the policy did wrong first.
        ("wrong", np.int64),
        ("wrong_call", np.int64),
        ("wrong_block", np.int64),
    ],
    align=True,
)
KNOWN_ROW = np.dtype(
    [
        ("key", np.int64),  # of the content this is about; it is void where the block has another
        ("score", np.float64),
        ("last_hit_s", np.float64),
        ("num_hits", np.int32),
        ("ghost_tag", np.int32),
        ("ghost_age", np.int32),
        ("chain", np.int32),  # in which the block waits; -1 for none
    ],
    align=True,
)
HEAP_ROW = np.dtype(
    [
        ("score", np.float64),
        ("number", np.int64),  # pushes are numbered: the order among equals
        ("item", np.int32),  # what stands in this place: a chain, or in the second heap a block
        # Of the chain, or in the second heap the block, with this row's number:
        ("place", np.int32),  # where it stands; -1 for nowhere
        ("first", np.int32),  # block of the chain; of an unused one, the next unused
        ("last", np.int32),
    ],
    align=True,
)
GHOST_ROW = np.dtype([("key", np.int64), ("tag", np.int64), ("number", np.int64)], align=True)
TAG_ROW = np.dtype([("tag", np.int64)])
"""How each row of a full form begins."""
NUM_TAGS = 8
GHOST_WAYS = 4
"""Places a content can have among the ghosts; the oldest of them is forgotten for another."""

RAISED, NOT_A_NUMBER, IN_USE, NO_BLOCK = 1, 2, 3, 4
GIVEN_BACK, ASK_AGAIN, FOUND_AGAIN, NEXT_OUT = range(4)
CALLS = ("given_back", "ask_again", "found_again", "next_out")

order_at = rows_at(ORDER_ROW)
facts_at = rows_at(BLOCK_ROW_FACTS)
known_at = rows_at(KNOWN_ROW)
heap_at = rows_at(HEAP_ROW)
ghosts_at = rows_at(GHOST_ROW)
tags_at = rows_at(TAG_ROW)


# --- two heaps of four children a node, in one array: places of the second lie behind the first ---


@njit_apart
def _settle(heap: Facts, base: int, size: int, place: int) -> None:
    """Move the entry at a place up or down until it stands right."""
    score, number, item = (
        heap[base + place].score,
        heap[base + place].number,
        heap[base + place].item,
    )
    while place > 0:
        above = (place - 1) >> 2
        row = heap[base + above]
        if row.score < score or (row.score == score and row.number < number):
            break
        heap[base + place].score = row.score
        heap[base + place].number = row.number
        heap[base + place].item = row.item
        heap[base + row.item].place = place
        place = above
    while True:
        first = 4 * place + 1
        if first >= size:
            break
        least = first
        for child in range(first + 1, min(first + 4, size)):
            if heap[base + child].score < heap[base + least].score or (
                heap[base + child].score == heap[base + least].score
                and heap[base + child].number < heap[base + least].number
            ):
                least = child
        row = heap[base + least]
        if score < row.score or (score == row.score and number < row.number):
            break
        heap[base + place].score = row.score
        heap[base + place].number = row.number
        heap[base + place].item = row.item
        heap[base + row.item].place = place
        place = least
    heap[base + place].score = score
    heap[base + place].number = number
    heap[base + place].item = item
    heap[base + item].place = place


@njit
def push(heap: Facts, base: int, size: int, item: int, score: float, number: int) -> None:
    """Enter an item behind ``size`` others."""
    heap[base + size].score = score
    heap[base + size].number = number
    heap[base + size].item = item
    _settle(heap, base, size + 1, size)


@njit
def drop(heap: Facts, base: int, size: int, item: int) -> None:
    """Take an item out of ``size`` entries."""
    place = heap[base + item].place
    heap[base + item].place = -1
    last = heap[base + size - 1]
    if place < size - 1:
        heap[base + place].score = last.score
        heap[base + place].number = last.number
        heap[base + place].item = last.item
        _settle(heap, base, size - 1, place)


# --- ghosts: what was evicted, and how long ago ---


@njit
def first_place(mask: int, key: int, ways: int) -> int:
    """The first of the ``ways`` places that a key can have in a table of ``mask + 1`` sets."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    place: int = np.int64(mixed & np.uint64(mask))  # type: ignore[assignment]
    return place * ways


@njit_apart
def remember(address: int, key: int, tag: int) -> None:
    """A content is evicted. Behind the ghosts stands how many had each tag."""
    order = order_at(address, 1)[0]
    num = (order.ghosts_mask + 1) * GHOST_WAYS
    ghosts = ghosts_at(order.ghosts, num + NUM_TAGS)
    tag = min(max(tag, 0), NUM_TAGS - 1)
    ghosts[num + tag].number += 1
    start = first_place(order.ghosts_mask, key, GHOST_WAYS)
    place = start
    for other in range(start, start + GHOST_WAYS):
        if ghosts[other].key == key or ghosts[other].key == 0:
            place = other
            break
        if ghosts[other].number < ghosts[place].number:
            place = other
    ghosts[place].key = key
    ghosts[place].tag = tag
    ghosts[place].number = ghosts[num + tag].number


@njit_apart
def recall(address: int, block: int, key: int) -> None:
    """A content is there again: what was noted of it when it was evicted."""
    order = order_at(address, 1)[0]
    num = (order.ghosts_mask + 1) * GHOST_WAYS
    ghosts = ghosts_at(order.ghosts, num + NUM_TAGS)
    known = known_at(order.blocks, order.num_blocks)[block]
    start = first_place(order.ghosts_mask, key, GHOST_WAYS)
    for place in range(start, start + GHOST_WAYS):
        if ghosts[place].key == key:
            known.ghost_tag = ghosts[place].tag
            known.ghost_age = ghosts[num + ghosts[place].tag].number - ghosts[place].number
            ghosts[place].key = 0
            return
