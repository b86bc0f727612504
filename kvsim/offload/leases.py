"""How a Mooncake master keeps its store: leases, and batches that leave before it is full.

An object that is looked up or read has a lease from then on. Once more is used than a high
watermark, a batch leaves, those first whose lease has been over longest (an object never looked up:
since it was put); none with a lease, none that is still being put. (`kvcache-ai/Mooncake`,
mooncake-store/src/master_service.cpp. Its 1,024 shards choose each for themselves, and its thread
looks every 10 ms; here the oldest of all go, at once. Soft pins are not set by the engine.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.cache.content import Ints

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """What the master is told.

    Attributes:
        now: the time in s.
        high_watermark: share of the capacity above which a batch leaves, 0 to 1:
            `eviction_high_watermark_ratio`, by default 0.9, in older releases 0.95.
        eviction_ratio: least share of the objects in a batch, 0 to 1; by default 0.05.
        lease_s: how long an object that was looked up or read stays in any case:
            `default_kv_lease_ttl`, by default 10 s, in older releases 5 s.
    """

    now: Callable[[], float]
    high_watermark: float
    eviction_ratio: float
    lease_s: float


class Leases:
    """Until when each unit of a store is kept, by number; 0 is no unit.

    Attributes:
        rules: the master's.
        num_reserved: units promised to puts that have not ended.
        num_refused: units that found no room.
    """

    def __init__(self, rules: LeaseRules, size: int) -> None:
        """Nothing is in the store.

        Args:
            rules: the master's.
            size: numbers of units there may be, 0 included.
        """
        self.rules = rules
        self.num_reserved = 0
        self.num_refused = 0
        self._until_s: Floats = np.full(size, math.inf)  # inf: not there
        self._order: Ints = np.zeros(size, dtype=np.int64)
        self._num_put = 0

    def put(self, units: Ints) -> None:
        """Puts have ended."""
        self._until_s[units] = self.rules.now()
        self._order[units] = np.arange(self._num_put, self._num_put + len(units))
        self._num_put += len(units)

    def grant(self, units: Ints) -> None:
        """Units are looked up or read."""
        self._until_s[units] = self.rules.now() + self.rules.lease_s

    def leaving(self, num_used: int, num_units: int, *, is_short: bool) -> Ints:
        """Units that leave now, in order.

        Args:
            num_used: units in the store.
            num_units: its capacity.
            is_short: somebody found no room.
        """
        rules = self.rules
        over = (num_used + self.num_reserved) / num_units - rules.high_watermark
        if over <= 0 and not is_short:
            return np.zeros(0, dtype=np.int64)
        count = math.ceil(num_used * max(rules.eviction_ratio, over + rules.eviction_ratio))
        free = np.flatnonzero(self._until_s <= rules.now())
        oldest = free[np.lexsort((self._order[free], self._until_s[free]))[:count]]
        self._until_s[oldest] = math.inf
        return oldest

    def moved(self, places: Ints, size: int) -> None:
        """The store is larger now.

        Args:
            places: what unit ``n`` is called now; 0 for one that was empty.
            size: numbers of units there may be, 0 included.
        """
        there = np.flatnonzero(places)
        until_s, order = self._until_s, self._order
        self._until_s = np.full(size, math.inf)
        self._order = np.zeros(size, dtype=np.int64)
        self._until_s[places[there]] = until_s[there]
        self._order[places[there]] = order[there]
