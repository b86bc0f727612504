"""Groups of states (Mamba, gated delta nets, linear attention): their tables and their blocks.

A state at a boundary is one block. A sequence keeps few of them: its table has nulls at all other
positions (0 in its ring), and the blocks that drafts write to stand behind the last state. With
``mamba_cache_mode`` none a sequence holds one state for its whole length, and blocks for drafts.

In caches with such groups a block may be known by a prefix that ends inside it, so that keys of
full-attention and state groups count units of the hash block, not blocks. A full-attention block
can have several such keys; all but the first are *aliases*: rows of the pool behind its blocks.
One file because all of it works on ``States``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvsim.cache.block_pool import (
    CACHED_BY_GROUP,
    EVICTED,
    NOTED,
    WATCHED,
    Ids,
    Pool,
    Rows,
    enter_block,
    find_block,
    give_back_run,
    group_of,
    remove_block,
    take_run,
)
from kvsim.cache.content import GROUP_BITS, NUMBER_BITS, Ints, block_key, span_at
from kvsim.cache.groups import Tables, note_taker, tell_holder
from kvsim.cache.ledger import forget_eviction, note_evicted, tell_user
from kvsim.jit import njit, njit_apart

ALIGN, NONE = 1, 2
"""How a group keeps states (``GROUP_ROW.states``; 0 for attention): at boundaries, or just one."""

STATE_ROW = np.dtype(
    [
        ("partial", np.int64),  # column of the block to be copied at the next allocation; -1
        ("checkpoint", np.int64),  # tokens after which this chunk exports a state; 0 for none
        ("checkpoint_column", np.int64),  # and the column of the block it goes to
        ("allocated", np.int64),  # 1 once blocks were taken beyond the hit
    ],
    align=True,
)

# Entries of `States.meter`: number of the step, copies of it, ids in `taken`, the first idle row
# for an alias, aliases in use, entries of `offers`.
STEP, NUM_COPIES, NUM_TAKEN, IDLE_ROW, NUM_ALIASES, NUM_OFFERS, METER_SIZE = range(7)

# Columns of `States.offers`: who holds the state, the number of its use of the slot, the group, the
# block, and the hash blocks of the prefix that the state ends.
OFFER_SLOT, OFFER_SERIAL, OFFER_GROUP, OFFER_BLOCK, OFFER_UNITS, OFFER_COLUMNS = range(6)


class States(NamedTuple):
    """What a cache with groups of states keeps besides.

    Attributes:
        rows: ``STATE_ROW`` [slots, groups].
        stamps: int64 [blocks], the step in which a state was entered under the block's key.
        aliases: int32 [blocks], the first row of ``pool.blocks`` with a further key of the block; 0
            for none. In such a row ``after`` is the next one, ``num_refs`` the block.
        copies: int32 [copies, 3], source, destination and group of each that this step makes.
        taken: int32, the blocks the last allocation took, in order.
        meter: int64 [`METER_SIZE`].
        offers: int64 [offers, `OFFER_COLUMNS`], states that were entered and that a connector may
            store, in order; without rows where there is no connector.
    """

    rows: Rows
    stamps: Ints
    aliases: Ids
    copies: Ids
    taken: Ids
    meter: Ints
    offers: Ints


# --- keys ---


@njit_apart
def key_at(uids: Ints, ends: Ints, num_spans: int, position: int, ahead: int, unit: int) -> int:
    """The key, but for its group, of the prefix that ends at a position."""
    return block_key(uids[span_at(ends, num_spans, position + ahead)], position // unit, 0)


@njit
def tokens_of(key: int, unit: int) -> int:
    """The tokens of the prefix that a key names; 0 where there is no key."""
    return ((key >> GROUP_BITS) & ((1 << NUMBER_BITS) - 1)) * unit


@njit
def holder(pool: Pool, states: States, key: int) -> int:
    """The block that was entered first under a key, or 0."""
    row = find_block(pool, key)
    if row >= len(states.stamps):
        row = pool.blocks[row].num_refs
    return row


@njit
def _has_key(pool: Pool, states: States, block: int, key: int) -> bool:
    if pool.blocks[block].key == key:
        return True
    row: int = states.aliases[block]
    while row != 0:
        if pool.blocks[row].key == key:
            return True
        row = pool.blocks[row].after
    return False


@njit_apart
def drop_keys(pool: Pool, states: States, block: int) -> None:
    """Take a block out of the index, aliases included; nothing where it is not in it."""
    drop_aliases(pool, states, block, False)
    if pool.blocks[block].key != 0:
        if pool.totals[NOTED] != 0:
            forget_eviction(pool.totals[NOTED], pool.blocks[block].key)
        remove_block(pool, block)


@njit_apart
def drop_aliases(pool: Pool, states: States, block: int, is_evicted: bool) -> None:
    """Take all but the first key of a block out of the index."""
    row: int = states.aliases[block]
    while row != 0:
        later: int = pool.blocks[row].after
        if pool.totals[NOTED] != 0:
            key = pool.blocks[row].key
            if is_evicted:
                note_evicted(pool.totals[NOTED], block, key, pool.totals[EVICTED])
            else:
                forget_eviction(pool.totals[NOTED], key)
        pool.totals[CACHED_BY_GROUP + group_of(pool.blocks[row].key)] += 1
        remove_block(pool, row)
        pool.blocks[row].after = states.meter[IDLE_ROW]
        states.meter[IDLE_ROW] = row
        states.meter[NUM_ALIASES] -= 1
        row = later
    states.aliases[block] = 0


@njit_apart
def enter_part(pool: Pool, states: States, block: int, key: int, unit: int) -> None:
    """Let a block be known by a prefix that may end inside it; a shorter one is forgotten.

    Without idle rows (in caches whose hits are whole blocks) a further key is left out: no lookup
    asks for it.
    """
    if _has_key(pool, states, block, key):
        return
    own = pool.blocks[block].key
    if own != 0 and tokens_of(own, unit) < tokens_of(key, unit):
        drop_keys(pool, states, block)
    if pool.blocks[block].key == 0:
        enter_block(pool, block, key)
        return
    row = states.meter[IDLE_ROW]
    if row == 0:
        return
    states.meter[IDLE_ROW] = pool.blocks[row].after
    states.meter[NUM_ALIASES] += 1
    enter_block(pool, row, key)
    pool.totals[CACHED_BY_GROUP + group_of(key)] -= 1
    pool.blocks[row].num_refs = block
    pool.blocks[row].after = states.aliases[block]
    states.aliases[block] = row


@njit_apart
def enter_whole(pool: Pool, states: States, block: int, key: int) -> None:
    """Let a block that is full be known by its whole content, and by that alone."""
    drop_keys(pool, states, block)
    enter_block(pool, block, key)


@njit_apart
def stamp(pool: Pool, states: States, block: int) -> None:
    """A state was entered under this block's key in this step: nobody can start from it yet."""
    one = block
    while True:
        states.stamps[one] = states.meter[STEP]
        one = pool.blocks[one].same_after
        if one == block:
            return


