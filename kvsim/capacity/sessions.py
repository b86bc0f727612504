"""How many sessions stay cached, and what comes back of them: closed forms.

A finished request leaves the blocks that are worth keeping (`kvsim.policies.retention`). Those of
its end, full attention and the runs at its replay boundary, go last into the free queue; runs at
earlier boundaries stand before them. So of N distinct requests served one after another the first
is still whole if the N - 1 later ones, with what the last of them holds only while it runs, fit in
what the first one's end leaves of the pool:

    (N - 1) x left behind + held meanwhile + end of the first <= blocks - 1

The engine holds less meanwhile than it counts at admission, so that N is a lower bound; without
the term it is an upper one. Requests are alone in the pool; the tests hold both bounds against the
simulator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvsim.capacity.requests import blocks_of_group
from kvsim.catalog import KVGroup, Model
from kvsim.policies.retention import reachable_block_mask


@dataclass(frozen=True)
class Caching:
    """How a pool keeps what requests leave.

    Attributes:
        unit_tokens: what hits are multiples of.
        retention_interval: tokens between kept boundaries, 0 or None (dense).
        reuses_uncached: blocks that nothing is cached in are taken first; False, as before 0.23,
            makes every block that a request took push out an older one.
        max_in_flight_tokens: tokens scheduled and not yet processed.
        step_tokens: tokens of a step, where states end.
    """

    unit_tokens: int
    retention_interval: int | None
    reuses_uncached: bool
    max_in_flight_tokens: int
    step_tokens: int


@dataclass(frozen=True)
class SessionBlocks:
    """Blocks of one request, all groups together.

    Attributes:
        left: kept when it has ended.
        end: those of them that the longest hit needs.
        meanwhile: held beyond these only while it runs, at most.
    """

    left: int
    end: int
    meanwhile: int


@dataclass(frozen=True)
class Hits:
    """Tokens that later requests find, all of the session's blocks being there.

    Attributes:
        resend: of the same prompt once more.
        branch: of a prompt that shares the first ``branch_tokens``, seen for the first time.
        branch_tokens: likewise.
        next_turn: of the prompt, its answer and something new.
    """

    resend: int
    branch: int
    branch_tokens: int
    next_turn: int


def session_blocks(model: Model, caching: Caching, num_tokens: int) -> SessionBlocks:
    """What a request of so many prompt tokens leaves, with an answer of one token."""
    left = end = meanwhile = 0
    for group in model.groups:
        whole, last = _left(group, caching, num_tokens)
        left, end = left + whole, end + last
        if group.kind in ("full", "chunked_local"):
            meanwhile += -(-num_tokens // group.block_size) - whole
        else:
            held = blocks_of_group(group, num_tokens, caching.max_in_flight_tokens)
            meanwhile += min(held, -(-num_tokens // group.block_size))
    if not caching.reuses_uncached:
        left = sum(-(-num_tokens // group.block_size) for group in model.groups)
        meanwhile = 0
    return SessionBlocks(left, end, max(0, meanwhile))


def _left(group: KVGroup, caching: Caching, num_tokens: int) -> tuple[int, int]:
    """Blocks of a group that are kept, and those of them that the longest hit needs."""
    unit, size = caching.unit_tokens, group.block_size
    # Blocks enter the cache up to whole units of hits only.
    full_blocks = num_tokens // unit * unit // size
    replay = (num_tokens - 1) // unit * unit
    if group.kind == "full":
        return full_blocks, replay // size
    if group.attention_chunk_size is not None:
        chunk = group.attention_chunk_size
        return full_blocks, (replay - replay // chunk * chunk) // size
    if group.kind == "mamba":
        step = max(size, caching.step_tokens // size * size)
        interval = caching.retention_interval
        every = 0 if interval == 0 else math.lcm(step, interval or size)
        ends = replay // every if every else 0
        extra = 0 if every and replay % every == 0 else int(replay > 0)
        return ends + extra, int(replay > 0)
    mask = reachable_block_mask(
        "sliding_window",
        0,
        full_blocks,
        size,
        unit,
        caching.retention_interval,
        (num_tokens - 1,),
        sliding_window=group.sliding_window,
    )
    needed = -(-((group.sliding_window or 1) - 1) // size)
    last = min(needed, replay // size)
    return (full_blocks if mask is None else int(mask.sum())), last


def sessions_cached(
    model: Model, caching: Caching, num_blocks: int, num_tokens: int
) -> tuple[int, int]:
    """The most distinct requests of a length, one after another, with the first still whole.

    Args:
        model: its groups.
        caching: how the pool keeps blocks.
        num_blocks: of the pool, block 0 included.
        num_tokens: of each prompt.

    Returns:
        A lower and an upper bound; 0 where not even one is kept whole.
    """
    of_one = session_blocks(model, caching, num_tokens)
    room = num_blocks - 1

    def most(meanwhile: int) -> int:
        if of_one.end > room or of_one.end == 0:
            return 0
        others = (room - of_one.end - meanwhile) // max(1, of_one.left)
        return 1 + max(0, others)

    return most(of_one.meanwhile), most(0)


def blocks_for_sessions(model: Model, caching: Caching, num_sessions: int, num_tokens: int) -> int:
    """The fewest blocks, block 0 included, that keep so many sessions by the lower bound."""
    of_one = session_blocks(model, caching, num_tokens)
    alone = sum(
        blocks_of_group(group, num_tokens, caching.max_in_flight_tokens) for group in model.groups
    )
    kept = of_one.end + (num_sessions - 1) * of_one.left
    meanwhile = of_one.meanwhile if num_sessions > 1 else 0
    return 1 + max(alone, kept + meanwhile)


def hits_of(model: Model, caching: Caching, num_tokens: int, answer_tokens: int) -> Hits:
    """What comes back of a session whose blocks are all there.

    Args:
        model: its groups.
        caching: how the pool keeps blocks.
        num_tokens: of its prompt.
        answer_tokens: of the answer that the next turn's prompt goes on from.
    """
    unit, interval = caching.unit_tokens, caching.retention_interval
    windows = [group for group in model.groups if group.kind not in ("full", "chunked_local")]
    kept = unit if interval is None or not windows else interval
    if any(group.kind == "mamba" for group in windows) and kept:
        step = max(unit, caching.step_tokens // unit * unit)
        kept = math.lcm(step, kept)
    resend = (num_tokens - 1) // unit * unit
    middle = num_tokens // 2
    branch = middle // kept * kept if kept else 0
    computed = num_tokens + max(0, answer_tokens - 1)
    onward = computed // kept * kept if kept else 0
    return Hits(resend, branch, middle, max(resend, onward))
