"""Prefixes as routers name them: keys of single blocks, and runs of neighbouring ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

POSITION_BITS = 24
"""Positions are below 2**24 tokens, as in `kvsim.cache.content`."""
_POSITION = (1 << POSITION_BITS) - 1

Run = tuple[int, int, int]
"""Neighbouring blocks whose last tokens lie in one span: uid, tokens up to the end of the first of
them, and up to the end of the last."""


def prefix_key(uid: int, num_tokens: int) -> int:
    """The key of the prefix of `num_tokens` tokens whose last one lies in span `uid`.

    Two prefixes are equal where their keys are.
    """
    return (uid << POSITION_BITS) | num_tokens


class BlockRuns(Sequence[int]):
    """`prefix_key`s block by block, as runs of neighbours: what events name.

    Told apart only where somebody asks for single ones; an index takes whole runs.
    """

    __slots__ = ("_ends", "_keys", "_unit")

    def __init__(self, ends: list[tuple[int, int]], unit_tokens: int) -> None:
        """Runs by the keys of their first and last block, in either direction.

        Args:
            ends: of each run.
            unit_tokens: size of a block.
        """
        self._ends = ends
        self._unit = unit_tokens
        self._keys: list[int] | None = None

    def ends(self) -> list[tuple[int, int]]:
        """The keys of the first and the last block of each run, as they were told."""
        return self._ends

    def runs(self) -> list[Run]:
        """All of them, each from its lowest block on."""
        return [
            (first >> POSITION_BITS, first & _POSITION, last & _POSITION)
            if first <= last
            else (first >> POSITION_BITS, last & _POSITION, first & _POSITION)
            for first, last in self._ends
        ]

    def keys(self) -> list[int]:
        """All keys, in the order in which they were told."""
        if self._keys is None:
            unit = self._unit
            keys: list[int] = []
            for first, last in self._ends:
                step = unit if first <= last else -unit
                keys.extend(range(first, last + step, step))
            self._keys = keys
        return self._keys

    def __len__(self) -> int:
        """How many blocks."""
        return sum(abs(last - first) // self._unit + 1 for first, last in self._ends)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._ends)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        """Some of the keys."""
        return self.keys()[index]

    def __iter__(self) -> Iterator[int]:
        """The keys in order."""
        return iter(self.keys())

    def __eq__(self, other: object) -> bool:
        """Whether the keys are those of another sequence."""
        return isinstance(other, Sequence) and self.keys() == list(other)

    __hash__ = None  # type: ignore[assignment]
