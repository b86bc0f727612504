"""How far the content of spans has been computed, and who was admitted with it, for the ledger."""

from __future__ import annotations

import numpy as np

from kvsim.cache.block_pool import NOTED, Pool
from kvsim.cache.content import Ints, span_at
from kvsim.cache.groups import Tables
from kvsim.cache.ledger import FLAG_BITS, NUM_KNOWN, Ledger, Rows, ledger_at
from kvsim.jit import njit, njit_apart


@njit
def find_known(known: Rows, uid: int) -> int:
    """The row of a span, or the empty one it would take."""
    last = len(known) - 1
    line = np.uint64(uid >> 3) * np.uint64(0x9E3779B97F4A7C15)
    line ^= line >> np.uint64(32)
    place: int = np.int64(line & np.uint64(last >> 3)) << 3 | (uid & 7)  # type: ignore[assignment]
    while known[place].uid != 0 and known[place].uid != uid + 1:
        place = (place + 1) & last
    return place


@njit
def know_spans(ledger: Ledger, uids: Ints, output_uid: int) -> None:
    """Rows for the spans of a prompt and of its answer; there must be room for all of them."""
    for i in range(len(uids) + 1):
        uid = uids[i] if i < len(uids) else output_uid
        place = find_known(ledger.known, uid)
        if ledger.known[place].uid == 0:
            ledger.known[place].uid = uid + 1
            ledger.meter[NUM_KNOWN] += 1


@njit
def note_computed(
    ledger: Ledger, uids: Ints, ends: Ints, span: int, num_tokens: int, owner: int
) -> None:
    """A sequence is computed up to a number of tokens; earlier spans than ``span`` are noted.

    Args:
        ledger: with rows.
        uids: of the spans.
        ends: their ends in tokens; the last is at or beyond ``num_tokens``.
        span: the first one looked at.
        num_tokens: computed.
        owner: of the sequence.
    """
    start = ends[span - 1] if span > 0 else 0
    while start < num_tokens:
        end = min(ends[span], num_tokens)
        place = find_known(ledger.known, uids[span])
        row = ledger.known[place]
        if row.uid != 0 and row.computed <= end:
            row.computed = end
            row.computed_by = owner >> FLAG_BITS
        start = ends[span]
        span += 1


@njit
def note_admitted(known: Rows, uids: Ints, ends: Ints, owner: int) -> None:
    """A request with these spans, which are known, is admitted."""
    for span in range(len(uids)):
        row = known[find_known(known, uids[span])]
        if row.uid != 0 and row.admitted <= ends[span]:
            row.admitted = ends[span]
            row.admitted_by = owner >> FLAG_BITS


@njit
def move_known(known: Rows, longer: Rows) -> None:
    """Enter all rows in a longer table."""
    for i in range(len(known)):
        if known[i].uid != 0:
            row = longer[find_known(longer, known[i].uid - 1)]
            row.uid = known[i].uid
            row.computed = known[i].computed
            row.admitted = known[i].admitted
            row.computed_by = known[i].computed_by
            row.admitted_by = known[i].admitted_by


@njit_apart
def note_progress(pool: Pool, tables: Tables, slot: int, num_computed: int) -> None:
    """A sequence is computed up to a number of tokens, as far as they are known."""
    sequence = tables.sequences[slot]
    num_tokens = min(num_computed, sequence.num_tokens)
    if num_tokens <= sequence.num_noted:
        return
    uids, ends = tables.spans[slot, 0], tables.spans[slot, 1]
    span = span_at(ends, sequence.num_spans, sequence.num_noted + 1)
    sequence.num_noted = num_tokens
    ledger = ledger_at(pool.totals[NOTED])
    note_computed(ledger, uids, ends, span, num_tokens, sequence.owner)


@njit
def note_leave(pool: Pool, tables: Tables, slot: int) -> None:
    """A sequence is about to leave its slot: what it computed since it was noted last."""
    if pool.totals[NOTED] != 0:
        note_progress(pool, tables, slot, tables.sequences[slot].num_computed)
