"""Lookup in caches with groups of states, where hits may end inside a block.

What a lookup found is found again when blocks are taken: no list of blocks is kept meanwhile.
"""

from __future__ import annotations

from typing import Any

from kvsim.cache.block_pool import NOTED, Pool, Rows
from kvsim.cache.content import Ints, span_at
from kvsim.cache.coordinator import HIT, JUNCTION, REACH, Arrays, Core, assemble
from kvsim.cache.groups import Tables, collect_hit, is_cached, window_reach
from kvsim.cache.ledger import PRESENT, begin_cuts, note_cut
from kvsim.cache.state_tables import States, holder, key_at
from kvsim.jit import njit, njit_apart


@njit
def _last_key(rules: Rows, num_tokens: int) -> int:
    """Tokens of the longest prefix whose key is known."""
    unit = rules[0].hash_block_size
    known: int = max(0, num_tokens - rules[0].key_lookahead) // unit * unit
    return known


@njit
def _full_limit(rules: Rows, num_groups: int, row: Any, bound: int, num_tokens: int) -> int:
    """How far a full-attention group is looked at so that a bound may be reached after a drop."""
    if row.eagle == 0 or num_groups == 1:
        return bound
    margin: int = row.block_size
    if rules[0].fine != 0 and row.block_size > rules[0].hash_block_size:
        margin = rules[0].hash_block_size
    return min(bound + margin, _last_key(rules, num_tokens))


