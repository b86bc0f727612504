"""The two ends of a hand-off from a prefill to a decode engine, as their schedulers see it.

Prefill: a finished prompt gives back what its windows have left and keeps the rest, until it was
read or its lease is over. Decode: a prompt that was computed elsewhere takes blocks for all of it
beyond its own prefix hit, once, and runs when they are full; preempted later it computes again.
No clock here. (vLLM 0.33.0: kv_connector/v1/nixl/pull_scheduler.py, base_scheduler.py;
v1/core/sched/scheduler.py.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from kvsim.cache.manager import KVCache, Sequence
from kvsim.offload.transfers import TransferJob, Transfers


class PrefillConnector:
    """Keeps the blocks of finished prompts.

    Attributes:
        held: by request, the sequence that has its blocks.
        num_alive: requests that run or wait.
    """

    def __init__(self, cache: KVCache, on_held: Callable[[str, bool], None]) -> None:
        """Without requests.

        Args:
            cache: of the engine.
            on_held: told of every finished prompt, and whether it has blocks: one whose last tokens
                were under way when it was preempted has none.
        """
        self.held: dict[str, Sequence] = {}
        self.num_alive = 0
        self._cache = cache
        self._on_held = on_held
        self._names: dict[Sequence, str] = {}
        self._leaving: dict[int, str] = {}
        self._num_jobs = 0

    @property
    def in_flight(self) -> bool:
        """Whether blocks are kept that will come back."""
        return bool(self.held)

    @property
    def num_kept(self) -> int:
        """Prompts whose blocks are neither read nor given up."""
        return len(self.held) - len(self._leaving)

    @property
    def has_news(self) -> bool:
        """Never: a finished request is told of at once."""
        return False

    @property
    def idle(self) -> bool:
        """Whether nothing is kept."""
        return not self.held

    def arrive(self, sequence: Sequence, name: str, output_uid: int, end_tokens: int) -> None:
        """A prompt arrives."""
        self._names[sequence] = name
        self.num_alive += 1

    def match(self, sequence: Sequence, num_local: int) -> int | None:
        """Nothing is loaded."""
        return 0

    def admit(self, sequence: Sequence) -> None:
        """Nothing to remember."""

    resume = preempt = admit

    def load(self, sequence: Sequence, num_local: int, num_external: int) -> None:
        """Never asked for."""
        raise AssertionError("a prefill engine loads nothing")

    def finish(self, sequence: Sequence) -> None:
        """A prompt is computed: what it still holds stays its own, beyond the scheduler's reach."""
        name = self._names.pop(sequence)
        self.num_alive -= 1
        has_blocks = sequence.slot >= 0
        if has_blocks:
            self.held[name] = Sequence(sequence.content, sequence.num_prompt, sequence.slot)
            sequence.slot = -1
        self._on_held(name, has_blocks)

    def abandon(self, sequence: Sequence) -> None:
        """A prompt is given up."""
        del self._names[sequence]
        self.num_alive -= 1

    def build(self, scheduled: list[Sequence]) -> Transfers:
        """A step moves nothing by itself."""
        return Transfers()

    def let_go(self, name: str) -> int:
        """Blocks of a prompt are kept no longer: the number of that, for ``complete``."""
        number, self._num_jobs = self._num_jobs, self._num_jobs + 1
        self._leaving[number] = name
        return number

    def complete(self, numbers: Iterable[int]) -> list[Sequence]:
        """The engine hears of what it may let go: blocks come back as those of any request."""
        for number in numbers:
            self._cache.free(self.held.pop(self._leaving.pop(number)))
        return []


@dataclass(frozen=True, slots=True)
class Pull:
    """What a request takes from the other side.

    Attributes:
        name: of the request.
        sequence: which holds the blocks to be filled.
        local_tokens: its own prefix hit.
        num_tokens: beyond it.
        spans: per group, the first block that is filled and the one behind the last, by position.
    """

    name: str
    sequence: Sequence
    local_tokens: int
    num_tokens: int
    spans: tuple[tuple[int, int], ...]

    @property
    def num_blocks(self) -> tuple[int, ...]:
        """Per group."""
        return tuple(end - start for start, end in self.spans)


