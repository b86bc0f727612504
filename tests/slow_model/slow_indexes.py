"""Routers' indexes of prefixes as dictionaries: slow, and plain to read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from kvsim.routing.block_runs import POSITION_BITS, BlockRuns, Run

_POSITION = (1 << POSITION_BITS) - 1
_NOBODY: dict[int, list[int]] = {}
_FEW = 8
"""So many keys are faster told apart one by one than by numpy."""


class EventIndex:
    """What replicas told they hold, block by block.

    For each span and replica it keeps which of the span's blocks are there, as intervals; nearly
    always that is one, since caches give up the ends of prefixes first.
    """

    def __init__(self, unit_tokens: int) -> None:
        """Start empty, for blocks of `unit_tokens`."""
        self.unit_tokens = unit_tokens
        self._held: dict[int, dict[int, list[int]]] = {}  # uid: replica: first, last, first, ...

    def store(self, replica: int, keys: Sequence[int]) -> None:
        """A replica holds these prefixes (`prefix_key`s) from now on."""
        unit = self.unit_tokens
        for uid, first, last in _runs(keys, unit):
            replicas = self._held.setdefault(uid, {})
            there = replicas.get(replica)
            if there is None:
                replicas[replica] = [first, last]
            elif len(there) == 2 and first <= there[1] + unit and last >= there[0] - unit:
                there[0], there[1] = min(there[0], first), max(there[1], last)
            else:
                replicas[replica] = _joined(there, first, last, unit)

    def remove(self, replica: int, keys: Sequence[int]) -> None:
        """A replica holds these prefixes no more."""
        unit = self.unit_tokens
        for uid, first, last in _runs(keys, unit):
            replicas = self._held.get(uid)
            there = replicas.get(replica) if replicas else None
            if replicas is None or there is None:
                continue
            if len(there) == 2 and last >= there[1] and there[0] < first <= there[1]:
                there[1] = first - unit  # the end goes, as it nearly always does
                continue
            left = _cut(there, first, last, unit)
            if left:
                replicas[replica] = left
            else:
                del replicas[replica]
                if not replicas:
                    del self._held[uid]

    def drop(self, replica: int) -> None:
        """A replica is gone, and all it held."""
        for uid in [uid for uid, replicas in self._held.items() if replica in replicas]:
            replicas = self._held[uid]
            del replicas[replica]
            if not replicas:
                del self._held[uid]

    def held(self) -> set[tuple[int, int, int]]:
        """Replica, first and last key of every interval."""
        return {
            (replica, uid << POSITION_BITS | low, uid << POSITION_BITS | high)
            for uid, replicas in self._held.items()
            for replica, there in replicas.items()
            for low, high in zip(there[::2], there[1::2], strict=True)
        }

    def overlap(self, runs: Iterable[Run]) -> dict[int, int]:
        """Tokens of each replica's leading blocks of a prompt; replicas with none are left out."""
        found: dict[int, int] = {}
        before = 0
        for uid, first, last in runs:
            whole = False
            for replica, there in self._held.get(uid, _NOBODY).items():
                if before and found.get(replica) != before:
                    continue  # it has not all that comes before
                if len(there) > 2:
                    reached = _reached(there, first)
                else:
                    low, reached = there
                    if low > first:
                        continue
                if reached >= last:
                    found[replica] = last
                    whole = True
                elif reached >= first:
                    found[replica] = reached
            if not whole:
                break
            before = last
        return found


class DecisionIndex:
    """What a router's own decisions must have brought to replicas, each kept for some time.

    Nothing ever corrects it. A block lives until `keep_s` after the last decision that had it.
    """

    def __init__(self, unit_tokens: int, keep_s: float) -> None:
        """Start empty, for blocks of `unit_tokens`."""
        self.unit_tokens = unit_tokens
        self._keep_s = keep_s
        # uid: replica: {last block of the span: until when the blocks up to it are kept}
        self._kept: dict[int, dict[int, dict[int, float]]] = {}
        self._ends: deque[tuple[float, int, int, int]] = deque()

    def store(self, replica: int, runs: Iterable[Run], now_s: float) -> None:
        """A request with these blocks was sent to a replica."""
        until = now_s + self._keep_s
        for uid, _, last in runs:
            self._kept.setdefault(uid, {}).setdefault(replica, {})[last] = until
            self._ends.append((until, uid, replica, last))

    def drop(self, replica: int) -> None:
        """A replica is gone."""
        for replicas in self._kept.values():
            replicas.pop(replica, None)

    def overlap(self, runs: Iterable[Run], now_s: float) -> dict[int, int]:
        """Tokens of each replica's leading blocks of a prompt; replicas with none are left out."""
        self._forget(now_s)
        found: dict[int, int] = {}
        going: set[int] | None = None
        for uid, _, last in runs:
            replicas = self._kept.get(uid)
            if not replicas:
                break
            further = set()
            for replica, lasts in replicas.items():
                if not lasts or (going is not None and replica not in going):
                    continue
                reached = max(lasts)
                found[replica] = min(reached, last)
                if reached >= last:
                    further.add(replica)
            if not further:
                break
            going = further
        return found

    def _forget(self, now_s: float) -> None:
        ends = self._ends
        while ends and ends[0][0] <= now_s:
            until, uid, replica, last = ends.popleft()
            replicas = self._kept.get(uid)
            lasts = replicas.get(replica) if replicas else None
            if replicas is None or lasts is None or lasts.get(last) != until:
                continue
            del lasts[last]
            if not lasts:
                del replicas[replica]
                if not replicas:
                    del self._kept[uid]


