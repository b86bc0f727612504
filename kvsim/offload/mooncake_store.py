"""The Mooncake store: blocks in memory that nodes share, whoever puts and reads them.

What is put is there for others once its put has ended; a second put of the same meanwhile is none.
With `LeaseRules` room is made as the master does; without them nothing is refused, and what was
used longest ago leaves.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvsim.cache.block_pool import (
    EVICTED,
    Ids,
    Pool,
    enter_block,
    find_block,
    give_back_run,
    make_pool,
    remove_block,
    take_run,
    touch,
)
from kvsim.cache.content import Content, Ints
from kvsim.cache.coordinator import HIT, Core, flatten, longest_hit
from kvsim.cache.hybrid import hybrid_hit
from kvsim.jit import njit
from kvsim.offload.leases import LeaseRules, Leases

Bytes8 = npt.NDArray[np.uint8]


class MooncakeStore:
    """Units, a block of one group each, as many as there is room for.

    Attributes:
        num_units: its capacity.
        num_used: units in it.
        num_used_max: the most there ever were.
        num_evicted: units that had to leave so far.
        leases: until when units stay; None without rules.
    """

    def __init__(self, num_units: int, rules: LeaseRules | None = None) -> None:
        """An empty store.

        Args:
            num_units: its capacity, at least 1.
            rules: how room is made; None for least recently used.

        Raises:
            ValueError: no room for a single unit.
        """
        if num_units < 1:
            raise ValueError(f"num_units {num_units} is below 1: the store holds nothing")
        self.num_units = num_units
        self.num_used = 0
        self.num_used_max = 0
        # A pool of blocks none of which is ever in use: its free queue is the order of last use.
        self._pool = make_pool(min(num_units, 1 << 12) + 1)
        self._loaded: Bytes8 = np.zeros(len(self._pool.blocks), dtype=np.uint8)
        self._unit: Ids = np.zeros(1, dtype=np.int32)  # scratch: the unit in hand
        self._being_put: set[int] = set()
        self.leases = None if rules is None else Leases(rules, len(self._pool.blocks))

    @property
    def num_evicted(self) -> int:
        """Units that had to leave so far."""
        return int(self._pool.totals[EVICTED])

    def missing(self, keys: Ints) -> npt.NDArray[np.bool_]:
        """For each key, whether the store lacks it."""
        units = np.zeros(len(keys), dtype=np.int64)
        _find(self._pool, keys, units)
        lacking: npt.NDArray[np.bool_] = units == 0
        return lacking

    def wanted(self, keys: Ints) -> npt.NDArray[np.bool_]:
        """For each key, whether the store lacks it and nobody is putting it."""
        lacking, being_put = self.missing(keys), self._being_put
        if being_put:
            lacking &= np.array([key not in being_put for key in keys.tolist()], dtype=np.bool_)
        return lacking

    def reserve(self, keys: Ints) -> int:
        """Puts of `wanted` keys begin.

        Returns:
            How many of the first of them have room; the others are not put.
        """
        count, leases = len(keys), self.leases
        if leases is not None:
            count = min(count, self.num_units - self.num_used - leases.num_reserved)
            leases.num_reserved += count
            leases.num_refused += len(keys) - count
            self._evict(is_short=count < len(keys))
        self._being_put.update(keys[:count].tolist())
        return count

    def put(self, keys: Ints) -> None:
        """Puts of units have ended; without rules those used longest ago leave for them."""
        if len(keys) == 0:
            return
        self.give_up(keys)
        needed = min(self.num_used + len(keys), self.num_units)
        if needed >= len(self._pool.blocks):
            self._grow(needed)
        units = np.zeros(len(keys), dtype=np.int64)
        _put(self._pool, keys, self._loaded, self._unit, units)
        if self.leases is not None:
            self.leases.put(units)
        self.num_used = needed
        self.num_used_max = max(self.num_used_max, needed)

    def give_up(self, keys: Ints) -> None:
        """Puts that have begun are not under way any more."""
        self._being_put.difference_update(keys.tolist())
        if self.leases is not None:
            self.leases.num_reserved -= len(keys)

    def look_up(self, keys: Ints) -> None:
        """Units that are there are asked for, and have a lease."""
        assert self.leases is not None
        units = np.zeros(len(keys), dtype=np.int64)
        _find(self._pool, keys, units)
        self.leases.grant(units[units != 0])

    def get(self, keys: Ints) -> npt.NDArray[np.bool_]:
        """Read units, which are used last now.

        Returns:
            For each key, whether it is read for the first time since it was put.
        """
        first = np.zeros(len(keys), dtype=np.bool_)
        if self.leases is not None:
            self.look_up(keys)
        _get(self._pool, keys, self._loaded, self._unit, first)
        return first

    def longest_hit(self, core: Core, content: Content, max_tokens: int) -> int:
        """The longest prefix that every group can serve from the store, in tokens.

        Args:
            core: of the cache it would be loaded to: its groups and rules.
            content: the request's.
            max_tokens: looked up to here; a multiple of the scheduler block.
        """
        if max_tokens <= 0:
            return 0
        span = int(np.searchsorted(content.ends, max_tokens))
        ends = content.ends[: span + 1].copy()
        ends[-1] = max_tokens + 1  # a lookup leaves out the last token
        answer = np.zeros_like(core.answer)
        stored = core._replace(pool=self._pool, answer=answer)
        find = longest_hit if core.states is None else hybrid_hit
        find(flatten(stored), content.uids[: span + 1], ends)
        return int(answer[HIT])

    def _evict(self, *, is_short: bool) -> None:
        """A batch leaves where it is time for one."""
        assert self.leases is not None
        units = self.leases.leaving(self.num_used, self.num_units, is_short=is_short)
        _evict(self._pool, units, self._unit)
        self.num_used -= len(units)

    def _grow(self, needed: int) -> None:
        num_units = min(self.num_units, max(needed, 2 * len(self._pool.blocks)))
        larger = make_pool(num_units + 1)
        loaded = np.zeros(num_units + 1, dtype=np.uint8)
        places = np.zeros(len(self._pool.blocks), dtype=np.int64)
        _move(self._pool, larger, self._loaded, loaded, self._unit, places)
        if self.leases is not None:
            self.leases.moved(places, num_units + 1)
        larger.totals[EVICTED] = self._pool.totals[EVICTED]
        self._pool, self._loaded = larger, loaded


@njit
def _find(pool: Pool, keys: Ints, units: Ints) -> None:
    """Write the units that hold keys, 0 for those that are not there."""
    for i in range(len(keys)):
        units[i] = find_block(pool, keys[i])


@njit
def _put(pool: Pool, keys: Ints, loaded: Bytes8, unit: Ids, units: Ints) -> None:
    """Enter keys, in empty units or else those used longest ago, and write which."""
    for i in range(len(keys)):
        take_run(pool, unit, -1, 0, 1, 0)
        enter_block(pool, unit[0], keys[i])
        give_back_run(pool, unit, -1, 0, 1, False)
        loaded[unit[0]] = 0
        units[i] = unit[0]


@njit
def _evict(pool: Pool, units: Ints, unit: Ids) -> None:
    """Empty units, which are taken first from now on."""
    for number in units:
        touch(pool, number)
        remove_block(pool, number)
        unit[0] = number
        give_back_run(pool, unit, -1, 0, 1, True)
    pool.totals[EVICTED] += len(units)


@njit
def _get(pool: Pool, keys: Ints, loaded: Bytes8, unit: Ids, first: npt.NDArray[np.bool_]) -> None:
    """Use units, and note which of them are read for the first time."""
    for i in range(len(keys)):
        unit[0] = find_block(pool, keys[i])
        touch(pool, unit[0])
        give_back_run(pool, unit, -1, 0, 1, False)
        first[i] = loaded[unit[0]] == 0
        loaded[unit[0]] = 1


@njit
def _move(
    pool: Pool, larger: Pool, loaded: Bytes8, larger_loaded: Bytes8, place: Ids, places: Ints
) -> None:
    """Enter all keys in a larger pool, in the order of their last use, and write where."""
    unit = pool.blocks[0].after
    while unit != 0:
        if pool.blocks[unit].key != 0:
            take_run(larger, place, -1, 0, 1, 0)
            enter_block(larger, place[0], pool.blocks[unit].key)
            give_back_run(larger, place, -1, 0, 1, False)
            larger_loaded[place[0]] = loaded[unit]
            places[unit] = place[0]
        unit = pool.blocks[unit].after