class DecodeConnector:
    """Fills the blocks of prompts that were computed elsewhere.

    Attributes:
        expected: requests whose prompts are, and that have not asked for them yet.
        queried_tokens: looked up in the own cache for such requests; 0 with caching off.
        hit_tokens: of these, tokens found.
        blocks_received: per group.
    """

    def __init__(
        self, cache: KVCache, left_tokens: int, on_unneeded: Callable[[str], None]
    ) -> None:
        """Without requests.

        Args:
            cache: of the engine.
            left_tokens: at the end of a longer prompt, which are computed here in any case.
            on_unneeded: told of every request that asks for nothing: its own hit is as long.
        """
        self._left_tokens = left_tokens
        self._on_unneeded = on_unneeded
        self.expected: set[str] = set()
        self.queried_tokens = 0
        self.hit_tokens = 0
        self.blocks_received = [0] * len(cache.config.groups)
        self._cache = cache
        self._names: dict[Sequence, str] = {}
        self._pulls: dict[int, Pull] = {}
        self._num_jobs = 0
        self._transfers = Transfers()

    @property
    def in_flight(self) -> bool:
        """Whether anything is to arrive."""
        return bool(self._pulls)

    @property
    def has_news(self) -> bool:
        """Never: nothing is stored."""
        return False

    @property
    def idle(self) -> bool:
        """Whether nothing is to arrive."""
        return not self._pulls

    def arrive(self, sequence: Sequence, name: str, output_uid: int, end_tokens: int) -> None:
        """A request arrives."""
        self._names[sequence] = name

    def match(self, sequence: Sequence, num_local: int) -> int | None:
        """All of the prompt beyond the local hit, if it was computed elsewhere; once."""
        if self._names[sequence] not in self.expected:
            return 0
        num_there = sequence.num_prompt
        if num_there > self._left_tokens:
            num_there -= self._left_tokens
        return max(0, num_there - num_local)

    def admit(self, sequence: Sequence) -> None:
        """A request runs without a load; whoever keeps blocks for it hears of that."""
        name = self._names[sequence]
        if name in self.expected:
            self.expected.remove(name)
            self._on_unneeded(name)

    def resume(self, sequence: Sequence) -> None:
        """Nothing to remember."""

    preempt = resume

    def load(self, sequence: Sequence, num_local: int, num_external: int) -> None:
        """A request has blocks for its whole prompt, and asks for what lies beyond its own hit.

        Of a window group these are the blocks of the tail, of a group of states the last state:
        allocation gives no others.
        """
        name = self._names[sequence]
        self.expected.remove(name)
        if self._cache.config.enable_caching:
            self.queried_tokens += sequence.content.num_tokens
            self.hit_tokens += num_local
        firsts = self._cache.core.tables.tables["first"][sequence.slot].tolist()
        spans = []
        for group, spec in enumerate(self._cache.config.groups):
            end = -(-(num_local + num_external) // spec.block_size)
            start = max(num_local // spec.block_size, firsts[group])
            spans.append((min(start, end), end))
        pull = Pull(name, sequence, num_local, num_external, tuple(spans))
        number, self._num_jobs = self._num_jobs, self._num_jobs + 1
        self._pulls[number] = pull
        blocks = pull.num_blocks
        rows = np.zeros(0, dtype=np.int64)
        self._transfers.loads.append(TransferJob(number, name, False, blocks, blocks, rows))

    def finish(self, sequence: Sequence) -> None:
        """A request is done."""
        self._forget(sequence)

    abandon = finish

    def _forget(self, sequence: Sequence) -> None:
        self.expected.discard(self._names.pop(sequence))

    def build(self, scheduled: list[Sequence]) -> Transfers:
        """What was asked for since the step before."""
        transfers, self._transfers = self._transfers, Transfers()
        return transfers

    def pull(self, number: int) -> Pull:
        """One that has not arrived."""
        return self._pulls[number]

    def drop(self, number: int, *, keeps_hit: bool = False) -> None:
        """What was asked for will never arrive; who keeps its hit is not looked up again."""
        pull = self._pulls.pop(number)
        if keeps_hit and self._cache.config.enable_caching:
            self.queried_tokens -= pull.sequence.content.num_tokens
            self.hit_tokens -= pull.local_tokens

    def complete(self, numbers: Iterable[int]) -> list[Sequence]:
        """Blocks are full; answers whose."""
        arrived = []
        for number in numbers:
            pull = self._pulls.pop(number)
            for group, count in enumerate(pull.num_blocks):
                self.blocks_received[group] += count
            arrived.append(pull.sequence)
        return arrived
