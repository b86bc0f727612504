"""A host tier as plain as can be: dicts and sorted lists, chunk by chunk."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

Key = int
Rank = tuple[int, int, int]


@dataclass
class SlowUse:
    """What one request has done: positions and groups by key, and the keys by deed."""

    positions: dict[Key, int]
    groups: dict[Key, int]
    number: int = 0
    seen: list[Key] = field(default_factory=list)
    inserted: set[Key] = field(default_factory=set)
    reused: set[Key] = field(default_factory=set)
    missed: set[Key] = field(default_factory=set)


class SlowLru:
    def __init__(self, num_chunks: int) -> None:
        self.ranks: dict[Key, Rank] = {}
        self.last = 0

    def resident(self) -> set[Key]:
        return set(self.ranks)

    def missed(self, keys: list[Key]) -> None:
        pass

    def _rank(self, key: Key, use: SlowUse) -> Rank:
        if use.number == 0:
            self.last += 1
            use.number = self.last
        return (use.number, -use.positions[key], use.groups[key])

    def seen(self, keys: list[Key], use: SlowUse) -> None:
        for key in keys:
            rank = self._rank(key, use)
            if key in self.ranks:
                self.ranks[key] = max(self.ranks[key], rank)

    def inserted(self, key: Key, use: SlowUse) -> None:
        self.ranks[key] = self._rank(key, use)

    def evict(self, num: int, can_leave: set[Key]) -> list[Key]:
        leaving = sorted(can_leave, key=self.ranks.__getitem__)[:num]
        for key in leaving:
            del self.ranks[key]
        return leaving

    def finished(self, keys: list[Key], use: SlowUse) -> None:
        for key in keys:
            if key in self.ranks:
                self.last += 1
                self.ranks[key] = (self.last, 0, 0)


class SlowArc:
    def __init__(self, num_chunks: int) -> None:
        self.capacity = num_chunks
        self.target = 0.0
        self.recent: OrderedDict[Key, None] = OrderedDict()
        self.frequent: OrderedDict[Key, None] = OrderedDict()
        self.recent_ghosts: OrderedDict[Key, None] = OrderedDict()
        self.frequent_ghosts: OrderedDict[Key, None] = OrderedDict()

    def resident(self) -> set[Key]:
        return set(self.recent) | set(self.frequent)

    def missed(self, keys: list[Key]) -> None:
        for key in reversed(keys):
            num_recent, num_frequent = len(self.recent_ghosts), len(self.frequent_ghosts)
            if key in self.recent_ghosts:
                self.target = min(self.target + max(1, num_frequent / num_recent), self.capacity)
                self.recent_ghosts.move_to_end(key)
            elif key in self.frequent_ghosts:
                self.target = max(self.target - max(1, num_recent / num_frequent), 0)
                self.frequent_ghosts.move_to_end(key)

    def seen(self, keys: list[Key], use: SlowUse) -> None:
        pass

    def inserted(self, key: Key, use: SlowUse) -> None:
        self.recent[key] = None
        self.recent_ghosts.pop(key, None)
        self.frequent_ghosts.pop(key, None)

    def evict(self, num: int, can_leave: set[Key]) -> list[Key]:
        size = len(self.recent)
        leaving: list[Key] = []
        recent = [key for key in self.recent if key in can_leave]
        frequent = [key for key in self.frequent if key in can_leave]
        for _ in range(num):
            if (size >= int(self.target) and recent) or not frequent:
                leaving.append(recent.pop(0))
                size -= 1
            else:
                leaving.append(frequent.pop(0))
        for key in leaving:
            if key in self.recent:
                del self.recent[key]
                self.recent_ghosts[key] = None
            else:
                del self.frequent[key]
                self.frequent_ghosts[key] = None
        for ghosts in (self.recent_ghosts, self.frequent_ghosts):
            while len(ghosts) > self.capacity:
                ghosts.popitem(last=False)
        return leaving

    def finished(self, keys: list[Key], use: SlowUse) -> None:
        for key in keys:
            if key in use.inserted - use.reused:
                for entries in (self.recent, self.frequent):
                    if key in entries:
                        entries.move_to_end(key)
            elif key in use.reused and key in self.resident():
                self.recent.pop(key, None)
                self.frequent.pop(key, None)
                self.frequent[key] = None


class SlowTier:
    def __init__(self, num_chunks: int, eviction: str) -> None:
        self.num_chunks = num_chunks
        self.policy: SlowLru | SlowArc = (SlowLru if eviction == "lru" else SlowArc)(num_chunks)
        self.writing: set[Key] = set()
        self.reading: dict[Key, int] = {}
        self.num_refused = 0

    def readable(self, key: Key) -> bool:
        return key in self.policy.resident() and key not in self.writing

    def _see(self, keys: list[Key], use: SlowUse) -> None:
        new = [key for key in keys if key not in use.seen]
        use.seen += new
        if new:
            self.policy.seen(new, use)

    def store(self, keys: list[Key], use: SlowUse) -> tuple[list[Key], list[Key]] | None:
        resident = self.policy.resident()
        new = [key for key in keys if key not in resident]
        ready = [key for key in keys if self.readable(key)]
        missed = [key for key in new if key not in use.missed]
        self.policy.missed(missed)
        use.missed |= set(missed)
        self._see([key for key in keys if key in new or key in ready], use)
        use.reused |= {key for key in ready if key not in use.inserted}
        num = len(new) - (self.num_chunks - len(resident))
        evicted: list[Key] = []
        if new and num > 0:
            can_leave = {
                key for key in resident if self.readable(key) and not self.reading.get(key)
            } - set(keys)
            if num > len(can_leave):
                self.num_refused += 1
                return None
            evicted = self.policy.evict(num, can_leave)
        for key in new:
            self.policy.inserted(key, use)
        self.writing |= set(new)
        use.inserted |= set(new)
        return new, evicted

    def load(self, keys: list[Key], use: SlowUse) -> None:
        for key in keys:
            self.reading[key] = self.reading.get(key, 0) + 1
        self._see(keys, use)
        use.reused |= {key for key in keys if key not in use.inserted}

    def finish(self, use: SlowUse) -> None:
        order = sorted(use.seen, key=lambda key: (use.positions[key], use.groups[key]))
        self.policy.finished(order[::-1], use)
