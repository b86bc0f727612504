"""Who holds which prefixes: indexes that a router keeps, fed by events or by its own decisions.

All work on runs of blocks, one for each span of a prompt, so that a look costs what the prompt has
spans and the replicas that hold its beginning, not what it has tokens. Their cells stand in arrays
(`kvsim.cache.span_table`); a router whose every decision looks at several calls the compiled loops
itself, all at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvsim.cache.content import Content
from kvsim.cache.span_table import (
    HOLDER,
    KEY,
    LAST,
    MOST_TOKENS,
    NEXT,
    OWN,
    OWN_TOO,
    SpanTable,
    bucket_of,
    drop_holder,
    first_block,
    free_cell,
    last_block,
    overlap_runs,
    remove_run,
    store_run,
    take_cell,
)
from kvsim.jit import njit
from kvsim.routing.block_runs import POSITION_BITS, BlockRuns
from kvsim.routing.views import Floats, Ints


class EventIndex:
    """What replicas told they hold, block by block.

    Attributes:
        unit_tokens: size of a block.
        table: a cell for each interval of a span's blocks that a replica holds.
    """

    def __init__(self, unit_tokens: int) -> None:
        """Start empty, for blocks of `unit_tokens`."""
        self.unit_tokens = unit_tokens
        self.table = SpanTable()

    def store(self, replica: int, keys: Sequence[int]) -> None:
        """A replica holds these prefixes (`prefix_key`s) from now on."""
        self._change(replica, keys, stored=True)

    def remove(self, replica: int, keys: Sequence[int]) -> None:
        """A replica holds these prefixes no more."""
        self._change(replica, keys, stored=False)

    def drop(self, replica: int) -> None:
        """A replica is gone, and all it held."""
        drop_holder(self.table.heads, self.table.cells, replica)

    def overlap(self, content: Content, num_replicas: int) -> Ints:
        """Tokens of each replica's leading blocks of a prompt; int64 [num_replicas], new."""
        found: Ints = np.zeros(num_replicas, np.int64)
        overlap_runs(
            self.table.heads, self.table.cells, content.uids, content.ends, self.unit_tokens, 0,
            MOST_TOKENS, found,
        )  # fmt: skip
        return found

    def _change(self, replica: int, keys: Sequence[int], *, stored: bool) -> None:
        if not len(keys):
            return
        is_told_in_runs = isinstance(keys, BlockRuns)
        told: Ints = np.array(keys.ends() if isinstance(keys, BlockRuns) else keys, np.int64)
        self.table.grow(len(told))
        _change(
            self.table.heads, self.table.cells, replica, told.reshape(-1), is_told_in_runs, stored,
            self.unit_tokens,
        )  # fmt: skip


class DecisionIndex:
    """What a router's own decisions must have brought to replicas, each kept for some time.

    Nothing ever corrects it. A block lives until `keep_s` after the last decision that had it.

    Attributes:
        unit_tokens: size of a block.
        keep_s: how long decisions count.
        table: a cell for each span, replica and last block of the span that was sent there, in a
            chain from the one that was sent longest ago.
        until: float64 [1 + cells], the time each cell lives to.
    """

    def __init__(self, unit_tokens: int, keep_s: float) -> None:
        """Start empty, for blocks of `unit_tokens`."""
        self.unit_tokens = unit_tokens
        self.keep_s = keep_s
        self.table = SpanTable(_NEWER + 1)
        self.until: Floats = np.zeros(len(self.table.cells))

    def store(self, replica: int, content: Content, now_s: float) -> None:
        """A request with this prompt was sent to a replica."""
        self.grow(len(content.uids))
        keep_decision(
            self.table.heads, self.table.cells, self.until, replica, content.uids, content.ends,
            self.unit_tokens, now_s + self.keep_s,
        )  # fmt: skip

    def drop(self, replica: int) -> None:
        """A replica is gone."""
        _drop_decisions(self.table.heads, self.table.cells, replica)

    def overlap(self, content: Content, num_replicas: int, now_s: float) -> Ints:
        """Tokens of each replica's leading blocks of a prompt; int64 [num_replicas], new."""
        found: Ints = np.zeros(num_replicas, np.int64)
        forget_decisions(self.table.heads, self.table.cells, self.until, now_s)
        overlap_decisions(
            self.table.heads, self.table.cells, content.uids, content.ends, self.unit_tokens, found
        )
        return found

    def grow(self, num_cells: int) -> None:
        """See to it that so many cells are free."""
        self.table.grow(num_cells)
        more = len(self.table.cells) - len(self.until)
        if more:
            self.until = np.concatenate([self.until, np.zeros(more)])


