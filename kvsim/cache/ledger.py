"""What a cache remembers so that it can say why a token was not found.

Three tables: the keys that were evicted, with when, after what and for whom; who gave each block
back last; and how far each span's content has been computed by anybody. A key's eviction is
overwritten by its next one, and says nothing while the key is cached.

A pool that somebody asks has the address of its ledger's meter in its totals, 0 where nobody does;
the meter has those of the tables. What the pool calls stays apart from it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.cache.content import GROUP_BITS, Ints
from kvsim.jit import njit, njit_apart
from kvsim.policies.calling import rows_at

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

# Entries of the meter: the address of each table, and how long it is.
LINES_AT, EVENTS_AT, USES_AT, KNOWN_AT, CUTS_AT, LINES, EVENTS, USES, KNOWN = range(9)
# The time on the clock of the run; lines in use; events so far; spans known; evictions that there
# was no room to remember; who takes blocks, and who gives them back.
NOW_MS, NUM_LINES, NUM_EVENTS, NUM_KNOWN, NUM_FORGOTTEN, TAKER, USER = range(9, 16)
METER_SIZE = 16

# Why a block was taken from whoever had left it: to compute a prompt, or an answer; for a group
# that a window slides over, or of states; for a request that computes again what it had before a
# preemption.
BY_PROMPT, BY_ANSWER, BY_WINDOW, BY_STATE, BY_RECOMPUTE, NUM_CAUSES = range(6)

# Bits of a sequence's owner, below the number of its request.
PREEMPTED, READMITTED = 1, 2
FLAG_BITS = 2
_CAUSE_BITS = 3
_CAUSE_MASK = (1 << _CAUSE_BITS) - 1
_LINE_KEYS = 14  # with the line's number they fill a cache line, of 64 bytes
_LINE_WORDS, _LINE_ENTRIES = 8, 16
_GROUP_MASK = (1 << GROUP_BITS) - 1
MOST_REQUESTS = 1 << 28
LAST_MS = (1 << 31) - 1
"""Later times, of more than 24 simulated days, are noted as this one."""


# What a lookup takes for cached: what is; what was ever entered, as if nothing had been evicted;
# what was ever computed, as if all of it had been kept.
PRESENT, ENTERED, COMPUTED = 0, 1, 2

# What shortened the last lookup, for what is cached and then for the other levels: how often, and
# each time the first group of the spec, and from where to where in tokens; the last one takes in
# what there is no room for.
MOST_CUTS = 16
CUTS_SIZE = 1 + 3 * MOST_CUTS


class Ledger(NamedTuple):
    """Arrays of the ledger.

    Attributes:
        lines: int64 [8 * lines], an open-addressing table, a power of two long: first the number of
            a line of neighbouring keys of which some were evicted, see `_line_of`; 0 where a row is
            empty.
        entries: int32 [16 * lines], the same memory: behind the line's number, for each of its keys
            the event in which it was evicted last, or 0.
        events: `EVENT_ROW`, a ring, a power of two long: evictions that have all in common.
        uses: one `USE_ROW` a block.
        known: `KNOWN_ROW`, an open-addressing table by span, a power of two long.
        cuts: int64 [2 * `CUTS_SIZE`].
        meter: int64 [`METER_SIZE`].
    """

    lines: Ints
    entries: npt.NDArray[np.int32]
    events: Rows
    uses: Rows
    known: Rows
    cuts: Ints
    meter: Ints


def make_lines(num_lines: int) -> tuple[Ints, npt.NDArray[np.int32]]:
    """`Ledger.lines` and `Ledger.entries`, empty, at the start of a cache line."""
    raw = np.zeros(64 * num_lines + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    raw = raw[start : start + 64 * num_lines]
    return raw.view(np.int64), raw.view(np.int32)


def make_ledger(num_blocks: int, num_lines: int, num_events: int, num_known: int) -> Ledger:
    """An empty ledger with room for so many rows."""
    lines, entries = make_lines(num_lines)
    ledger = Ledger(
        lines,
        entries,
        np.zeros(num_events, dtype=EVENT_ROW),
        np.zeros(num_blocks, dtype=USE_ROW),
        np.zeros(num_known, dtype=KNOWN_ROW),
        np.zeros(2 * CUTS_SIZE, dtype=np.int64),
        np.zeros(METER_SIZE, dtype=np.int64),
    )
    note_tables(ledger)
    return ledger


def note_tables(ledger: Ledger) -> None:
    """Write in the meter where the tables are, which have to stay alive, and how long."""
    tables = ledger.lines, ledger.events, ledger.uses, ledger.known, ledger.cuts
    for entry, table in zip((LINES_AT, EVENTS_AT, USES_AT, KNOWN_AT, CUTS_AT), tables, strict=True):
        ledger.meter[entry] = table.ctypes.data
    ledger.meter[LINES] = len(ledger.lines) // _LINE_WORDS
    ledger.meter[EVENTS] = len(ledger.events)
    ledger.meter[USES] = len(ledger.uses)
    ledger.meter[KNOWN] = len(ledger.known)


_longs_at = rows_at(np.dtype(np.int64))
_words_at = rows_at(np.dtype(np.int32))
_events_at = rows_at(EVENT_ROW)
_uses_at = rows_at(USE_ROW)
_known_at = rows_at(KNOWN_ROW)


@njit
def ledger_at(address: int) -> Ledger:
    """The ledger whose meter is at an address."""
    meter = _longs_at(address, METER_SIZE)
    return Ledger(
        _longs_at(meter[LINES_AT], meter[LINES] * _LINE_WORDS),
        _words_at(meter[LINES_AT], meter[LINES] * _LINE_ENTRIES),
        _events_at(meter[EVENTS_AT], meter[EVENTS]),
        _uses_at(meter[USES_AT], meter[USES]),
        _known_at(meter[KNOWN_AT], meter[KNOWN]),
        _longs_at(meter[CUTS_AT], 2 * CUTS_SIZE),
        meter,
    )


def owner_of(number: int) -> int:
    """What stands for a request in a sequence's row, from the number of the request."""
    return min(number, MOST_REQUESTS - 1) << FLAG_BITS