class ActiveBlocks:
    """Distinct full blocks of the requests that are active on each replica."""

    def __init__(self, unit_tokens: int) -> None:
        """Start with nothing active, for blocks of `unit_tokens`."""
        self._unit = unit_tokens
        # Of runs with one beginning, by replica: the furthest last block of an active request,
        # and how many requests end at each.
        self._reached: dict[int, dict[int, int]] = {}
        self._lasts: dict[tuple[int, int], dict[int, int]] = {}

    def add(self, replica: int, runs: Iterable[Run]) -> int:
        """A request becomes active; returns how many blocks are new there."""
        new = 0
        for uid, first, last in runs:
            run = (uid << POSITION_BITS) | first
            reached = self._reached.setdefault(run, {})
            before = reached.get(replica)
            if before is None or last > before:
                new += last - (first - self._unit if before is None else before)
                reached[replica] = last
            lasts = self._lasts.setdefault((run, replica), {})
            lasts[last] = lasts.get(last, 0) + 1
        return new // self._unit

    def remove(self, replica: int, runs: Iterable[Run]) -> int:
        """A request that was added is active no more; returns how many blocks went with it."""
        gone = 0
        for uid, first, last in runs:
            run = (uid << POSITION_BITS) | first
            lasts = self._lasts[run, replica]
            if lasts[last] > 1:
                lasts[last] -= 1
                continue
            del lasts[last]
            reached = self._reached[run]
            if lasts:
                furthest = max(lasts)
                gone += max(0, last - furthest)
                reached[replica] = furthest
                continue
            gone += last - first + self._unit
            del self._lasts[run, replica], reached[replica]
            if not reached:
                del self._reached[run]
        return gone // self._unit

    def shared(self, runs: Iterable[Run]) -> dict[int, int]:
        """How many of a prompt's blocks are active on each replica already."""
        unit = self._unit
        found: dict[int, int] = {}
        for uid, first, last in runs:
            replicas = self._reached.get((uid << POSITION_BITS) | first)
            if not replicas:
                break
            whole = (last - first) // unit + 1
            for replica, reached in replicas.items():
                blocks = whole if reached >= last else (reached - first) // unit + 1
                found[replica] = found.get(replica, 0) + blocks
        return found


def _runs(keys: Sequence[int], unit: int) -> list[Run]:
    """Keys taken together where they are neighbours of one span, in either direction."""
    if isinstance(keys, BlockRuns):
        return keys.runs()
    if len(keys) <= _FEW:
        few = []
        for key in keys:
            end = int(key) & _POSITION
            few.append((int(key) >> POSITION_BITS, end, end))
        return few
    values = np.asarray(keys, np.int64)
    steps = np.diff(values)
    if steps[0] < 0 and np.count_nonzero(steps == -unit) > np.count_nonzero(steps == unit):
        values = values[::-1]  # told from the end
        steps = np.diff(values)
    breaks = np.flatnonzero(steps != unit)
    firsts = values[np.concatenate([[0], breaks + 1])].tolist()
    lasts = values[np.concatenate([breaks, [len(values) - 1]])].tolist()
    return [
        (first >> POSITION_BITS, first & _POSITION, last & _POSITION)
        for first, last in zip(firsts, lasts, strict=True)
    ]


def _reached(there: list[int], first: int) -> int:
    """Up to where the blocks from `first` on are there; 0 where it is not."""
    for low, high in zip(there[::2], there[1::2], strict=True):
        if low <= first <= high:
            return high
    return 0


def _joined(there: list[int], first: int, last: int, unit: int) -> list[int]:
    """Intervals with one more, those that touch taken together."""
    pairs = sorted([*zip(there[::2], there[1::2], strict=True), (first, last)])
    joined = [*pairs[0]]
    for low, high in pairs[1:]:
        if low <= joined[-1] + unit:
            joined[-1] = max(joined[-1], high)
        else:
            joined += [low, high]
    return joined


def _cut(there: list[int], first: int, last: int, unit: int) -> list[int]:
    """Intervals without one."""
    left: list[int] = []
    for low, high in zip(there[::2], there[1::2], strict=True):
        if low < first:
            left += [low, min(high, first - unit)]
        if high > last:
            left += [max(low, last + unit), high]
    return left
