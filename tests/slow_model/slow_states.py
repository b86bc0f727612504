"""The slow cache of a model with groups of states: one list a table, nulls written out.

Only the newest release is known to run these. A block may have several names here: a prefix that
ends inside it beside the one that fills it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tests.slow_model.slow_cache import (
    Block,
    Key,
    Request,
    SlowCache,
    ceil_div,
    keeps_window_block,
    replay_boundaries,
)


class StateSpec(Protocol):
    """What the model needs to know of a group."""

    kind: str
    block_size: int
    sliding_window: int | None
    attention_chunk_size: int | None
    eagle: bool
    num_drafts: int
    checkpoint_alignment: int | None
    one_state: bool


class SlowStates(SlowCache):
    """The cache manager with groups of states. `step` ends a step and begins the next one."""

    def __init__(
        self,
        *,
        groups: Sequence[StateSpec],
        use_eagle: bool = False,
        prefix_match_unit: int | None = None,
        shared_prefix_checkpoint: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(groups=groups, use_eagle=use_eagle, **options)
        self.specs = list(groups)
        if prefix_match_unit:
            self.hash_block = prefix_match_unit
        if not self.enable_caching:
            self.hash_block = self.scheduler_block
        self.fine = (
            self.enable_caching
            and len(groups) > 1
            and any(g.kind == "mamba" and g.block_size > self.hash_block for g in groups)
            and all(g.kind != "sliding_window" or g.block_size == self.hash_block for g in groups)
        )
        self.hit_unit = self.hash_block if self.fine else self.scheduler_block
        self.drops_block = use_eagle
        flagged = use_eagle or any(g.eagle for g in groups)
        self.stops_at_junction = shared_prefix_checkpoint and self.fine and flagged
        self.other_names: dict[int, list[Key]] = {}
        self.fresh: set[Key] = set()
        """Names of states that this step computes."""
        self.copies: list[tuple[int, Block, Block]] = []
        self.partial: dict[tuple[str, int], int] = {}
        """Request and group: the column whose block has to be copied first."""
        self.checkpoints: dict[tuple[str, int], tuple[int, int]] = {}
        """Request and group: position and column of the state the last chunk exports."""
        self.started: set[tuple[str, int]] = set()
        self.taken: list[int] = []

    def _group_by_spec(self) -> list[tuple[list[int], bool]]:
        found: dict[Any, list[int]] = {}
        for i, g in enumerate(self.groups):
            of_states = [getattr(g, "num_drafts", 0), getattr(g, "checkpoint_alignment", None)]
            found.setdefault((g.kind, g.block_size, g.sliding_window, *of_states), []).append(i)
        ordered = sorted(found.items(), key=lambda item: item[0][0] != "full")
        return [(members, bool(self.dropping & set(members))) for _, members in ordered]

    # -- lookup ---------------------------------------------------------------------------------

    def _margin(self, g: int) -> int:
        spec = self.groups[g]
        if spec.kind == "mamba":
            return 0
        return self.hash_block if self.fine and spec.kind == "full" else spec.block_size

    def _reach(
        self, seq: Request, members: list[int], limit: int, drop: bool
    ) -> tuple[list[list[Block]], int]:
        kind = self.groups[members[0]].kind
        if kind == "mamba":
            return self._reach_states(seq, members, limit)
        if kind == "full" and self.fine:
            return self._reach_parts(seq, members, limit, drop)
        return super()._reach(seq, members, limit, drop)

    def _named(self, seq: Request, members: list[int], end: int) -> list[Block] | None:
        """For each group the block known by the prefix that ends at `end`, or None."""
        rows = []
        for g in members:
            holders = self.index.get((g, *seq.prefix(end + self.key_lookahead)))
            if not holders:
                return None
            rows.append(holders[0])
        return rows

    def _reach_states(
        self, seq: Request, members: list[int], limit: int
    ) -> tuple[list[list[Block]], int]:
        size = self.groups[members[0]].block_size
        for end in range(limit, 0, -1):
            if end % self.hit_unit == 0 and (self.fine or end % size == 0):
                rows = self._named(seq, members, end)
                if rows is not None:
                    before = [self.null] * (ceil_div(end, size) - 1)
                    return [[*before, block] for block in rows], end
        return [[] for _ in members], 0

    def _reach_parts(
        self, seq: Request, members: list[int], limit: int, drop: bool
    ) -> tuple[list[list[Block]], int]:
        size = self.groups[members[0]].block_size
        columns: list[list[Block]] = []
        length = 0
        while length + size <= limit:
            rows = self._named(seq, members, length + size)
            if rows is None:
                break
            columns.append(rows)
            length += size
        for end in range(min(limit, length + size - 1), length, -1):
            if end % self.hash_block == 0:
                rows = self._named(seq, members, end)
                if rows is not None:
                    columns.append(rows)
                    length = end
                    break
        if drop and length:
            length -= min(size, self.hash_block)
        del columns[ceil_div(length, size) :]
        return [[c[k] for c in columns] for k in range(len(members))], length

    # -- where chunks end -----------------------------------------------------------------------

    def resumable(self, tokens: int, unit: int) -> int:
        """The last multiple of `unit` from which the end of `tokens` can be computed again."""
        if self.drops_block:
            return max(0, tokens // unit * unit - unit)
        return max(0, (tokens - max(1, self.key_lookahead)) // unit * unit)

    def exportable(self, spec: StateSpec, size: int, start: int, end: int, position: int) -> bool:
        """Whether the state at `position` can be written from inside a chunk."""
        return (
            spec.checkpoint_alignment is not None
            and start % self.hash_block == 0
            and start + self.hash_block <= position < end
            and (position - start) % spec.checkpoint_alignment == 0
            and ceil_div(end, size) - 2 > (start - 1) // size
        )

    def chunk(self, name: str, start: int, num_new: int, most: int) -> int:
        """Tokens of a chunk from `start` that could have `num_new`; `most` is any chunk's limit."""
        seq = self.sequences[name]
        prefill_end = max(seq.num_prompt, seq.num_tokens - 1)
        states = [g for g in self.specs if g.kind == "mamba"]
        if any(g.one_state for g in states) or start >= prefill_end or num_new <= 0:
            return num_new
        size = min(g.block_size for g in self.groups)
        end = start + num_new
        place = self.resumable(prefill_end, self.hash_block if self.fine else size)
        all_export = all(g.checkpoint_alignment is not None for g in states)
        if (
            all_export
            and end >= prefill_end
            and self.exportable(states[0], size, start, end, place)
        ):
            exported = True
        else:
            exported = False
            if end < prefill_end:
                whole = end // size * size
                if whole > start or size <= most:
                    end = whole
        stops = []
        if not exported:
            stops.append(self.resumable(seq.num_tokens, size))
            if start % size:
                stops.append((start // size + 1) * size)
            if self.fine:
                tail = self.resumable(seq.num_prompt, self.hash_block)
                if stops[0] < tail < seq.num_prompt:
                    stops.append(tail)
        if start < seq.junction < end:
            if self.stops_at_junction and seq.junction <= seq.num_prompt:
                stops.append(seq.junction)
            else:
                stops.append(start + (seq.junction - start) // size * size)
        return max(0, min([stop for stop in stops if start < stop < end], default=end) - start)

    # -- allocate -------------------------------------------------------------------------------

    def allocate(
        self,
        name: str,
        num_new: int,
        lookahead: int = 0,
        full_fit: bool = False,
        watermark: int = 0,
    ) -> list[list[int]] | None:
        """Room for more tokens: all blocks taken, in order, as one list; or None."""
        seq = self.sequences[name]
        first = seq.hit_blocks is not None
        hits = seq.hit_blocks if seq.hit_blocks is not None else [[] for _ in self.groups]
        start = seq.hit if first else seq.num_computed
        before = seq.num_computed
        for g, spec in enumerate(self.specs):
            if spec.kind == "mamba" and hits[g] and hits[g][-1].key in self.fresh:
                return None
        if full_fit:
            whole = min(seq.num_tokens, self.max_model_len)
            needed = self._needed(name, hits, start, whole, whole, capped=True)
            if needed + watermark > len(self.queue):
                return None
        processed = min(start, self.max_model_len) - seq.num_in_flight
        for g, spec in enumerate(self.specs):
            if spec.kind == "mamba" and not spec.one_state:
                self._leave_states(seq, g, processed)
            elif spec.kind == "sliding_window" and not first:
                self._leave(seq, g, processed)
        end = start + num_new
        slots = min(end + lookahead, self.max_model_len)
        needed = self._needed(name, hits, start, end, slots, capped=False)
        if needed + watermark > len(self.queue):
            return None
        if first:
            self._adopt(name, hits)
            seq.hit_blocks = None
        self.taken = []
        for g, spec in enumerate(self.specs):
            if spec.kind == "mamba":
                self._take_states(name, g, slots if spec.one_state else end)
            else:
                self._take_attention(name, g, slots)
        self._cache(name, min(min(start, self.max_model_len) + num_new, seq.num_tokens), before)
        seq.num_computed = end
        return [self.taken]

    def _leave(self, seq: Request, g: int, processed: int) -> None:
        window = self.specs[g].sliding_window
        assert window is not None
        gone = max(0, processed - window + 1) // self.specs[g].block_size
        self._null_out(seq, g, gone)

    def _leave_states(self, seq: Request, g: int, processed: int) -> None:
        """Only the state that the computed tokens end with is needed to go on."""
        self._null_out(seq, g, max(0, processed - 1) // self.specs[g].block_size)

    def _null_out(self, seq: Request, g: int, end: int) -> None:
        table = seq.tables[g]
        gone = [i for i in reversed(range(min(end, len(table)))) if table[i] is not self.null]
        blocks = [table[i] for i in gone]
        for i in gone:
            table[i] = self.null
        self._give_back(g, blocks)

    def _needed(
        self,
        name: str,
        hits: list[list[Block]],
        start: int,
        end: int,
        slots: int,
        capped: bool,
    ) -> int:
        seq = self.sequences[name]
        needed = sum(b is not self.null and b.refs == 0 for row in hits for b in row)
        for g, spec in enumerate(self.specs):
            held = len(seq.tables[g]) + len(hits[g])
            copy = bool(hits[g]) and seq.hit % spec.block_size > 0
            copy = copy or (name, g) in self.partial
            if spec.kind == "mamba" and not spec.one_state:
                needed += self._states_needed(name, g, start, end, held, copy, not capped)
                continue
            blocks = ceil_div(slots, spec.block_size)
            if spec.kind == "mamba":
                blocks += spec.num_drafts
            if capped and spec.sliding_window is not None:
                most = min(spec.sliding_window - 1 + self.max_in_flight_tokens, self.max_model_len)
                blocks = min(blocks, ceil_div(most, spec.block_size) + 1)
            needed += max(0, blocks - held) + copy
        return needed

    def _states_needed(
        self, name: str, g: int, start: int, end: int, held: int, copy: bool, real: bool
    ) -> int:
        """A state at the chunk's end, one for each draft, a checkpoint, a copy."""
        spec, seq = self.specs[g], self.sequences[name]
        table = seq.tables[g]
        lacks = ceil_div(end, spec.block_size) + spec.num_drafts - held
        if copy:
            lacks = max(lacks, 0) + 1
        position = self.resumable(end, self.hit_unit)
        column = ceil_div(end, spec.block_size) - 2
        keeps = self.retention_interval != 0 or end >= max(seq.num_prompt, seq.num_tokens - 1)
        exports = keeps and self.exportable(spec, spec.block_size, start, end, position)
        if exports and column < len(table) and table[column] is not self.null:
            of_drafts = column >= len(table) - spec.num_drafts
            exports = (name, g) in self.started and of_drafts
        if real:
            self.checkpoints.pop((name, g), None)
            if exports:
                self.checkpoints[name, g] = (position, column)
        drafts = 0 if (name, g) in self.started else spec.num_drafts
        return max(0, min(lacks, 1 + copy + exports + drafts))

    def _adopt(self, name: str, hits: list[list[Block]]) -> None:
        seq = self.sequences[name]
        for g, spec in enumerate(self.specs):
            row = hits[g]
            if spec.sliding_window is not None:
                gone = max(0, seq.hit - spec.sliding_window + 1) // spec.block_size
                row = [self.null] * gone + row[gone:]
            for block in row:
                if block is not self.null:
                    if block.refs == 0:
                        self.queue.remove(block)
                    block.refs += 1
            seq.tables[g] = list(row)
            seq.num_indexed[g] = seq.hit // spec.block_size
            if row and seq.hit % spec.block_size:
                self.partial[name, g] = len(row) - 1

    def _take_noted(self) -> Block:
        block = self._take()
        self.taken.append(block.number)
        return block

    def _take_attention(self, name: str, g: int, slots: int) -> None:
        table = self.sequences[name].tables[g]
        column = self.partial.pop((name, g), None)
        if column is not None:
            self._copy_of_own(g, table, column, self._take_noted())
        while len(table) < ceil_div(slots, self.groups[g].block_size):
            table.append(self._take_noted())

    def _copy_of_own(self, g: int, table: list[Block], column: int, copy: Block) -> None:
        """A request writes to a copy of the shared block that its hit ends in."""
        self.copies.append((g, table[column], copy))
        copy.refs += 1
        table[column] = copy

    def _take_states(self, name: str, g: int, end: int) -> None:
        spec = self.specs[g]
        table = self.sequences[name].tables[g]
        length = ceil_div(end, spec.block_size) + spec.num_drafts
        checkpoint = (name, g) in self.checkpoints
        column = self.partial.pop((name, g), None)
        started = (name, g) in self.started
        self.started.add((name, g))
        if length <= len(table) and column is None and not checkpoint:
            return
        old = len(table)
        drafts = list(range(old - spec.num_drafts, old)) if started else []
        nulls_end = length - spec.num_drafts - 1 - checkpoint
        if not spec.one_state:
            table += [self.null] * (nulls_end - old)
            for i in drafts:
                if i < nulls_end:
                    table.append(table[i])
                    table[i] = self.null
        if column is not None:
            copy = self._take_noted()
            if started:
                # It goes on writing to its block: the copy is what others find.
                source = table[column]
                names = self._names(source)
                self._forget(source)
                for key in names:
                    self._know(copy, key)
                    self.fresh.add(key)
                self.copies.append((g, source, copy))
                source.refs += 1
            else:
                self._copy_of_own(g, table, column, copy)
        while len(table) < length:
            table.append(self._take_noted())

    # -- names ----------------------------------------------------------------------------------

    def _names(self, block: Block) -> list[Key]:
        more = self.other_names.get(block.number, [])
        return [] if block.key is None else [block.key, *more]

    def _forget(self, block: Block) -> None:
        for key in self.other_names.pop(block.number, []):
            self.index[key].remove(block)
            if not self.index[key]:
                del self.index[key]
        super()._forget(block)

    def _name(self, block: Block, key: Key, *, alone: bool) -> None:
        """Let a block be known by a prefix; a shorter one does not hold any more."""
        if not alone and key in self._names(block):
            return
        if alone or (block.key is not None and block.key[2] < key[2]):
            self._forget(block)
        if block.key is None:
            self._know(block, key)
        elif self.fine:
            self.other_names.setdefault(block.number, []).append(key)
            self.index.setdefault(key, []).append(block)

    def _key(self, seq: Request, g: int, end: int) -> Key:
        uid, _ = seq.prefix(end + self.key_lookahead)
        return g, uid, end + self.key_lookahead

    def cache_up_to(self, name: str, num_computed: int) -> None:
        seq = self.sequences[name]
        self._cache(name, max(0, min(num_computed, seq.num_tokens)), seq.num_computed)

    def _cache(self, name: str, tokens: int, before: int) -> None:
        """Enter what is worth keeping of so many computed tokens."""
        if not self.enable_caching:
            return
        seq = self.sequences[name]
        for g, spec in enumerate(self.specs):
            end = tokens
            if not self.fine and len(self.groups) > 1:
                end = tokens // self.scheduler_block * self.scheduler_block
                if self.has_eagle[g] and end:
                    end = min(tokens, end + spec.block_size)
            known = max(0, seq.num_tokens - self.key_lookahead)
            full = min(end, known // self.hash_block * self.hash_block) // spec.block_size
            old = seq.num_indexed[g]
            table = seq.tables[g]
            for i in range(old, full):
                if table[i] is not self.null and self._worth_keeping(seq, g, i):
                    key = self._key(seq, g, (i + 1) * spec.block_size)
                    self._name(table[i], key, alone=True)
            seq.num_indexed[g] = max(old, full)
            if spec.kind == "full":
                self._name_tail(seq, g, end)
            elif spec.kind == "mamba":
                self._name_state(name, g, end, before)
                for i in range(old, full):
                    if table[i] is not self.null and table[i].key is not None:
                        self.fresh.add(table[i].key)

    def _worth_keeping(self, seq: Request, g: int, i: int) -> bool:
        spec = self.specs[g]
        if spec.kind == "full":
            return True
        two = bool(self.dropping)
        boundaries = list(replay_boundaries(seq.num_prompt, self.scheduler_block, two))
        if seq.junction:
            boundaries.append(seq.junction)
            if self.has_eagle[g]:
                boundaries.append(seq.junction - spec.block_size)
        if spec.kind == "mamba":
            if self._on_interval(spec, i):
                return True
            ends = [b // self.hit_unit * self.hit_unit // spec.block_size for b in boundaries]
            return i + 1 in ends
        eagle = self.has_eagle[g]
        interval = self.retention_interval
        return keeps_window_block(spec, i, self.hit_unit, interval, boundaries, eagle)

    def _on_interval(self, spec: StateSpec, i: int) -> bool:
        interval = self.retention_interval
        if interval is None:
            return True
        return interval > 0 and (i + 1) % max(1, interval // spec.block_size) == 0

    def _name_tail(self, seq: Request, g: int, tokens: int) -> None:
        """The full-attention block that a prompt ends in."""
        size = self.groups[g].block_size
        limit = seq.num_prompt - (0 if self.has_eagle[g] else 1)
        known = max(0, seq.num_tokens - self.key_lookahead)
        end = min(limit, known) // self.hash_block * self.hash_block
        if 0 < end <= tokens and end % size and end // size < len(seq.tables[g]):
            self._name(seq.tables[g][end // size], self._key(seq, g, end), alone=False)

    def _name_state(self, name: str, g: int, tokens: int, before: int) -> None:
        """The state of a checkpoint, or else the one a chunk ends with where that is of use."""
        seq, spec = self.sequences[name], self.specs[g]
        table = seq.tables[g]
        if (name, g) in self.checkpoints:
            position, column = self.checkpoints[name, g]
            block = table[column]
            if block is self.null:
                return
            kept = position in (self.resumable(seq.num_prompt, self.hit_unit), seq.junction)
            whole, rest = divmod(position, spec.block_size)
            key = self._key(seq, g, position)
            if not kept and (rest or not self._on_interval(spec, whole - 1)):
                self._forget(block)
            elif block.key != key:
                self._name(block, key, alone=True)
                self.fresh.add(key)
            return
        at_junction = (
            self.stops_at_junction and tokens == seq.junction and before < tokens <= seq.num_prompt
        )
        if tokens <= 0 or tokens % self.hash_block:
            return
        if tokens != self.resumable(seq.num_prompt, self.hash_block) and not at_junction:
            return
        column = ceil_div(tokens, spec.block_size) - 1
        if column >= len(table) or table[column] is self.null:
            return
        key = self._key(seq, g, tokens)
        if table[column].key is not None and table[column].key[2] == key[2]:
            return
        self._name(table[column], key, alone=False)
        self.fresh.add(key)
        if tokens % spec.block_size:
            self.partial[name, g] = column
            seq.num_indexed[g] = column

    # -- the rest -------------------------------------------------------------------------------

    def step(self) -> list[list[int]]:
        """The step's copies are made, and the next step begins. Returns the copies."""
        ordered = sorted(self.copies, key=lambda copy: copy[0])
        self._give_back(0, [block for _, *ends in ordered for block in ends])
        self.copies = []
        self.fresh = set()
        return [[source.number, copy.number] for _, source, copy in ordered]

    def rollback(self, name: str, tokens: int) -> None:
        """Drafts were refused."""
        self.sequences[name].num_computed -= tokens

    def free(self, name: str) -> None:
        super().free(name)
        for kept in (self.partial, self.checkpoints):
            for place in [place for place in kept if place[0] == name]:
                del kept[place]  # type: ignore[attr-defined]
        self.started = {place for place in self.started if place[0] != name}

    def forget(self, name: str) -> None:
        super().forget(name)
        self.checkpoints = {k: v for k, v in self.checkpoints.items() if k[0] != name}

    def reset(self) -> bool:
        done = super().reset()
        if done:
            self.other_names = {}
        return done
