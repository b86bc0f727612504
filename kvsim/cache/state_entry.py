"""What is entered in the index of a cache with groups of states, once tokens are computed."""

from __future__ import annotations

from typing import Any

from kvsim.cache.block_pool import NOTED, Pool, Rows
from kvsim.cache.content import Ints
from kvsim.cache.coordinator import Arrays, assemble, note_boundaries
from kvsim.cache.groups import Tables, cache_blocks
from kvsim.cache.progress import note_progress
from kvsim.cache.state_tables import (
    ALIGN,
    States,
    aligned_chunk,
    drop_keys,
    enter_part,
    enter_whole,
    in_table,
    key_at,
    offer,
    resumable,
    stamp,
    tokens_of,
)
from kvsim.jit import njit, njit_apart


@njit
def _key(tables: Tables, rules: Rows, slot: int, group: int, position: int) -> int:
    uids, ends = tables.spans[slot, 0], tables.spans[slot, 1]
    num_spans = tables.sequences[slot].num_spans
    ahead, unit = rules[0].key_lookahead, rules[0].hash_block_size
    return key_at(uids, ends, num_spans, position, ahead, unit) | group


@njit_apart
def cache_hybrid(arrays: Arrays, slot: int, num_computed: int, computed_before: int) -> None:
    """Enter what is computed and worth keeping, group after group.

    Args:
        arrays: the cache.
        slot: the sequence.
        num_computed: tokens that are computed, as far as they are known.
        computed_before: tokens that were computed before this chunk.
    """
    core = assemble(arrays)
    pool, tables, rules, states = core.pool, core.tables, core.rules, core.states
    sequence = tables.sequences[slot]
    boundaries = core.boundaries
    num_tokens = min(num_computed, sequence.num_tokens)
    if pool.totals[NOTED] != 0:
        note_progress(pool, tables, slot, num_computed)
    known = max(0, sequence.num_tokens - rules[0].key_lookahead)
    known = known // rules[0].hash_block_size * rules[0].hash_block_size
    note_boundaries(rules[0], sequence, boundaries)
    unit = rules[0].hit_unit
    for group in range(len(tables.groups)):
        row = tables.groups[group]
        cacheable = num_tokens
        if len(tables.groups) > 1 and rules[0].fine == 0:
            cacheable = num_tokens // unit * unit
            if row.eagle != 0 and cacheable > 0:
                cacheable = min(num_tokens, cacheable + row.block_size)
        if row.states == ALIGN:
            _cache_states(
                pool,
                tables,
                states,
                rules,
                slot,
                group,
                cacheable,
                known,
                computed_before,
                boundaries,
            )
        elif row.is_full != 0:
            _cache_full(pool, tables, states, rules, slot, group, cacheable, known)
        else:
            cache_blocks(
                pool,
                tables,
                slot,
                group,
                min(cacheable, known),
                unit,
                rules[0].retention_interval,
                boundaries,
                core.kept,
            )


@njit_apart
def next_chunk(arrays: Arrays, slot: int, num_new: int, most: int) -> int:
    """``aligned_chunk`` of a sequence that runs."""
    core = assemble(arrays)
    row = core.tables.sequences[slot]
    return aligned_chunk(
        core.rules, row.num_tokens, row.num_prompt, row.junction, row.num_computed, num_new, most
    )


