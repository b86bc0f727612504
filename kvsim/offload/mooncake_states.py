"""The connector to a Mooncake store for models with groups of states.

No save looks a state up in a block table, which changes under it: a state is put under the prefix
it ends, when the cache enters it, with the save of its request in that step or without one. The
blocks of states are held for their own puts alone. Where hits can end inside a block, the end of a
prompt is saved too, once all of it is computed or its state is handed over: of the other groups
the blocks from the last whole scheduler block on. A lookup then ends at any hash block.

vLLM 0.33.0, ``MooncakeStoreScheduler`` (#44774).
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import NamedTuple

import numpy as np

from kvsim.cache.block_pool import Ids
from kvsim.cache.content import Content, Ints, block_key, span_at
from kvsim.cache.manager import KVCache, Sequence
from kvsim.cache.spec import FULL, MAMBA
from kvsim.cache.state_tables import resumable
from kvsim.offload.mooncake import MooncakeConnector
from kvsim.offload.mooncake_store import MooncakeStore
from kvsim.offload.state_chunks import by_request, check_keeps_states
from kvsim.offload.transfers import Transfers


class Put(NamedTuple):
    """A block that is put under the prefix of so many tokens."""

    group: int
    block: int
    tokens: int


def store_connector(cache: KVCache, store: MooncakeStore) -> MooncakeConnector:
    """The connector of a cache, with or without groups of states.

    Raises:
        ValueError: what the engine would not accept: states that are not kept at boundaries.
    """
    if not cache.has_states:
        return MooncakeConnector(cache, store)
    check_keeps_states(cache.config)
    return MooncakeStateConnector(cache, store)


class MooncakeStateConnector(MooncakeConnector):
    """As without states; what is different is said above."""

    def __init__(self, cache: KVCache, store: MooncakeStore) -> None:
        """Connect a cache and a store.

        Args:
            cache: of one replica, with groups of states that are kept at boundaries.
            store: may be shared by connectors of the same model.
        """
        super().__init__(cache, store)
        cache.offer_states()
        self._unit = cache.config.hash_block_tokens
        self._ends_inside = cache.config.hits_end_inside_blocks
        if self._ends_inside:
            self._hit_unit = self._unit
        self._tails_sent: set[Sequence] = set()

    def load(self, sequence: Sequence, num_local: int, num_external: int) -> None:
        """A request got its first blocks, to load what ``match`` promised."""
        total = num_local + num_external
        found = []
        for number, group in enumerate(self._groups):
            size = group.block_size
            first = int(self._cache.core.tables.tables["first"][sequence.slot, number])
            start = max(-(-num_local // size), first)
            ends = (np.arange(start, -(-total // size)) + 1) * size
            if len(ends) and ends[-1] > total:
                ends[-1] = self._tail_end(sequence, number, total, int(ends[-1]))
            found.append(self._keys_at(sequence, number, ends))
        self._load(sequence, found)

    def preempt(self, sequence: Sequence) -> None:
        """A request is about to lose its blocks; those that a save holds stay held."""
        super().preempt(sequence)
        self._requests[sequence].prefill_tokens = 0
        self._tails_sent.discard(sequence)

    def finish(self, sequence: Sequence) -> None:
        """A request is done and about to give its blocks back."""
        super().finish(sequence)
        self._tails_sent.discard(sequence)

    def build(self, scheduled: list[Sequence]) -> Transfers:
        """A step is planned: which jobs it makes.

        Args:
            scheduled: whoever computes something in it, in order.
        """
        transfers = Transfers(loads=self._loads, loaded=self._loaded)
        self._loads, self._loaded = [], []
        size = self._cache.alignment_tokens
        states = self._states_entered()
        for sequence in self._in_order(scheduled):
            request = self._requests[sequence]
            computed = self._num_computed(sequence)
            end = computed // size * size
            is_whole = self._ends_inside and 0 < sequence.num_prompt <= computed
            sends_tail = is_whole and sequence not in self._tails_sent
            if end <= request.num_saved and not sends_tail:
                continue
            if sends_tail:
                self._tails_sent.add(sequence)
            puts = self._with_tail(sequence, states.pop(sequence, []), sends_tail)
            keys = self._to_save(sequence, request, end)
            self._put_all(sequence, end, puts, keys, transfers)
            request.num_saved = end
        for sequence, puts in states.items():
            self._put_all(sequence, 0, self._with_tail(sequence, puts, False), [], transfers)
        return transfers

    def _num_computed(self, sequence: Sequence) -> int:
        """Tokens computed at the end of the step, as far as they are saved."""
        return min(self._cache.num_computed(sequence), self._requests[sequence].prefill_tokens)

    def _states_entered(self) -> dict[Sequence, list[Put]]:
        """States entered since the last step that are saved, by request."""
        offers = by_request(self._cache.take_offers())
        if not offers:
            return {}
        sequences = {sequence.slot: sequence for sequence in self._requests}
        entered = {}
        for slot, states in offers.items():
            sequence = sequences[slot]
            most = self._requests[sequence].prefill_tokens  # all other groups end there
            puts = [Put(*state) for state in states if state[2] <= most]
            if puts:
                entered[sequence] = puts
        return entered

    def _with_tail(self, sequence: Sequence, states: list[Put], sends_tail: bool) -> list[Put]:
        """States, behind the other groups' blocks at the end of the prompt where that is due."""
        parts = [put.tokens for put in states if put.tokens % self._groups[put.group].block_size]
        if not parts and not sends_tail:
            return states
        end = int(resumable(self._cache.core.rules, sequence.num_prompt, self._unit))
        if not sends_tail and end not in parts:
            return states
        start = end // self._cache.alignment_tokens * self._cache.alignment_tokens
        puts = []
        for number, group in enumerate(self._groups):
            if group.kind == MAMBA or end > self._num_computed(sequence):
                continue
            size = group.block_size
            table = self._cache.block_table(sequence, number, start // size)
            for index in range(start // size, -(-end // size)):
                place = index - start // size
                if place < len(table) and table[place]:
                    puts.append(Put(number, int(table[place]), min((index + 1) * size, end)))
        return puts + states

    def _put_all(
        self,
        sequence: Sequence,
        end: int,
        puts: list[Put],
        saved: Several[Ints],
        transfers: Transfers,
    ) -> None:
        """Put blocks under given prefixes, then what is saved by position."""
        keys = [
            self._keys_at(sequence, put.group, np.array([put.tokens], dtype=np.int64))
            for put in puts
        ]
        held = [put.block for put in puts]
        if end:
            for number, group in enumerate(self._groups):
                if group.kind != MAMBA:
                    table = self._cache.block_table(sequence, number)
                    held += table[table != 0].tolist()
        # A block that is named twice is held once.
        blocks: Ids = np.array(list(dict.fromkeys(held)), dtype=np.int32)
        all_keys = np.concatenate([*keys, *saved, np.zeros(0, dtype=np.int64)])
        _, first = np.unique(all_keys, return_index=True)
        self._put(sequence, end, all_keys[np.sort(first)], blocks, transfers)

    def _keys(self, sequence: Sequence, group: int, indices: Ints) -> Ints:
        return self._keys_at(sequence, group, (indices + 1) * self._groups[group].block_size)

    def _keys_at(self, sequence: Sequence, group: int, ends: Ints) -> Ints:
        """The keys of a group's blocks under the prefixes that end at positions."""
        tables = self._cache.core.tables
        num_spans = int(tables.sequences["num_spans"][sequence.slot])
        uids, span_ends = tables.spans[sequence.slot, :, :num_spans]
        return self._keys_under(uids, span_ends, group, ends)

    def _keys_within(self, content: Content, group: int, num_tokens: int) -> Ints:
        size = self._groups[group].block_size
        ends = (np.arange(num_tokens // size) + 1) * size
        return self._keys_under(content.uids, content.ends, group, ends)

    def _keys_under(self, uids: Ints, span_ends: Ints, group: int, ends: Ints) -> Ints:
        spec = self._groups[group]
        unit = self._unit if spec.kind in (FULL, MAMBA) else spec.block_size
        keys = [
            block_key(int(uids[span_at(span_ends, len(span_ends), end)]), end // unit, group)
            for end in ends.tolist()
        ]
        return np.array(keys, dtype=np.int64)

    def _tail_end(self, sequence: Sequence, group: int, hit: int, block_end: int) -> int:
        """Under the prefix of how many tokens the block is stored in which a hit ends."""
        most = min(block_end, sequence.content.num_tokens // self._unit * self._unit)
        ends = np.arange(hit, most + 1, self._unit)
        there = ~self.store.missing(self._keys_at(sequence, group, ends))
        return int(ends[np.argmax(there)])
