"""Blocks for a prefix that comes from outside, in a cache with groups of states.

A group of states loads one block: the state that the prefix ends with. What it has of a local hit
is not taken along. The hit may be one that was cut back to whole blocks, because more than the cut
part can be loaded: then no state of it is of use to anybody.
"""

from __future__ import annotations

from kvsim.cache.block_pool import FREE, WATCHED, Pool, find_block, touch_run
from kvsim.cache.content import Ints, block_key, span_at
from kvsim.cache.coordinator import NO_ROOM, STALE_HIT, TAKEN, Arrays, assemble, seat
from kvsim.cache.groups import Tables, leave_window, note_taker
from kvsim.cache.hybrid import collect_group
from kvsim.cache.state_blocks import missing_states, starts_too_early, take_full
from kvsim.cache.state_entry import cache_hybrid
from kvsim.cache.state_tables import NUM_TAKEN, States, leave_states, take_one, take_states
from kvsim.jit import njit, njit_apart


@njit_apart
def allocate_hybrid_load(
    arrays: Arrays,
    slot: int,
    uids: Ints,
    ends: Ints,
    num_prompt: int,
    junction: int,
    hit_tokens: int,
    is_cut: bool,
    num_external: int,
    full_fit: bool,
    num_reserved: int,
    watermark: int,
) -> int:
    """``allocate_load`` in a cache with groups of states; see there.

    Args:
        arrays: the cache.
        slot: an idle one.
        uids: the sequence's spans.
        ends: their ends in tokens.
        num_prompt: tokens of the prompt.
        junction: where siblings diverge, in tokens; 0 for none.
        hit_tokens: the local hit, whole scheduler blocks.
        is_cut: the lookup found more: a part of the next block.
        num_external: tokens beyond it that are loaded.
        full_fit: only if the whole sequence fits, window groups counted up to their cap.
        num_reserved: blocks to be left free for what is under way already.
        watermark: more blocks to be left free, beside the whole sequence as well.

    Returns:
        ``TAKEN``, or ``NO_ROOM`` or ``STALE_HIT`` where nothing was taken.
    """
    core = assemble(arrays)
    pool, tables, rules, states = core.pool, core.tables, core.rules, core.states
    num_groups = len(tables.groups)
    if hit_tokens > (ends[-1] if len(ends) > 0 else 0):
        return STALE_HIT  # of another sequence
    seat(arrays, slot, uids, ends, num_prompt, junction)
    sequence = tables.sequences[slot]
    states.meter[NUM_TAKEN] = 0
    most = rules[0].max_model_len
    total = min(hit_tokens + num_external, most)
    idle = 0
    for group in range(num_groups):
        row = tables.groups[group]
        tables.tables[slot, group].length = 0
        if row.states != 0 and (is_cut or hit_tokens == 0):
            state = states.rows[slot, group]
            state.partial, state.checkpoint, state.allocated = -1, 0, 0
            found = 0
        elif row.states != 0 or row.is_full != 0:
            found = collect_group(pool, tables, states, rules, slot, group, hit_tokens)
        else:
            found = _collect_window(pool, tables, states, slot, group, hit_tokens, total)
        if found < 0:
            return STALE_HIT
        idle += found
    if not is_cut and starts_too_early(pool, tables, states, slot, hit_tokens):
        return NO_ROOM
    exports_from = 0
    if rules[0].retention_interval == 0:
        exports_from = max(sequence.num_prompt, sequence.num_tokens - 1)
    if full_fit:
        whole = min(sequence.num_tokens, most)
        missing = 0
        for group in range(num_groups):
            missing += _lacks(arrays, slot, group, whole, hit_tokens, total, exports_from, True)
        if idle + missing > pool.totals[FREE] - watermark:
            return NO_ROOM
    missing = 0
    for group in range(num_groups):
        missing += _lacks(arrays, slot, group, total, hit_tokens, total, exports_from, False)
    if idle + missing > pool.totals[FREE] - num_reserved - watermark:
        return NO_ROOM
    for group in range(num_groups):
        _adopt(pool, tables, slot, group, hit_tokens, total)
    for group in range(num_groups):
        if tables.groups[group].states != 0:
            if pool.totals[WATCHED] != 0:
                note_taker(pool, tables, slot, group)
            table = tables.tables[slot, group]
            place = tables.groups[group].ring + (table.length & tables.groups[group].ring_mask)
            tables.rings[slot, place] = take_one(pool, states, group)
            table.length += 1
        else:
            take_full(pool, tables, states, slot, group, total)
    for group in range(num_groups):
        if tables.groups[group].states != 0:  # blocks for drafts
            take_states(pool, tables, states, slot, group, total)
    sequence.num_computed = total
    return TAKEN


@njit
def _num_skipped(tables: Tables, group: int, num_tokens: int) -> int:
    """Positions that need no block once so many tokens are computed."""
    row = tables.groups[group]
    skipped = 0
    if row.states != 0:
        skipped = (num_tokens - 1) // row.block_size
    elif row.sliding_window != 0:
        skipped = max(0, num_tokens - row.sliding_window + 1) // row.block_size
    return skipped