@njit_apart
def _tail(
    pool: Pool,
    groups: Rows,
    rules: Rows,
    group: int,
    uids: Ints,
    ends: Ints,
    start: int,
    most: int,
    level: int,
    num_computed: int,
) -> int:
    """The end of the longest part of the block at ``start`` that all mates know; ``start`` if none.

    Args:
        pool: the pool.
        groups: the groups.
        rules: one ``RULES_ROW``, of a cache whose hits may end inside a block.
        group: the first of its spec.
        uids: the sequence's spans.
        ends: their ends.
        start: tokens before the block.
        most: nothing beyond so many tokens counts.
        level: what counts as cached.
        num_computed: tokens that anybody has computed.
    """
    unit: int = rules[0].hash_block_size
    ahead = rules[0].key_lookahead
    end: int = min(start + groups[group].block_size - unit, most // unit * unit)
    while end > start:
        uid = uids[span_at(ends, len(ends), end + ahead)]
        known = end + ahead <= num_computed
        if is_cached(pool, groups, group, uid, end // unit, level, known, False):
            return end
        end -= unit
    return start


@njit_apart
def _full_reach(
    pool: Pool,
    groups: Rows,
    rules: Rows,
    group: int,
    uids: Ints,
    ends: Ints,
    most: int,
    drop: bool,
    level: int,
    num_computed: int,
) -> int:
    """Tokens a full-attention spec can serve: whole blocks from the left, then a part of one."""
    size: int = groups[group].block_size
    unit: int = rules[0].hit_unit
    hash_block, ahead = rules[0].hash_block_size, rules[0].key_lookahead
    position = size
    span = 0
    while position <= most:
        while ends[span] < position + ahead:
            span += 1
        known = position + ahead <= num_computed
        if not is_cached(pool, groups, group, uids[span], position // hash_block, level, known):
            break
        position += size
    reach = position - size
    if unit < size:
        reach = _tail(pool, groups, rules, group, uids, ends, reach, most, level, num_computed)
    if drop and reach > 0:
        reach -= min(unit, size)
    return reach - reach % unit


@njit_apart
def _state_reach(
    pool: Pool,
    groups: Rows,
    rules: Rows,
    group: int,
    uids: Ints,
    ends: Ints,
    most: int,
    level: int,
    num_computed: int,
) -> int:
    """Tokens a spec of states can serve: the last boundary at which all its groups have one."""
    size: int = groups[group].block_size
    unit: int = rules[0].hit_unit
    hash_block, ahead = rules[0].hash_block_size, rules[0].key_lookahead
    step = min(size, unit)
    position = most // step * step
    span = span_at(ends, len(ends), position + ahead)
    while position > 0:
        if position % unit == 0:
            while span > 0 and ends[span - 1] >= position + ahead:
                span -= 1
            known = position + ahead <= num_computed
            if is_cached(pool, groups, group, uids[span], position // hash_block, level, known):
                return position
        position -= step
    return 0


@njit_apart
def hybrid_hit(arrays: Arrays, uids: Ints, ends: Ints) -> None:
    """What ``longest_hit`` writes, for a cache with groups of states."""
    core = assemble(arrays)
    _look_up(core, core.answer, uids, ends, PRESENT, 0)


@njit_apart
def hybrid_hit_kept(
    arrays: Arrays, answer: Ints, uids: Ints, ends: Ints, level: int, num_computed: int
) -> None:
    """What ``longest_hit_kept`` writes, for a cache with groups of states."""
    _look_up(assemble(arrays), answer, uids, ends, level, num_computed)


@njit_apart
def _look_up(
    core: Core, answer: Ints, uids: Ints, ends: Ints, level: int, num_computed: int
) -> None:
    """The work of `hybrid_hit`, at a level of what is taken for cached."""
    pool, groups, rules = core.pool, core.tables.groups, core.rules
    noted = pool.totals[NOTED]
    if noted != 0:
        begin_cuts(noted, level)
    answer[:] = 0
    num_tokens = ends[-1] if len(ends) > 0 else 0
    ahead = max(1, rules[0].key_lookahead)
    if rules[0].caching == 0 or num_tokens <= ahead:
        return
    num_specs = 0
    while num_specs < len(groups) and groups[num_specs].asked >= 0:
        num_specs += 1
    hit = num_tokens - ahead
    has_full = groups[groups[0].asked].is_full != 0
    one_pass = len(groups) == 1 or (num_specs == 2 and has_full)
    longest = 0
    verified = 0
    first_pass = True
    while True:
        bound = hit
        for index in range(num_specs):
            group = groups[index].asked
            row = groups[group]
            if row.is_full != 0 and not first_pass:
                bound = min(bound, answer[REACH + index])
                continue
            drop = row.eagle != 0 and (verified >> index) & 1 == 0
            if row.states != 0:
                reach = _state_reach(
                    pool, groups, rules, group, uids, ends, bound, level, num_computed
                )
            elif row.is_full != 0:
                most = _full_limit(rules, len(groups), row, bound, num_tokens)
                reach = _full_reach(
                    pool, groups, rules, group, uids, ends, most, drop, level, num_computed
                )
            else:
                most = bound
                if drop and len(groups) > 1:
                    most = min(bound + row.block_size, _last_key(rules, num_tokens))
                unit = rules[0].hit_unit
                reach = window_reach(
                    pool, groups, group, uids, ends, most, unit, drop, level, num_computed
                )
            if drop:
                verified |= 1 << index
            elif reach < bound:
                verified = 0
            if noted != 0 and reach < bound:
                note_cut(noted, level, group, reach, bound)
            bound = reach
            if first_pass:
                answer[REACH + index] = reach
            longest = max(longest, bound)
        first_pass = False
        if bound >= hit:
            break
        hit = bound
        if one_pass:
            break
    answer[HIT] = hit
    if len(groups) > 1 and longest > hit:
        answer[JUNCTION] = longest


@njit_apart
def collect_group(
    pool: Pool, tables: Tables, states: States, rules: Rows, slot: int, group: int, hit: int
) -> int:
    """Write a group's blocks of a hit into its table, which holds nothing, without taking them.

    Returns:
        How many of them lie in the free queue; -1 where the hit no longer holds.
    """
    row = tables.groups[group]
    table = tables.tables[slot, group]
    states.rows[slot, group].partial = -1
    states.rows[slot, group].checkpoint = 0
    states.rows[slot, group].allocated = 0
    if row.is_full == 0 and row.states == 0:
        return collect_hit(pool, tables, slot, group, hit)
    table.first = 0
    if hit == 0:
        return 0
    uids, ends = tables.spans[slot, 0], tables.spans[slot, 1]
    num_spans = tables.sequences[slot].num_spans
    num_tokens = tables.sequences[slot].num_tokens
    size, unit, ahead = row.block_size, rules[0].hash_block_size, rules[0].key_lookahead
    num = -(-hit // size)
    first = num - 1 if row.states != 0 else 0
    idle = 0
    for column in range(first, num):
        end = (column + 1) * size
        if row.states != 0:
            end = hit
        elif end > hit:
            # The last block is there in whole, or by a part that reaches beyond the hit.
            limit = num_tokens - max(1, ahead)
            most = _full_limit(rules, len(tables.groups), row, limit, num_tokens)
            key = key_at(uids, ends, num_spans, min(end, most), ahead, unit) | group
            if end > most or holder(pool, states, key) == 0:
                spans = ends[:num_spans]
                start = column * size
                end = _tail(pool, tables.groups, rules, group, uids, spans, start, most, PRESENT, 0)
        block = 0
        if end > column * size:
            key = key_at(uids, ends, num_spans, end, ahead, unit) | group
            block = holder(pool, states, key)
        if block == 0:
            return -1
        tables.rings[slot, row.ring + (column & row.ring_mask)] = block
        if pool.blocks[block].num_refs == 0:
            idle += 1
    table.first = first
    if hit % size != 0:
        states.rows[slot, group].partial = num - 1
    return idle
