"""What a cache remembers so that it can say why a token was not found.

Three tables, all empty where nobody asks: the keys that were evicted, with when, after what and for
whom; who gave each block back last; and how far each span's content has been computed by anybody.
A key's eviction is overwritten by its next one, and says nothing while the key is cached.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.cache.content import GROUP_BITS, Ints
from kvsim.jit import njit

Rows = npt.NDArray[np.void]

EVENT_ROW = np.dtype(
    [
        ("number", np.int32),  # evictions of the cache before the first of this event
        ("evicted_ms", np.int32),
        ("used_ms", np.int32),  # when their last holder gave them back
        ("taker", np.int32),  # who they were evicted for: number of the request << 3 | cause
        ("user", np.int32),  # who gave them back last: number << 1 | preempted
    ]
)
USE_ROW = np.dtype([("used_ms", np.int32), ("user", np.int32)])
KNOWN_ROW = np.dtype(
    [
        ("uid", np.int64),  # one more than the span's; 0 where the row is empty
        ("computed", np.int32),  # position in tokens up to which anybody computed it
        ("admitted", np.int32),  # up to which anybody who was admitted has it
        ("computed_by", np.int32),  # number of the request that computed that far
        ("admitted_by", np.int32),
    ],
    align=True,
)

# Entries of the meter: the time on the clock of the run; lines in use; events so far; spans known;
# evictions that there was no room to remember.
NOW_MS, NUM_LINES, NUM_EVENTS, NUM_KNOWN, NUM_FORGOTTEN, METER_SIZE = range(6)

# Why a block was taken from whoever had left it: to compute a prompt, or an answer; for a group
# that a window slides over; for a request that computes again what it had before a preemption.
BY_PROMPT, BY_ANSWER, BY_WINDOW, BY_RECOMPUTE, NUM_CAUSES = range(5)

# Bits of a sequence's owner, below the number of its request.
PREEMPTED, READMITTED = 1, 2
_FLAG_BITS = 2
_CAUSE_BITS = 3
_CAUSE_MASK = (1 << _CAUSE_BITS) - 1
_LINE_KEYS = 14  # with the line's number they fill a cache line, of 64 bytes
_GROUP_MASK = (1 << GROUP_BITS) - 1
MOST_REQUESTS = 1 << 28
LAST_MS = (1 << 31) - 1
"""Later times, of more than 24 simulated days, are noted as this one."""


class Ledger(NamedTuple):
    """Arrays of the ledger; all but the meter have no rows where nothing is noted.

    Attributes:
        lines: int64 [lines, 8], an open-addressing table, a power of two long: first the number of
            a line of neighbouring keys of which some were evicted, see `_line_of`; 0 where a row is
            empty.
        entries: int32 [lines, 16], the same memory: behind the line's number, for each of its keys
            the event in which it was evicted last, or 0.
        events: `EVENT_ROW`, a ring, a power of two long: evictions that have all in common.
        uses: one `USE_ROW` a block.
        known: `KNOWN_ROW`, an open-addressing table by span, a power of two long.
        meter: int64 [`METER_SIZE`].
    """

    lines: Ints
    entries: npt.NDArray[np.int32]
    events: Rows
    uses: Rows
    known: Rows
    meter: Ints


def make_ledger(
    num_blocks: int = 0, num_lines: int = 0, num_events: int = 0, num_known: int = 0
) -> Ledger:
    """A ledger with room for rows; without arguments one in which nothing is noted."""
    raw = np.zeros(64 * num_lines + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    raw = raw[start : start + 64 * num_lines]
    return Ledger(
        raw.view(np.int64).reshape(-1, 8),
        raw.view(np.int32).reshape(-1, 16),
        np.zeros(num_events, dtype=EVENT_ROW),
        np.zeros(num_blocks, dtype=USE_ROW),
        np.zeros(num_known, dtype=KNOWN_ROW),
        np.zeros(METER_SIZE, dtype=np.int64),
    )


def owner_of(number: int) -> int:
    """What stands for a request in a sequence's row, from the number of the request."""
    return min(number, MOST_REQUESTS - 1) << _FLAG_BITS


def number_of_owner(owner: int) -> int:
    """The number of the request that a sequence's row stands for."""
    return owner >> _FLAG_BITS


@njit
def taker_of(owner: int, cause: int) -> int:
    """Who takes a block and why, in one number."""
    return (owner >> _FLAG_BITS) << _CAUSE_BITS | cause


@njit
def user_of(owner: int) -> int:
    """Who gives a block back and whether by a preemption, in one number; -1 for nobody."""
    if owner < 0:
        return -1
    return (owner >> _FLAG_BITS) << 1 | (owner & PREEMPTED)


@njit
def cause_of(taker: int) -> int:
    """Why a block was taken."""
    return taker & _CAUSE_MASK


def number_of(taker: int) -> int:
    """The number of the request that took a block."""
    return taker >> _CAUSE_BITS


# --- evictions ---


