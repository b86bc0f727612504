"""One request as the connector knows it: its chunks, its own copy of the block tables, its jobs.

One file because its compiled functions share the row that `Progress` describes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.cache.block_pool import Ids, Rows
from kvsim.cache.content import Content, Ints, block_key
from kvsim.cache.coordinator import Core
from kvsim.cache.manager import Sequence
from kvsim.cache.spec import MAMBA, SLIDING_WINDOW, GroupSpec
from kvsim.jit import njit
from kvsim.offload.cpu_tier import ChunkUse
from kvsim.offload.geometry import GroupChunks
from kvsim.policies.retention import DENSE, keep_window_runs

Bools = npt.NDArray[np.bool_]

STORE_ROW = np.dtype(
    [
        ("block_size", np.int64),  # tokens of a block in the cache's tables
        ("tokens", np.int64),  # of a chunk
        ("block_tokens", np.int64),  # of a block, scaled for decode context parallelism
        ("window", np.int64),  # 1 where only the last few blocks before a boundary are of use
        ("masked", np.int64),  # 1 where a mask of whole blocks says which those are
        ("num_needed", np.int64),  # blocks before a boundary, a look-ahead block included
        ("eagle", np.int64),
        ("tail_unit", np.int64),  # blocks between boundaries, where tails end beyond them; 0
        ("states", np.int64),  # 1 for a group of states: the cache says what of it to offer
        ("key_tokens", np.int64),  # tokens that the number in a key counts
    ]
)


class Progress(NamedTuple):
    """How far a request has come, group by group.

    Attributes:
        table: int32, the copied block tables, group after group; 0 where there is no block, or none
            any more.
        starts: int64 [groups], where each group's table begins.
        lengths: int64 [groups], positions copied.
        before: int64 [groups], the same before the last step.
        pointers: int64 [groups], the next chunk to offer.
        chunk_starts: int64 [groups], where each group's chunks begin among all of the request's.
    """

    table: Ids
    starts: Ints
    lengths: Ints
    before: Ints
    pointers: Ints
    chunk_starts: Ints


class RequestChunks:
    """What is kept of a request from its arrival to the end of its last transfer.

    Attributes:
        sequence: its tokens and blocks.
        name: finished requests are reported in the order of their names.
        output_uid: uid of the span its answer is written to.
        end_tokens: how long it can become.
        jobs: numbers of its transfers that are not done.
        asked: it has had an answer to a lookup.
        fresh: it got its first blocks in this step, so that its tables are copied whole.
        final_tokens: its length when it was finished; 0 before.
        tail: where the part of a block ends that it loads, in tokens; 0 for none.
    """

    __slots__ = (
        "_progress",
        "_use",
        "asked",
        "end_tokens",
        "final_tokens",
        "fresh",
        "jobs",
        "name",
        "output_uid",
        "sequence",
        "tail",
        "_tails",
    )

    def __init__(self, sequence: Sequence, name: str, output_uid: int, end_tokens: int) -> None:
        """A request that has arrived."""
        self.sequence = sequence
        self.name = name
        self.output_uid = output_uid
        self.end_tokens = end_tokens
        self.jobs: set[int] = set()
        self.asked = False
        self.fresh = False
        self.final_tokens = 0
        self.tail = 0
        self._tails: dict[int, int] = {}  # by key, its place among the chunks
        self._use: ChunkUse | None = None
        self._progress: Progress | None = None

    @property
    def was_looked_up(self) -> bool:
        """Whether it has asked for a hit, so that the rest is there."""
        return self._use is not None

    @property
    def use(self) -> ChunkUse:
        """Its chunks in the tier, group after group."""
        assert self._use is not None, "a request is looked up first"
        return self._use

    @property
    def progress(self) -> Progress:
        """How far it has come."""
        assert self._progress is not None, "a request is looked up first"
        return self._progress

    def start_again(self, rows: Rows) -> None:
        """It holds no blocks, and offers every chunk anew.

        Args:
            rows: ``STORE_ROW`` [groups].
        """
        if self._use is None:
            self._use, chunk_starts = self._chunks(rows)
            ends = np.cumsum(-(-self.end_tokens // rows["block_size"]))
            starts = np.concatenate([[0], ends[:-1]])
            lengths, before, pointers = np.zeros((3, len(rows)), dtype=np.int64)
            table = np.zeros(ends[-1], dtype=np.int32)
            self._progress = Progress(table, starts, lengths, before, pointers, chunk_starts)
        self.progress.pointers[:] = 0
        self.progress.lengths[:] = 0

    def chunks(self, group: int, start: int, end: int) -> Ints:
        """Which of its chunks are a group's from ``start`` to before ``end``."""
        first = int(self.progress.chunk_starts[group])
        return np.arange(first + start, first + end)

    def tail_chunks(self, position: int, groups: list[int], unit: int) -> Ints:
        """Which of its chunks are blocks of groups under the prefix that ends inside them."""
        keys = [tail_key(self.sequence.content, position, group, unit) for group in groups]
        for key, group in zip(keys, groups, strict=True):
            if key not in self._tails:
                self._tails[key] = len(self.use.keys)
                self.use.add(*np.array([[key], [position], [group]], dtype=np.int64))
        return np.array([self._tails[key] for key in keys], dtype=np.int64)

    def _chunks(self, rows: Rows) -> tuple[ChunkUse, Ints]:
        """All chunks it can have, and where each group's begin."""
        ends = np.cumsum(self.end_tokens // rows["tokens"])
        starts = np.concatenate([[0], ends[:-1]])
        use = ChunkUse(*np.zeros((3, ends[-1]), dtype=np.int64))
        content = self.sequence.content
        fill_chunks(
            rows,
            starts,
            ends,
            content.uids,
            content.ends,
            self.output_uid,
            use.keys,
            use.positions,
            use.groups,
        )
        return use, starts


def tail_key(content: Content, position: int, group: int, unit: int) -> int:
    """The key of a block under the prefix that ends inside it."""
    span = int(np.searchsorted(content.ends, position))
    return int(block_key(int(content.uids[span]), position // unit, group))


def chunks_to_load(
    request: RequestChunks,
    rows: Rows,
    blocks_per_chunk: int,
    firsts: Ints,
    num_local: int,
    total: int,
    tail_unit: int,
) -> tuple[list[Ints], list[int]]:
    """Which chunks a request loads; it offers what is behind them from then on.

    Args:
        request: with the ``tail`` its lookup found, which is used up.
        rows: ``STORE_ROW`` [groups].
        blocks_per_chunk: blocks of a chunk.
        firsts: int64 [groups], the first position of each table that has a block.
        num_local: tokens of its local hit.
        total: tokens it has after the load.
        tail_unit: tokens that the number in the key of an end of a prompt counts.

    Returns:
        By group, the chunks, and how many blocks are written.
    """
    wanted, num_blocks = [], []
    for g, row in enumerate(rows):
        size = int(row["block_size"])
        start, end = max(-(-num_local // size), int(firsts[g])), -(-total // size)
        num_blocks.append(max(0, end - start))
        num_chunks = -(-total // int(row["tokens"]))
        if start >= end:
            wanted.append(request.chunks(g, num_chunks, num_chunks))
        elif request.tail:
            whole = request.chunks(g, start // blocks_per_chunk, num_chunks - 1)
            wanted.append(np.append(whole, request.tail_chunks(total, [g], tail_unit)))
        else:
            wanted.append(request.chunks(g, start // blocks_per_chunk, num_chunks))
        request.progress.pointers[g] = num_chunks
    request.tail = 0
    return wanted, num_blocks


def store_rows(
    specs: tuple[GroupSpec, ...],
    groups: tuple[GroupChunks, ...],
    alignment: int | None,
    blocks_per_chunk: int,
    tail_unit: int = 0,
) -> Rows:
    """The rows of a model's groups.

    Args:
        specs: the groups.
        groups: their chunks.
        alignment: unit of the boundaries that are worth keeping, in tokens; None for no mask.
        blocks_per_chunk: blocks of a chunk.
        tail_unit: ends of prompts are stored that are multiples of so many tokens; 0 for none.
    """
    rows = np.zeros(len(specs), dtype=STORE_ROW)
    for number, (spec, group) in enumerate(zip(specs, groups, strict=True)):
        block_tokens = group.tokens // blocks_per_chunk
        window = spec.sliding_window or 0
        masked = (
            spec.kind == SLIDING_WINDOW and alignment is not None and alignment % block_tokens == 0
        )
        rows[number] = (
            spec.block_size,
            group.tokens,
            block_tokens,
            group.window is not None,
            masked,
            -(-(window - 1) // block_tokens) + spec.eagle,
            spec.eagle,
            alignment // block_tokens if masked and alignment and not spec.eagle else 0,
            spec.kind == MAMBA,
            tail_unit or group.tokens,
        )
    return rows


@njit
def fill_chunks(
    rows: Rows,
    starts: Ints,
    ends: Ints,
    uids: Ints,
    span_ends: Ints,
    output_uid: int,
    keys: Ints,
    positions: Ints,
    groups: Ints,
) -> None:
    """Write what is known of a request's chunks, group after group.

    Args:
        rows: ``STORE_ROW`` [groups].
        starts: where each group's chunks begin.
        ends: and end.
        uids: the spans of the prompt.
        span_ends: where each ends, in tokens.
        output_uid: the span that follows them.
        keys: int64, written.
        positions: int64, written: where each chunk ends, in tokens.
        groups: int64, written.
    """
    for group in range(len(rows)):
        tokens = rows[group].tokens
        span = 0
        for chunk in range(starts[group], ends[group]):
            number = chunk - starts[group] + 1
            while span < len(span_ends) and span_ends[span] < number * tokens:
                span += 1
            uid = uids[span] if span < len(span_ends) else output_uid
            keys[chunk] = block_key(uid, number * tokens // rows[group].key_tokens, group)
            positions[chunk] = number * tokens
            groups[chunk] = group


@njit
def copy_tables(core: Core, slot: int, fresh: bool, progress: Progress) -> None:
    """Take over what was added to a sequence's block tables in this step, or all of them.

    Blocks of drafts may lie beyond the longest the request can become: they hold no chunk, and
    there is no room for them here.
    """
    for group in range(len(core.tables.groups)):
        if fresh:
            progress.lengths[group] = 0
        row = core.tables.groups[group]
        table = core.tables.tables[slot, group]
        start = progress.starts[group]
        end = len(progress.table)
        if group + 1 < len(progress.starts):
            end = progress.starts[group + 1]
        length = min(table.length, end - start)
        progress.before[group] = progress.lengths[group]
        for index in range(progress.lengths[group], length):
            block = core.tables.rings[slot, row.ring + (index & row.ring_mask)]
            progress.table[start + index] = block if index >= table.first else 0
        progress.lengths[group] = length


@njit
def forget_handed_out(
    progress: Progress, rows: Rows, blocks_per_chunk: int, ends: Ints, handed_out: Ints, step: int
) -> None:
    """Null the copied positions of window groups whose block was handed out again in this step.

    Args:
        progress: the request's.
        rows: ``STORE_ROW`` [groups].
        blocks_per_chunk: blocks of a chunk.
        ends: int64 [groups], positions looked at; only what is not offered yet.
        handed_out: int64, by block, the last step in which it was handed out.
        step: the step being planned.
    """
    for group in range(len(rows)):
        if rows[group].window == 0:
            continue
        start = progress.starts[group]
        for index in range(progress.pointers[group] * blocks_per_chunk, ends[group]):
            if handed_out[progress.table[start + index]] == step:
                progress.table[start + index] = 0


@njit
def mark_new_blocks(core: Core, slots: Ints, handed_out: Ints, step: int) -> None:
    """Note the step in which the blocks of each sequence's last allocation were handed out."""
    for slot in slots:
        for group in range(len(core.tables.groups)):
            table = core.tables.tables[slot, group]
            row = core.tables.groups[group]
            for index in range(table.first_new, table.length):
                handed_out[core.tables.rings[slot, row.ring + (index & row.ring_mask)]] = step


@njit
def mark_all_blocks(core: Core, slot: int, handed_out: Ints, step: int) -> None:
    """Note the step for every block a sequence holds, hits included."""
    for group in range(len(core.tables.groups)):
        table = core.tables.tables[slot, group]
        row = core.tables.groups[group]
        for index in range(table.first, table.length):
            handed_out[core.tables.rings[slot, row.ring + (index & row.ring_mask)]] = step


@njit
def any_handed_out(blocks: Ids, handed_out: Ints, step: int) -> bool:
    """Whether one of these blocks was handed out in this step."""
    for block in blocks:  # noqa: SIM110 - compiled
        if handed_out[block] == step:
            return True
    return False


@njit
def _mark_worth(
    kept: Bools,
    rows: Rows,
    group: int,
    start: int,
    end: int,
    alignment: int,
    interval: int,
    boundaries: Ints,
    segment_end: int,
) -> bool:
    """Mark which blocks from ``start`` to before ``end`` are worth keeping; True where all are."""
    row = rows[group]
    if row.masked == 0:
        return True
    kept[: end - start] = False
    return keep_window_runs(
        kept,
        start,
        end,
        row.block_tokens,
        alignment,
        row.num_needed,
        row.eagle,
        interval,
        boundaries,
        segment_end,
    )


@njit
def chunks_to_offer(
    progress: Progress,
    rows: Rows,
    blocks_per_chunk: int,
    num_tokens: int,
    num_prompt: int,
    finished: bool,
    alignment: int,
    interval: int,
    boundaries: Ints,
    kept: Bools,
    offered: Ints,
    ends: Ints,
) -> int:
    """Which chunks a request offers in this step, group after group.

    A chunk is offered where a block of it is worth keeping, its last block is not null, and none is
    null that is worth keeping. With a dense interval the run before the end of the prompt, or of
    the finished request, is kept as well; a finished request that ends elsewhere than its prompt
    looks at its last segment again.

    Args:
        progress: the request's.
        rows: ``STORE_ROW`` [groups].
        blocks_per_chunk: blocks of a chunk.
        num_tokens: what of the request is computed and may be offered.
        num_prompt: tokens of its prompt.
        finished: whether it has come to its end.
        alignment: unit of boundaries in tokens; anything where no group is masked.
        interval: the retention interval in tokens; -1 dense.
        boundaries: int64, reachable ones in tokens.
        kept: bool [2, blocks], scratch, as long as the longest table.
        offered: int64, written: numbers among all of the request's chunks.
        ends: int64 [groups], written: the chunk after the last that was looked at.

    Returns:
        How many are offered.
    """
    num = 0
    size = blocks_per_chunk
    for group in range(len(rows)):
        row = rows[group]
        num_chunks = num_tokens // row.tokens
        if row.eagle != 0 and num_tokens > num_prompt and not finished:
            num_chunks = max(0, num_chunks - 1)  # its draft may still be rewritten
        end = min(num_chunks, progress.lengths[group] // size)
        ends[group] = end
        pointer = progress.pointers[group]
        start = pointer
        horizon = num_prompt // row.tokens
        segment_end = -1
        if interval == DENSE and row.eagle == 0:
            if finished:
                segment_end = end * size
            elif end <= horizon:
                segment_end = horizon * size
        again = finished and end != horizon and interval == DENSE and row.tail_unit > 0
        if again:
            start = min(start, (end * size - end * size % row.tail_unit) // size)
        if end <= start or row.states != 0:
            continue
        first, last = start * size, end * size
        every = _mark_worth(
            kept[0], rows, group, first, last, alignment, interval, boundaries, segment_end
        )
        before_every = False
        if again:
            before_every = _mark_worth(
                kept[1], rows, group, first, last, alignment, interval, boundaries, horizon * size
            )
        table = progress.starts[group] + first
        for chunk in range(start, end):
            at = (chunk - start) * size
            if progress.table[table + at + size - 1] == 0:
                continue
            worth = False
            torn = False
            offered_before = before_every
            for i in range(at, at + size):
                wanted = every or kept[0, i]
                worth = worth or wanted
                torn = torn or (wanted and progress.table[table + i] == 0)
                offered_before = offered_before or (again and kept[1, i])
            if again and chunk < pointer and offered_before:
                continue
            if worth and not torn:
                offered[num] = progress.chunk_starts[group] + chunk
                num += 1
    return num


@njit
def source_blocks(
    progress: Progress,
    rows: Rows,
    blocks_per_chunk: int,
    chunks: Ints,
    groups: Ints,
    blocks: Ids,
    counts: Ints,
) -> int:
    """The blocks that chunks are copied from, those of window groups first.

    Args:
        progress: the request's.
        rows: ``STORE_ROW`` [groups].
        blocks_per_chunk: blocks of a chunk.
        chunks: int64, numbers among all of the request's chunks.
        groups: int64, the group of each.
        blocks: int32, written; as long as there could be blocks.
        counts: int64 [2, groups], written: chunks and blocks of each group.

    Returns:
        How many of the blocks are of window groups.
    """
    counts[:] = 0
    num = 0
    num_window = 0
    for window in (1, 0):
        for i in range(len(chunks)):
            group = groups[i]
            if rows[group].window != window:
                continue
            counts[0, group] += 1
            first = (chunks[i] - progress.chunk_starts[group]) * blocks_per_chunk
            for index in range(first, first + blocks_per_chunk):
                block = progress.table[progress.starts[group] + index]
                if block != 0:
                    blocks[num] = block
                    num += 1
                    counts[1, group] += 1
        if window == 1:
            num_window = num
    return num_window
