"""Which of several caches hold which blocks: the truth about a fleet, for figures and ceilings.

Fed with the logs of the caches. An open-addressing table from key to a bit for
each cache that holds a block under it. Keys nobody holds any more stay until the table is made
again, as it is when it is half full.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvsim.cache.block_pool import (
    ENTERED,
    ENTERED_AGAIN,
    LOG,
    LOG_LENGTH,
    LOG_ROWS,
    LOG_STAMPED,
    REMOVED,
    stamp,
)
from kvsim.cache.content import GROUP_BITS, NUMBER_BITS, POSITION_BITS, Content, Ints, block_key
from kvsim.jit import njit

Words = npt.NDArray[np.uint64]

# Rows of runs, see `Holders.read`.
STORED, FIRST, LAST, TIME_NS, RUN_ROWS = range(5)

_BITS = 64
_LINE_BITS = 4
# Entries of `totals`: keys in the table, held or not; keys held; blocks held, each cache counted;
# keys at most before the table is made again.
_USED, _KEYS, _HELD = range(3)


class Holders:
    """The blocks of one group, of so many caches.

    Attributes:
        group: number of the group.
        block_size: tokens of its blocks.
    """

    def __init__(
        self, num_caches: int, group: int, block_size: int, key_lookahead: int = 0
    ) -> None:
        """Empty caches.

        Args:
            num_caches: numbered from 0.
            group: whose blocks are looked at; others in the logs are passed over.
            block_size: tokens of its blocks.
            key_lookahead: tokens behind a block that its key covers as well.
        """
        self.group = group
        self.block_size = block_size
        self._key_lookahead = key_lookahead
        self._num_caches = num_caches
        self._make(1 << 14)
        self._runs: Ints = np.zeros((RUN_ROWS, 1 << 10), dtype=np.int64)
        self._reach = np.zeros(num_caches, dtype=np.int64)
        self._alive = np.zeros(self._masks.shape[1], dtype=np.uint64)

    @property
    def num_keys(self) -> int:
        """Different blocks that are held."""
        return int(self._totals[_KEYS])

    @property
    def num_held(self) -> int:
        """Blocks that are held, each as often as caches hold it."""
        return int(self._totals[_HELD])

    def read(self, cache: int, totals: Ints, now_ns: int) -> Ints | None:
        """Take in what a cache has entered and removed since the last call; its log is empty then.

        Args:
            cache: its number.
            totals: of its pool, with a log.
            now_ns: when that becomes known, unless it has a time already.

        Returns:
            int64 [4, runs], used again: neighbouring blocks of the group as the log has them, in
            either direction. Whether they were entered, the prefixes that end with the first and
            the last of them (uid and tokens, as in ``POSITION_BITS``), and when the last became
            known. None where the log was too short.
        """
        number = int(totals[LOG_LENGTH])
        if not number:
            return self._runs[:, :0]
        if LOG_ROWS * number > len(totals) - LOG:
            return None
        while int(self._totals[_USED]) + number > len(self._keys) // 2:
            self._grow(number)
        if number > self._runs.shape[1]:
            self._runs = np.zeros((RUN_ROWS, 2 * number), dtype=np.int64)
        num_runs = _read(
            self._keys, self._masks, self._totals, cache, self.group, self.block_size, totals,
            now_ns, self._runs,
        )  # fmt: skip
        return self._runs[:, :num_runs]

    def forget(self, cache: int) -> None:
        """A cache is empty."""
        _forget(self._masks, self._totals, cache)

    def reach(self, content: Content, max_tokens: int) -> Ints:
        """Leading tokens that each cache holds, in whole blocks; int64 [caches], used again."""
        _reach_of(
            self._keys, self._masks, content.uids, content.ends, self.block_size, self.group,
            self._key_lookahead, max_tokens, self._alive, self._reach,
        )  # fmt: skip
        return self._reach

    def _make(self, size: int) -> None:
        self._keys: Ints = np.zeros(size, dtype=np.int64)
        self._masks: Words = np.zeros((size, -(-self._num_caches // _BITS)), dtype=np.uint64)
        self._totals: Ints = np.zeros(3, dtype=np.int64)

    def _grow(self, more: int) -> None:
        """Make the table again, with room for more keys."""
        keys, masks, size = self._keys, self._masks, len(self._keys)
        while size < 4 * max(int(self._totals[_KEYS]), more):
            size *= 2
        self._make(size)
        _move(keys, masks, self._keys, self._masks, self._totals)


@njit
def _place(keys: Ints, key: int) -> int:
    """Where a key is in the table, or the empty place where it would be.

    Neighbouring blocks of a span share lines of the processor's cache, as they are looked at
    together.
    """
    last = len(keys) - 1
    block = key >> GROUP_BITS
    line = np.uint64(block >> _LINE_BITS) * np.uint64(0x9E3779B97F4A7C15)
    line ^= line >> np.uint64(32)
    place: int = np.int64(  # type: ignore[assignment]
        ((line << np.uint64(_LINE_BITS)) | np.uint64(block & ((1 << _LINE_BITS) - 1)))
        & np.uint64(last)
    )
    while keys[place] != 0 and keys[place] != key:
        place = (place + 1) & last
    return place


@njit
def _is_held(masks: Words, place: int) -> bool:
    """Whether any cache holds what stands in a place."""
    held = False
    for word in range(masks.shape[1]):
        held = held or masks[place, word] != 0
    return held


@njit
def _read(
    keys: Ints,
    masks: Words,
    totals: Ints,
    cache: int,
    group: int,
    size: int,
    log: Ints,
    now_ns: int,
    runs: Ints,
) -> int:
    """Set and clear the bit of a cache, and write runs; there is room for all keys and runs."""
    stamp(log, now_ns)
    number = log[LOG_LENGTH]
    entries = (len(log) - LOG) // LOG_ROWS
    word = cache // _BITS
    bit = np.uint64(1) << np.uint64(cache % _BITS)
    num, step = 0, 0
    for i in range(number):
        key, what = log[LOG + i], log[LOG + entries + i]
        if (key & ((1 << GROUP_BITS) - 1)) != group:
            continue
        position = ((key >> GROUP_BITS) & ((1 << NUMBER_BITS) - 1)) * size
        prefix = (key >> (NUMBER_BITS + GROUP_BITS) << POSITION_BITS) | position
        stored = 1 if what in (ENTERED, ENTERED_AGAIN) else 0
        gap = prefix - runs[LAST, num - 1] if num else 0
        goes_on = num > 0 and runs[STORED, num - 1] == stored and (gap == size or gap == -size)
        if goes_on and (step == 0 or step == gap):
            step = gap
        else:
            runs[STORED, num], runs[FIRST, num] = stored, prefix
            num, step = num + 1, 0
        runs[LAST, num - 1], runs[TIME_NS, num - 1] = prefix, log[LOG + 2 * entries + i]
        if what != ENTERED and what != REMOVED:
            continue
        place = _place(keys, key)
        if keys[place] == 0:
            keys[place] = key
            totals[_USED] += 1
        held = _is_held(masks, place)
        has = (masks[place, word] & bit) != 0
        if what == ENTERED and not has:
            masks[place, word] |= bit
            totals[_HELD] += 1
            if not held:
                totals[_KEYS] += 1
        elif what == REMOVED and has:
            masks[place, word] &= ~bit
            totals[_HELD] -= 1
            if not _is_held(masks, place):
                totals[_KEYS] -= 1
    log[LOG_LENGTH] = log[LOG_STAMPED] = 0
    return num


@njit
def _forget(masks: Words, totals: Ints, cache: int) -> None:
    """Clear the bit of a cache everywhere."""
    word = cache // _BITS
    bit = np.uint64(1) << np.uint64(cache % _BITS)
    for place in range(len(masks)):
        if (masks[place, word] & bit) != 0:
            masks[place, word] &= ~bit
            totals[_HELD] -= 1
            if not _is_held(masks, place):
                totals[_KEYS] -= 1


@njit
def _move(keys: Ints, masks: Words, new_keys: Ints, new_masks: Words, totals: Ints) -> None:
    """Enter what is held in a larger table."""
    for place in range(len(keys)):
        held = 0
        for word in range(masks.shape[1]):
            rest = masks[place, word]
            while rest != 0:
                rest &= rest - np.uint64(1)
                held += 1
        if held:
            there = _place(new_keys, keys[place])
            new_keys[there] = keys[place]
            for word in range(masks.shape[1]):
                new_masks[there, word] = masks[place, word]
            totals[_USED] += 1
            totals[_KEYS] += 1
            totals[_HELD] += held


@njit
def _reach_of(
    keys: Ints,
    masks: Words,
    uids: Ints,
    ends: Ints,
    size: int,
    group: int,
    ahead: int,
    max_tokens: int,
    alive: Words,
    reach: Ints,
) -> None:
    """Write for each cache up to where it holds a prompt's blocks, from the first on."""
    alive[:] = 0
    for cache in range(len(reach)):
        alive[cache // _BITS] |= np.uint64(1) << np.uint64(cache % _BITS)
    position, span, left = size, 0, len(reach)
    while left > 0 and position <= max_tokens and position + ahead <= ends[-1]:
        while ends[span] < position + ahead:
            span += 1
        place = _place(keys, block_key(uids[span], position // size, group))
        for word in range(len(alive)):
            gone = alive[word] & ~masks[place, word]
            cache = word * _BITS
            while gone != 0:
                if (gone & np.uint64(1)) != 0:
                    reach[cache] = position - size
                    left -= 1
                gone >>= np.uint64(1)
                cache += 1
            alive[word] &= masks[place, word]
        position += size
    for cache in range(len(reach)):
        if (alive[cache // _BITS] & (np.uint64(1) << np.uint64(cache % _BITS))) != 0:
            reach[cache] = position - size
