"""Indexes of prefixes with room for so many blocks: what was sent last is kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvsim.routing.block_runs import POSITION_BITS, Run


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
