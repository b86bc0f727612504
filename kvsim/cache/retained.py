"""Retention by a policy: each boundary of a prompt is asked about, in place of an interval's rule.

A pool with such a retention has the address of its `RETAIN_ROW` in its totals, see `block_pool`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from kvsim.cache.content import Ints
from kvsim.cache.ordered_rows import first_place
from kvsim.jit import njit, njit_apart
from kvsim.policies.calling import call_policy, rows_at
from kvsim.policies.facts import RUN_ROW_FACTS, SLIDING_WINDOW

RETAIN_ROW = np.dtype(
    [
        ("keeps", np.int64),  # address of the policy's function
        ("facts", np.int64),
        ("hits", np.int64),
        ("hits_mask", np.int64),
        ("unit_tokens", np.int64),
        ("num_hits", np.int64),
        ("now_s", np.float64),
        ("wrong", np.int64),  # 1 where the policy gave no answer
        ("wrong_boundary", np.int64),
    ],
    align=True,
)
HIT_ROW = np.dtype([("key", np.int64), ("count", np.int64), ("number", np.int64)], align=True)
HIT_WAYS = 4
"""Boundaries that share places in the table of hits; the oldest of them is forgotten."""

retain_at = rows_at(RETAIN_ROW)
run_at = rows_at(RUN_ROW_FACTS)
hits_at = rows_at(HIT_ROW)


@njit_apart
def note_landing(address: int, key: int) -> None:
    """A hit has landed at the boundary of this key."""
    retain = retain_at(address, 1)[0]
    hits = hits_at(retain.hits, (retain.hits_mask + 1) * HIT_WAYS)
    retain.num_hits += 1
    start = first_place(retain.hits_mask, key, HIT_WAYS)
    place = start
    for other in range(start, start + HIT_WAYS):
        if hits[other].key == key or hits[other].key == 0:
            place = other
            break
        if hits[other].number < hits[place].number:
            place = other
    if hits[place].key != key:
        hits[place].key = key
        hits[place].count = 0
    hits[place].count += 1
    hits[place].number = retain.num_hits


@njit
def _landings(address: int, key: int) -> int:
    """How many hits have landed at the boundary of this key, as far as is remembered."""
    retain = retain_at(address, 1)[0]
    hits = hits_at(retain.hits, (retain.hits_mask + 1) * HIT_WAYS)
    start = first_place(retain.hits_mask, key, HIT_WAYS)
    for place in range(start, start + HIT_WAYS):
        if hits[place].key == key:
            count: int = hits[place].count
            return count
    return 0


@njit_apart
def tell_retention(address: int, now_s: float) -> None:
    """It is later."""
    retain_at(address, 1)[0].now_s = now_s


@njit_apart
def describe_run(
    address: int, group: int, tokens: int, run_blocks: int, num_prompt: int, cached_blocks: int
) -> None:
    """Whose boundaries are asked about next."""
    retain = retain_at(address, 1)[0]
    run = run_at(retain.facts, 1)[0]
    run.group = group
    run.kind = SLIDING_WINDOW
    run.tokens = tokens
    run.run_blocks = run_blocks
    run.prompt_tokens = num_prompt
    run.cached_blocks = cached_blocks
    run.unit_tokens = retain.unit_tokens
    run.now_s = retain.now_s


@njit_apart
def keeps_run(address: int, boundary: int, key: int, boundaries: Ints) -> bool:
    """Ask the policy whether the run before a boundary is kept.

    Args:
        address: of the ``RETAIN_ROW``.
        boundary: in tokens, a multiple of the unit.
        key: of the boundary's content.
        boundaries: int64 [4], where the prompt is replayed (two) and where siblings diverge (two),
            not yet rounded.
    """
    retain = retain_at(address, 1)[0]
    unit = retain.unit_tokens
    run = run_at(retain.facts, 1)[0]
    run.boundary_tokens = boundary
    run.is_replay = boundaries[0] // unit * unit == boundary or (
        boundaries[1] // unit * unit == boundary
    )
    run.is_junction = boundaries[2] // unit * unit == boundary or (
        boundaries[3] // unit * unit == boundary
    )
    run.in_answer = boundary > run.prompt_tokens
    run.num_hits = _landings(address, key)
    answer = call_policy(retain.keeps, retain.facts, 0, 0)
    if run.answered == 0 or math.isnan(answer):
        if retain.wrong == 0:
            retain.wrong = 1 if run.answered == 0 else 2
            retain.wrong_boundary = boundary
        return False
    return bool(answer != 0.0)


@njit
def mark(kept: npt.NDArray[np.bool_], start: int, stop: int, first: int, end: int) -> None:
    """Mark the blocks from ``first`` to ``end`` among those from ``start`` to ``stop``."""
    for block in range(max(start, first), min(stop, end)):
        kept[block - start] = True