class ActiveBlocks:
    """Distinct full blocks of the requests that are active on each replica.

    Attributes:
        table: a cell for each span, replica and last block of the span in an active request.
    """

    def __init__(self, unit_tokens: int) -> None:
        """Start with nothing active, for blocks of `unit_tokens`."""
        self._unit = unit_tokens
        self.table = SpanTable(_COUNT + 1)

    def add(self, replica: int, content: Content) -> int:
        """A request becomes active; returns how many blocks are new there."""
        self.table.grow(len(content.uids))
        return add_active(
            self.table.heads, self.table.cells, replica, content.uids, content.ends, self._unit
        )

    def remove(self, replica: int, content: Content) -> int:
        """A request that was added is active no more; returns how many blocks went with it."""
        return remove_active(
            self.table.heads, self.table.cells, replica, content.uids, content.ends, self._unit
        )

    def shared(self, content: Content, num_replicas: int) -> Ints:
        """How many of a prompt's blocks are active on each replica; int64 [num_replicas], new."""
        found: Ints = np.zeros(num_replicas, np.int64)
        count_active(
            self.table.heads, self.table.cells, content.uids, content.ends, self._unit,
            np.zeros_like(found), found,
        )  # fmt: skip
        return found


# --- events ---


@njit
def _change(
    heads: Ints, cells: Ints, replica: int, told: Ints, in_runs: bool, stored: bool, unit: int
) -> None:
    """Enter or take out keys, neighbours in either direction together, or runs by their ends."""
    i = 0
    while i < len(told):
        low = high = told[i]
        i += 1
        if in_runs:
            low, high = min(low, told[i]), max(high, told[i])
            i += 1
        else:
            while i < len(told) and (told[i] == high + unit or told[i] == low - unit):
                low, high = min(low, told[i]), max(high, told[i])
                i += 1
        if stored:
            store_run(heads, cells, replica, low, high, unit)
        else:
            remove_run(heads, cells, replica, low, high, unit)


# --- decisions, in a chain by age through row 0 ---

_OLDER, _NEWER = LAST + 1, LAST + 2
_NEWEST, _OLDEST = OWN, OWN_TOO  # of the chain, in row 0


@njit
def _part(cells: Ints, cell: int) -> None:
    """Take a cell out of the chain by age."""
    older, newer = cells[cell, _OLDER], cells[cell, _NEWER]
    if older == 0:
        cells[0, _OLDEST] = newer
    else:
        cells[older, _NEWER] = newer
    if newer == 0:
        cells[0, _NEWEST] = older
    else:
        cells[newer, _OLDER] = older


@njit
def keep_decision(
    heads: Ints,
    cells: Ints,
    until: Floats,
    replica: int,
    uids: Ints,
    ends: Ints,
    unit: int,
    until_s: float,
) -> None:
    """Enter a prompt that was sent to a replica; as many cells are free as it has spans."""
    start = 0
    for span in range(len(uids)):
        first, last = first_block(start, unit, 0), last_block(ends[span], unit, 0)
        start = ends[span]
        if first > last:
            continue
        key = uids[span] << POSITION_BITS | last
        bucket = bucket_of(heads, uids[span])
        cell = heads[bucket]
        while cell != 0 and (cells[cell, KEY] != key or cells[cell, HOLDER] != replica):
            cell = cells[cell, NEXT]
        if cell == 0:
            cell = take_cell(heads, cells, bucket)
            cells[cell, KEY], cells[cell, HOLDER], cells[cell, LAST] = key, replica, last
        else:
            _part(cells, cell)
        until[cell] = until_s
        newest = cells[0, _NEWEST]
        cells[cell, _OLDER], cells[cell, _NEWER] = newest, 0
        if newest == 0:
            cells[0, _OLDEST] = cell
        else:
            cells[newest, _NEWER] = cell
        cells[0, _NEWEST] = cell


@njit
def forget_decisions(heads: Ints, cells: Ints, until: Floats, now_s: float) -> None:
    """Free the cells whose time is over."""
    oldest = cells[0, _OLDEST]
    while oldest != 0 and until[oldest] <= now_s:
        _part(cells, oldest)
        bucket = bucket_of(heads, cells[oldest, KEY] >> POSITION_BITS)
        before, cell = 0, heads[bucket]
        while cell != oldest:
            before, cell = cell, cells[cell, NEXT]
        free_cell(heads, cells, bucket, before, cell)
        oldest = cells[0, _OLDEST]