@njit_apart
def _collect_window(
    pool: Pool, tables: Tables, states: States, slot: int, group: int, hit_tokens: int, total: int
) -> int:
    """Write a window's blocks of a hit that are of use after a load, without taking them."""
    row = tables.groups[group]
    size, ahead = row.block_size, row.key_lookahead
    num = hit_tokens // size
    skipped = _num_skipped(tables, group, total)
    first = max(0, num - row.num_to_resume, skipped)
    states.rows[slot, group].partial = -1
    tables.tables[slot, group].first = first
    uids, ends = tables.spans[slot, 0], tables.spans[slot, 1]
    num_spans = tables.sequences[slot].num_spans
    idle = 0
    for index in range(first, num):
        uid = uids[span_at(ends, num_spans, (index + 1) * size + ahead)]
        block = find_block(pool, block_key(uid, index + 1, group))
        if block == 0:
            return -1
        tables.rings[slot, row.ring + (index & row.ring_mask)] = block
        if pool.blocks[block].num_refs == 0:
            idle += 1
    return idle


@njit_apart
def _lacks(
    arrays: Arrays,
    slot: int,
    group: int,
    num_tokens: int,
    hit_tokens: int,
    total: int,
    exports_from: int,
    whole: bool,
) -> int:
    """Blocks to be taken so that a group covers a number of tokens after a load."""
    core = assemble(arrays)
    tables, states, rules = core.tables, core.states, core.rules
    row = tables.groups[group]
    held = hit_tokens // row.block_size
    if row.states != 0:
        lacks = missing_states(
            tables, states, rules, slot, group, total, num_tokens, held, exports_from, not whole
        )
        return max(0, lacks)
    required = -(-num_tokens // row.block_size)
    if whole:
        required = min(required, row.cap)
    lacking: int = required - max(held, _num_skipped(tables, group, total))
    return max(0, lacking)


@njit
def _adopt(pool: Pool, tables: Tables, slot: int, group: int, hit_tokens: int, total: int) -> None:
    """Hold the blocks of a hit that are of use after a load."""
    row = tables.groups[group]
    table = tables.tables[slot, group]
    skipped = _num_skipped(tables, group, total)
    num_hit = hit_tokens // row.block_size
    if row.states != 0:
        table.first = skipped
        num_hit = skipped
    ring = tables.rings[slot, row.ring : row.ring + row.ring_mask + 1]
    touch_run(pool, ring, row.ring_mask, table.first, num_hit)
    table.length = max(num_hit, skipped)
    table.num_looked_at = table.length


@njit_apart
def hybrid_load_arrived(arrays: Arrays, slot: int) -> None:
    """``load_arrived`` in a cache with groups of states."""
    core = assemble(arrays)
    sequence = core.tables.sequences[slot]
    if core.rules[0].caching != 0:
        cache_hybrid(arrays, slot, sequence.num_computed, sequence.num_computed)
    if sequence.num_computed == sequence.num_tokens:
        sequence.num_computed -= 1


@njit_apart
def leave_hybrid(arrays: Arrays, slot: int) -> None:
    """``leave_windows`` in a cache with groups of states, which are left as well."""
    core = assemble(arrays)
    pool, tables = core.pool, core.tables
    sequence = tables.sequences[slot]
    computed = sequence.num_computed - sequence.in_flight
    for group in range(len(tables.groups)):
        if tables.groups[group].states != 0:
            leave_states(pool, tables, slot, group, computed)
        else:
            leave_window(pool, tables, slot, group, computed)


@njit_apart
def hybrid_blocks_left(arrays: Arrays, slots: Ints, starts: Ints, ahead: int) -> int:
    """``blocks_left`` in a cache with groups of states.

    Args:
        arrays: the cache.
        slots: int64, the sequences.
        starts: int64, tokens of each that were computed before the step being planned.
        ahead: tokens more that attention is to have room for.
    """
    core = assemble(arrays)
    tables, states, rules = core.tables, core.states, core.rules
    left = 0
    for i in range(len(slots)):
        slot = slots[i]
        sequence = tables.sequences[slot]
        whole = min(sequence.num_tokens, rules[0].max_model_len)
        exports_from = 0
        if rules[0].retention_interval == 0:
            exports_from = max(sequence.num_prompt, sequence.num_tokens - 1)
        for group in range(len(tables.groups)):
            row = tables.groups[group]
            held = tables.tables[slot, group].length
            if row.states != 0:
                left += max(
                    0,
                    missing_states(
                        tables,
                        states,
                        rules,
                        slot,
                        group,
                        starts[i],
                        whole,
                        held,
                        exports_from,
                        False,
                    ),
                )
            else:
                left += max(0, min(-(-(whole + ahead) // row.block_size), row.cap) - held)
    return left
