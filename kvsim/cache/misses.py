"""Keeps the ledger of a cache, and asks it why prompts were not hit whole.

The tables of the ledger are lengthened here, between steps; compiled code only fills them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvsim.cache.block_pool import NOTED, NUM_GROUPS_MAX, WATCHED
from kvsim.cache.ledger import (
    LAST_MS,
    NOW_MS,
    NUM_FORGOTTEN,
    NUM_KNOWN,
    NUM_LINES,
    PREEMPTED,
    READMITTED,
    Ledger,
    forget_ledger,
    make_ledger,
    make_lines,
    move_lines,
    note_tables,
    number_of,
    number_of_owner,
    owner_of,
)
from kvsim.cache.manager import Hit, KVCache, Sequence
from kvsim.cache.progress import move_known, note_admitted
from kvsim.cache.reasons import LOST_BY_GROUP, REASONS_SIZE, find_reasons

_LEAST_ROWS = 1 << 12
_NUM_EVENTS = 1 << 21
_FIRST_LINES = 1 << 20
_MOST_LINES = 1 << 22
"""Evictions are remembered in 64 MB at first and up to 256 MB (more for a pool that is larger)."""


class MissLedger:
    """Keeps a cache's ledger, and asks it why prompts were not hit whole.

    Attributes:
        cache: whose; it has a ledger from now on.
        ledger: its tables.
        names: of the requests, by number.
    """

    def __init__(self, cache: KVCache, coarse_tokens: int | None = None) -> None:
        """Begin to note what happens in a cache, which is empty.

        Args:
            cache: with prefix caching.
            coarse_tokens: tokens that an id of the trace stands for; None where content is exact.
        """
        self.cache = cache
        self.names: list[str] = []
        self._coarse_tokens = coarse_tokens or 0
        self._answer = np.zeros_like(cache.core.answer)
        num_blocks = cache.config.num_blocks
        # To move lines costs more than anything else: there is room for many at first, and
        # always for what one step evicts.
        wanted = max(2 * num_blocks, min(64 * num_blocks, _FIRST_LINES))
        lines = 1 << max(_LEAST_ROWS, wanted - 1).bit_length()
        self._most_lines = max(_MOST_LINES, 2 * lines)
        self.ledger = make_ledger(num_blocks, lines, _NUM_EVENTS, _LEAST_ROWS)
        self._meter = self.ledger.meter  # the same for good, as longer tables take its place
        totals = cache.core.pool.totals
        totals[NOTED] = self._meter.ctypes.data
        totals[WATCHED] = 1
        cache.follow(self)

    @property
    def num_forgotten(self) -> int:
        """Evictions that are remembered no longer."""
        return int(self._meter[NUM_FORGOTTEN])

    def register(self, sequence: Sequence, name: str) -> None:
        """A request arrives."""
        sequence.owner = owner_of(len(self.names))
        self.names.append(name)

    def at(self, now_s: float) -> None:
        """It is ``now_s`` on the clock of the run."""
        self._meter[NOW_MS] = min(int(1000.0 * now_s), LAST_MS)

    def reset(self) -> None:
        """The cache is emptied: nothing was ever seen."""
        forget_ledger(self.ledger)

    def make_room(self) -> None:
        """Lengthen the table of evictions, or forget the older half, where it fills up."""
        ledger = self.ledger
        num, room = int(self._meter[NUM_LINES]), len(ledger.lines) // 8
        if 8 * num <= 5 * room:
            return
        oldest = 0
        if room < self._most_lines:
            room *= 2
        else:
            entries = ledger.entries.reshape(-1, 16)
            newest = entries[ledger.lines[::8] != 0, 2:].max(axis=1)
            oldest = int(np.partition(newest, num // 2)[num // 2])
        lines, entries = make_lines(room)
        longer = ledger._replace(lines=lines, entries=entries)
        self._meter[NUM_FORGOTTEN] += move_lines(ledger, longer, oldest)
        self._replace(longer)

    def find(
        self, sequence: Sequence, hit: Hit, num_external: int, output_uid: int
    ) -> npt.NDArray[np.int64]:
        """Why a prompt was not hit whole; to be asked right after its lookup.

        Args:
            sequence: looked up, and not admitted before.
            hit: what was found.
            num_external: tokens beyond it that a tier has.
            output_uid: of the span that its answer is written to.

        Returns:
            int64 [`REASONS_SIZE`]: tokens by reason which sum to the prompt less the hit and
            what the tier has; then the details.
        """
        content = sequence.content
        if 2 * (self._meter[NUM_KNOWN] + len(content.uids) + 1) > len(self.ledger.known):
            self._lengthen_known(len(content.uids) + 1)
        reasons = np.zeros(REASONS_SIZE, dtype=np.int64)
        find_reasons(
            self.cache.arrays,
            self._answer,
            reasons,
            content.uids,
            content.ends,
            output_uid,
            hit.tokens,
            num_external,
            self._coarse_tokens,
        )
        return reasons

    def admitted(self, sequence: Sequence) -> None:
        """A request is admitted; what it has counts as seen."""
        content = sequence.content
        note_admitted(self.ledger.known, content.uids, content.ends, sequence.owner)

    def preempted(self, sequence: Sequence) -> None:
        """A request is about to lose its blocks."""
        rows = self.cache.core.tables.sequences
        rows["owner"][sequence.slot] = sequence.owner | PREEMPTED
        sequence.owner |= READMITTED

    def number(self, sequence: Sequence) -> int:
        """The number of a sequence's request."""
        return number_of_owner(sequence.owner)

    def name(self, number: int) -> str | None:
        """The name of a request by number; None for nobody."""
        return self.names[number] if 0 <= number < len(self.names) else None

    def taker(self, taker: int) -> str | None:
        """The name of the request that a block was taken for; None for nobody."""
        return None if taker < 0 else self.name(number_of(taker))

    def by_group(self, reasons: npt.NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """Tokens not retained and evicted, of `find`, by group."""
        not_retained, evicted = reasons[LOST_BY_GROUP:].reshape(2, NUM_GROUPS_MAX).tolist()
        num = len(self.cache.config.groups)
        return not_retained[:num], evicted[:num]

    def _lengthen_known(self, more: int) -> None:
        wanted = 4 * (int(self._meter[NUM_KNOWN]) + more)
        longer = np.zeros(1 << (wanted - 1).bit_length(), dtype=self.ledger.known.dtype)
        move_known(self.ledger.known, longer)
        self._replace(self.ledger._replace(known=longer))

    def _replace(self, ledger: Ledger) -> None:
        """Keep these tables from now on."""
        self.ledger = ledger
        note_tables(ledger)
