"""The caches of a fleet: what they hold, for figures and the oracle, and what they tell routers."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count, pairwise

import numpy as np

from kvsim.cache.block_pool import ENTERED, ENTERED_AGAIN
from kvsim.cache.config import CacheConfig
from kvsim.cache.content import GROUP_BITS, NUMBER_BITS, Content, Ints
from kvsim.cache.holders import Holders
from kvsim.cache.manager import KVCache
from kvsim.cache.manager import Sequence as CacheSequence
from kvsim.cache.spec import FULL
from kvsim.routing import Decider
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

    def __init__(self, num_replicas: int, config: CacheConfig, deciders: Sequence[Decider]) -> None:
        """Cold caches.

        Args:
            num_replicas: numbered from 0, whether they are there or not.
            config: of every cache.
            deciders: routers, of which some may be told of events.
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
        self._pending: list[tuple[float, int, Decider, int, list[int], list[int]]] = []
        self._number = count()
        self._shares: list[float] = []

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
        if cache is None:
            return
        cache.stamp_log(round(now_s / _NS))
        log = cache.take_log()
        if log is None:
            raise RuntimeError(f"the log of replica {replica} was too short for a step")
        if not log.shape[1]:
            return
        self.holders.take(replica, log[0], log[1])
        if self._listeners:
            self._tell(target, log)

    def deliver(self, now_s: float) -> None:
        """Let routers know of what has reached them by now."""
        pending = self._pending
        while pending and pending[0][0] <= now_s:
            _, _, decider, target, stored, removed = heapq.heappop(pending)
            decider.events(target, stored, removed, now_s)

    def cached_tokens(self, content: Content, replica: int) -> int:
        """Leading tokens of a prompt that a replica would find now."""
        cache = self._caches.get(replica)
        if cache is None:
            return 0
        return cache.lookup(CacheSequence(content, content.num_tokens)).tokens

    def cached_elsewhere(self, content: Content, replica: int) -> int:
        """Leading tokens of a prompt that another replica would find, beyond what this one does."""
        caches = self._caches
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
        held = self.holders.num_held
        if held:
            self._shares.append((held - self.holders.num_keys) / held)

    @property
    def mean_duplicate_share(self) -> float | None:
        """Of the cached tokens, those that another replica holds too; mean over arrivals."""
        return float(np.mean(self._shares)) if self._shares else None

    @property
    def num_duplicate_tokens(self) -> int:
        """Tokens cached now beyond the first copy of each."""
        return (self.holders.num_held - self.holders.num_keys) * self.holders.block_size

    def _tell(self, target: int, log: Ints) -> None:
        """Put what was logged on its way to routers."""
        keys, whats, times = log[:, (log[0] & ((1 << GROUP_BITS) - 1)) == self.holders.group]
        if not len(keys):
            return
        # A block's key says which block of its group it is, a router's how many tokens end there.
        position = ((keys >> GROUP_BITS) & ((1 << NUMBER_BITS) - 1)) * self.holders.block_size
        prefixes = (keys >> (NUMBER_BITS + GROUP_BITS) << POSITION_BITS) | position
        enters = (whats == ENTERED) | (whats == ENTERED_AGAIN)
        stored, removed = prefixes[enters].tolist(), prefixes[~enters].tolist()
        if stored and removed and not set(stored).isdisjoint(removed):
            # Runs of one kind, in order: a block was removed and entered again, or the reverse.
            changes = (np.flatnonzero(np.diff(enters)) + 1).tolist()
            for start, end in pairwise([0, *changes, len(keys)]):
                told = prefixes[start:end].tolist()
                self._send(target, times[end - 1], *((told, []) if enters[start] else ([], told)))
        else:
            self._send(target, times[-1], stored, removed)

    def _send(self, target: int, time_ns: int, stored: list[int], removed: list[int]) -> None:
        for decider, delay_s in self._listeners:
            at_s = float(time_ns) * _NS + delay_s
            item = (at_s, next(self._number), decider, target, stored, removed)
            heapq.heappush(self._pending, item)
