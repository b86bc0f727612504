"""One KV cache group: its block tables, its longest hit, what it takes and gives back.

A sequence that holds blocks has a *slot*: a row of every array here. A block table is kept in a
ring that is as long as what a group can hold at once: for full attention every position, for a
sliding window only those the window and the tokens in flight can cover.
One file because all that reads or writes a table relies on how its ring is laid out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.cache import ordered, retained
from kvsim.cache.block_pool import (
    CACHED_BY_GROUP,
    NOTED,
    ORDERED,
    RETAINED,
    WATCHED,
    Ids,
    Pool,
    Rows,
    enter_block,
    find_block,
    give_back_run,
    remove_block,
    take_run,
    touch_run,
)
from kvsim.cache.content import NUMBER_BITS, Ints, block_key, span_at
from kvsim.cache.ledger import (
    BY_ANSWER,
    BY_PROMPT,
    BY_RECOMPUTE,
    BY_STATE,
    BY_WINDOW,
    COMPUTED,
    PRESENT,
    READMITTED,
    eviction_of,
    ledger_at,
    taker_of,
    tell_taker,
    tell_user,
)
from kvsim.cache.spec import FULL, MAMBA, GroupSpec, scheduler_block_size
from kvsim.jit import njit, njit_apart
from kvsim.policies.facts import FULL_ATTENTION, SLIDING_WINDOW
from kvsim.policies.retention import NO_BOUNDARY, keep_window_runs

Bools = npt.NDArray[np.bool_]

GROUP_ROW = np.dtype(
    [
        ("block_size", np.int64),
        ("sliding_window", np.int64),  # 0 for full attention; of chunks their tokens
        ("chunked", np.int64),  # 1 where it begins anew at each multiple of its tokens
        ("num_to_resume", np.int64),  # blocks before a boundary, without look-ahead
        ("num_kept", np.int64),  # blocks of a run that is worth keeping, look-ahead included
        ("eagle", np.int64),  # 1 where the group drops a look-ahead block
        ("ahead", np.int64),  # 1 where that block is kept and entered beyond a boundary
        ("before_junction", np.int64),  # 1 where a run is kept a block before a junction as well
        ("cap", np.int64),  # most blocks counted at admission
        ("prepend_uncached", np.int64),
        ("ring", np.int64),  # where the group's ring begins in a row of `tables`
        ("ring_mask", np.int64),  # its length less one; the length is a power of two
        ("mate", np.int64),  # the next group with the same spec, -1 at the end
        ("asked", np.int64),  # the group that is looked up in this place, -1 behind the last
        ("key_lookahead", np.int64),  # tokens behind a block that its key covers as well
        ("beyond", np.int64),  # tokens by which it holds more than the hit in hand, see below
        ("is_full", np.int64),  # 1 for full attention
        ("states", np.int64),  # how it keeps states, see `state_tables`; 0 for attention
        ("num_drafts", np.int64),  # blocks of a sequence's states that drafts write to
        ("exports", np.int64),  # alignment in tokens of states exported from a chunk; 0 for none
    ],
    align=True,
)

SEQUENCE_ROW = np.dtype(
    [
        ("num_tokens", np.int64),
        ("num_prompt", np.int64),
        ("num_computed", np.int64),
        ("junction", np.int64),  # where siblings diverge, 0 for none
        ("num_spans", np.int64),
        ("num_entered", np.int64),  # units of the rules' `entry_unit` considered for caching
        ("output_uid", np.int64),  # uid of the span its answer is written to
        ("end_tokens", np.int64),  # length at which it is finished
        ("in_flight", np.int64),  # computed tokens of steps whose end is not processed
        ("placeholders", np.int64),  # tokens these may make; only where steps overlap
        ("drafts", np.int64),  # draft tokens that the next step may check
        ("planned", np.int64),  # number of the last step it is part of
        ("eligible", np.int64),  # number of the plan from which on it may decode again
        ("serial", np.int64),  # tells those that held the slot apart
        ("owner", np.int64),  # whose it is; this and the next are for the ledger alone
        ("num_noted", np.int64),  # computed tokens that it knows of
        ("priority", np.int64),  # of the request; this and what follows is for policies alone
        ("keep_priority", np.int64),  # 0 to 100, -1 where it is not said
        ("keep_tokens", np.int64),  # how many of its first tokens that is about
        ("keep_s", np.float64),
        ("admitted_s", np.float64),
    ],
    align=True,
)

TABLE_ROW = np.dtype(
    [
        ("length", np.int64),  # positions in the block table, null blocks included
        ("first", np.int64),  # first position that is not null
        ("num_looked_at", np.int64),  # positions already considered for caching
        ("first_new", np.int64),  # first position filled by the last allocation
    ],
    align=True,
)


class Tables(NamedTuple):
    """The sequences that hold blocks, a slot each.

    Attributes:
        groups: one ``GROUP_ROW`` a group.
        sequences: ``SEQUENCE_ROW`` [slots].
        tables: ``TABLE_ROW`` [slots, groups].
        rings: int32 [slots, sum of ring lengths], block ids.
        spans: int64 [slots, 2, spans]: uids, and ends in tokens.
    """

    groups: Rows
    sequences: Rows
    tables: Rows
    rings: Ids
    spans: Ints


def make_groups(
    specs: tuple[GroupSpec, ...],
    *,
    eagle_groups: frozenset[int],
    masks_follow_eagle: bool,
    keeps_before_junction: bool,
    keeps_whole_units: bool,
    prepend_uncached: frozenset[str],
    max_model_len: int,
    max_in_flight_tokens: int,
    max_lookahead_tokens: int,
    key_lookahead_tokens: int,
) -> Rows:
    """The rows of a model's groups.

    Args:
        specs: the groups in the model's order.
        eagle_groups: those that drop a look-ahead block.
        masks_follow_eagle: that block is kept beyond a boundary.
        keeps_before_junction: those groups keep a run a block before a junction as well.
        keeps_whole_units: every block is worth keeping that is as long as the unit of hits.
        prepend_uncached: kinds whose uncached blocks go to the head of the free queue.
        max_model_len: longest sequence in tokens.
        max_in_flight_tokens: most tokens one allocation can ask for.
        max_lookahead_tokens: most draft tokens on top of these.
        key_lookahead_tokens: tokens behind a block that its key covers as well.
    """
    rows = np.zeros(len(specs), dtype=GROUP_ROW)
    firsts = [i for i, spec in enumerate(specs) if not any(same_spec(spec, s) for s in specs[:i])]
    firsts.sort(key=lambda i: specs[i].kind != FULL)  # its scan bounds the others
    firsts += [-1] * (len(specs) - len(firsts))
    alignment = scheduler_block_size(specs)
    ring = 0
    for index, spec in enumerate(specs):
        tokens = max_model_len + max_lookahead_tokens
        window = spec.attention_chunk_size or spec.sliding_window
        if window is not None:
            tokens = min(tokens, window + max_in_flight_tokens + max_lookahead_tokens)
        elif spec.kind == MAMBA and not spec.one_state:  # left behind as by a window of one token
            tokens = min(tokens, 1 + max_in_flight_tokens + max_lookahead_tokens)
        # What is held at once covers at most so many tokens, cut by a block at either end: a window
        # is left before more is taken, and nothing is taken beyond the longest sequence.
        length = 1 << (-(-tokens // spec.block_size) + spec.num_drafts + 2).bit_length()
        later = [i for i in range(index + 1, len(specs)) if same_spec(specs[i], spec)]
        cap = spec.admission_cap(max_in_flight_tokens, max_model_len)
        ahead = index in eagle_groups and masks_follow_eagle
        num_kept = spec.blocks_to_resume + ahead
        if keeps_whole_units and spec.block_size == alignment:
            num_kept = max(1, num_kept)
        rows[index] = (
            spec.block_size,
            window or 0,
            spec.attention_chunk_size is not None,
            spec.blocks_to_resume,
            num_kept,
            index in eagle_groups,
            ahead,
            index in eagle_groups and keeps_before_junction,
            np.iinfo(np.int64).max if cap is None else cap,
            spec.kind in prepend_uncached,
            ring,
            length - 1,
            later[0] if later else -1,
            firsts[index],
            key_lookahead_tokens,
            0,
            spec.kind == FULL,
            (2 if spec.one_state else 1) if spec.kind == MAMBA else 0,
            spec.num_drafts,
            spec.checkpoint_alignment or 0,
        )
        ring += length
    return rows


def same_spec(one: GroupSpec, other: GroupSpec) -> bool:
    """Whether two groups are looked up together."""
    return one.lookup_spec == other.lookup_spec


@njit
def is_cached(
    pool: Pool,
    groups: Rows,
    group: int,
    uid: int,
    index: int,
    level: int = PRESENT,
    is_computed: bool = True,
    is_whole: bool = True,
) -> bool:
    """Whether every group with this group's spec holds a block, or would at another level.

    Args:
        pool: the pool.
        groups: the groups.
        group: the first of its spec.
        uid: of the span in which the block ends.
        index: the block's number.
        level: what counts as cached: `PRESENT`, or with a ledger `ENTERED` or `COMPUTED`.
        is_computed: somebody has computed it.
        is_whole: it is no part of a block.
    """
    if level != PRESENT:
        return _was_cached(pool, groups, group, uid, index, level, is_computed, is_whole)
    while group >= 0:
        if find_block(pool, block_key(uid, index, group)) == 0:
            return False
        group = groups[group].mate
    return True


@njit_apart
def _was_cached(
    pool: Pool,
    groups: Rows,
    group: int,
    uid: int,
    index: int,
    level: int,
    is_computed: bool,
    is_whole: bool,
) -> bool:
    """`is_cached` at another level; whole blocks of full attention are entered once computed."""
    if level == COMPUTED or groups[group].is_full != 0 and is_whole:
        return is_computed
    ledger = ledger_at(pool.totals[NOTED])
    while group >= 0:
        key = block_key(uid, index, group)
        if find_block(pool, key) == 0 and eviction_of(ledger, key) == 0:
            return False
        group = groups[group].mate
    return True


@njit
def full_attention_reach(
    pool: Pool,
    groups: Rows,
    group: int,
    uids: Ints,
    ends: Ints,
    max_tokens: int,
    alignment: int,
    drop: bool,
    level: int = PRESENT,
    num_computed: int = 0,
) -> int:
    """Tokens a full-attention spec can serve: its blocks from the left, to the first missing."""
    size: int = groups[group].block_size
    ahead: int = groups[group].key_lookahead
    position = size
    span = 0
    while position <= max_tokens:
        while ends[span] < position + ahead:
            span += 1
        is_computed = position + ahead <= num_computed
        if not is_cached(pool, groups, group, uids[span], position // size, level, is_computed):
            break
        position += size
    reach = position - size
    if drop and reach > 0:
        reach -= min(alignment, size)
    return reach - reach % alignment


@njit
def window_reach(
    pool: Pool,
    groups: Rows,
    group: int,
    uids: Ints,
    ends: Ints,
    max_tokens: int,
    alignment: int,
    drop: bool,
    level: int = PRESENT,
    num_computed: int = 0,
) -> int:
    """Tokens a sliding-window spec can serve: the rightmost aligned boundary with its run.

    Only boundaries that could be hits are looked at: a block that is missing rules out every
    boundary whose run would contain it. With ``drop`` the run ends one block behind the boundary.
    """
    if groups[group].chunked != 0:
        return _chunk_reach(pool, groups, group, uids, ends, max_tokens, level, num_computed)
    size: int = groups[group].block_size
    ahead: int = groups[group].key_lookahead
    needed = max(1, groups[group].num_to_resume + int(drop))
    shift = size if drop else 0
    boundary = (max_tokens // size * size - shift) // alignment * alignment
    while boundary > 0:
        position = boundary + shift
        span = span_at(ends, len(ends), position + ahead)
        matched = 0
        while position > 0 and matched < needed:
            while span > 0 and ends[span - 1] >= position + ahead:
                span -= 1
            is_computed = position + ahead <= num_computed
            if not is_cached(pool, groups, group, uids[span], position // size, level, is_computed):
                break
            matched += 1
            position -= size
        if matched >= needed:
            return boundary
        if position == 0:  # a run from the start of the prompt counts though it is shorter
            if drop and size != alignment:
                # The engine trims such a run to an aligned length before it drops the look-ahead
                # block, and then has to trim it again.
                return boundary - alignment
            return boundary
        boundary = (position - size - shift) // alignment * alignment
    return 0


@njit_apart
def _chunk_reach(
    pool: Pool,
    groups: Rows,
    group: int,
    uids: Ints,
    ends: Ints,
    max_tokens: int,
    level: int,
    num_computed: int,
) -> int:
    """Tokens a chunked local spec can serve: its chunk's blocks from the left to the first miss.

    The chunk is that of the bound. What lies before it nobody attends to: it counts as served.
    """
    size: int = groups[group].block_size
    ahead: int = groups[group].key_lookahead
    position: int = max_tokens // groups[group].sliding_window * groups[group].sliding_window
    span = 0
    while position + size <= max_tokens:
        while ends[span] < position + size + ahead:
            span += 1
        index = position // size + 1
        is_computed = position + size + ahead <= num_computed
        if not is_cached(pool, groups, group, uids[span], index, level, is_computed):
            break
        position += size
    return position


@njit
def collect_hit(pool: Pool, tables: Tables, slot: int, group: int, hit_tokens: int) -> int:
    """Write the blocks of a hit into a block table that holds nothing yet, without taking them.

    Some releases of the engine leave a group more than the hit: what is ``beyond`` it.

    Returns:
        How many of them lie in the free queue; -1 where a block is no longer cached, so that
        the hit no longer holds.
    """
    row = tables.groups[group]
    size, ahead = row.block_size, row.key_lookahead
    num = (hit_tokens + row.beyond) // size
    first = 0 if row.sliding_window == 0 else max(0, num - row.num_to_resume)
    if row.chunked != 0:
        first = num_skipped(row, hit_tokens)
    tables.tables[slot, group].first = first
    idle = 0
    uids, ends = tables.spans[slot, 0], tables.spans[slot, 1]
    span = span_at(ends, tables.sequences[slot].num_spans, (first + 1) * size + ahead)
    for index in range(first, num):
        while ends[span] < (index + 1) * size + ahead:
            span += 1
        block = find_block(pool, block_key(uids[span], index + 1, group))
        if block == 0:
            return -1
        tables.rings[slot, row.ring + (index & row.ring_mask)] = block
        if pool.blocks[block].num_refs == 0:
            idle += 1
    return idle


@njit
def adopt_hit(pool: Pool, tables: Tables, slot: int, group: int, hit_tokens: int) -> None:
    """Hold the blocks that ``collect_hit`` wrote."""
    row = tables.groups[group]
    table = tables.tables[slot, group]
    table.length = (hit_tokens + row.beyond) // row.block_size
    table.num_looked_at = table.length
    ring = tables.rings[slot, row.ring : row.ring + row.ring_mask + 1]
    touch_run(pool, ring, row.ring_mask, table.first, table.length)
    if group == 0 and hit_tokens > 0:
        note_hit(pool, tables, slot, hit_tokens)


@njit
def note_hit(pool: Pool, tables: Tables, slot: int, hit_tokens: int) -> None:
    """Tell a retention policy where a hit has landed."""
    address = pool.totals[RETAINED]
    if address != 0:
        ends = tables.spans[slot, 1]
        uid = tables.spans[slot, 0, span_at(ends, tables.sequences[slot].num_spans, hit_tokens)]
        unit = retained.retain_at(address, 1)[0].unit_tokens
        retained.note_landing(address, block_key(uid, hit_tokens // unit, 0))


@njit_apart
def note_taker(pool: Pool, tables: Tables, slot: int, group: int) -> None:
    """Tell the ledger who takes the blocks that come next and why."""
    if pool.totals[NOTED] == 0:
        return
    sequence = tables.sequences[slot]
    cause = BY_PROMPT
    if sequence.owner & READMITTED and sequence.num_computed + 1 < sequence.num_tokens:
        cause = BY_RECOMPUTE
    elif tables.groups[group].sliding_window != 0:
        cause = BY_WINDOW
    elif tables.groups[group].states != 0:
        cause = BY_STATE
    elif sequence.num_computed >= sequence.num_prompt:
        cause = BY_ANSWER
    tell_taker(pool.totals[NOTED], taker_of(sequence.owner, cause))


@njit
def take_blocks(pool: Pool, tables: Tables, slot: int, group: int, num_tokens: int) -> None:
    """Extend a block table so that it covers a number of tokens."""
    row = tables.groups[group]
    table = tables.tables[slot, group]
    num = -(-num_tokens // row.block_size)
    table.first_new = table.length
    if num <= table.length:
        return
    if pool.totals[WATCHED] != 0:
        note_taker(pool, tables, slot, group)
    ring = tables.rings[slot, row.ring : row.ring + row.ring_mask + 1]
    take_run(pool, ring, row.ring_mask, table.length, num, group)
    table.length = num


@njit
def num_skipped(row: Any, num_computed_tokens: int) -> int:
    """Positions of a table that the next token does not attend to; below 0 where there is none."""
    if row.sliding_window == 0:
        return 0
    tokens: int = num_computed_tokens - row.sliding_window + 1
    if row.chunked != 0:
        tokens = num_computed_tokens // row.sliding_window * row.sliding_window
    return tokens // int(row.block_size)


@njit
def leave_window(
    pool: Pool, tables: Tables, slot: int, group: int, num_computed_tokens: int
) -> None:
    """Give back the blocks the window, or the chunk, has left, newest first."""
    row = tables.groups[group]
    if row.sliding_window == 0:
        return
    table = tables.tables[slot, group]
    end = min(num_skipped(row, num_computed_tokens), table.length)
    if end > table.first:
        if pool.totals[WATCHED] != 0:
            tell_holder(pool, tables.groups, group, tables.sequences[slot], 0)
        ring = tables.rings[slot, row.ring : row.ring + row.ring_mask + 1]
        give_back_run(pool, ring, row.ring_mask, table.first, end, row.prepend_uncached != 0)
        table.first = end


@njit_apart
def tell_holder(pool: Pool, groups: Rows, group: int, sequence: Any, offset: int) -> None:
    """Tell the order of the free queue and the ledger who gives back the blocks that come next."""
    if pool.totals[NOTED] != 0:
        tell_user(pool.totals[NOTED], sequence.owner)
    if pool.totals[ORDERED] == 0:
        return
    row = groups[group]
    ordered.note_holder(
        pool.totals[ORDERED],
        group,
        SLIDING_WINDOW if row.sliding_window != 0 and row.chunked == 0 else FULL_ATTENTION,
        row.block_size,
        offset,
        row.num_kept,
        row.ahead,
        sequence.num_prompt,
        sequence.junction,
        sequence.priority,
        sequence.keep_priority,
        sequence.keep_tokens,
        sequence.keep_s,
        sequence.admitted_s,
    )


@njit
def give_back_all(pool: Pool, tables: Tables, slot: int, group: int) -> None:
    """Give back a whole block table, last block first."""
    table = tables.tables[slot, group]
    row = tables.groups[group]
    if pool.totals[WATCHED] != 0:
        tell_holder(pool, tables.groups, group, tables.sequences[slot], 0)
    ring = tables.rings[slot, row.ring : row.ring + row.ring_mask + 1]
    give_back_run(pool, ring, row.ring_mask, table.first, table.length, row.prepend_uncached != 0)
    table.length = 0
    table.first = 0
    table.num_looked_at = 0


@njit
def cache_blocks(
    pool: Pool,
    tables: Tables,
    slot: int,
    group: int,
    num_tokens: int,
    alignment: int,
    retention_interval: int,
    boundaries: Ints,
    kept: Bools,
) -> None:
    """Enter the full blocks of a table in the index, as far as they are worth keeping.

    Args:
        pool: the pool.
        tables: the block tables.
        slot: the sequence.
        group: the group.
        num_tokens: blocks up to here are full and may be cached.
        alignment: unit of hits in tokens.
        retention_interval: tokens; -1 dense.
        boundaries: int64 [4], reachable boundaries in tokens; the last is this function's.
        kept: scratch for the mask, at least one long.
    """
    row = tables.groups[group]
    table = tables.tables[slot, group]
    start = table.num_looked_at
    end = num_tokens // row.block_size
    if end <= start:
        return
    table.num_looked_at = end
    if row.sliding_window == 0 or row.chunked != 0:
        _enter_blocks(pool, tables, slot, group, start, end, True, kept)
        return
    junction = tables.sequences[slot].junction
    boundaries[3] = NO_BOUNDARY
    if row.before_junction != 0 and junction > 0:
        # A sibling that diverges at the junction lands one block before it.
        boundaries[3] = junction - row.block_size
    # A load makes any number of blocks full at once: piece by piece the scratch is never too short.
    while start < end:
        stop = min(end, start + len(kept))
        kept[: stop - start] = False
        if pool.totals[RETAINED] != 0:
            _ask_runs(pool, tables, slot, group, start, stop, alignment, boundaries, kept)
            _enter_blocks(pool, tables, slot, group, start, stop, False, kept)
            start = stop
            continue
        every = keep_window_runs(
            kept,
            start,
            stop,
            row.block_size,
            alignment,
            row.num_kept,
            row.ahead,
            retention_interval,
            boundaries,
            -1,
        )
        _enter_blocks(pool, tables, slot, group, start, stop, every, kept)
        start = stop


@njit_apart
def _ask_runs(
    pool: Pool,
    tables: Tables,
    slot: int,
    group: int,
    start: int,
    stop: int,
    alignment: int,
    boundaries: Ints,
    kept: Bools,
) -> None:
    """Mark the runs that a retention policy keeps among blocks from ``start`` to ``stop``."""
    row = tables.groups[group]
    sequence = tables.sequences[slot]
    size, ahead = row.block_size, row.ahead
    address = pool.totals[RETAINED]
    cached = 0
    for other in range(len(tables.groups)):
        if tables.groups[other].sliding_window != 0 and tables.groups[other].chunked == 0:
            cached += pool.totals[CACHED_BY_GROUP + other]
    retained.describe_run(address, group, size, row.num_kept, sequence.num_prompt, cached)
    uids, ends = tables.spans[slot, 0], tables.spans[slot, 1]
    boundary = max(1, (start - ahead) * size // alignment) * alignment
    # A boundary's run ends ``ahead`` blocks behind it.
    while boundary // size + ahead - row.num_kept < stop and boundary <= sequence.num_tokens:
        end = boundary // size + ahead
        if end > start:
            span = span_at(ends, sequence.num_spans, boundary)
            key = block_key(uids[span], boundary // alignment, 0)
            if retained.keeps_run(address, boundary, key, boundaries):
                retained.mark(kept, start, stop, end - row.num_kept, end)
        boundary += alignment


@njit
def _enter_blocks(
    pool: Pool,
    tables: Tables,
    slot: int,
    group: int,
    start: int,
    end: int,
    every: bool,
    kept: Bools,
) -> None:
    """Enter blocks that are full, ``every`` one or those that are ``kept``, from ``start`` on.

    Their tokens are all known, so that the walk over the spans ends among those of the sequence.
    """
    row = tables.groups[group]
    begin = max(start, tables.tables[slot, group].first)
    if begin >= end:
        return
    size, ring, ring_mask, ahead = row.block_size, row.ring, row.ring_mask, row.key_lookahead
    uids, ends = tables.spans[slot, 0], tables.spans[slot, 1]
    span = span_at(ends, tables.sequences[slot].num_spans, (begin + 1) * size + ahead)
    for index in range(begin, end):
        if every or kept[index - start]:
            while ends[span] < (index + 1) * size + ahead:
                span += 1
            block = tables.rings[slot, ring + (index & ring_mask)]
            if pool.blocks[block].key != 0:  # by the end of the prompt, see below
                remove_block(pool, block)
            enter_block(pool, block, block_key(uids[span], index + 1, group))


@njit
def cache_prompt_end(
    pool: Pool, tables: Tables, slot: int, group: int, num_tokens: int, hash_block_size: int
) -> None:
    """Enter the block in which a prompt ends, before it is full, as the engine does with EAGLE.

    No lookup finds it (they ask for whole blocks only), but it counts as cached when it is given
    back. Seen in the engine for full-attention groups of hybrid models, whose look-ahead block
    can be entered while it is being filled.
    """
    row = tables.groups[group]
    sequence = tables.sequences[slot]
    end = sequence.num_prompt // hash_block_size * hash_block_size
    index = end // row.block_size
    if end > num_tokens or end % row.block_size == 0:
        return
    if index >= tables.tables[slot, group].length:
        return
    block = tables.rings[slot, row.ring + (index & row.ring_mask)]
    if pool.blocks[block].key == 0:
        span = span_at(tables.spans[slot, 1], sequence.num_spans, end)
        # Told from the keys of whole blocks by a number no block has.
        number = end // hash_block_size | 1 << (NUMBER_BITS - 1)
        enter_block(pool, block, block_key(tables.spans[slot, 0, span], number, group))
