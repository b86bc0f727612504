"""What all groups agree on: the hit, its junction, and allocations, whole or not at all."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvsim.cache.block_pool import FREE, NOTED, Pool, Rows, now_s
from kvsim.cache.content import Ints
from kvsim.cache.groups import (
    Bools,
    Tables,
    adopt_hit,
    cache_blocks,
    cache_prompt_end,
    collect_hit,
    full_attention_reach,
    give_back_all,
    leave_window,
    take_blocks,
    window_reach,
)
from kvsim.cache.ledger import PRESENT, begin_cuts, note_cut
from kvsim.cache.progress import note_leave, note_progress
from kvsim.cache.state_tables import States
from kvsim.jit import njit, njit_apart
from kvsim.policies.retention import NO_BOUNDARY

NOT_FIRST = -1
"""In place of a hit: the sequence holds blocks already."""

# Answers of `allocate`.
NO_ROOM, TAKEN, STALE_HIT = 0, 1, 2

# Entries of `answer` before the reach of each spec.
HIT, JUNCTION, REACH = 0, 1, 2

RULES_ROW = np.dtype(
    [
        ("alignment", np.int64),  # the scheduler block in tokens, the unit of hits
        ("hash_block_size", np.int64),  # tokens; nothing beyond the last whole one is looked up
        ("max_model_len", np.int64),
        ("retention_interval", np.int64),  # tokens; -1 dense
        ("caching", np.int64),
        ("eagle_boundaries", np.int64),  # a prompt has the two replay boundaries of EAGLE
        ("follows_eagle", np.int64),  # the newest rules about EAGLE, see the profiles
        ("junctions", np.int64),  # the engine knows shared-prefix junctions
        ("key_lookahead", np.int64),  # tokens behind a block that its key covers as well
        ("entry_unit", np.int64),  # tokens; less than this more makes no block worth entering
        # Of caches with groups of states; else 0.
        ("hit_unit", np.int64),  # tokens; hits are multiples of it
        ("fine", np.int64),  # hits can end inside a block
        ("drops", np.int64),  # a resumed prompt drops a block for EAGLE
        ("keeps_junctions", np.int64),  # a chunk ends at a junction inside a block too
        ("splits", np.int64),  # chunks end where states are kept
        ("state_block", np.int64),  # tokens; the grid on which they are
        ("exports", np.int64),  # alignment of states exported from a chunk; 0 unless all groups can
    ]
)


class Core(NamedTuple):
    """The whole state of the cache: what compiled code is handed.

    Attributes:
        pool: the blocks.
        tables: the groups and what each sequence holds.
        rules: one ``RULES_ROW``.
        answer: int64 [2 + groups]: the last lookup's hit and junction, then each spec's reach in
            the order in which specs are asked.
        boundaries: int64 [4], scratch: reachable boundaries of a prompt in tokens.
        kept: bool, scratch: a mask, or a piece of one, of the blocks that become full at once.
        states: what groups of states need besides; None where there is none.
    """

    pool: Pool
    tables: Tables
    rules: Rows
    answer: Ints
    boundaries: Ints
    kept: Bools
    states: Any  # States | None: known when code is compiled, so that only one case is


Arrays = tuple[Any, ...]
"""A ``Core``, flat: compiled code takes a plain tuple three times faster than a nested one."""

NUM_ARRAYS = 12
"""So many, and more with groups of states: code for these is compiled where there are more only."""


def flatten(core: Core) -> Arrays:
    """The arrays of a core, in the order in which ``assemble`` takes them."""
    pool, tables, *others, states = core
    return (*pool, *tables, *others, *(states or ()))


@njit
def assemble(arrays: Arrays) -> Core:
    """The core made of its arrays; costs nothing in compiled code."""
    if len(arrays) > NUM_ARRAYS:
        states = States(
            arrays[12], arrays[13], arrays[14], arrays[15], arrays[16], arrays[17], arrays[18]
        )
    else:
        states = None
    return Core(
        Pool(arrays[0], arrays[1], arrays[2]),
        Tables(arrays[3], arrays[4], arrays[5], arrays[6], arrays[7]),
        arrays[8],
        arrays[9],
        arrays[10],
        arrays[11],
        states,
    )


@njit
def longest_hit(arrays: Arrays, uids: Ints, ends: Ints) -> None:
    """The longest prefix that every group can serve; written to ``core.answer``.

    Specs are asked in turn, each bounded by what those before it can serve, until none shortens
    the bound. A spec with a look-ahead block is asked for one block beyond the bound and drops
    it, once for every bound that did not shrink.
    """
    core = assemble(arrays)
    _look_up(core, core.answer, uids, ends, PRESENT, 0)


@njit_apart
def longest_hit_kept(
    arrays: Arrays, answer: Ints, uids: Ints, ends: Ints, level: int, num_computed: int
) -> None:
    """The longest hit there would have been, had nothing been evicted.

    Args:
        arrays: the cache, with a ledger.
        answer: int64, as long as ``core.answer``; where it is written.
        uids: the sequence's spans.
        ends: their ends in tokens.
        level: ``ENTERED``, or ``COMPUTED``: had everything been worth keeping as well.
        num_computed: tokens of the prefix that anybody has computed.
    """
    _look_up(assemble(arrays), answer, uids, ends, level, num_computed)


@njit
def _look_up(
    core: Core, answer: Ints, uids: Ints, ends: Ints, level: int, num_computed: int
) -> None:
    """The work of `longest_hit`, at a level of what is taken for cached."""
    pool, groups, rules = core.pool, core.tables.groups, core.rules[0]
    noted = pool.totals[NOTED]
    if noted != 0:
        begin_cuts(noted, level)
    answer[:] = 0
    num_tokens = ends[-1] if len(ends) > 0 else 0
    if rules.caching == 0 or num_tokens <= max(1, rules.key_lookahead):
        return
    num_specs = 0
    while num_specs < len(groups) and groups[num_specs].asked >= 0:
        num_specs += 1
    # The last token is computed in any case; a key is known once its look-ahead is.
    hit = num_tokens - max(1, rules.key_lookahead)
    one_group = len(groups) == 1
    one_pass = one_group or (num_specs == 2 and groups[groups[0].asked].sliding_window == 0)
    longest = 0
    verified = 0
    first_pass = True
    while True:
        bound = hit
        for index in range(num_specs):
            group = groups[index].asked
            row = groups[group]
            if row.sliding_window == 0 and not first_pass:
                bound = min(bound, answer[REACH + index])
                continue
            drop = row.eagle != 0 and (verified >> index) & 1 == 0
            most = bound
            if drop and not one_group:
                most = num_tokens - 1
                if rules.follows_eagle != 0:
                    most = num_tokens // rules.hash_block_size * rules.hash_block_size
                most = min(bound + row.block_size, most)
            if row.sliding_window == 0:
                reach = full_attention_reach(
                    pool,
                    groups,
                    group,
                    uids,
                    ends,
                    most,
                    rules.alignment,
                    drop,
                    level,
                    num_computed,
                )
            else:
                reach = window_reach(
                    pool,
                    groups,
                    group,
                    uids,
                    ends,
                    most,
                    rules.alignment,
                    drop,
                    level,
                    num_computed,
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
    if rules.junctions != 0 and not one_group and longest > hit:
        answer[JUNCTION] = longest


@njit
def seat(arrays: Arrays, slot: int, uids: Ints, ends: Ints, num_prompt: int, junction: int) -> None:
    """Write what is known of a sequence into its slot, which holds no blocks."""
    core = assemble(arrays)
    sequence = core.tables.sequences[slot]
    sequence.num_tokens = ends[-1] if len(ends) > 0 else 0
    sequence.num_prompt = num_prompt
    sequence.num_computed = 0
    sequence.num_entered = 0
    sequence.in_flight = 0
    sequence.placeholders = 0
    sequence.drafts = 0
    sequence.planned = 0
    sequence.eligible = 0
    sequence.junction = junction
    sequence.num_spans = len(ends)
    sequence.priority = 0
    sequence.keep_priority = -1
    sequence.keep_tokens = 0
    sequence.keep_s = np.inf
    sequence.admitted_s = now_s(core.pool)
    spans = core.tables.spans
    for i in range(len(ends)):
        spans[slot, 0, i] = uids[i]
        spans[slot, 1, i] = ends[i]


@njit
def extend(arrays: Arrays, slot: int, uid: int, num_tokens: int) -> None:
    """A seated sequence grows to a number of tokens, by a span that may continue its last one."""
    core = assemble(arrays)
    sequence = core.tables.sequences[slot]
    spans = core.tables.spans
    last = sequence.num_spans - 1
    if last < 0 or spans[slot, 0, last] != uid:
        last += 1
        spans[slot, 0, last] = uid
    spans[slot, 1, last] = num_tokens
    sequence.num_spans = last + 1
    sequence.num_tokens = num_tokens


@njit
def allocate_first(
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
    """Seat a sequence and ``allocate`` with its hit."""
    if hit_tokens > (ends[-1] if len(ends) > 0 else 0):
        return STALE_HIT  # of another sequence: its blocks would be looked for beyond this one's
    seat(arrays, slot, uids, ends, num_prompt, junction)
    return allocate(arrays, slot, num_new, hit_tokens, lookahead, full_fit, num_reserved, watermark)


@njit
def _missing(tables: Tables, slot: int, num_tokens: int, hit_tokens: int, capped: bool) -> int:
    """Blocks to be taken so that every group covers a number of tokens."""
    missing = 0
    for group in range(len(tables.groups)):
        row = tables.groups[group]
        required = -(-num_tokens // row.block_size)
        if capped:
            required = min(required, row.cap)
        held = tables.tables[slot, group].length
        if hit_tokens != NOT_FIRST:
            held = (hit_tokens + row.beyond) // row.block_size
        missing += max(0, required - held)
    return missing


@njit
def allocate(
    arrays: Arrays,
    slot: int,
    num_new: int,
    hit_tokens: int,
    lookahead: int,
    full_fit: bool,
    num_reserved: int,
    watermark: int,
) -> int:
    """Room for more tokens of a sequence, or nothing.

    Args:
        arrays: the cache.
        slot: the sequence.
        num_new: tokens to be computed.
        hit_tokens: the hit to take with it, at the sequence's first allocation; -1 later.
        lookahead: draft tokens on top.
        full_fit: only if the whole sequence fits, window groups counted up to their cap.
        num_reserved: blocks to be left in the free queue.
        watermark: more blocks to be left there, beside the whole sequence as well.

    Returns:
        ``TAKEN``, or ``NO_ROOM`` or ``STALE_HIT`` where nothing was taken.
    """
    core = assemble(arrays)
    pool, tables, rules = core.pool, core.tables, core.rules[0]
    num_groups = len(tables.groups)
    sequence = tables.sequences[slot]
    computed = sequence.num_computed
    idle = 0  # blocks of the hit that lie in the free queue
    if hit_tokens != NOT_FIRST:
        computed = hit_tokens
        for group in range(num_groups):
            found = collect_hit(pool, tables, slot, group, hit_tokens)
            if found < 0:
                return STALE_HIT
            idle += found
    if full_fit:
        whole = min(sequence.num_tokens, rules.max_model_len)
        missing = _missing(tables, slot, whole, hit_tokens, True)
        if idle + missing > pool.totals[FREE] - watermark:
            return NO_ROOM
    if hit_tokens == NOT_FIRST:
        for group in range(num_groups):
            # What is in flight still reads its window.
            leave_window(pool, tables, slot, group, computed - sequence.in_flight)
    covered = min(computed + num_new + lookahead, rules.max_model_len)
    missing = _missing(tables, slot, covered, hit_tokens, False)
    if idle + missing > pool.totals[FREE] - num_reserved - watermark:
        return NO_ROOM
    if hit_tokens != NOT_FIRST:
        for group in range(num_groups):
            adopt_hit(pool, tables, slot, group, hit_tokens)
    for group in range(num_groups):
        take_blocks(pool, tables, slot, group, covered)
    sequence.num_computed = computed + num_new
    if rules.caching != 0:
        cache_computed(arrays, slot)
    return TAKEN


@njit
def note_boundaries(rules: Any, sequence: Any, boundaries: Ints) -> None:
    """Write where a prompt can be resumed, in tokens, not yet rounded; see ``Core.boundaries``."""
    if rules.eagle_boundaries == 0:
        boundaries[0] = sequence.num_prompt - 1
        boundaries[1] = NO_BOUNDARY
    else:
        resend = (sequence.num_prompt - 1) // rules.alignment * rules.alignment
        extension = sequence.num_prompt // rules.alignment * rules.alignment
        boundaries[0] = max(0, resend - rules.alignment)
        boundaries[1] = max(0, extension - rules.alignment)
    boundaries[2] = sequence.junction if sequence.junction > 0 else NO_BOUNDARY


@njit
def cache_computed(arrays: Arrays, slot: int) -> None:
    """Enter the full blocks up to the computed tokens that are known, see ``cache_up_to``."""
    core = assemble(arrays)
    cache_up_to(arrays, slot, core.tables.sequences[slot].num_computed)


@njit
def cache_up_to(arrays: Arrays, slot: int, num_computed: int) -> None:
    """Enter the full blocks up to a number of computed tokens in the index, group after group."""
    core = assemble(arrays)
    pool, tables, rules, boundaries = core.pool, core.tables, core.rules[0], core.boundaries
    sequence = tables.sequences[slot]
    num_tokens = min(num_computed, sequence.num_tokens - rules.key_lookahead)
    num_units = num_tokens // rules.entry_unit
    if pool.totals[NOTED] != 0 and (
        num_units > sequence.num_entered or num_computed <= sequence.num_prompt
    ):
        note_progress(pool, tables, slot, num_computed)
    if num_units <= sequence.num_entered:
        return
    sequence.num_entered = num_units
    rounded = num_tokens // rules.alignment * rules.alignment
    note_boundaries(rules, sequence, boundaries)
    hybrid = len(tables.groups) > 1  # hits are whole scheduler blocks: no more is entered
    for group in range(len(tables.groups)):
        row = tables.groups[group]
        cacheable = num_tokens
        if hybrid:
            cacheable = rounded
            if row.ahead != 0 and rounded > 0:
                cacheable = min(num_tokens, rounded + row.block_size)
        if cacheable // row.block_size > tables.tables[slot, group].num_looked_at:
            cache_blocks(
                pool,
                tables,
                slot,
                group,
                cacheable,
                rules.alignment,
                rules.retention_interval,
                boundaries,
                core.kept,
            )
        if hybrid and row.eagle != 0 and row.sliding_window == 0 and rules.follows_eagle != 0:
            cache_prompt_end(pool, tables, slot, group, cacheable, rules.hash_block_size)


@njit
def release(arrays: Arrays, slot: int) -> None:
    """Give back everything a sequence holds: group after group, each from its last block."""
    core = assemble(arrays)
    note_leave(core.pool, core.tables, slot)
    for group in range(len(core.tables.groups)):
        give_back_all(core.pool, core.tables, slot, group)
    core.tables.sequences[slot].num_computed = 0
    core.tables.sequences[slot].serial += 1
