"""A slow, obvious KV cache: lists, dicts and one object a block.

It says in plain Python what the fast core must decide. Nothing here is shared with the fast core,
so that the two can be held against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd, lcm
from typing import Protocol

Spans = Sequence[Sequence[int]]
Key = tuple[int, int, int]
"""Group, uid of the span that holds the prefix's last token, tokens of the prefix."""


class Spec(Protocol):
    """What the model needs to know of a KV cache group."""

    kind: str
    block_size: int
    sliding_window: int | None
    attention_chunk_size: int | None
    eagle: bool


@dataclass(frozen=True)
class Profile:
    """What a release decides differently from the others."""

    free_queue: str
    knows_junction: bool
    """A lookup tells where siblings diverge."""
    follows_eagle: bool
    """The newest rules about EAGLE: two replay boundaries; its lookup may read the last token; the
    end of the prompt is indexed."""
    masks_follow_eagle: bool
    """The mask and the index give an EAGLE group its block beyond the boundary; and window groups
    have a mask also where their block is the scheduler block."""
    cuts_every_hit: bool
    """All full-attention groups are cut back to the hit, not only those of the first spec."""
    counts_lookups: bool
    """Counters count every lookup of a request that waits, not the one it is admitted with."""
    spares_lone_prefills: bool
    """The long-prefill threshold leaves a request alone that is alone."""
    flags_need_eagle: bool = False
    """A flagged group drops its block only if EAGLE is on."""
    keeps_before_junction: bool = False
    """An EAGLE group keeps the run a block before a junction, too."""
    goes_on_without_victim: bool = False
    """Who runs behind a request that took its own blocks can still be scheduled in that step."""


PROFILES = {
    "vllm-0.22": Profile("append", False, False, False, False, True, False),
    "vllm-0.23": Profile("prepend-uncached-window", False, False, True, False, True, False),
    "vllm-0.32": Profile("prepend-uncached", True, True, True, True, False, True),
    "vllm-0.33": Profile("prepend-uncached", True, True, True, True, False, True, True, True, True),
}


@dataclass
class Block:
    """One block of the pool."""

    number: int
    refs: int = 0
    key: Key | None = None


