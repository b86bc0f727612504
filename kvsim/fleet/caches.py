"""The caches of a fleet: what they hold, for figures and the oracle, and what they tell routers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from kvsim.cache.block_pool import LOG, LOG_LENGTH, LOG_ROWS, LOG_STAMPED
from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content, Ints
from kvsim.cache.holders import Holders
from kvsim.cache.manager import KVCache
from kvsim.cache.manager import Sequence as CacheSequence
from kvsim.cache.spec import FULL
from kvsim.fleet.event_post import EventPost
from kvsim.routing import Decider

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
        holders: which replicas hold which blocks, as of the end of each one's last step; nothing
            where they are not compared.
        reads_logs: whether caches have to keep logs.
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
        # One group, of which whole blocks are found, however many: then a cache finds what it holds
        # unless its log says that it has changed.
        self._hits_are_held = (
            config.enable_caching
            and [spec.kind for spec in config.groups] == [FULL]
            and not (config.use_eagle or config.groups[0].eagle or config.key_lookahead_tokens)
        )
        self._caches: dict[int, KVCache] = {}
        self._posts = [
            EventPost(decider, delay_s, group, size)
            for decider in deciders
            if (delay_s := decider.router.sees.events_after_s) is not None
        ]
        self._compares = compares
        self._shares = array("d")
        self.reads_logs = compares or bool(self._posts)

    def add(self, replica: int, cache: KVCache) -> None:
        """A replica is there, with a cold cache."""
        self.holders.forget(replica)
        self._caches[replica] = cache

    def remove(self, replica: int) -> None:
        """A replica is gone, and what it held with it."""
        self._caches.pop(replica, None)
        self.holders.forget(replica)

    def look(self, replica: int, target: int, now_s: float | None) -> None:
        """Steps of a replica have ended: what they entered and removed becomes known.

        Args:
            replica: whose.
            target: what routers call it, or its node.
            now_s: when that becomes known which has no time yet; None where it does not yet.
        """
        cache = self._caches.get(replica)
        if cache is None or not self.reads_logs:
            return
        log = cache.core.pool.totals
        logged = int(log[LOG_LENGTH])
        number = logged if now_s is not None else int(log[LOG_STAMPED])
        if not number:
            return
        if LOG_ROWS * number > len(log) - LOG:
            raise RuntimeError(f"the log of replica {replica} was too short for a step")
        log[LOG_LENGTH] = number
        if self._compares:
            self.holders.read(replica, log)
        now_ns = 0 if now_s is None else round(now_s / _NS)
        for post in self._posts:
            post.collect(log, target, now_ns)
        log[LOG_LENGTH] = logged - number
        log[LOG_STAMPED] = 0
        if logged > number:
            rows = log[LOG:].reshape(LOG_ROWS, -1)
            rows[:, : logged - number] = rows[:, number:logged].copy()

    def deliver(self, now_s: float) -> None:
        """Let routers know of what has reached them by now."""
        for post in self._posts:
            post.deliver(now_s)

    @property
    def num_under_way(self) -> int:
        """Messages of caches that are on their way to a router; all hear of each."""
        return sum(post.num_under_way for post in self._posts) // max(1, len(self._posts))

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
        if not self._has_full:
            own = self.cached_tokens(content, replica)
            most = max(self.cached_tokens(content, other) for other in caches)
            return max(0, most - own)
        num_tokens = content.num_tokens - 1
        reach = self.holders.reach(content, num_tokens)
        own = self._found(content, replica, reach)
        if own >= num_tokens - self.holders.block_size:
            return 0
        others = sorted(
            (int(reach[number]), number)
            for number in np.flatnonzero(reach > own).tolist()
            if number != replica and number in caches
        )
        best = own
        for tokens, number in reversed(others):
            if tokens <= best:  # no group finds more than full attention does
                break
            best = max(best, self._found(content, number, reach))
        return best - own

    def _found(self, content: Content, replica: int, reach: Ints) -> int:
        """The same as `cached_tokens`, taken from what is held where that says as much."""
        cache = self._caches.get(replica)
        if cache is not None and self._hits_are_held and not cache.core.pool.totals[LOG_LENGTH]:
            return int(reach[replica])
        return self.cached_tokens(content, replica)

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
