"""What a workload offers a prefix cache, from its prompts alone: reuse, and hit rates by capacity.

A cache here holds whole blocks of one kind, as for full attention. A hit is the longest prefix of a
request's blocks that is resident when it arrives, counted in tokens; after that all its blocks are
entered, with those of its answer where a later prompt holds it. Least recently used (`lru`): the
tail first and the head last, so that a tail leaves before its head. First in, first out (`fifo`):
new blocks from the head on, each eviction at once.

LRU caches of all sizes follow from one pass: a block is resident in a cache of C blocks if its
stack distance, the number of blocks used since, itself included, is C or less (Mattson et al.,
"Evaluation techniques for storage hierarchies", 1970). Bennett and Kruskal (1975) count distances
with a tree over the times of last use. Here the tree is over requests: what two prompts share is a
beginning of both, so the blocks that a request was the last to use are an end of its prompt, in the
order of the cache, and whole runs of blocks have consecutive distances.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from kvsim.cache.content import Ints
from kvsim.workload.passes import count_by_window, fifo_hit_tokens, find_reuses
from kvsim.workload.prompts import Bools, Floats, Prompts, Window
from kvsim.workload.request import Request

__all__ = ["LruCurve", "Policy", "Reuses", "TraceBlocks", "Window", "ideal_hit_tokens"]

Policy = Literal["lru", "fifo"]
_CHUNK = 4096
_LONG_AGO = -(2**62)


@dataclass(frozen=True)
class LruCurve:
    """Hit rates of LRU caches of all sizes.

    Attributes:
        token_hit_rates: float64, the share of prompt tokens found by a cache of that many blocks,
            from 0 on; 0 to 1, ascending. Larger caches find no more than the last.
    """

    token_hit_rates: Floats

    def token_hit_rate(self, capacity_blocks: int) -> float:
        """Share of prompt tokens found by a cache of this many blocks."""
        return float(self.token_hit_rates[min(capacity_blocks, len(self.token_hit_rates) - 1)])


@dataclass(frozen=True)
class Reuses:
    """Runs of blocks that were used before, in order; each array has an entry a run.

    Attributes:
        requests: int64, which request uses them again.
        distances: int64, stack distance of the first block; each next one's is one more.
        num_blocks: int64, how many.
        hit_tokens: int64, their tokens.
        since_s: float64, seconds since they were used last.
    """

    requests: Ints
    distances: Ints
    num_blocks: Ints
    hit_tokens: Ints
    since_s: Floats


@dataclass(frozen=True)
class TraceBlocks:
    """The blocks of all prompts, as runs of consecutive ones with the same identity.

    Attributes:
        block_tokens: tokens of a block.
        prompts: what the blocks are of.
        uids: int64, identity of each run, numbered from 0 without gaps.
        begins: int64, number of the first block of each run in its prompt.
        ends: int64, number of the block behind each run.
        run_ends: int64, where each request's runs end in the arrays above; ascending.
        sequence_tokens: int64, tokens of each request that its blocks cover at most: its prompt,
            and its answer where blocks of that come back.
        is_chained: whether an id always comes after the same id, as one that stands for a prefix
            does; the same id in another place counts as another otherwise.
    """

    block_tokens: int
    prompts: Prompts
    uids: Ints
    begins: Ints
    ends: Ints
    run_ends: Ints
    sequence_tokens: Ints
    is_chained: bool

    @classmethod
    def from_requests(
        cls, requests: Iterable[Request], block_tokens: int, *, answers: bool = True
    ) -> TraceBlocks:
        """Read all requests, in order of arrival, and cut their prompts into blocks."""
        return cls.from_prompts(Prompts.from_requests(requests), block_tokens, answers=answers)

    @classmethod
    def from_prompts(
        cls, prompts: Prompts, block_tokens: int, *, answers: bool = True
    ) -> TraceBlocks:
        """Cut prompts into blocks; 24 bytes for each run and 16 for each prompt are kept.

        A block belongs to the span that holds its last token. The last block of a prompt, where it
        is not whole, counts if it has an id of its own.

        Args:
            prompts: in order of arrival.
            block_tokens: tokens of a block.
            answers: answers that come back count as made; False for what a trace without ids of
                answers could tell.
        """
        whole = prompts.prompt_tokens // block_tokens
        sequence = prompts.prompt_tokens + prompts.output_tokens
        # An answer that completes no block changes none.
        returns = prompts.returns & (sequence // block_tokens > whole) & answers
        empty = np.empty(0, dtype=np.int64)
        parts, run_counts = [(empty, empty, empty)], [empty]
        for begin in range(0, prompts.num_requests, _CHUNK):
            chunk = slice(begin, begin + _CHUNK)
            runs, counts = _runs_of(prompts, chunk, returns, block_tokens)
            parts.append(runs)
            run_counts.append(counts)
        uids, begins, ends = (np.concatenate(column) for column in zip(*parts, strict=True))
        run_ends = np.cumsum(np.concatenate(run_counts))
        uids, is_chained = _numbered(uids, begins, run_ends)
        return cls(
            block_tokens=block_tokens,
            prompts=prompts,
            uids=uids,
            begins=begins,
            ends=ends,
            run_ends=run_ends,
            sequence_tokens=np.where(returns, sequence, prompts.prompt_tokens),
            is_chained=is_chained,
        )

    @property
    def prompt_tokens(self) -> Ints:
        """Length of each prompt."""
        return self.prompts.prompt_tokens

    @property
    def output_tokens(self) -> Ints:
        """Length of each answer."""
        return self.prompts.output_tokens

    @property
    def times_s(self) -> Floats:
        """Arrival of each request."""
        return self.prompts.times_s

    @property
    def num_requests(self) -> int:
        """Requests in all."""
        return len(self.run_ends)

    @property
    def num_unique(self) -> int:
        """Different blocks."""
        return int(self._offsets[-1])

    @cached_property
    def _first_blocks(self) -> Ints:
        """The number of the first block of each identity."""
        first = np.full(self._num_uids, 2**62, dtype=np.int64)
        np.minimum.at(first, self.uids, self.begins)
        return first

    @cached_property
    def _offsets(self) -> Ints:
        """Where the blocks of each identity begin if all are counted one after another."""
        end = np.zeros(self._num_uids, dtype=np.int64)
        np.maximum.at(end, self.uids, self.ends)
        return np.concatenate([[0], np.cumsum(end - self._first_blocks)])

    @property
    def _num_uids(self) -> int:
        return int(self.uids.max()) + 1 if len(self.uids) else 0

    def first_measured(self, window: Window) -> int:
        """The first request that counts; the others only fill the cache."""
        return self.prompts.first_measured(window)

    def num_tokens(self, window: Window = "all") -> int:
        """Prompt tokens of the requests that count."""
        return self.prompts.num_tokens(window)

    @cached_property
    def reuses(self) -> Reuses:
        """All runs of blocks that were used before; found in one pass."""
        num_runs, num_requests = len(self.uids), self.num_requests
        request, distance, num_blocks, tokens, before = np.empty((5, 2 * num_runs), dtype=np.int64)
        num = find_reuses(
            self.uids,
            self.begins,
            self.ends,
            self.run_ends,
            self.prompt_tokens,
            self.sequence_tokens,
            self.block_tokens,
            np.full(self._num_uids, -1, dtype=np.int64),
            np.zeros(self._num_uids, dtype=np.int64),
            np.empty((3, max(1, num_runs)), dtype=np.int64),
            np.zeros(num_requests + 1, dtype=np.int64),
            np.zeros((2, max(1, num_requests)), dtype=np.int64),
            request,
            distance,
            num_blocks,
            tokens,
            before,
        )
        since_s = self.times_s[request[:num]] - self.times_s[before[:num]]
        return Reuses(request[:num], distance[:num], num_blocks[:num], tokens[:num], since_s)

    def ideal_token_hit_rate(self, window: Window = "all") -> float:
        """Share of prompt tokens found in blocks by a cache that evicts nothing."""
        measured = self.reuses.requests >= self.first_measured(window)
        return float(self.reuses.hit_tokens[measured].sum()) / max(1, self.num_tokens(window))

    def lru_curve(self, window: Window = "all") -> LruCurve:
        """Hit rates of LRU caches of all sizes, from one pass."""
        reuses = self.reuses
        kept = reuses.requests >= self.first_measured(window)
        distances, num_blocks = reuses.distances[kept], reuses.num_blocks[kept]
        ends = distances + num_blocks
        size = int(ends.max(initial=0)) + 1
        # Each run adds a block's tokens at every capacity from its first distance on.
        slopes = np.bincount(distances, minlength=size) - np.bincount(ends, minlength=size)
        tokens = np.cumsum(slopes) * self.block_tokens
        lacking = num_blocks * self.block_tokens - reuses.hit_tokens[kept]
        tokens = tokens - np.bincount(ends - 1, weights=lacking, minlength=size)
        return LruCurve(np.cumsum(tokens) / max(1, self.num_tokens(window)))

    def fifo_token_hit_rate(self, capacity_blocks: int, window: Window = "all") -> float:
        """Share of prompt tokens found by a first-in-first-out cache of this many blocks."""
        hit_tokens = fifo_hit_tokens(
            self.uids,
            self._offsets[:-1][self.uids] + self.begins - self._first_blocks[self.uids],
            self.ends - self.begins,
            self.run_ends,
            self.prompt_tokens,
            self.sequence_tokens,
            self.first_measured(window),
            self.block_tokens,
            capacity_blocks,
            np.full(self.num_unique, _LONG_AGO, dtype=np.int64),
            np.zeros(self._num_uids, dtype=np.int64),
        )
        return hit_tokens / max(1, self.num_tokens(window))

    def token_hit_rates(
        self, policy: Policy, capacities_blocks: Iterable[int], window: Window = "all"
    ) -> list[float]:
        """Share of prompt tokens found by caches of these sizes."""
        if policy == "fifo":
            return [self.fifo_token_hit_rate(blocks, window) for blocks in capacities_blocks]
        curve = self.lru_curve(window)
        return [curve.token_hit_rate(blocks) for blocks in capacities_blocks]

    def num_single_use(self) -> int:
        """Blocks that are used once."""
        size = self.num_unique + 1
        begins = self._offsets[:-1][self.uids] + self.begins - self._first_blocks[self.uids]
        ends = begins + self.ends - self.begins
        uses = np.cumsum(np.bincount(begins, minlength=size) - np.bincount(ends, minlength=size))
        return int(np.count_nonzero(uses[:-1] == 1))

    def reuse_time_quantiles_s(self, quantiles: Sequence[float]) -> list[float] | None:
        """Seconds from one use of a block to the next, at shares of all; None without any."""
        reuses = self.reuses
        if len(reuses.since_s) == 0:
            return None
        order = np.argsort(reuses.since_s)
        done = np.cumsum(reuses.num_blocks[order])
        places = np.searchsorted(done, np.array(quantiles) * done[-1])
        return [float(value) for value in reuses.since_s[order][np.minimum(places, len(done) - 1)]]

    def working_sets(self, num_windows: int) -> list[tuple[float, int]]:
        """`(end in s, different blocks used)` of windows of equal length over the span."""
        if self.num_requests == 0:
            return []
        edges = np.linspace(self.times_s.min(), self.times_s.max(), num_windows + 1)[1:]
        windows = np.minimum(np.searchsorted(edges, self.times_s), num_windows - 1)
        counts = np.zeros(num_windows, dtype=np.int64)
        known = np.full((2, max(1, self._num_uids)), -1, dtype=np.int64)
        count_by_window(
            self.uids, self.ends, self.run_ends, windows, self._first_blocks, known, counts
        )
        return list(zip(edges.tolist(), counts.tolist(), strict=True))


def ideal_hit_tokens(requests: Iterable[Request], first: int = 0) -> tuple[int, int]:
    """`(tokens found, tokens)` where nothing is evicted and a prefix may end at any token.

    Args:
        requests: in order of arrival.
        first: the first request that counts, from 0.
    """
    prompts = Prompts.from_requests(requests)
    return int(prompts.hit_tokens[first:].sum()), int(prompts.prompt_tokens[first:].sum())


def _numbered(uids: Ints, begins: Ints, run_ends: Ints) -> tuple[Ints, bool]:
    """Identities of runs without gaps, and whether each always comes after the same one.

    An id that stands in several places is several.
    """
    if len(uids) == 0:
        return uids, True
    _, numbered = np.unique(uids, return_inverse=True)
    numbered = numbered.astype(np.int64)
    places = np.empty(int(numbered.max()) + 1, dtype=np.int64)
    places[numbered] = begins
    if not np.all(places[numbered] == begins):
        _, numbered = np.unique(np.stack([uids, begins]), axis=1, return_inverse=True)
        return numbered.reshape(-1).astype(np.int64), False
    before = np.concatenate([[-1], uids[:-1]])
    firsts = np.concatenate([[0], run_ends[:-1]])[np.diff(run_ends, prepend=0) > 0]
    before[firsts] = -1
    known = np.empty(len(places), dtype=np.int64)
    known[numbered] = before
    return numbered, bool(np.all(known[numbered] == before))


def _runs_of(
    prompts: Prompts, chunk: slice, returns: Bools, block_tokens: int
) -> tuple[tuple[Ints, Ints, Ints], Ints]:
    """`(uids, begins, ends)` of the runs of some prompts, and how many each has.

    Answers are behind their prompts where `returns` says so.
    """
    span_ends = prompts.span_ends[chunk]
    before = int(prompts.span_ends[chunk.start - 1]) if chunk.start else 0
    uids = prompts.uids[before : span_ends[-1]]
    token_ends = prompts.ends[before : span_ends[-1]]
    counts = np.diff(span_ends, prepend=before)
    own = prompts.answer_uids[chunk]
    come_back = returns[chunk]
    behind = (span_ends - before)[come_back]
    sequence = prompts.prompt_tokens[chunk] + prompts.output_tokens[chunk]
    uids = np.insert(uids, behind, own[come_back])
    token_ends = np.insert(token_ends, behind, sequence[come_back])
    counts = counts + come_back
    of_request = np.repeat(np.arange(len(counts)), counts)
    token_begins = np.concatenate([[0], token_ends[:-1]])
    token_begins[np.cumsum(counts) - counts] = 0
    begins, ends = token_begins // block_tokens, token_ends // block_tokens
    last = np.cumsum(counts) - 1
    has_tail = (token_ends[last] % block_tokens != 0) & (uids[last] != own)
    has_tail &= token_begins[last] <= ends[last] * block_tokens
    has_tail &= token_begins[last] % block_tokens == 0
    has_tail &= token_ends[last] - token_begins[last] < block_tokens
    ends[last[has_tail]] += 1
    goes_on = np.zeros(len(uids), dtype=bool)
    goes_on[1:] = (uids[1:] == uids[:-1]) & (of_request[1:] == of_request[:-1])
    filled = ends > begins
    if goes_on.any():
        # Neighbours with the same identity are one run.
        first = np.flatnonzero(~goes_on)
        ends = np.maximum.reduceat(ends, first)
        begins, uids, of_request = begins[first], uids[first], of_request[first]
        filled = ends > begins
    num_runs = np.bincount(of_request[filled], minlength=len(counts))
    return (uids[filled], begins[filled], ends[filled]), num_runs.astype(np.int64)