def number_of_owner(owner: int) -> int:
    """The number of the request that a sequence's row stands for."""
    return owner >> FLAG_BITS


@njit
def taker_of(owner: int, cause: int) -> int:
    """Who takes a block and why, in one number."""
    return (owner >> FLAG_BITS) << _CAUSE_BITS | cause


@njit
def user_of(owner: int) -> int:
    """Who gives a block back and whether by a preemption, in one number; -1 for nobody."""
    if owner < 0:
        return -1
    return (owner >> FLAG_BITS) << 1 | (owner & PREEMPTED)


@njit
def cause_of(taker: int) -> int:
    """Why a block was taken."""
    return taker & _CAUSE_MASK


def number_of(taker: int) -> int:
    """The number of the request that took a block."""
    return taker >> _CAUSE_BITS


# --- evictions ---


@njit
def _num_lines(ledger: Ledger) -> int:
    return len(ledger.lines) // _LINE_WORDS


@njit
def _find_line(lines: Ints, line: int) -> int:
    """The row of a line, or the empty one it would take."""
    last = len(lines) // _LINE_WORDS - 1
    home = np.uint64(line) * np.uint64(0x9E3779B97F4A7C15)
    home ^= home >> np.uint64(32)
    place: int = np.int64(home & np.uint64(last))  # type: ignore[assignment]
    while lines[place * _LINE_WORDS] != 0 and lines[place * _LINE_WORDS] != line:
        place = (place + 1) & last
    return place