@njit_apart
def _cache_full(
    pool: Pool,
    tables: Tables,
    states: States,
    rules: Rows,
    slot: int,
    group: int,
    num_tokens: int,
    known: int,
) -> None:
    """Full blocks, and the one in which the prompt ends."""
    row = tables.groups[group]
    table = tables.tables[slot, group]
    sequence = tables.sequences[slot]
    size, unit = row.block_size, rules[0].hash_block_size
    end = min(num_tokens, known) // size
    for column in range(table.num_looked_at, end):
        key = _key(tables, rules, slot, group, (column + 1) * size)
        enter_whole(pool, states, in_table(tables, slot, group, column), key)
    table.num_looked_at = max(table.num_looked_at, end)
    limit = sequence.num_prompt if row.eagle != 0 else sequence.num_prompt - 1
    tail = min(limit // unit * unit, known)
    if tail <= 0 or tail > num_tokens or tail % size == 0 or tail // size >= table.length:
        return
    key = _key(tables, rules, slot, group, tail)
    enter_part(pool, states, in_table(tables, slot, group, tail // size), key, unit)


@njit
def _is_kept(rules: Rows, row: Any, column: int, junction: int, boundaries: Ints) -> bool:
    """Whether the state at the end of a block is worth keeping.

    ``boundaries`` is empty where only the interval counts.
    """
    interval = rules[0].retention_interval
    if interval < 0:
        return True
    if interval > 0:
        every = interval // row.block_size
        if every <= 1 or (column + 1) % every == 0:
            return True
    unit = rules[0].hit_unit
    for boundary in boundaries:
        if boundary >= 0 and boundary // unit * unit // row.block_size - 1 == column:
            return True
    if len(boundaries) > 0 and row.before_junction != 0 and junction >= row.block_size:
        # A sibling that diverges at the junction lands one block before it.
        before: int = (junction - row.block_size) // unit * unit // row.block_size - 1
        return before == column
    return False


@njit_apart
def _cache_states(
    pool: Pool,
    tables: Tables,
    states: States,
    rules: Rows,
    slot: int,
    group: int,
    num_tokens: int,
    known: int,
    computed_before: int,
    boundaries: Ints,
) -> None:
    """States at the ends of blocks, then the one inside a block: a checkpoint or a chunk's end."""
    row = tables.groups[group]
    table = tables.tables[slot, group]
    sequence = tables.sequences[slot]
    size = row.block_size
    start = table.num_looked_at
    end = min(num_tokens, known) // size
    for column in range(max(start, table.first), end):
        block = in_table(tables, slot, group, column)
        if block != 0 and _is_kept(rules, row, column, sequence.junction, boundaries[:3]):
            enter_whole(pool, states, block, _key(tables, rules, slot, group, (column + 1) * size))
    table.num_looked_at = max(start, end)
    if states.rows[slot, group].checkpoint > 0:
        _cache_checkpoint(pool, tables, states, rules, slot, group)
    else:
        _cache_end(pool, tables, states, rules, slot, group, num_tokens, computed_before)
    for column in range(max(start, table.first), end):
        block = in_table(tables, slot, group, column)
        if block != 0 and pool.blocks[block].key != 0:
            stamp(pool, states, block)
            offer(pool, tables, states, slot, group, block)


@njit_apart
def _cache_checkpoint(
    pool: Pool, tables: Tables, states: States, rules: Rows, slot: int, group: int
) -> None:
    """The block a state was exported to, under the position it was exported at, or under none."""
    row = tables.groups[group]
    state = states.rows[slot, group]
    sequence = tables.sequences[slot]
    size, unit = row.block_size, rules[0].hash_block_size
    position = state.checkpoint
    block = in_table(tables, slot, group, state.checkpoint_column)
    if block == 0:
        return
    kept = position == resumable(rules, sequence.num_prompt, rules[0].hit_unit)
    kept = kept or position == sequence.junction
    if not kept and position % size == 0:
        column = position // size - 1
        kept = _is_kept(rules, row, column, 0, tables.spans[slot, 0, :0])
    if not kept:
        drop_keys(pool, states, block)
        return
    if tokens_of(pool.blocks[block].key, unit) == position:
        return
    enter_whole(pool, states, block, _key(tables, rules, slot, group, position))
    stamp(pool, states, block)


@njit_apart
def _cache_end(
    pool: Pool,
    tables: Tables,
    states: States,
    rules: Rows,
    slot: int,
    group: int,
    num_tokens: int,
    computed_before: int,
) -> None:
    """The state at the end of a chunk, where a prompt's tail or a junction is."""
    row = tables.groups[group]
    table = tables.tables[slot, group]
    sequence = tables.sequences[slot]
    size, unit = row.block_size, rules[0].hash_block_size
    if num_tokens <= 0 or num_tokens % unit != 0:
        return
    at_junction = (
        rules[0].keeps_junctions != 0
        and num_tokens == sequence.junction
        and computed_before < num_tokens <= sequence.num_prompt
    )
    if num_tokens != resumable(rules, sequence.num_prompt, unit) and not at_junction:
        return
    column = -(-num_tokens // size) - 1
    block = in_table(tables, slot, group, column)
    if block == 0 or tokens_of(pool.blocks[block].key, unit) == num_tokens:
        return
    enter_part(pool, states, block, _key(tables, rules, slot, group, num_tokens), unit)
    stamp(pool, states, block)
    if num_tokens % size != 0:
        # The next chunk writes on in this block: the cache is then given a copy.
        states.rows[slot, group].partial = column
        table.num_looked_at = column
