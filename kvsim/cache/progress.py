"""Tells the ledger how far sequences are computed."""

from __future__ import annotations

from typing import Any

from kvsim.cache.block_pool import Pool
from kvsim.cache.content import span_at
from kvsim.cache.groups import Tables
from kvsim.cache.ledger import note_computed
from kvsim.jit import njit


@njit
def note_progress(pool: Pool, tables: Tables, rules: Any, slot: int, num_computed: int) -> None:
    """A sequence is computed up to a number of tokens, as far as they are known."""
    sequence = tables.sequences[slot]
    num_tokens = min(num_computed, sequence.num_tokens)
    num_noted = min(sequence.num_entered * rules.entry_unit, num_tokens)
    uids, ends = tables.spans[slot, 0], tables.spans[slot, 1]
    span = span_at(ends, sequence.num_spans, num_noted + 1)
    note_computed(pool.ledger, uids, ends, span, num_tokens, sequence.owner)


@njit
def note_leave(pool: Pool, tables: Tables, rules: Any, slot: int) -> None:
    """A sequence is about to leave its slot: what it computed since it was noted last."""
    if len(pool.ledger.uses) > 0 and rules.caching != 0:
        note_progress(pool, tables, rules, slot, tables.sequences[slot].num_computed)