@njit_apart
def offer(pool: Pool, tables: Tables, states: States, slot: int, group: int, block: int) -> None:
    """Let a connector know of a block that holds the state its key names.

    What there is no row for is left out: the cache has rows for all that the requests of a step can
    offer, so that this is what a run of decodes leaves behind, beyond all that is stored.
    """
    place = states.meter[NUM_OFFERS]
    if place < len(states.offers):
        row = states.offers[place]
        row[OFFER_SLOT] = slot
        row[OFFER_SERIAL] = tables.sequences[slot].serial
        row[OFFER_GROUP] = group
        row[OFFER_BLOCK] = block
        row[OFFER_UNITS] = tokens_of(pool.blocks[block].key, 1)
        states.meter[NUM_OFFERS] = place + 1


# --- blocks ---


@njit_apart
def take_one(pool: Pool, states: States, group: int) -> int:
    """Take the block at the head of the free queue, which is not empty."""
    drop_aliases(pool, states, pool.blocks[0].after, True)
    place = states.meter[NUM_TAKEN]
    take_run(pool, states.taken, -1, place, place + 1, group)
    states.meter[NUM_TAKEN] = place + 1
    block: int = states.taken[place]
    return block


@njit
def note_copy(pool: Pool, states: States, group: int, source: int, copy: int, kept: int) -> None:
    """Both ends of a copy are held until it is made; ``kept`` is the one with a holder more."""
    place = states.meter[NUM_COPIES]
    states.copies[place, 0] = source
    states.copies[place, 1] = copy
    states.copies[place, 2] = group
    states.meter[NUM_COPIES] = place + 1
    pool.blocks[kept].num_refs += 1


