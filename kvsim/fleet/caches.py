"""The caches of a fleet: what they hold, for figures and the oracle, and what they tell routers."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count, groupby

import numpy as np

from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content, Ints
from kvsim.cache.holders import Holders
from kvsim.cache.manager import KVCache
from kvsim.cache.manager import Sequence as CacheSequence
from kvsim.cache.spec import FULL
from kvsim.routing import BlockRuns, Decider
from kvsim.routing.contract import POSITION_BITS

LOG_ENTRIES_A_BLOCK = 8
"""A step enters and removes a block twice at most (a request that is preempted gives back what it
took), two steps can be planned between two looks, and runs of steps end at a quarter of the log."""
_NS = 1e-9


def looked_at(config: CacheConfig) -> int:
    """The group whose blocks stand for a prompt's prefix: the first with full attention."""
    kinds = [group.kind for group in config.groups]
    return kinds.index(FULL) if FULL in kinds else 0


class FleetCaches:
    """Fed with the logs of all replicas' caches.

    Attributes:
        holders: which replicas hold which blocks, as of the end of each one's last step.
    """

    def __init__(
        self,
        num_replicas: int,
        config: CacheConfig,
        deciders: Sequence[Decider],
        *,
        compares: bool = True,
    ) -> None:
        """Cold caches.

        Args:
            num_replicas: numbered from 0, whether they are there or not.
            config: of every cache.
            deciders: routers, of which some may be told of events.
            compares: whether figures are made of what several caches hold.
        """
        group = looked_at(config)
        size = config.groups[group].block_size
        self.holders = Holders(num_replicas, group, size, config.key_lookahead_tokens)
        self._has_full = config.groups[group].kind == FULL
        self._caches: dict[int, KVCache] = {}
        self._listeners = [
            (decider, delay_s)
            for decider in deciders
            if (delay_s := decider.router.sees.events_after_s) is not None
        ]
        self._compares = compares
        self._pending: list[tuple[float, int, Decider, int, BlockRuns, BlockRuns]] = []
        self._number = count()
        self._shares: list[float] = []

    @property
    def reads_logs(self) -> bool:
        """Whether caches have to keep logs."""
        return self._compares or bool(self._listeners)

    def add(self, replica: int, cache: KVCache) -> None:
        """A replica is there, with a cold cache."""
        self.holders.forget(replica)
        self._caches[replica] = cache

    def remove(self, replica: int) -> None:
        """A replica is gone, and what it held with it."""
        self._caches.pop(replica, None)
        self.holders.forget(replica)

    def look(self, replica: int, target: int, now_s: float) -> None:
        """A step of a replica has ended: what it entered and removed is known from now on.

        Args:
            replica: whose.
            target: what routers call it, or its node.
            now_s: the time.
        """
        cache = self._caches.get(replica)
        if cache is None or not self.reads_logs:
            return
        runs = self.holders.read(replica, cache.core.pool.totals, round(now_s / _NS))
        if runs is None:
            raise RuntimeError(f"the log of replica {replica} was too short for a step")
        if self._listeners and runs.shape[1]:
            self._tell(target, runs)

    def deliver(self, now_s: float) -> None:
        """Let routers know of what has reached them by now."""
        pending = self._pending
        while pending and pending[0][0] <= now_s:
            _, _, decider, target, stored, removed = heapq.heappop(pending)
            decider.events(target, stored, removed, now_s)

    @property
    def num_under_way(self) -> int:
        """Messages of caches that are on their way to a router; all hear of each."""
        return len(self._pending) // max(1, len(self._listeners))

    def cached_tokens(self, content: Content, replica: int) -> int:
        """Leading tokens of a prompt that a replica would find now."""
        cache = self._caches.get(replica)
        if cache is None:
            return 0
        return cache.lookup(CacheSequence(content, content.num_tokens)).tokens

    def cached_elsewhere(self, content: Content, replica: int) -> int | None:
        """Leading tokens of a prompt that another replica would find, beyond what this one does.

        None where caches are not compared.
        """
        caches = self._caches
        if not self._compares:
            return None
        if len(caches) < 2:
            return 0
        own = self.cached_tokens(content, replica)
        num_tokens = content.num_tokens - 1
        if own >= num_tokens - self.holders.block_size:
            return 0
        if not self._has_full:
            most = max(self.cached_tokens(content, other) for other in caches)
            return max(0, most - own)
        reach = self.holders.reach(content, num_tokens)
        others = sorted(
            (int(tokens), number)
            for number, tokens in enumerate(reach.tolist())
            if tokens > own and number != replica and number in caches
        )
        best = own
        for tokens, number in reversed(others):
            if tokens <= best:  # no group finds more than full attention does
                break
            best = max(best, self.cached_tokens(content, number))
        return best - own

    def note_duplicates(self) -> None:
        """Look at what part of the cached tokens is on more than one replica, for the mean."""
        held = self.holders.num_held if self._compares else 0
        if held:
            self._shares.append((held - self.holders.num_keys) / held)

    @property
    def mean_duplicate_share(self) -> float | None:
        """Of the cached tokens, those that another replica holds too; mean over arrivals."""
        return float(np.mean(self._shares)) if self._shares else None

    @property
    def num_duplicate_tokens(self) -> int | None:
        """Tokens cached now beyond the first copy of each; None where caches are not compared."""
        if not self._compares:
            return None
        return (self.holders.num_held - self.holders.num_keys) * self.holders.block_size

    def _tell(self, target: int, runs: Ints) -> None:
        """Put what was logged on its way to routers."""
        stored: list[tuple[int, int]] = []
        removed: list[tuple[int, int]] = []
        rows = runs.T.tolist()
        for enters, first, last, _ in rows:
            (stored if enters else removed).append((first, last))
        if stored and removed and _overlap(stored, removed):
            # Runs of one kind, in order: a block was removed and entered again, or the reverse.
            for enters, together in groupby(rows, key=lambda row: row[0]):
                part = list(together)
                told = [(first, last) for _, first, last, _ in part]
                self._send(target, part[-1][3], *((told, []) if enters else ([], told)))
        else:
            self._send(target, rows[-1][3], stored, removed)

    def _send(
        self,
        target: int,
        time_ns: int,
        stored: list[tuple[int, int]],
        removed: list[tuple[int, int]],
    ) -> None:
        unit = self.holders.block_size
        told = BlockRuns(stored, unit), BlockRuns(removed, unit)
        for decider, delay_s in self._listeners:
            at_s = float(time_ns) * _NS + delay_s
            heapq.heappush(self._pending, (at_s, next(self._number), decider, target, *told))


def _overlap(stored: list[tuple[int, int]], removed: list[tuple[int, int]]) -> bool:
    """Whether a block stands in a run of each."""
    uids = {first >> POSITION_BITS for first, _ in stored}
    if not any(first >> POSITION_BITS in uids for first, _ in removed):
        return False
    lows = sorted(
        (min(run), max(run), kind) for kind, runs in ((0, stored), (1, removed)) for run in runs
    )
    furthest = [-1, -1]
    for low, high, kind in lows:
        if low <= furthest[1 - kind]:
            return True
        furthest[kind] = max(furthest[kind], high)
    return False
