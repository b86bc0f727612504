"""What a workload offers a prefix cache, from its prompts alone: reuse, and hit rates by capacity.

A cache here holds whole blocks of one kind, as for full attention. A hit is the longest prefix of a
request's blocks that is resident when it arrives, counted in tokens; after that all its blocks are
entered. Least recently used (`lru`): the tail first and the head last, so that a tail leaves before
its head. First in, first out (`fifo`): new blocks from the head on, each eviction at once.

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
from itertools import islice
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvsim.cache.content import Ints
from kvsim.jit import njit
from kvsim.workload.request import Request

Window = Literal["all", "last-half"]
Policy = Literal["lru", "fifo"]
Floats = npt.NDArray[np.float64]
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
        uids: int64, identity of each run, numbered from 0 without gaps.
        begins: int64, number of the first block of each run in its prompt.
        ends: int64, number of the block behind each run.
        run_ends: int64, where each request's runs end in the arrays above; ascending.
        prompt_tokens: int64, length of each prompt.
        output_tokens: int64, length of each answer.
        times_s: float64, arrival of each request.
    """

    block_tokens: int
    uids: Ints
    begins: Ints
    ends: Ints
    run_ends: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    times_s: Floats

    @classmethod
    def from_requests(cls, requests: Iterable[Request], block_tokens: int) -> TraceBlocks:
        """Read all requests; 24 bytes for each run and 40 for each prompt are kept.

        The last block of a prompt, where it is not whole, counts if it has an id of its own.

        Args:
            requests: in order of arrival.
            block_tokens: tokens of a block.
        """
        empty = np.empty(0, dtype=np.int64)
        parts, run_counts, lengths = [(empty, empty, empty)], [empty], []
        remaining = iter(requests)
        while chunk := list(islice(remaining, _CHUNK)):
            runs, counts = _runs_of(chunk, block_tokens)
            parts.append(runs)
            run_counts.append(counts)
            lengths += [(r.num_prompt_tokens, r.num_output_tokens, r.arrival_s) for r in chunk]
        uids, begins, ends = (np.concatenate(column) for column in zip(*parts, strict=True))
        table = np.array(lengths, dtype=np.float64).reshape(-1, 3)
        _, numbered = np.unique(uids, return_inverse=True)
        return cls(
            block_tokens=block_tokens,
            uids=numbered.astype(np.int64),
            begins=begins,
            ends=ends,
            run_ends=np.cumsum(np.concatenate(run_counts)),
            prompt_tokens=table[:, 0].astype(np.int64),
            output_tokens=table[:, 1].astype(np.int64),
            times_s=table[:, 2].copy(),
        )

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

    @cached_property
    def is_chained(self) -> bool:
        """Whether an id always comes after the same id, as one that stands for a prefix does."""
        if len(self.uids) == 0:
            return True
        before = np.concatenate([[-1], self.uids[:-1]])
        before[
            np.concatenate([[0], self.run_ends[:-1]])[np.diff(self.run_ends, prepend=0) > 0]
        ] = -1
        known = np.empty(self._num_uids, dtype=np.int64)
        known[self.uids] = before
        same_place = self.begins == self._first_blocks[self.uids]
        return bool(np.all(known[self.uids] == before) and np.all(same_place))

    def first_measured(self, window: Window) -> int:
        """The first request that counts; the others only fill the cache."""
        return self.num_requests // 2 if window == "last-half" else 0

    def num_tokens(self, window: Window = "all") -> int:
        """Prompt tokens of the requests that count."""
        return int(self.prompt_tokens[self.first_measured(window) :].sum())

    @cached_property
    def reuses(self) -> Reuses:
        """All runs of blocks that were used before; found in one pass."""
        num_runs, num_requests = len(self.uids), self.num_requests
        request, distance, num_blocks, tokens, before = np.empty((5, 2 * num_runs), dtype=np.int64)
        num = _find_reuses(
            self.uids,
            self.begins,
            self.ends,
            self.run_ends,
            self.prompt_tokens,
            self.block_tokens,
            np.full(self._num_uids, -1, dtype=np.int64),
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
        """Share of prompt tokens found by a cache that evicts nothing."""
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
        hit_tokens = _fifo_hit_tokens(
            self._offsets[:-1][self.uids] + self.begins - self._first_blocks[self.uids],
            self.ends - self.begins,
            self.run_ends,
            self.prompt_tokens,
            self.first_measured(window),
            self.block_tokens,
            capacity_blocks,
            np.full(self.num_unique, _LONG_AGO, dtype=np.int64),
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
        _count_by_window(
            self.uids, self.ends, self.run_ends, windows, self._first_blocks, known, counts
        )
        return list(zip(edges.tolist(), counts.tolist(), strict=True))


def ideal_hit_tokens(requests: Iterable[Request], first: int = 0) -> tuple[int, int]:
    """`(tokens found, tokens)` where nothing is evicted and a prefix may end at any token.

    Prefixes are compared as contents say, so this is the way to tell what `SharedTails` adds.

    Args:
        requests: in order of arrival.
        first: the first request that counts, from 0.
    """
    longest: dict[int, int] = {}
    hit_tokens = num_tokens = 0
    for number, request in enumerate(requests):
        counts = number >= first
        num_tokens += request.num_prompt_tokens * counts
        uids, ends = request.content.uids.tolist(), request.content.ends.tolist()
        for uid, end in zip(reversed(uids), reversed(ends), strict=True):
            known = longest.get(uid, 0)
            if known:
                hit_tokens += min(known, end) * counts
                break
        for uid, end in zip(uids, ends, strict=True):
            if uid != request.output_uid and longest.get(uid, 0) < end:
                longest[uid] = end
    return hit_tokens, num_tokens


def _runs_of(
    requests: Sequence[Request], block_tokens: int
) -> tuple[tuple[Ints, Ints, Ints], Ints]:
    """`(uids, begins, ends)` of the runs of some prompts, and how many each has."""
    uids = np.concatenate([request.content.uids for request in requests])
    token_ends = np.concatenate([request.content.ends for request in requests])
    counts = np.array([len(request.content.uids) for request in requests], dtype=np.int64)
    own = np.array([request.output_uid for request in requests], dtype=np.int64)
    of_request = np.repeat(np.arange(len(requests)), counts)
    token_begins = np.concatenate([[0], token_ends[:-1]])
    token_begins[np.cumsum(counts) - counts] = 0
    # A block belongs to the span that holds its last token.
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
    num_runs = np.bincount(of_request[filled], minlength=len(requests))
    return (uids[filled], begins[filled], ends[filled]), num_runs.astype(np.int64)


@njit
def _find_reuses(
    uids: Ints,
    begins: Ints,
    ends: Ints,
    run_ends: Ints,
    prompt_tokens: Ints,
    block_tokens: int,
    top: Ints,
    pieces: Ints,
    tree: Ints,
    held: Ints,
    out_request: Ints,
    out_distance: Ints,
    out_blocks: Ints,
    out_tokens: Ints,
    out_before: Ints,
) -> int:
    """Fills in the reuses and returns how many there are.

    The blocks of an identity are cut into pieces by their last use, later uses nearer to its
    beginning: `top` is the first piece of each, and `pieces` has the end, the request and the next
    piece. `held` has the number of blocks of each prompt, and of those that no later request has
    used; `tree` sums the latter over requests (Fenwick, indices from 1).
    """
    num_requests = len(run_ends)
    num_out = 0
    num_held = 0
    begin = 0
    for request in range(num_requests):
        first_out = num_out
        end = run_ends[request]
        for run in range(begin, end):
            place = begins[run]
            piece = top[uids[run]]
            while piece != -1 and place < ends[run]:
                before = pieces[1, piece]
                stop = min(pieces[0, piece], ends[run])
                # Blocks whose last use came later than `before`.
                distance = num_held
                index = before + 1
                while index > 0:
                    distance -= tree[index]
                    index &= index - 1
                # And those of the same request that lie nearer to its beginning.
                distance += place - (held[0, before] - held[1, before]) + 1
                out_request[num_out] = request
                out_distance[num_out] = distance
                out_blocks[num_out] = stop - place
                out_tokens[num_out] = (
                    min(stop * block_tokens, prompt_tokens[request]) - place * block_tokens
                )
                out_before[num_out] = before
                num_out += 1
                place = stop
                if stop == pieces[0, piece]:
                    piece = pieces[2, piece]
            pieces[0, run] = ends[run]
            pieces[1, run] = request
            pieces[2, run] = piece
            top[uids[run]] = run
        for out in range(first_out, num_out):
            before = out_before[out]
            held[1, before] -= out_blocks[out]
            num_held -= out_blocks[out]
            index = before + 1
            while index <= num_requests:
                tree[index] -= out_blocks[out]
                index += index & -index
        num_blocks = ends[end - 1] if end > begin else 0
        held[0, request] = num_blocks
        held[1, request] = num_blocks
        num_held += num_blocks
        index = request + 1
        while index <= num_requests:
            tree[index] += num_blocks
            index += index & -index
        begin = end
    return num_out


@njit
def _fifo_hit_tokens(
    blocks: Ints,
    num_blocks: Ints,
    run_ends: Ints,
    prompt_tokens: Ints,
    first: int,
    block_tokens: int,
    capacity: int,
    entered: Ints,
) -> int:
    """Tokens found; `entered` holds how many had been entered before a block was."""
    num_entered = 0
    hit_tokens = 0
    begin = 0
    for request in range(len(run_ends)):
        num_hit = 0
        missed = False
        for run in range(begin, run_ends[request]):
            for block in range(blocks[run], blocks[run] + num_blocks[run]):
                missed = missed or num_entered - entered[block] > capacity
                if missed:
                    break
                num_hit += 1
        if request >= first:
            hit_tokens += min(num_hit * block_tokens, prompt_tokens[request])
        for run in range(begin, run_ends[request]):
            for block in range(blocks[run], blocks[run] + num_blocks[run]):
                if num_entered - entered[block] > capacity:
                    entered[block] = num_entered
                    num_entered += 1
        begin = run_ends[request]
    return hit_tokens


@njit
def _count_by_window(
    uids: Ints,
    ends: Ints,
    run_ends: Ints,
    windows: Ints,
    first_blocks: Ints,
    known: Ints,
    counts: Ints,
) -> None:
    """Adds up different blocks; `known` has the window and the end of each identity's last use."""
    begin = 0
    for request in range(len(run_ends)):
        window = windows[request]
        for run in range(begin, run_ends[request]):
            uid = uids[run]
            if known[0, uid] != window:
                known[0, uid] = window
                known[1, uid] = first_blocks[uid]
            counts[window] += max(0, ends[run] - known[1, uid])
            known[1, uid] = max(known[1, uid], ends[run])
        begin = run_ends[request]
