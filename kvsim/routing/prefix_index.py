"""Who holds which prefixes: indexes that a router keeps, fed by events or by its own decisions.

All work on runs of blocks, one for each span of a prompt, so that a look costs what the prompt has
spans and the replicas that hold its beginning, not what it has tokens.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.routing.contract import POSITION_BITS, BlockRuns, Run

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


class SharedLruIndex:
    """What a router's own decisions brought, in one table for all replicas with a bound and an age.

    The runs of blocks used longest ago leave, first blocks before later ones.
    """

    def __init__(self, unit_tokens: int, num_blocks: int, keep_s: float) -> None:
        """Start empty.

        Args:
            unit_tokens: size of a block.
            num_blocks: most blocks in the table.
            keep_s: seconds after its last use when a block is forgotten.
        """
        self._unit = unit_tokens
        self._room = num_blocks
        self._keep_s = keep_s
        self._runs: OrderedDict[int, _SharedRun] = OrderedDict()

    def store(self, replica: int, runs: Iterable[Run], now_s: float) -> None:
        """A request with these blocks was sent to a replica."""
        self._forget(now_s)
        for uid, first, last in runs:
            key = (uid << POSITION_BITS) | first
            run = self._runs.get(key)
            if run is None:
                run = self._runs[key] = _SharedRun(first, first - self._unit, now_s, {})
            else:
                self._runs.move_to_end(key)
            before = self._blocks(run)
            run.lowest, run.last, run.used_s = first, max(run.last, last), now_s
            run.reached[replica] = max(run.reached.get(replica, 0), last)
            self._room -= self._blocks(run) - before
        while self._room < 0:
            key, run = next(iter(self._runs.items()))
            gone = min(-self._room, self._blocks(run))
            run.lowest += gone * self._unit
            self._room += gone
            run.reached.clear()  # without its first blocks the rest is not found
            if run.lowest > run.last:
                del self._runs[key]

    def drop(self, replica: int) -> None:
        """A replica is gone."""
        for run in self._runs.values():
            run.reached.pop(replica, None)

    def overlap(self, runs: Iterable[Run], now_s: float) -> dict[int, int]:
        """Tokens of each replica's leading blocks of a prompt; replicas with none are left out."""
        self._forget(now_s)
        found: dict[int, int] = {}
        going: set[int] | None = None
        for uid, first, last in runs:
            run = self._runs.get((uid << POSITION_BITS) | first)
            if run is None or not run.reached:
                break
            further = set()
            for replica, reached in run.reached.items():
                if going is None or replica in going:
                    found[replica] = min(reached, last)
                    if reached >= last:
                        further.add(replica)
            if not further:
                break
            going = further
        return found

    def _blocks(self, run: _SharedRun) -> int:
        return (run.last - run.lowest) // self._unit + 1

    def _forget(self, now_s: float) -> None:
        while self._runs:
            key, run = next(iter(self._runs.items()))
            if run.used_s + self._keep_s > now_s:
                break
            self._room += self._blocks(run)
            del self._runs[key]


@dataclass(slots=True)
class _SharedRun:
    """Blocks of one span: those still in the table, last use, and who got how many."""

    lowest: int
    last: int
    used_s: float
    reached: dict[int, int]


class LruIndex:
    """For each replica the blocks that were last sent there, as many as fit its cache.

    Least recently sent blocks leave, first blocks of a prompt before later ones.
    """

    def __init__(self, num_blocks: int) -> None:
        """Start empty, with room for `num_blocks` a replica."""
        self.num_blocks = num_blocks
        self._blocks: dict[int, OrderedDict[int, None]] = {}
        self._holders: dict[int, int] = {}  # key: a bit for each replica

    def store(self, replica: int, keys: Sequence[int]) -> None:
        """A request with these blocks was sent to a replica."""
        blocks = self._blocks.setdefault(replica, OrderedDict())
        holders, bit = self._holders, 1 << replica
        for key in keys:
            if key in blocks:
                blocks.move_to_end(key)
            else:
                blocks[key] = None
                holders[key] = holders.get(key, 0) | bit
        while len(blocks) > self.num_blocks:
            key, _ = blocks.popitem(last=False)
            self._leave(key, bit)

    def drop(self, replica: int) -> None:
        """A replica is gone."""
        for key in self._blocks.pop(replica, ()):
            self._leave(key, 1 << replica)

    def matched(self, keys: Sequence[int], *, contiguous: bool) -> dict[int, int]:
        """How many of a prompt's blocks each replica has; replicas with none are left out.

        Args:
            keys: the prompt's blocks.
            contiguous: only those before the first that is missing.
        """
        holders = self._holders
        counts: dict[int, int] = {}  # holders in common to how many blocks
        left = -1
        for key in keys:
            mask = holders.get(key, 0)
            if contiguous:
                mask = left = left & mask
                if not mask:
                    break
            if mask:
                counts[mask] = counts.get(mask, 0) + 1
        found: dict[int, int] = {}
        for mask, count in counts.items():
            while mask:
                replica = (mask & -mask).bit_length() - 1
                found[replica] = found.get(replica, 0) + count
                mask &= mask - 1
        return found

    def _leave(self, key: int, bit: int) -> None:
        mask = self._holders[key] & ~bit
        if mask:
            self._holders[key] = mask
        else:
            del self._holders[key]


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