@njit
def _line_of(key: int) -> int:
    """One more than the line a key belongs to, of `_LINE_KEYS` neighbouring keys of a group."""
    return ((key >> GROUP_BITS) // _LINE_KEYS << GROUP_BITS | key & _GROUP_MASK) + 1


@njit
def _entry_of(place: int, key: int) -> int:
    """Where among the entries a key of the line in this row stands."""
    return place * _LINE_ENTRIES + 2 + (key >> GROUP_BITS) % _LINE_KEYS


@njit
def note_eviction(ledger: Ledger, block: int, key: int, number: int) -> None:
    """A cached block is taken, by who was told of last.

    Args:
        ledger: whose block it is.
        block: the block.
        key: what it held.
        number: evictions before.
    """
    meter, use = ledger.meter, ledger.uses[block]
    taker = meter[TAKER]
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
    if ledger.lines[place * _LINE_WORDS] == 0:
        room = _num_lines(ledger)
        if meter[NUM_LINES] >= room - (room >> 3):
            meter[NUM_FORGOTTEN] += 1
            return
        meter[NUM_LINES] += 1
        ledger.lines[place * _LINE_WORDS] = line
    ledger.entries[_entry_of(place, key)] = newest & LAST_MS


@njit_apart
def note_evicted(address: int, block: int, key: int, number: int) -> None:
    """The same of a ledger at an address."""
    note_eviction(ledger_at(address), block, key, number)


@njit_apart
def forget_eviction(address: int, key: int) -> None:
    """A key is dropped, though its block was not evicted: an earlier eviction says nothing."""
    ledger = ledger_at(address)
    place = _find_line(ledger.lines, _line_of(key))
    if ledger.lines[place * _LINE_WORDS] != 0:
        ledger.entries[_entry_of(place, key)] = 0


@njit
def eviction_of(ledger: Ledger, key: int) -> int:
    """The number of the event in which a key was evicted last; 0 where it never was."""
    place = _find_line(ledger.lines, _line_of(key))
    if ledger.lines[place * _LINE_WORDS] == 0:
        return 0
    number: int = ledger.entries[_entry_of(place, key)]
    return number


@njit
def is_remembered(ledger: Ledger, event: int) -> bool:
    """Whether there still is a row for an event."""
    return event > 0 and ledger.meter[NUM_EVENTS] - event < len(ledger.events)


@njit_apart
def has_room(address: int) -> bool:
    """Whether three in eight lines are empty, as is wanted before steps begin."""
    meter = _longs_at(address, METER_SIZE)
    return bool(8 * meter[NUM_LINES] <= 5 * meter[LINES])


@njit_apart
def move_lines(ledger: Ledger, longer: Ledger, oldest: int) -> int:
    """Enter lines in empty tables, those whose events are all up to ``oldest`` left out.

    Returns:
        How many keys were left out.
    """
    num, num_left_out = 0, 0
    for i in range(_num_lines(ledger)):
        if ledger.lines[i * _LINE_WORDS] == 0:
            continue
        start = i * _LINE_ENTRIES
        newest, num_keys = 0, 0
        for j in range(start + 2, start + _LINE_ENTRIES):
            newest = max(newest, ledger.entries[j])
            num_keys += ledger.entries[j] > 0
        if newest <= oldest:
            num_left_out += num_keys
            continue
        place = _find_line(longer.lines, ledger.lines[i * _LINE_WORDS])
        for j in range(_LINE_ENTRIES):
            longer.entries[place * _LINE_ENTRIES + j] = ledger.entries[start + j]
        num += 1
    longer.meter[NUM_LINES] = num
    return num_left_out


# --- who does what, and when ---


@njit_apart
def tell_clock(address: int, now_s: float) -> None:
    """The time on the clock of the run."""
    _longs_at(address, METER_SIZE)[NOW_MS] = int(min(1000.0 * now_s, float(LAST_MS)))


@njit_apart
def tell_taker(address: int, taker: int) -> None:
    """Who takes the blocks that come next and why, of `taker_of`."""
    _longs_at(address, METER_SIZE)[TAKER] = taker


@njit_apart
def tell_user(address: int, owner: int) -> None:
    """Whose sequence gives back the blocks that come next; nobody's, below 0, leaves who did so."""
    _longs_at(address, METER_SIZE)[USER] = user_of(owner)


@njit_apart
def note_use(address: int, block: int) -> None:
    """The last holder of a cached block has given it back."""
    meter = _longs_at(address, METER_SIZE)
    use = _uses_at(meter[USES_AT], meter[USES])[block]
    use.used_ms = meter[NOW_MS]
    if meter[USER] >= 0:
        use.user = meter[USER]


@njit_apart
def begin_cuts(address: int, level: int) -> None:
    """A lookup begins."""
    ledger_at(address).cuts[0 if level == PRESENT else CUTS_SIZE] = 0


@njit_apart
def note_cut(address: int, level: int, group: int, low: int, high: int) -> None:
    """A spec, here by its first group, shortens a hit."""
    cuts = ledger_at(address).cuts
    start = 0 if level == PRESENT else CUTS_SIZE
    number = cuts[start]
    place = start + 1 + 3 * min(number, MOST_CUTS - 1)
    if number < MOST_CUTS:
        cuts[place] = group
        cuts[place + 2] = high
        cuts[start] = number + 1
    cuts[place + 1] = low


def forget_ledger(ledger: Ledger) -> None:
    """The cache is emptied: nothing was ever seen."""
    ledger.entries[:] = 0
    for name in ("uid", "computed", "admitted"):
        ledger.known[name] = 0
    ledger.meter[NUM_LINES] = 0
    ledger.meter[NUM_KNOWN] = 0