@dataclass
class Request:
    """A request that is known to the cache."""

    spans: list[list[int]]
    num_prompt: int
    junction: int = 0
    hit: int = 0
    hit_blocks: list[list[Block]] | None = None
    num_computed: int = 0
    num_in_flight: int = 0
    """Of the computed tokens those of steps that have not ended."""
    tables: list[list[Block]] = field(default_factory=list)
    num_indexed: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(n for _, n in self.spans)

    def prefix(self, end: int) -> tuple[int, int]:
        """The identity of the prefix that ends at token `end`."""
        seen = 0
        for uid, n in self.spans:
            seen += n
            if end <= seen:
                return uid, end
        raise IndexError(end)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class SlowCache:
    """The KV cache manager, one block at a time."""

    def __init__(
        self,
        *,
        num_blocks: int,
        groups: Sequence[Spec],
        max_model_len: int,
        max_in_flight_tokens: int,
        retention_interval: int | None = None,
        enable_caching: bool = True,
        use_eagle: bool = False,
        key_lookahead_tokens: int = 0,
        profile: str | Profile = "vllm-0.33",
        free_queue: str | None = None,
    ) -> None:
        self.profile = PROFILES[profile] if isinstance(profile, str) else profile
        self.groups = list(groups)
        self.max_model_len = max_model_len
        self.max_in_flight_tokens = max_in_flight_tokens
        self.retention_interval = retention_interval
        self.enable_caching = enable_caching
        self.key_lookahead = key_lookahead_tokens
        self.free_queue_order = free_queue or self.profile.free_queue
        self.scheduler_block = lcm(*(g.block_size for g in groups))
        self.hash_block = gcd(*(g.block_size for g in groups))
        self.hit_unit = self.scheduler_block

        flagged = {i for i, g in enumerate(groups) if g.eagle}
        if use_eagle and not flagged:
            flagged = set(range(len(groups)))
        self.dropping = flagged if use_eagle or not self.profile.flags_need_eagle else set()
        self.lookup_groups = self._group_by_spec()
        self.has_eagle = [False] * len(groups)
        for members, eagle in self.lookup_groups:
            for g in members:
                self.has_eagle[g] = eagle

        self.blocks = [Block(i) for i in range(num_blocks)]
        self.null = self.blocks[0]
        self.queue = self.blocks[1:]
        self.index: dict[Key, list[Block]] = {}
        self.sequences: dict[str, Request] = {}
        self.num_evicted = 0

    def _group_by_spec(self) -> list[tuple[list[int], bool]]:
        found: dict[tuple[str, int, int | None, int | None], list[int]] = {}
        for i, g in enumerate(self.groups):
            key = g.kind, g.block_size, g.sliding_window, g.attention_chunk_size
            found.setdefault(key, []).append(i)
        ordered = sorted(found.items(), key=lambda item: item[0][0] != "full")
        return [(members, bool(self.dropping & set(members))) for _, members in ordered]

    # -- lookup ---------------------------------------------------------------------------------

    def lookup(self, name: str, spans: Spans, num_prompt: int) -> tuple[int, int, list[list[int]]]:
        """A request arrives. Returns hit (tokens), junction (tokens), hit block ids per group."""
        seq = Request([list(s) for s in spans], num_prompt)
        seq.tables = [[] for _ in self.groups]
        seq.num_indexed = [0] * len(self.groups)
        self.sequences[name] = seq
        seq.hit_blocks = [[] for _ in self.groups]
        if self.enable_caching:
            if len(self.groups) == 1:
                self._lookup_one(seq)
            else:
                self._lookup_hybrid(seq)
        return seq.hit, seq.junction, [[b.number for b in g] for g in seq.hit_blocks]

    def _lookup_one(self, seq: Request) -> None:
        most = seq.num_tokens - max(1, self.key_lookahead)
        found, seq.hit = self._reach(seq, [0], most, 0 in self.dropping)
        seq.hit_blocks = found

    def _lookup_hybrid(self, seq: Request) -> None:
        bound = max(0, seq.num_tokens - max(1, self.key_lookahead))
        longest = 0
        reach: dict[int, int] = {}
        found: dict[int, list[Block]] = {}
        dropped: set[int] = set()
        while True:
            current = bound
            for n, (members, eagle) in enumerate(self.lookup_groups):
                first = members[0]
                if self.groups[first].kind == "full" and first in found:
                    current = min(current, reach[first])
                    continue
                drop = eagle and n not in dropped
                limit = current
                if drop:
                    known = max(0, seq.num_tokens - self.key_lookahead)
                    most = known // self.hash_block * self.hash_block
                    if not self.profile.follows_eagle:
                        most = seq.num_tokens - 1
                    limit = min(current + self._margin(first), most)
                blocks, length = self._reach(seq, members, limit, drop)
                if drop:
                    dropped.add(n)
                elif length < current:
                    dropped.clear()
                current = length
                for g, row in zip(members, blocks, strict=True):
                    found[g] = row
                    reach[g] = length
                longest = max(longest, current)
            if current >= bound:
                break
            bound = current
            if (
                len(self.lookup_groups) == 2
                and self.groups[self.lookup_groups[0][0][0]].kind == "full"
            ):
                break
        seq.hit = bound
        for g, spec in enumerate(self.groups):
            if spec.kind == "full" and (
                self.profile.cuts_every_hit or g in self.lookup_groups[0][0]
            ):
                found[g] = found[g][: ceil_div(bound, spec.block_size)]
        seq.hit_blocks = [found[g] for g in range(len(self.groups))]
        if longest > bound and self.profile.knows_junction:
            seq.junction = longest

    def _margin(self, g: int) -> int:
        """Tokens beyond a hit that a group is asked for where it then drops a block."""
        return self.groups[g].block_size

    def _reach(
        self, seq: Request, members: list[int], limit: int, drop: bool
    ) -> tuple[list[list[Block]], int]:
        """The longest prefix within `limit` that groups of one spec can serve together."""
        spec = self.groups[members[0]]
        if spec.kind == "full":
            rows, length = self._reach_full(seq, members, limit, drop)
        elif spec.kind == "chunked_local":
            rows, length = self._reach_chunk(seq, members, limit)
        else:
            rows, length = self._reach_window(seq, members, limit, drop)
        return rows, length

    def _cached(self, seq: Request, members: list[int], i: int) -> list[Block] | None:
        """For each of the groups the block that holds the i-th block's content, or None."""
        end = (i + 1) * self.groups[members[0]].block_size
        rows = []
        for g in members:
            holders = self.index.get((g, *seq.prefix(end + self.key_lookahead)))
            if not holders:
                return None
            rows.append(holders[0])
        return rows

    def _reach_full(
        self, seq: Request, members: list[int], limit: int, drop: bool
    ) -> tuple[list[list[Block]], int]:
        size = self.groups[members[0]].block_size
        columns: list[list[Block]] = []
        while (len(columns) + 1) * size <= limit:
            column = self._cached(seq, members, len(columns))
            if column is None:
                break
            columns.append(column)
        length = len(columns) * size
        if drop and length:
            length -= size
        length -= length % self.hit_unit
        del columns[length // size :]
        return [[c[k] for c in columns] for k in range(len(members))], length

    def _reach_chunk(
        self, seq: Request, members: list[int], limit: int
    ) -> tuple[list[list[Block]], int]:
        """Nothing before the chunk of the limit is needed; of that chunk the beginning."""
        size = self.groups[members[0]].block_size
        first = skipped(self.groups[members[0]], limit) // size
        columns = [[self.null] * len(members) for _ in range(first)]
        while (len(columns) + 1) * size <= limit:
            column = self._cached(seq, members, len(columns))
            if column is None:
                break
            columns.append(column)
        return [[c[k] for c in columns] for k in range(len(members))], len(columns) * size

    def _reach_window(
        self, seq: Request, members: list[int], limit: int, drop: bool
    ) -> tuple[list[list[Block]], int]:
        spec = self.groups[members[0]]
        size = spec.block_size
        need = max(1, window_need(spec, drop))
        extra = 1 if drop else 0
        columns = [self._cached(seq, members, i) for i in range(limit // size)]
        # The run may end after block `end - 1` only where the hit it leaves is aligned.
        for end in range(len(columns), 0, -1):
            if (end - extra) * size % self.hit_unit:
                continue
            start = end
            while start > 0 and columns[start - 1] is not None and end - start < need:
                start -= 1
            if end - start == need:
                length = end - extra
            elif start == 0 and end > 0:
                # A run that reaches the beginning is aligned both before and after the drop.
                length = self._whole(self._whole(end, size) - extra, size)
            else:
                continue
            rows = []
            for k in range(len(members)):
                kept = columns[start:length]
                rows.append([self.null] * start + [c[k] for c in kept if c is not None])
            return rows, length * size
        return [[] for _ in members], 0

    def _whole(self, num_blocks: int, size: int) -> int:
        """Blocks of `size` tokens, rounded down to whole units of hits."""
        per_boundary = self.hit_unit // size
        return max(0, num_blocks) // per_boundary * per_boundary

    # -- allocate -------------------------------------------------------------------------------

    def allocate(
        self,
        name: str,
        num_new: int,
        lookahead: int = 0,
        full_fit: bool = False,
        watermark: int = 0,
    ) -> list[list[int]] | None:
        """Room for `num_new` more tokens: newly taken block ids per group, or None."""
        seq = self.sequences[name]
        first = seq.hit_blocks is not None
        hits = seq.hit_blocks if seq.hit_blocks is not None else [[] for _ in self.groups]
        computed = seq.num_computed + (seq.hit if first else 0)

        if full_fit:
            total = min(seq.num_tokens, self.max_model_len)
            needed = self._blocks_needed(seq, hits, total, computed, capped=True)
            if needed + watermark > len(self.queue):
                return None

        slots = min(computed + num_new + lookahead, self.max_model_len)
        self._leave_window(seq, min(computed, self.max_model_len) - seq.num_in_flight)
        needed = self._blocks_needed(seq, hits, slots, computed, capped=False)
        if needed + watermark > len(self.queue):
            return None

        if first:
            self._take_hits(seq, hits, computed)
            seq.hit_blocks = None
        taken = []
        for g, spec in enumerate(self.groups):
            missing = ceil_div(slots, spec.block_size) - len(seq.tables[g])
            new = [self._take() for _ in range(missing)]
            seq.tables[g] += new
            taken.append([b.number for b in new])
        self.cache_up_to(name, min(computed, self.max_model_len) + num_new)
        seq.num_computed = computed + num_new
        return taken

    def cache_up_to(self, name: str, num_computed: int) -> None:
        """Enter what is full and known of so many computed tokens in the index."""
        seq = self.sequences[name]
        if self.enable_caching:
            end = max(0, min(num_computed, seq.num_tokens - self.key_lookahead))
            for g in range(len(self.groups)):
                self._enter_index(seq, g, end)

    def _blocks_needed(
        self, seq: Request, hits: list[list[Block]], tokens: int, computed: int, capped: bool
    ) -> int:
        needed = 0
        for g, spec in enumerate(self.groups):
            blocks = ceil_div(tokens, spec.block_size)
            if capped and spec.sliding_window is not None:
                held = min(spec.sliding_window - 1 + self.max_in_flight_tokens, self.max_model_len)
                blocks = min(blocks, ceil_div(held, spec.block_size) + 1)
            if capped and spec.attention_chunk_size is not None:
                held = spec.attention_chunk_size + self.max_in_flight_tokens
                blocks = min(blocks, ceil_div(min(held, self.max_model_len), spec.block_size))
            gone = skipped(spec, computed) // spec.block_size
            needed += max(0, blocks - max(gone, len(seq.tables[g]) + len(hits[g])))
            needed += sum(b is not self.null and b.refs == 0 for b in hits[g][gone:])
        return needed

    def _leave_window(self, seq: Request, computed: int) -> None:
        for g, spec in enumerate(self.groups):
            table = seq.tables[g]
            left = []
            for i in reversed(range(min(skipped(spec, computed) // spec.block_size, len(table)))):
                if table[i] is self.null:
                    break
                left.append(table[i])
                table[i] = self.null
            self._give_back(g, left)

    def _take_hits(self, seq: Request, hits: list[list[Block]], computed: int) -> None:
        if not any(hits):
            return
        for g, spec in enumerate(self.groups):
            gone = skipped(spec, computed) // spec.block_size
            kept = hits[g][gone:]
            for block in kept:
                if block is not self.null:
                    if block.refs == 0:
                        self.queue.remove(block)
                    block.refs += 1
            seq.tables[g] = [self.null] * gone + kept
            seq.num_indexed[g] = len(seq.tables[g])

    def _take(self) -> Block:
        block = self.queue.pop(0)
        self.num_evicted += block.key is not None
        self._forget(block)
        block.refs = 1
        return block

    def _forget(self, block: Block) -> None:
        if block.key is not None:
            holders = self.index[block.key]
            holders.remove(block)
            if not holders:
                del self.index[block.key]
            block.key = None

    def _enter_index(self, seq: Request, g: int, tokens: int) -> None:
        spec = self.groups[g]
        if len(self.groups) > 1:
            aligned = tokens // self.scheduler_block * self.scheduler_block
            if self.has_eagle[g] and self.profile.masks_follow_eagle and aligned:
                tokens = min(tokens, aligned + spec.block_size)
            else:
                tokens = aligned
        full = tokens // spec.block_size
        for i in range(seq.num_indexed[g], full):
            block = seq.tables[g][i]
            if block is self.null or not self._worth_keeping(seq, g, i):
                continue
            self._forget(block)  # it may be known by a part of its content
            end = (i + 1) * spec.block_size
            self._know(block, (g, *seq.prefix(end + self.key_lookahead)))
        seq.num_indexed[g] = max(seq.num_indexed[g], full)
        if spec.kind == "full" and self.profile.follows_eagle:
            self._enter_prompt_end(seq, g, tokens)

    def _enter_prompt_end(self, seq: Request, g: int, tokens: int) -> None:
        """A full-attention block is indexed before it is full where the prompt ends in it.

        No lookup of these groups finds it there; but it counts as cached when it is given back.
        """
        limit = seq.num_prompt - (0 if self.has_eagle[g] else 1)
        end = limit // self.hash_block * self.hash_block
        if end % self.groups[g].block_size and end <= tokens:
            block = seq.tables[g][end // self.groups[g].block_size]
            if block.key is None:
                self._know(block, (g, *seq.prefix(end)))

    def _know(self, block: Block, key: Key) -> None:
        block.key = key
        self.index.setdefault(key, []).append(block)

    def _worth_keeping(self, seq: Request, g: int, i: int) -> bool:
        spec = self.groups[g]
        if spec.kind in ("full", "chunked_local"):
            return True
        eagle = self.has_eagle[g]
        if not self.profile.masks_follow_eagle:
            if self.scheduler_block == spec.block_size:
                return True
            eagle = False
        two = bool(self.dropping) and self.profile.follows_eagle
        boundaries = list(replay_boundaries(seq.num_prompt, self.scheduler_block, two))
        if seq.junction:
            boundaries.append(seq.junction)
            if self.has_eagle[g] and self.profile.keeps_before_junction:
                boundaries.append(seq.junction - spec.block_size)
        return keeps_window_block(
            spec, i, self.hit_unit, self.retention_interval, boundaries, eagle
        )

    # -- give back ------------------------------------------------------------------------------

    def _give_back(self, g: int, blocks: list[Block]) -> None:
        """Give blocks back in the order in which they should be evicted."""
        prepends = self.free_queue_order == "prepend-uncached" or (
            self.free_queue_order == "prepend-uncached-window"
            and self.groups[g].kind == "sliding_window"
        )
        head, tail = [], []
        for block in blocks:
            if block is self.null:
                continue
            block.refs -= 1
            if block.refs == 0:
                (head if prepends and block.key is None else tail).append(block)
        self.queue = head + self.queue + tail

    def append(self, name: str, uid: int, n: int) -> None:
        """The request's content grows by `n` tokens of span `uid`."""
        spans = self.sequences[name].spans
        if spans[-1][0] == uid:
            spans[-1][1] += n
        else:
            spans.append([uid, n])

    def free(self, name: str) -> None:
        """The request gives its blocks back: group after group, last block first."""
        seq = self.sequences.pop(name)
        for g in range(len(self.groups)):
            self._give_back(g, seq.tables[g][::-1])

    def forget(self, name: str) -> None:
        """A request that never got room is gone: it holds nothing."""
        del self.sequences[name]

    def reset(self) -> bool:
        """Empty the prefix cache, unless a block is in use."""
        if len(self.queue) != len(self.blocks) - 1:
            return False
        self.index.clear()
        for block in self.blocks:
            block.key = None
        return True

    # -- what can be seen -----------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return len(self.queue)

    def free_queue(self) -> list[int]:
        """Ids in the order in which they will be taken."""
        return [b.number for b in self.queue]

    def cached_blocks(self) -> list[int]:
        """Ids of the blocks that are in the index, sorted."""
        return [b.number for b in self.blocks if b.key is not None]


def skipped(spec: Spec, computed: int) -> int:
    """Tokens that the next token's attention cannot see."""
    if spec.attention_chunk_size is not None:
        return computed // spec.attention_chunk_size * spec.attention_chunk_size
    if spec.sliding_window is None:
        return 0
    return max(0, computed - spec.sliding_window + 1)


def window_need(spec: Spec, eagle: bool) -> int:
    """Blocks before a boundary without which a window group cannot resume there."""
    assert spec.sliding_window is not None
    return ceil_div(spec.sliding_window - 1, spec.block_size) + (1 if eagle else 0)


def replay_boundaries(num_prompt: int, scheduler_block: int, eagle: bool) -> tuple[int, ...]:
    """Where a resend (and, with EAGLE, an extension) of a prompt can resume."""
    if not eagle:
        return (num_prompt - 1,)
    ends = {(num_prompt - 1) // scheduler_block, num_prompt // scheduler_block}
    return tuple(sorted({max(0, (end - 1) * scheduler_block) for end in ends}))


def keeps_window_block(
    spec: Spec,
    i: int,
    alignment: int,
    interval: int | None,
    boundaries: Sequence[int],
    eagle: bool,
) -> bool:
    """Whether block `i` of a window group can serve a hit that the policy wants to keep."""
    need = window_need(spec, eagle)
    shift = 1 if eagle else 0
    segment = alignment if interval is None else interval
    if segment:
        per_segment = segment // spec.block_size
        if need >= per_segment or (i >= shift and (i - shift) % per_segment >= per_segment - need):
            return True
    if interval is not None:
        for boundary in boundaries:
            end = boundary // alignment * alignment // spec.block_size + shift
            if end - need <= i < end:
                return True
    return False