@njit
def _drop_decisions(heads: Ints, cells: Ints, replica: int) -> None:
    """A replica is gone."""
    for bucket in range(len(heads)):
        before, cell = 0, heads[bucket]
        while cell != 0:
            following = cells[cell, NEXT]
            if cells[cell, HOLDER] == replica:
                _part(cells, cell)
                free_cell(heads, cells, bucket, before, cell)
            else:
                before = cell
            cell = following


@njit
def overlap_decisions(
    heads: Ints, cells: Ints, uids: Ints, ends: Ints, unit: int, found: Ints
) -> None:
    """Write the tokens of each replica's leading blocks of a prompt."""
    found[:] = 0
    before, start = 0, 0
    for span in range(len(uids)):
        first, last = first_block(start, unit, 0), last_block(ends[span], unit, 0)
        start = ends[span]
        if first > last:
            continue
        whole = False
        cell = heads[bucket_of(heads, uids[span])]
        while cell != 0:
            holder = cells[cell, HOLDER]
            if (
                cells[cell, KEY] >> POSITION_BITS == uids[span]
                and holder < len(found)
                and found[holder] >= before
            ):
                found[holder] = max(found[holder], min(cells[cell, LAST], last))
                whole = whole or cells[cell, LAST] >= last
            cell = cells[cell, NEXT]
        if not whole:
            break
        before = last


# --- active requests ---

_COUNT = LAST + 1


@njit
def add_active(heads: Ints, cells: Ints, replica: int, uids: Ints, ends: Ints, unit: int) -> int:
    """Enter a request; as many cells are free as it has spans. Returns how many blocks are new."""
    new, start = 0, 0
    for span in range(len(uids)):
        first, last = first_block(start, unit, 0), last_block(ends[span], unit, 0)
        start = ends[span]
        if first > last:
            continue
        key = uids[span] << POSITION_BITS | first
        bucket = bucket_of(heads, uids[span])
        furthest, same = first - unit, 0
        cell = heads[bucket]
        while cell != 0:
            if cells[cell, KEY] == key and cells[cell, HOLDER] == replica:
                furthest = max(furthest, cells[cell, LAST])
                if cells[cell, LAST] == last:
                    same = cell
            cell = cells[cell, NEXT]
        new += max(0, last - furthest)
        if same == 0:
            same = take_cell(heads, cells, bucket)
            cells[same, KEY], cells[same, HOLDER], cells[same, LAST] = key, replica, last
            cells[same, _COUNT] = 0
        cells[same, _COUNT] += 1
    return new // unit


@njit
def remove_active(heads: Ints, cells: Ints, replica: int, uids: Ints, ends: Ints, unit: int) -> int:
    """Take out a request that was entered. Returns how many blocks went with it."""
    gone, start = 0, 0
    for span in range(len(uids)):
        first, last = first_block(start, unit, 0), last_block(ends[span], unit, 0)
        start = ends[span]
        if first > last:
            continue
        key = uids[span] << POSITION_BITS | first
        bucket = bucket_of(heads, uids[span])
        furthest, same, before_same = first - unit, 0, 0
        before, cell = 0, heads[bucket]
        while cell != 0:
            if cells[cell, KEY] == key and cells[cell, HOLDER] == replica:
                if cells[cell, LAST] == last:
                    same, before_same = cell, before
                else:
                    furthest = max(furthest, cells[cell, LAST])
            before, cell = cell, cells[cell, NEXT]
        if same == 0:
            continue
        cells[same, _COUNT] -= 1
        if cells[same, _COUNT] == 0:
            gone += max(0, last - furthest)
            free_cell(heads, cells, bucket, before_same, same)
    return gone // unit


@njit
def count_active(
    heads: Ints, cells: Ints, uids: Ints, ends: Ints, unit: int, most: Ints, found: Ints
) -> None:
    """Write how many of a prompt's blocks are active on each replica; `most` is for own use."""
    found[:] = 0
    start = 0
    for span in range(len(uids)):
        first, last = first_block(start, unit, 0), last_block(ends[span], unit, 0)
        start = ends[span]
        if first > last:
            continue
        key = uids[span] << POSITION_BITS | first
        head = heads[bucket_of(heads, uids[span])]
        cell, anybody = head, False
        while cell != 0:
            if cells[cell, KEY] == key and cells[cell, HOLDER] < len(found):
                most[cells[cell, HOLDER]] = 0
                anybody = True
            cell = cells[cell, NEXT]
        if not anybody:
            break
        cell = head
        while cell != 0:
            holder = cells[cell, HOLDER]
            if cells[cell, KEY] == key and holder < len(found):
                blocks = (min(cells[cell, LAST], last) - first) // unit + 1
                found[holder] += max(0, blocks - most[holder])
                most[holder] = max(most[holder], blocks)
            cell = cells[cell, NEXT]