@njit
def begin_step(states: States) -> None:
    """A step begins: what earlier ones computed can be started from."""
    states.meter[STEP] += 1
    states.meter[NUM_COPIES] = 0


@njit
def order_copies(states: States, num_groups: int, ids: Ids) -> int:
    """Write the ends of this step's copies in the order in which they are let go of.

    Args:
        states: of the cache.
        num_groups: its groups; copies of the first come first.
        ids: written; two a copy.

    Returns:
        How many ids that are.
    """
    num = 0
    for group in range(num_groups):
        for i in range(states.meter[NUM_COPIES]):
            if states.copies[i, 2] == group:
                ids[num] = states.copies[i, 0]
                ids[num + 1] = states.copies[i, 1]
                num += 2
    return num


@njit_apart
def let_go_of_copies(pool: Pool, states: States, groups: Rows) -> None:
    """This step's copies are made: both ends of each are given back, group after group."""
    if pool.totals[NOTED] != 0:
        tell_user(pool.totals[NOTED], -1)
    prepended = 0
    for group in range(len(groups)):
        prepend = groups[group].prepend_uncached != 0
        for i in range(states.meter[NUM_COPIES]):
            if states.copies[i, 2] == group:
                ends = states.copies[i]
                prepended = give_back_run(pool, ends, -1, 0, 1, prepend, prepended)
                prepended = give_back_run(pool, ends, -1, 1, 2, prepend, prepended)
    states.meter[NUM_COPIES] = 0


@njit
def in_table(tables: Tables, slot: int, group: int, column: int) -> int:
    """The block at a position of a table; 0 for null."""
    row = tables.groups[group]
    table = tables.tables[slot, group]
    if column < table.first or column >= table.length:
        return 0
    block: int = tables.rings[slot, row.ring + (column & row.ring_mask)]
    return block


@njit_apart
def give_back_states(
    pool: Pool, tables: Tables, slot: int, group: int, start: int, end: int
) -> None:
    """Give back what stands in some positions of a table, the last first; nulls stay."""
    if pool.totals[WATCHED] != 0:
        tell_holder(pool, tables.groups, group, tables.sequences[slot], 0)
    row = tables.groups[group]
    ring = tables.rings[slot, row.ring : row.ring + row.ring_mask + 1]
    prepended = 0
    for column in range(end - 1, start - 1, -1):
        place = column & row.ring_mask
        if ring[place] != 0:
            prepend = row.prepend_uncached != 0
            prepended = give_back_run(pool, ring, -1, place, place + 1, prepend, prepended)
            ring[place] = 0


