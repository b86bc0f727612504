"""Blocks for a prefix that comes from outside: taken before it arrives, cached once it has.

And what else the engine does with blocks only where a connector is there.
"""

from __future__ import annotations

from kvsim.cache.block_pool import FREE, touch_run
from kvsim.cache.content import Ints
from kvsim.cache.coordinator import (
    NO_ROOM,
    STALE_HIT,
    TAKEN,
    Arrays,
    assemble,
    cache_computed,
    seat,
)
from kvsim.cache.groups import (
    Tables,
    collect_hit,
    leave_window,
    note_hit,
    num_skipped,
    take_blocks,
)
from kvsim.jit import njit


@njit
def allocate_load(
    arrays: Arrays,
    slot: int,
    uids: Ints,
    ends: Ints,
    num_prompt: int,
    junction: int,
    hit_tokens: int,
    num_external: int,
    full_fit: bool,
    num_reserved: int,
    watermark: int,
) -> int:
    """Seat a sequence with its hit, and take the blocks that tokens from outside are loaded into.

    Positions that the window will have left once the tokens are there get no block. The hits of all
    groups are held before any block is taken, so that one group's cannot evict another's. Nothing
    is entered in the index: that is for ``load_arrived``.

    Args:
        arrays: the cache.
        slot: an idle one.
        uids: the sequence's spans.
        ends: their ends in tokens.
        num_prompt: tokens of the prompt.
        junction: where siblings diverge, in tokens; 0 for none.
        hit_tokens: the local hit.
        num_external: tokens beyond it that are loaded.
        full_fit: only if the whole sequence fits, window groups counted up to their cap.
        num_reserved: blocks to be left free for what is under way already.
        watermark: more blocks to be left free, beside the whole sequence as well.

    Returns:
        ``TAKEN``, or ``NO_ROOM`` or ``STALE_HIT`` where nothing was taken.
    """
    core = assemble(arrays)
    pool, tables, rules = core.pool, core.tables, core.rules[0]
    if hit_tokens > (ends[-1] if len(ends) > 0 else 0):
        return STALE_HIT  # of another sequence
    seat(arrays, slot, uids, ends, num_prompt, junction)
    sequence = tables.sequences[slot]
    total = min(hit_tokens + num_external, rules.max_model_len)
    idle = 0
    for group in range(len(tables.groups)):
        if collect_hit(pool, tables, slot, group, hit_tokens) < 0:
            return STALE_HIT
        row = tables.groups[group]
        table = tables.tables[slot, group]
        table.first = max(table.first, _num_skipped(tables, group, total))
        for index in range(table.first, hit_tokens // row.block_size):
            block = tables.rings[slot, row.ring + (index & row.ring_mask)]
            if pool.blocks[block].num_refs == 0:
                idle += 1
    if full_fit:
        whole = min(sequence.num_tokens, rules.max_model_len)
        missing = _missing(tables, whole, hit_tokens, total, True)
        if idle + missing > pool.totals[FREE] - watermark:
            return NO_ROOM
    missing = _missing(tables, total, hit_tokens, total, False)
    if idle + missing > pool.totals[FREE] - num_reserved - watermark:
        return NO_ROOM
    for group in range(len(tables.groups)):
        row = tables.groups[group]
        table = tables.tables[slot, group]
        num_hit = hit_tokens // row.block_size
        ring = tables.rings[slot, row.ring : row.ring + row.ring_mask + 1]
        touch_run(pool, ring, row.ring_mask, table.first, num_hit)
        table.length = max(num_hit, _num_skipped(tables, group, total))
        table.num_looked_at = table.length
    if hit_tokens > 0:
        note_hit(pool, tables, slot, hit_tokens)
    for group in range(len(tables.groups)):
        take_blocks(pool, tables, slot, group, total)
    sequence.num_computed = total
    return TAKEN


@njit
def _num_skipped(tables: Tables, group: int, num_tokens: int) -> int:
    """Positions that a group's window has left once so many tokens are computed."""
    return max(0, num_skipped(tables.groups[group], num_tokens))


@njit
def _missing(tables: Tables, num_tokens: int, hit_tokens: int, total: int, capped: bool) -> int:
    """Blocks to be taken so that every group covers a number of tokens after a load."""
    missing = 0
    for group in range(len(tables.groups)):
        row = tables.groups[group]
        required = -(-num_tokens // row.block_size)
        if capped:
            required = min(required, row.cap)
        held = max(hit_tokens // row.block_size, _num_skipped(tables, group, total))
        missing += max(0, required - held)
    return missing


@njit
def load_arrived(arrays: Arrays, slot: int) -> None:
    """What was loaded is there: it is entered in the index.

    Where that is the whole sequence, its last token is computed again, so that there is a next one.
    """
    core = assemble(arrays)
    sequence = core.tables.sequences[slot]
    if core.rules[0].caching != 0:
        cache_computed(arrays, slot)
    if sequence.num_computed == sequence.num_tokens:
        sequence.num_computed -= 1


@njit
def leave_windows(arrays: Arrays, slot: int) -> None:
    """Give back what the windows have left, group after group.

    Without a connector that waits for the next allocation. A finished request has none: what its
    windows left goes before everything else it held, and is evicted first.
    """
    core = assemble(arrays)
    sequence = core.tables.sequences[slot]
    computed = sequence.num_computed - sequence.in_flight
    for group in range(len(core.tables.groups)):
        leave_window(core.pool, core.tables, slot, group, computed)


@njit
def blocks_left(arrays: Arrays, slots: Ints, ahead: int) -> int:
    """Blocks that sequences still need until all their tokens are computed.

    Args:
        arrays: the cache.
        slots: int64, the sequences.
        ahead: tokens more that there is to be room for.
    """
    core = assemble(arrays)
    tables, rules = core.tables, core.rules[0]
    left = 0
    for slot in slots:
        whole = min(tables.sequences[slot].num_tokens, rules.max_model_len) + ahead
        for group in range(len(tables.groups)):
            row = tables.groups[group]
            required = min(-(-whole // row.block_size), row.cap)
            left += max(0, required - tables.tables[slot, group].length)
    return left
