"""Events on their way from caches to a router: read from logs, delivered after a while."""

from __future__ import annotations

import numpy as np

from kvsim.cache.block_pool import LOG, LOG_LENGTH, LOG_ROWS, stamp
from kvsim.cache.content import POSITION_BITS, Ints
from kvsim.cache.holders import group_of_entry, is_entry, prefix_of
from kvsim.cache.span_table import NUM_FREE as NUM_FREE_CELLS
from kvsim.cache.span_table import remove_run, store_run
from kvsim.jit import njit
from kvsim.routing import BlockRuns, Decider
from kvsim.routing.views import Bools, Floats

# Rows of runs: keys of the prefixes that end with the first and the last block, in the order of the
# log; whether they were entered; when the last became known; the next run of the message, or the
# next one that is free; and the next one of a bucket. Row 0 is none: see `_FREE`.
_FIRST, _LAST, _STORED, _TIME_NS, _NEXT, _CHAIN, _RUN_COLUMNS = range(7)
_FREE, _NUM_FREE = 0, 1
# Messages, a binary heap by time and number from row 1 on: when it comes, how many were sent before
# it, whose it is, its first run, and how many it has. Row 0: how many there are, and were ever.
_AT_S, _NUMBER, _TARGET, _HEAD, _LENGTH, _MESSAGE_COLUMNS = range(6)
_COUNT, _SENT = 0, 1

_NS = 1e-9


class EventPost:
    """What one router is going to be told.

    A message has what a replica's cache entered and removed in a step, as neighbouring
    blocks; where a block was removed and entered again, or the reverse, there is one for each part.
    """

    def __init__(self, decider: Decider, delay_s: float, group: int, block_size: int) -> None:
        """Nothing on its way.

        Args:
            decider: the router.
            delay_s: from a change to the router.
            group: of the blocks that are told.
            block_size: tokens of a block.
        """
        self._decider = decider
        self._index = decider.event_index
        self._delay_s = delay_s
        self._group = group
        self._block_size = block_size
        self._runs: Ints = np.zeros((1, _RUN_COLUMNS), np.int64)
        self._messages: Floats = np.zeros((1, _MESSAGE_COLUMNS))
        self._buckets: Ints = np.zeros(1, np.int64)
        self._grow(1 << 10)

    @property
    def num_under_way(self) -> int:
        """Messages that have not come yet."""
        return int(self._messages[0, _COUNT])

    def collect(self, log: Ints, target: int, now_ns: int) -> None:
        """Put on its way what stands in a log; the log stays as it is.

        Args:
            log: `totals` of a pool, with a log that was long enough.
            target: what the router calls the replica.
            now_ns: when that becomes known, unless it has a time already.
        """
        while not _collect(
            log, self._group, self._block_size, now_ns, target, self._delay_s, self._messages,
            self._runs, self._buckets,
        ):  # fmt: skip
            self._grow(int(log[LOG_LENGTH]))

    def deliver(self, now_s: float) -> None:
        """Let the router know of what has reached it by now."""
        decider, index = self._decider, self._index
        if index is None:
            self._tell(now_s)
            return
        table, there = index.table, decider.views.there
        while missing := _deliver(
            now_s, self._messages, self._runs, table.heads, table.cells, there, self._block_size
        ):
            table.grow(missing)

    def _tell(self, now_s: float) -> None:
        """By calls of the router, message by message."""
        messages, runs = self._messages, self._runs
        while messages[0, _COUNT] > 0 and messages[1, _AT_S] <= now_s:
            target, run = int(messages[1, _TARGET]), int(messages[1, _HEAD])
            told: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
            for _ in range(int(messages[1, _LENGTH])):
                first, last, stored, _, following, _ = runs[run].tolist()
                told[stored].append((first, last))
                run = following
            _take_first(messages, runs)
            removed, stored_runs = (BlockRuns(ends, self._block_size) for ends in told)
            self._decider.events(target, stored_runs, removed, now_s)

    def _grow(self, num_runs: int) -> None:
        """Make room for so many more runs, each perhaps a message of its own."""
        before = len(self._runs)
        size = before
        while size - before + int(self._runs[0, _NUM_FREE]) < num_runs:
            size *= 2
        runs = np.zeros((size, _RUN_COLUMNS), np.int64)
        runs[:before] = self._runs
        _set_free(runs, before)
        messages = np.zeros((size, _MESSAGE_COLUMNS))
        messages[: len(self._messages)] = self._messages
        self._runs, self._messages = runs, messages
        self._buckets = np.zeros(size, np.int64)


@njit
def _set_free(runs: Ints, before: int) -> None:
    """Rows from `before` on are free."""
    for run in range(len(runs) - 1, before - 1, -1):
        runs[run, _NEXT] = runs[0, _FREE]
        runs[0, _FREE] = run
    runs[0, _NUM_FREE] += len(runs) - before


