"""Blocks for a sequence of a cache with groups of states: whole or not at all."""

from __future__ import annotations

import numpy as np

from kvsim.cache.block_pool import FREE, NUM_BLOCKS, WATCHED, Pool, Rows, forget_all, touch_run
from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Ints
from kvsim.cache.coordinator import (
    NO_ROOM,
    NOT_FIRST,
    STALE_HIT,
    TAKEN,
    Arrays,
    assemble,
    seat,
)
from kvsim.cache.groups import Tables, adopt_hit, give_back_all, leave_window, note_taker
from kvsim.cache.hybrid import collect_group
from kvsim.cache.progress import note_leave
from kvsim.cache.spec import MAMBA, scheduler_block_size
from kvsim.cache.state_entry import cache_hybrid
from kvsim.cache.state_tables import (
    ALIGN,
    METER_SIZE,
    NUM_TAKEN,
    OFFER_COLUMNS,
    STATE_ROW,
    STEP,
    States,
    can_export,
    drop_aliases,
    give_back_states,
    in_table,
    leave_states,
    note_copy,
    resumable,
    take_one,
    take_states,
)
from kvsim.jit import njit, njit_apart


def make_states(num_blocks: int, num_groups: int, most_taken: int) -> States:
    """What a cache keeps for its groups of states.

    Args:
        num_blocks: of the pool.
        num_groups: of the cache.
        most_taken: blocks that an allocation can take at most.
    """
    return States(
        np.zeros((0, num_groups), dtype=STATE_ROW),
        np.zeros(num_blocks, dtype=np.int64),
        np.zeros(num_blocks, dtype=np.int32),
        np.zeros((0, 3), dtype=np.int32),
        np.zeros(most_taken, dtype=np.int32),
        np.array([1, *[0] * (METER_SIZE - 1)], dtype=np.int64),
        np.zeros((0, OFFER_COLUMNS), dtype=np.int64),
    )


def state_rules(config: CacheConfig, has_eagle_groups: bool) -> tuple[int, ...]:
    """The entries of ``RULES_ROW`` that are about groups of states; 0 each where there is none."""
    states = [group for group in config.groups if group.kind == MAMBA]
    if not states:
        return (0,) * 7
    fine = config.hits_end_inside_blocks
    unit = config.hash_block_tokens if fine else scheduler_block_size(config.groups)
    alignments = [group.checkpoint_alignment for group in states]
    return (
        unit,
        fine,
        config.use_eagle,
        config.shared_prefix_checkpoint and fine and has_eagle_groups,
        not any(group.one_state for group in states),
        min(group.block_size for group in config.groups),
        0 if None in alignments else alignments[0] or 0,
    )