@njit
def _find_line(lines: Ints, line: int) -> int:
    """The row of a line, or the empty one it would take."""
    last = len(lines) - 1
    home = np.uint64(line) * np.uint64(0x9E3779B97F4A7C15)
    home ^= home >> np.uint64(32)
    place: int = np.int64(home & np.uint64(last))  # type: ignore[assignment]
    while lines[place, 0] != 0 and lines[place, 0] != line:
        place = (place + 1) & last
    return place


@njit
def _line_of(key: int) -> int:
    """One more than the line a key belongs to, of `_LINE_KEYS` neighbouring keys of a group."""
    return ((key >> GROUP_BITS) // _LINE_KEYS << GROUP_BITS | key & _GROUP_MASK) + 1


@njit
def _entry_of(key: int) -> int:
    """Where in its line a key stands; before it is the number of the line."""
    return 2 + (key >> GROUP_BITS) % _LINE_KEYS


@njit
def note_eviction(ledger: Ledger, block: int, key: int, number: int, taker: int) -> None:
    """A cached block is taken.

    Args:
        ledger: with rows.
        block: the block.
        key: what it held.
        number: evictions before.
        taker: of `taker_of`.
    """
    meter, use = ledger.meter, ledger.uses[block]
    newest = meter[NUM_EVENTS]
    last = len(ledger.events) - 1
    event = ledger.events[newest & last]
    if (
        newest == 0
        or event.taker != taker
        or event.used_ms != use.used_ms
        or event.user != use.user
        or event.evicted_ms != meter[NOW_MS]
    ):
        newest += 1
        meter[NUM_EVENTS] = newest
        event = ledger.events[newest & last]
        event.number = number & LAST_MS
        event.evicted_ms = meter[NOW_MS]
        event.used_ms = use.used_ms
        event.taker = taker
        event.user = use.user
    line = _line_of(key)
    place = _find_line(ledger.lines, line)
    if ledger.lines[place, 0] == 0:
        if meter[NUM_LINES] >= len(ledger.lines) - (len(ledger.lines) >> 3):
            meter[NUM_FORGOTTEN] += 1
            return
        meter[NUM_LINES] += 1
        ledger.lines[place, 0] = line
    ledger.entries[place, _entry_of(key)] = newest & LAST_MS


@njit
def eviction_of(ledger: Ledger, key: int) -> int:
    """The number of the event in which a key was evicted last; 0 where it never was."""
    place = _find_line(ledger.lines, _line_of(key))
    if ledger.lines[place, 0] == 0:
        return 0
    number: int = ledger.entries[place, _entry_of(key)]
    return number


@njit
def is_remembered(ledger: Ledger, event: int) -> bool:
    """Whether there still is a row for an event."""
    return event > 0 and ledger.meter[NUM_EVENTS] - event < len(ledger.events)


@njit
def has_room(ledger: Ledger) -> bool:
    """Whether three in eight lines are empty, as is wanted before steps begin."""
    return bool(8 * ledger.meter[NUM_LINES] <= 5 * len(ledger.lines))


@njit
def move_lines(ledger: Ledger, longer: Ledger, oldest: int) -> int:
    """Enter lines in empty tables, those whose events are all up to ``oldest`` left out.

    Returns:
        How many keys were left out.
    """
    num, num_left_out = 0, 0
    for i in range(len(ledger.lines)):
        if ledger.lines[i, 0] == 0:
            continue
        newest, num_keys = 0, 0
        for j in range(2, _LINE_KEYS + 2):
            newest = max(newest, ledger.entries[i, j])
            num_keys += ledger.entries[i, j] > 0
        if newest <= oldest:
            num_left_out += num_keys
            continue
        place = _find_line(longer.lines, ledger.lines[i, 0])
        for j in range(_LINE_KEYS + 2):
            longer.entries[place, j] = ledger.entries[i, j]
        num += 1
    longer.meter[NUM_LINES] = num
    return num_left_out


@njit
def set_time(ledger: Ledger, now_s: float) -> None:
    """The time on the clock of the run."""
    ledger.meter[NOW_MS] = int(min(1000.0 * now_s, float(LAST_MS)))


# --- what is known of spans ---


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
            row.computed_by = owner >> _FLAG_BITS
        start = ends[span]
        span += 1


@njit
def note_admitted(known: Rows, uids: Ints, ends: Ints, owner: int) -> None:
    """A request with these spans, which are known, is admitted."""
    for span in range(len(uids)):
        row = known[find_known(known, uids[span])]
        if row.uid != 0 and row.admitted <= ends[span]:
            row.admitted = ends[span]
            row.admitted_by = owner >> _FLAG_BITS


# --- longer tables ---


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


@njit
def forget_ledger(ledger: Ledger) -> None:
    """The cache is emptied: nothing was ever seen."""
    for i in range(len(ledger.lines)):
        for j in range(_LINE_KEYS + 2):
            ledger.entries[i, j] = 0
    for i in range(len(ledger.known)):
        ledger.known[i].uid = 0
        ledger.known[i].computed = 0
        ledger.known[i].admitted = 0
    ledger.meter[NUM_LINES] = 0
    ledger.meter[NUM_KNOWN] = 0