@njit
def _collect(
    log: Ints,
    group: int,
    size: int,
    now_ns: int,
    target: int,
    delay_s: float,
    messages: Floats,
    runs: Ints,
    buckets: Ints,
) -> bool:
    """Make runs and messages of a log; nothing is done where there could be no room."""
    stamp(log, now_ns)
    number = log[LOG_LENGTH]
    if runs[0, _NUM_FREE] < number:
        return False
    entries = (len(log) - LOG) // LOG_ROWS
    head, run, step = 0, 0, 0
    num_stored, num_removed = 0, 0
    for i in range(number):
        key = log[LOG + i]
        if group_of_entry(key) != group:
            continue
        stored = 1 if is_entry(log[LOG + entries + i]) else 0
        prefix = prefix_of(key, size)
        gap = prefix - runs[run, _LAST]
        time_ns = log[LOG + 2 * entries + i]
        goes_on = run != 0 and runs[run, _STORED] == stored and (gap == size or gap == -size)
        goes_on = goes_on and runs[run, _TIME_NS] == time_ns
        if goes_on and (step == 0 or step == gap):
            step = gap
        else:
            before, run, step = run, runs[0, _FREE], 0
            runs[0, _FREE] = runs[run, _NEXT]
            runs[0, _NUM_FREE] -= 1
            if before == 0:
                head = run
            else:
                runs[before, _NEXT] = run
            runs[run, _FIRST], runs[run, _STORED], runs[run, _NEXT] = prefix, stored, 0
            num_stored += stored
            num_removed += 1 - stored
        runs[run, _LAST], runs[run, _TIME_NS] = prefix, time_ns
    if head == 0:
        return True
    in_parts = num_stored > 0 and num_removed > 0 and _overlap(head, num_stored, runs, buckets)
    # What became known together, and runs of one kind, in order, where the order counts.
    run, length = head, 0
    while run != 0:
        following, length = runs[run, _NEXT], length + 1
        if (
            following == 0
            or runs[following, _TIME_NS] != runs[run, _TIME_NS]
            or (in_parts and runs[following, _STORED] != runs[run, _STORED])
        ):
            at_s = float(runs[run, _TIME_NS]) * _NS + delay_s
            _send(messages, at_s, target, head, length)
            runs[run, _NEXT] = 0
            head, length = following, 0
        run = following
    return True


@njit
def _overlap(head: int, num_stored: int, runs: Ints, buckets: Ints) -> bool:
    """Whether a block stands in a run that was entered and in one that was removed."""
    size = 1
    while size < num_stored:
        size *= 2
    mask = np.uint64(size - 1)
    buckets[:size] = 0
    run = head
    while run != 0:
        if runs[run, _STORED] == 1:
            bucket = np.int64(np.uint64(runs[run, _FIRST] >> POSITION_BITS) & mask)
            runs[run, _CHAIN] = buckets[bucket]
            buckets[bucket] = run
        run = runs[run, _NEXT]
    run = head
    while run != 0:
        if runs[run, _STORED] == 0:
            low = min(runs[run, _FIRST], runs[run, _LAST])
            high = max(runs[run, _FIRST], runs[run, _LAST])
            other = buckets[np.int64(np.uint64(low >> POSITION_BITS) & mask)]
            while other != 0:
                first, last = runs[other, _FIRST], runs[other, _LAST]
                if min(first, last) <= high and max(first, last) >= low:
                    return True
                other = runs[other, _CHAIN]
        run = runs[run, _NEXT]
    return False


@njit
def _is_before(messages: Floats, one: int, other: int) -> bool:
    """The order of the heap."""
    column = _NUMBER if messages[one, _AT_S] == messages[other, _AT_S] else _AT_S
    return bool(messages[one, column] < messages[other, column])


@njit
def _swap(messages: Floats, one: int, other: int) -> None:
    for column in range(_MESSAGE_COLUMNS):
        kept = messages[one, column]
        messages[one, column] = messages[other, column]
        messages[other, column] = kept


@njit
def _send(messages: Floats, at_s: float, target: int, head: int, length: int) -> None:
    """Enter a message; there is room."""
    messages[0, _COUNT] += 1
    row = int(messages[0, _COUNT])
    messages[row, _AT_S], messages[row, _NUMBER] = at_s, messages[0, _SENT]
    messages[row, _TARGET], messages[row, _HEAD], messages[row, _LENGTH] = target, head, length
    messages[0, _SENT] += 1
    while row > 1 and _is_before(messages, row, row >> 1):
        _swap(messages, row, row >> 1)
        row >>= 1


@njit
def _take_first(messages: Floats, runs: Ints) -> None:
    """Take the first message out; its runs are free then."""
    run = int(messages[1, _HEAD])
    last = run
    while runs[last, _NEXT] != 0:
        last = runs[last, _NEXT]
    runs[last, _NEXT] = runs[0, _FREE]
    runs[0, _FREE] = run
    runs[0, _NUM_FREE] += int(messages[1, _LENGTH])
    count = int(messages[0, _COUNT])
    messages[0, _COUNT] -= 1
    _swap(messages, 1, count)
    row = 1
    while 2 * row < count:
        least = 2 * row
        if least + 1 < count and _is_before(messages, least + 1, least):
            least += 1
        if not _is_before(messages, least, row):
            break
        _swap(messages, row, least)
        row = least


@njit
def _deliver(
    now_s: float,
    messages: Floats,
    runs: Ints,
    heads: Ints,
    cells: Ints,
    there: Bools,
    size: int,
) -> int:
    """Let an index take in messages that are due, of replicas that are there.

    Returns:
        0, or how many cells have to be free for the next message, with which it goes on then.
    """
    while messages[0, _COUNT] > 0 and messages[1, _AT_S] <= now_s:
        length, target = int(messages[1, _LENGTH]), int(messages[1, _TARGET])
        if target < len(there) and there[target]:
            if cells[0, NUM_FREE_CELLS] < length:
                return length
            run = int(messages[1, _HEAD])
            while run != 0:
                low = min(runs[run, _FIRST], runs[run, _LAST])
                high = max(runs[run, _FIRST], runs[run, _LAST])
                if runs[run, _STORED] == 1:
                    store_run(heads, cells, target, low, high, size)
                else:
                    remove_run(heads, cells, target, low, high, size)
                run = runs[run, _NEXT]
        _take_first(messages, runs)
    return 0