@njit
def missing_states(
    tables: Tables,
    states: States,
    rules: Rows,
    slot: int,
    group: int,
    start: int,
    end: int,
    held: int,
    exports_from: int,
    notes: bool,
) -> int:
    """Blocks a group of states lacks for a chunk; below 0 where it holds more than it needs.

    Args:
        tables: the block tables.
        states: of the cache.
        rules: one ``RULES_ROW``.
        slot: the sequence.
        group: the group.
        start: tokens computed before the chunk.
        end: tokens after it.
        held: positions of its table, the hit's included.
        exports_from: a chunk that ends before so many tokens keeps no checkpoint.
        notes: the chunk's checkpoint is written down.
    """
    row = tables.groups[group]
    state = states.rows[slot, group]
    missing: int = -(-end // row.block_size) + row.num_drafts - held
    if row.states != ALIGN:
        return max(0, missing)
    partial = 1 if state.partial >= 0 else 0
    if partial != 0:
        missing = max(missing, 0) + 1
    position = resumable(rules, end, rules[0].hit_unit)
    column = -(-end // row.block_size) - 2
    length = tables.tables[slot, group].length
    exports = (
        end >= exports_from
        and can_export(start, end, position, rules[0].hash_block_size, row.block_size, row.exports)
        and column >= 0
        and (
            in_table(tables, slot, group, column) == 0
            or (state.allocated != 0 and column >= length - row.num_drafts)
        )
    )
    if notes:
        state.checkpoint = position if exports else 0
        state.checkpoint_column = column
    most = 1 + partial + (1 if exports and position > 0 else 0)
    if state.allocated == 0:
        most += row.num_drafts
    return min(missing, most)


@njit_apart
def _missing(
    tables: Tables,
    states: States,
    rules: Rows,
    slot: int,
    start: int,
    main_end: int,
    end: int,
    hit: int,
    exports_from: int,
    whole: bool,
) -> int:
    """Blocks that all groups lack.

    Args:
        tables: the block tables.
        states: of the cache.
        rules: one ``RULES_ROW``.
        slot: the sequence.
        start: tokens computed before the chunk.
        main_end: tokens after it.
        end: the same with slots for drafts.
        hit: tokens of the hit to be taken along; -1 where it holds blocks already.
        exports_from: a chunk that ends before so many tokens keeps no checkpoint.
        whole: it is the whole sequence that is asked for: window groups count up to their cap.
    """
    missing = 0
    for group in range(len(tables.groups)):
        row = tables.groups[group]
        held = tables.tables[slot, group].length
        if hit != NOT_FIRST:
            held = -(-hit // row.block_size)
        if row.states != 0:
            until = main_end if row.states == ALIGN else end
            lacks = missing_states(
                tables, states, rules, slot, group, start, until, held, exports_from, not whole
            )
            missing += max(0, lacks)
            continue
        required = -(-end // row.block_size)
        if whole:
            required = min(required, row.cap)
        missing += max(0, required - held)
        if states.rows[slot, group].partial >= 0:
            missing += 1
    return missing


@njit_apart
def starts_too_early(core_pool: Pool, tables: Tables, states: States, slot: int, hit: int) -> bool:
    """Whether the hit ends in a state that this step computes."""
    for group in range(len(tables.groups)):
        row = tables.groups[group]
        if row.states == ALIGN and hit > 0:
            column = -(-hit // row.block_size) - 1
            block = tables.rings[slot, row.ring + (column & row.ring_mask)]
            if states.stamps[block] == states.meter[STEP] and core_pool.blocks[block].key != 0:
                return True
    return False


@njit_apart
def take_full(pool: Pool, tables: Tables, states: States, slot: int, group: int, end: int) -> None:
    """Extend a table of full attention or a window; a hit inside a block is copied first."""
    row = tables.groups[group]
    state = states.rows[slot, group]
    table = tables.tables[slot, group]
    if pool.totals[WATCHED] != 0:
        note_taker(pool, tables, slot, group)
    if state.partial >= 0:
        place = row.ring + (state.partial & row.ring_mask)
        source: int = tables.rings[slot, place]
        copy = take_one(pool, states, group)
        tables.rings[slot, place] = copy
        note_copy(pool, states, group, source, copy, copy)
        state.partial = -1
    table.first_new = table.length
    for column in range(table.length, -(-end // row.block_size)):
        block = take_one(pool, states, group)
        tables.rings[slot, row.ring + (column & row.ring_mask)] = block
        table.length = column + 1


@njit_apart
def allocate_hybrid(
    arrays: Arrays,
    slot: int,
    num_new: int,
    hit_tokens: int,
    lookahead: int,
    full_fit: bool,
    num_reserved: int,
    watermark: int,
) -> int:
    """``allocate`` in a cache with groups of states; see there."""
    core = assemble(arrays)
    pool, tables, rules, states = core.pool, core.tables, core.rules, core.states
    num_groups = len(tables.groups)
    sequence = tables.sequences[slot]
    states.meter[NUM_TAKEN] = 0
    start = sequence.num_computed
    before = sequence.num_computed
    idle = 0  # blocks of the hit that lie in the free queue
    if hit_tokens != NOT_FIRST:
        start = hit_tokens
        before = 0
        for group in range(num_groups):
            found = collect_group(pool, tables, states, rules, slot, group, hit_tokens)
            if found < 0:
                return STALE_HIT
            idle += found
        if starts_too_early(pool, tables, states, slot, hit_tokens):
            return NO_ROOM
    exports_from = 0
    if rules[0].retention_interval == 0:
        exports_from = max(sequence.num_prompt, sequence.num_tokens - 1)
    most = rules[0].max_model_len
    if full_fit:
        whole = min(sequence.num_tokens, most)
        missing = _missing(
            tables, states, rules, slot, start, whole, whole, hit_tokens, exports_from, True
        )
        if idle + missing > pool.totals[FREE] - watermark:
            return NO_ROOM
    if hit_tokens == NOT_FIRST:
        processed = min(start, most) - sequence.in_flight
        for group in range(num_groups):
            if tables.groups[group].states != 0:
                leave_states(pool, tables, slot, group, processed)
            else:
                leave_window(pool, tables, slot, group, processed)
    main_end = start + num_new
    end = min(main_end + lookahead, most)
    missing = _missing(
        tables, states, rules, slot, start, main_end, end, hit_tokens, exports_from, False
    )
    if idle + missing > pool.totals[FREE] - num_reserved - watermark:
        return NO_ROOM
    if hit_tokens != NOT_FIRST:
        for group in range(num_groups):
            _adopt(pool, tables, states, slot, group, hit_tokens)
    for group in range(num_groups):
        row = tables.groups[group]
        if row.states != 0:
            until = main_end if row.states == ALIGN else end
            take_states(pool, tables, states, slot, group, until)
        else:
            take_full(pool, tables, states, slot, group, end)
    sequence.num_computed = start + num_new
    if rules[0].caching != 0:
        cache_hybrid(arrays, slot, min(start, most) + num_new, before)
    return TAKEN


@njit_apart
def _adopt(
    pool: Pool, tables: Tables, states: States, slot: int, group: int, hit_tokens: int
) -> None:
    """Hold the blocks that ``collect_group`` wrote."""
    row = tables.groups[group]
    if row.is_full == 0 and row.states == 0:
        adopt_hit(pool, tables, slot, group, hit_tokens)
        return
    table = tables.tables[slot, group]
    table.length = -(-hit_tokens // row.block_size)
    table.num_looked_at = hit_tokens // row.block_size
    ring = tables.rings[slot, row.ring : row.ring + row.ring_mask + 1]
    touch_run(pool, ring, row.ring_mask, table.first, table.length)


@njit_apart
def allocate_hybrid_first(
    arrays: Arrays,
    slot: int,
    uids: Ints,
    ends: Ints,
    num_prompt: int,
    junction: int,
    num_new: int,
    hit_tokens: int,
    lookahead: int,
    full_fit: bool,
    num_reserved: int,
    watermark: int,
) -> int:
    """Seat a sequence and allocate with its hit."""
    if hit_tokens > (ends[-1] if len(ends) > 0 else 0):
        return STALE_HIT  # of another sequence
    seat(arrays, slot, uids, ends, num_prompt, junction)
    return allocate_hybrid(
        arrays, slot, num_new, hit_tokens, lookahead, full_fit, num_reserved, watermark
    )


@njit_apart
def forget_hybrid(arrays: Arrays) -> bool:
    """Empty the index, if no block is in use."""
    core = assemble(arrays)
    pool, states = core.pool, core.states
    if pool.totals[FREE] != pool.totals[NUM_BLOCKS] - 1:
        return False
    for block in range(len(states.aliases)):
        drop_aliases(pool, states, block, False)
    return forget_all(pool)


@njit_apart
def release_hybrid(arrays: Arrays, slot: int) -> None:
    """Give back everything a sequence holds: group after group, each from its last block."""
    core = assemble(arrays)
    pool, tables = core.pool, core.tables
    note_leave(pool, tables, slot)
    for group in range(len(tables.groups)):
        if tables.groups[group].states != 0:
            table = tables.tables[slot, group]
            give_back_states(pool, tables, slot, group, table.first, table.length)
            table.length = 0
            table.first = 0
            table.num_looked_at = 0
        else:
            give_back_all(pool, tables, slot, group)
    tables.sequences[slot].num_computed = 0
    tables.sequences[slot].serial += 1