@njit
def leave_states(pool: Pool, tables: Tables, slot: int, group: int, num_computed: int) -> None:
    """Give back the states before the one that a number of computed tokens ends with."""
    row = tables.groups[group]
    table = tables.tables[slot, group]
    if row.states != ALIGN or num_computed <= 1:
        return
    end = min((num_computed - 1) // row.block_size, table.length)
    if end > table.first:
        give_back_states(pool, tables, slot, group, table.first, end)
        table.first = end


@njit_apart
def take_states(
    pool: Pool, tables: Tables, states: States, slot: int, group: int, end: int
) -> None:
    """Extend a table of states so that a chunk can end after ``end`` tokens.

    What is missing has been counted by ``missing_states``, which also says whether a column is kept
    for a checkpoint.
    """
    row = tables.groups[group]
    state = states.rows[slot, group]
    table = tables.tables[slot, group]
    drafts = row.num_drafts
    required = -(-end // row.block_size) + drafts
    checkpoint = 1 if state.checkpoint > 0 else 0
    ring, mask = row.ring, row.ring_mask
    before = table.length
    table.first_new = before
    if required <= before and state.partial < 0 and checkpoint == 0:
        state.allocated = 1
        return
    if pool.totals[WATCHED] != 0:
        note_taker(pool, tables, slot, group)
    length = before
    last = required - drafts - 1  # the column of the chunk's end
    if row.states == ALIGN:
        while length < last - checkpoint:
            tables.rings[slot, ring + (length & mask)] = 0
            length += 1
        if state.allocated != 0:
            column = before - drafts  # what drafts wrote to moves behind the new end
            while column < min(before, last - checkpoint):
                place = ring + (column & mask)
                tables.rings[slot, ring + (length & mask)] = tables.rings[slot, place]
                tables.rings[slot, place] = 0
                length += 1
                column += 1
    if state.partial >= 0:
        place = ring + (state.partial & mask)
        source: int = tables.rings[slot, place]
        copy = take_one(pool, states, group)
        if state.allocated != 0:
            # It goes on writing to its block: what the cache knows of it moves to the copy.
            key = pool.blocks[source].key
            if key != 0:
                remove_block(pool, source)
                enter_block(pool, copy, key)
                stamp(pool, states, copy)
                offer(pool, tables, states, slot, group, copy)
            note_copy(pool, states, group, source, copy, source)
        else:
            tables.rings[slot, place] = copy
            note_copy(pool, states, group, source, copy, copy)
        state.partial = -1
    while length < required:
        tables.rings[slot, ring + (length & mask)] = take_one(pool, states, group)
        length += 1
    table.length = length
    state.allocated = 1


# --- where a state is worth having ---


@njit
def resumable(rules: Rows, num_tokens: int, unit: int) -> int:
    """The last multiple of a unit from which the end of so many tokens can be computed again."""
    if rules[0].drops != 0:
        return max(0, num_tokens // unit * unit - unit)
    ahead: int = max(1, rules[0].key_lookahead)
    return max(0, (num_tokens - ahead) // unit * unit)


@njit
def can_export(
    start: int, end: int, position: int, hash_block: int, block_size: int, alignment: int
) -> bool:
    """Whether a chunk can write the state at a position inside it to a block of its own."""
    return (
        alignment > 0
        and start % hash_block == 0
        and -(-end // block_size) - 2 > (start - 1) // block_size
        and start + hash_block <= position < end
        and (position - start) % alignment == 0
    )


@njit
def aligned_chunk(
    rules: Rows,
    num_tokens: int,
    num_prompt: int,
    junction: int,
    start: int,
    num_new: int,
    most: int,
) -> int:
    """Tokens of a chunk that ends where a state has to be kept.

    Args:
        rules: one ``RULES_ROW``.
        num_tokens: of the request that are known.
        num_prompt: of these the prompt.
        junction: where siblings diverge; 0 for none.
        start: tokens computed before the chunk.
        num_new: tokens it could compute.
        most: tokens that any chunk can compute.

    Returns:
        At most ``num_new``; 0 where the request has to wait for a step with more room.
    """
    rule = rules[0]
    prefill_end = max(num_prompt, num_tokens - 1)
    if rule.splits == 0 or start >= prefill_end or num_new <= 0:
        return num_new
    size, fine = rule.state_block, rule.fine != 0
    end = start + num_new
    last = resumable(rules, num_tokens, size)
    checkpoint = resumable(rules, prefill_end, rule.hash_block_size if fine else size)
    exports = end >= prefill_end and can_export(
        start, end, checkpoint, rule.hash_block_size, size, rule.exports
    )
    if exports:
        last = 0
    if end < prefill_end:
        whole = end // size * size
        if whole > start or size <= most:
            end = whole
    stop = end
    if not exports and start % size != 0:
        boundary = (start // size + 1) * size
        if start < boundary < stop:
            stop = boundary
    if start < last < stop:
        stop = last
    if fine and not exports:
        tail = resumable(rules, num_prompt, rule.hash_block_size)
        if last < tail < num_prompt and start < tail < stop:
            stop = tail
    if start < junction < end:
        kept = start + (junction - start) // size * size
        if rule.keeps_junctions != 0 and fine and junction <= num_prompt:
            kept = junction
        if start < kept < stop:
            stop = kept
    return max(0, stop - start)
