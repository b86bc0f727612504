"""The door of the core: look up, allocate, append, free, reset.

One file because `KVCache` alone owns and lengthens the arrays that all its methods hand to compiled
code; apart, every length would be promised in one file and kept in another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvsim.cache.block_pool import (
    BLOCK_ROW,
    CACHED_BY_GROUP,
    EVICTED,
    EVICTED_BY,
    FREE,
    FREE_CACHED,
    LOG_LENGTH,
    NUM_GROUPS_MAX,
    Ids,
    aligned_rows,
    find_block,
    forget_all,
    make_pool,
)
from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content, Ints, block_key
from kvsim.cache.coordinator import (
    NOT_FIRST,
    REACH,
    RULES_ROW,
    STALE_HIT,
    TAKEN,
    Core,
    allocate,
    allocate_first,
    extend,
    flatten,
    longest_hit,
    release,
    seat,
)
from kvsim.cache.groups import (
    SEQUENCE_ROW,
    TABLE_ROW,
    Tables,
    collect_hit,
    make_groups,
    same_spec,
)
from kvsim.cache.holding import HeldBlocks, give_back_held, held_blocks
from kvsim.cache.hybrid import collect_group, hybrid_hit
from kvsim.cache.loads import allocate_load, blocks_left, leave_windows, load_arrived
from kvsim.cache.ordering import FreeOrder, Retainer
from kvsim.cache.progress import note_leave
from kvsim.cache.spec import (
    FULL,
    MAMBA,
    MAX_BLOCKS,
    SLIDING_WINDOW,
    GroupSpec,
    scheduler_block_size,
)
from kvsim.cache.state_blocks import (
    allocate_hybrid,
    allocate_hybrid_first,
    forget_hybrid,
    make_states,
    release_hybrid,
    state_rules,
)
from kvsim.cache.state_loads import (
    allocate_hybrid_load,
    hybrid_blocks_left,
    hybrid_load_arrived,
    leave_hybrid,
)
from kvsim.cache.state_tables import (
    IDLE_ROW,
    NUM_ALIASES,
    NUM_COPIES,
    NUM_OFFERS,
    NUM_TAKEN,
    OFFER_BLOCK,
    OFFER_COLUMNS,
    OFFER_GROUP,
    OFFER_SERIAL,
    OFFER_SLOT,
    OFFER_UNITS,
    aligned_chunk,
    begin_step,
    can_export,
    let_go_of_copies,
    order_copies,
    resumable,
)
from kvsim.policies.finding import Chosen
from kvsim.policies.free_queue import APPEND, FREE_QUEUE_POLICIES
from kvsim.policies.profiles import PROFILES
from kvsim.policies.retention import DENSE

_MASK_PIECE_BLOCKS = 2048
"""Blocks whose mask is made at once; more are taken piece by piece."""
_OFFERED = [OFFER_SLOT, OFFER_GROUP, OFFER_BLOCK, OFFER_UNITS]
MAX_LOOKAHEAD_TOKENS = 256
"""Most draft tokens an allocation may ask for on top of its new tokens."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's tokens, and the slot of the blocks they hold.

    Attributes:
        content: the tokens known when it was made.
        num_prompt: how many of them are the prompt.
        slot: row in the cache's tables; -1 while it holds nothing.
        junction: where its last lookup saw siblings diverge, in tokens; 0 for none.
        owner: who it is to the ledger, see `kvsim.cache.ledger`; -1 for nobody.
    """

    content: Content
    num_prompt: int
    slot: int = -1
    junction: int = 0
    owner: int = -1


@dataclass(frozen=True, slots=True)
class Hit:
    """What a lookup found.

    Attributes:
        tokens: the prefix all groups can serve.
        junction: the longest single spec's reach where it exceeds the hit, else 0.
        reach: tokens each spec can serve, in the order they are asked (full attention first), each
            bounded by those before it; before the first is the whole prompt but its last token.
    """

    tokens: int
    junction: int
    reach: tuple[int, ...]


class Follower(Protocol):
    """Who is told of what happens to a cache."""

    def at(self, now_s: float) -> None:
        """It is so late."""

    def reset(self) -> None:
        """The cache is empty."""


class KVCache:
    """The engine's prefix cache for one replica.

    Every answer is the engine's: hits, block ids, the order of the free queue, what is evicted.

    Attributes:
        config: what it is made of.
        alignment_tokens: the scheduler block, the unit of hits.
        core: its state, by name.
        arrays: the same, for compiled code.
        asked_at: for each group, the place of its spec in the order of lookup.
        order: of the free queue, where it is none of the engine's.
        retainer: what is kept, where that is not by the engine's rules.
        holds_longest: the longest sequence finds room when it is alone, and so does any other.
    """

    def __init__(self, config: CacheConfig) -> None:
        """Make an empty cache.

        Args:
            config: what it is made of.
        """
        self.config = config
        profile = PROFILES[config.profile]
        policy = APPEND
        if not isinstance(config.free_queue, Chosen):
            policy = FREE_QUEUE_POLICIES[config.free_queue or profile.free_queue.name]
        groups = config.groups
        eagle = frozenset(i for i, group in enumerate(groups) if group.eagle)
        if config.use_eagle and not eagle:
            eagle = frozenset(range(len(groups)))
        elif not config.use_eagle and profile.has_key_lookahead:
            eagle = frozenset()
        # Groups of one spec are looked up together, so they share the look-ahead block.
        eagle = frozenset(
            i for i, group in enumerate(groups) if any(same_spec(group, groups[j]) for j in eagle)
        )
        rows = make_groups(
            groups,
            eagle_groups=eagle,
            masks_follow_eagle=profile.masks_follow_eagle,
            keeps_before_junction=profile.keeps_before_junction,
            keeps_whole_units=profile.keeps_whole_units,
            prepend_uncached=policy.prepend_uncached,
            max_model_len=config.max_model_len,
            max_in_flight_tokens=config.max_in_flight_tokens,
            max_lookahead_tokens=MAX_LOOKAHEAD_TOKENS,
            key_lookahead_tokens=config.key_lookahead_tokens,
        )
        self.alignment_tokens = scheduler_block_size(groups)
        rules = np.zeros(1, dtype=RULES_ROW)
        hash_block = config.hash_block_tokens
        rules[0] = (
            self.alignment_tokens,
            hash_block,
            config.max_model_len,
            DENSE if config.retention_interval is None else config.retention_interval,
            config.enable_caching,
            bool(eagle) and profile.follows_eagle,
            profile.follows_eagle,
            profile.has_junctions,
            config.key_lookahead_tokens,
            hash_block if eagle else self.alignment_tokens,
            *state_rules(config, any(group.eagle for group in groups) or config.use_eagle),
        )
        self._has_states = any(group.kind == MAMBA for group in groups)
        ring_tokens = int(rows["ring"][-1] + rows["ring_mask"][-1] + 1)
        tables = Tables(
            groups=rows,
            sequences=np.zeros(0, dtype=SEQUENCE_ROW),
            tables=np.zeros((0, len(groups)), dtype=TABLE_ROW),
            rings=np.zeros((0, ring_tokens), dtype=np.int32),
            spans=np.zeros((0, 2, 16), dtype=np.int64),
        )
        self.core = Core(
            pool=make_pool(config.num_blocks, config.log_entries),
            tables=tables,
            rules=rules,
            answer=np.zeros(REACH + len(groups), dtype=np.int64),
            boundaries=np.zeros(4, dtype=np.int64),
            kept=np.zeros(_MASK_PIECE_BLOCKS, dtype=np.bool_),
            states=make_states(config.num_blocks, len(groups), ring_tokens + len(groups))
            if self._has_states
            else None,
        )
        self.arrays = flatten(self.core)
        self.order: FreeOrder | None = None
        if isinstance(config.free_queue, Chosen):
            self.order = FreeOrder(config.free_queue, self.core.pool, self.alignment_tokens)
        self.retainer: Retainer | None = None
        if config.retention is not None:
            self.retainer = Retainer(config.retention, self.core.pool, self.alignment_tokens)
        asked = [int(group) for group in rows["asked"] if group >= 0]
        self._num_specs = len(asked)
        self.asked_at = tuple(
            next(i for i, first in enumerate(asked) if same_spec(groups[first], group))
            for group in groups
        )
        at_work = (self.order, self.retainer)
        self._policies = [policy for policy in at_work if policy is not None]
        self._followers: list[Follower] = list(self._policies)
        self._sizes = [
            (index, group.block_size, int(rows["cap"][index]))
            for index, group in enumerate(groups)
            if group.kind != MAMBA
        ]
        self._idle_slots: list[int] = []
        # Of full attention and windows alone more tokens need no fewer blocks.
        longest = config.max_model_len
        self.holds_longest = {group.kind for group in groups} <= {FULL, SLIDING_WINDOW} and (
            max(self.num_blocks_to_admit(longest), self.num_blocks_to_hold(longest))
            < config.num_blocks
        )
        self._offers_states = False
        # Full-attention groups that keep what their own lookup found, beyond the hit.
        self._uncut = [
            index
            for index, group in enumerate(groups)
            if group.kind == FULL and self.asked_at[index] > 0 and not profile.cuts_every_hit
        ]

    # --- the five verbs ---

    def lookup(self, sequence: Sequence) -> Hit:
        """The longest prefix of a sequence that is cached; at most all but its last token."""
        content = sequence.content
        find = hybrid_hit if self._has_states else longest_hit
        find(self.arrays, content.uids, content.ends)
        hit = self.make_hit(self.core.answer.tolist())
        sequence.junction = hit.junction
        return hit

    def allocate(
        self,
        sequence: Sequence,
        num_new: int,
        *,
        hit: Hit | None = None,
        lookahead: int = 0,
        full_fit: bool = False,
        num_reserved: int = 0,
        watermark: int = 0,
    ) -> bool:
        """Room for more tokens of a sequence, which count as computed from then on.

        Args:
            sequence: the first time, what its last lookup found goes with it as ``hit``.
            num_new: tokens to be computed, at least 1.
            hit: at the first allocation; it is taken along.
            lookahead: draft tokens on top.
            full_fit: only if the whole sequence fits.
            num_reserved: blocks to be left free.
            watermark: more of these, beside the whole sequence as well.

        Returns:
            False where there is no room; nothing is taken then.

        Raises:
            ValueError: more tokens than the cache was made for, a first allocation without a
                hit or a later one with it, or a hit that no longer holds.
        """
        if not 1 <= num_new <= self.config.max_in_flight_tokens:
            raise ValueError(
                f"{num_new} new tokens are not in 1 .. {self.config.max_in_flight_tokens}"
            )
        if not 0 <= lookahead <= MAX_LOOKAHEAD_TOKENS:
            raise ValueError(f"{lookahead} draft tokens are not in 0 .. {MAX_LOOKAHEAD_TOKENS}")
        if (sequence.slot < 0) != (hit is not None):
            raise ValueError("the first allocation of a sequence, and only that, takes its hit")
        if self._has_states:
            self._make_room_for_copies(len(self.config.groups))
            self._make_room_for_offers(1)
        if hit is None:
            later = allocate_hybrid if self._has_states else allocate
            answer = later(
                self.arrays,
                sequence.slot,
                num_new,
                NOT_FIRST,
                lookahead,
                full_fit,
                num_reserved,
                watermark,
            )
            self.check()
            return answer == TAKEN
        content = sequence.content
        self._seat(sequence)
        if self._uncut:
            self._note_beyond(hit)
        first = allocate_hybrid_first if self._has_states else allocate_first
        answer = first(
            self.arrays,
            sequence.slot,
            content.uids,
            content.ends,
            sequence.num_prompt,
            sequence.junction,
            num_new,
            hit.tokens,
            lookahead,
            full_fit,
            num_reserved,
            watermark,
        )
        return self._stays(sequence, answer)

    def allocate_load(
        self,
        sequence: Sequence,
        hit: Hit,
        num_external: int,
        *,
        is_cut: bool = False,
        full_fit: bool = True,
        num_reserved: int = 0,
        watermark: int = 0,
    ) -> bool:
        """Blocks for tokens that are loaded from outside, beyond the hit, which is taken along.

        They count as computed from then on, and are cached by ``load_arrived``.

        Args:
            sequence: holds nothing yet.
            hit: what its last lookup found.
            num_external: tokens to be loaded, at least 1.
            is_cut: the lookup found a part of a block beyond the hit, which is loaded instead.
            full_fit: only if the whole sequence fits.
            num_reserved: blocks to be left free.
            watermark: more of these, beside the whole sequence as well.

        Returns:
            False where there is no room; nothing is taken then.

        Raises:
            ValueError: it holds blocks, there is nothing to load, or its hit no longer holds.
        """
        if sequence.slot >= 0:
            raise ValueError("only a sequence that holds nothing can be loaded")
        if num_external < 1:
            raise ValueError(f"{num_external} tokens to be loaded are below 1")
        content = sequence.content
        self._seat(sequence)
        if self._uncut:
            self._note_beyond(None)
        seating = (
            self.arrays,
            sequence.slot,
            content.uids,
            content.ends,
            sequence.num_prompt,
            sequence.junction,
            hit.tokens,
        )
        room = full_fit, num_reserved, watermark
        if self._has_states:
            answer = allocate_hybrid_load(*seating, is_cut, num_external, *room)
        else:
            answer = allocate_load(*seating, num_external, *room)
        return self._stays(sequence, answer)

    def load_arrived(self, sequence: Sequence) -> None:
        """What ``allocate_load`` made room for is there, and is cached."""
        if self._has_states:
            self._make_room_for_offers(1)
            hybrid_load_arrived(self.arrays, sequence.slot)
        else:
            load_arrived(self.arrays, sequence.slot)

    def leave_windows(self, sequence: Sequence) -> None:
        """Give back the blocks a sequence's windows have left, as a connector has it at the end."""
        leave = leave_hybrid if self._has_states else leave_windows
        leave(self.arrays, sequence.slot)
        self.check()

    def num_blocks_left(self, slots: Ints, starts: Ints, ahead: int = 0) -> int:
        """Blocks that the sequences in these slots still need for the tokens they have.

        Args:
            slots: int64, the sequences.
            starts: int64, tokens of each that were computed before the step being planned.
            ahead: tokens more that attention is to have room for.
        """
        if self._has_states:
            return int(hybrid_blocks_left(self.arrays, slots, starts, ahead))
        return int(blocks_left(self.arrays, slots, ahead))

    def append(self, sequence: Sequence, uid: int, num_tokens: int) -> None:
        """The model produced tokens: the sequence's content grows by a span.

        A span with the uid of the last one continues it.
        """
        content = sequence.content
        end = content.num_tokens + num_tokens
        if len(content.uids) and content.uids[-1] == uid:
            uids, ends = content.uids, np.append(content.ends[:-1], end)
        else:
            uids, ends = np.append(content.uids, uid), np.append(content.ends, end)
        sequence.content = Content(uids, ends)
        if sequence.slot >= 0:
            if len(ends) >= self.core.tables.spans.shape[2]:  # one more for the answer
                self._widen_spans(2 * len(ends))
            extend(self.arrays, sequence.slot, uid, end)

    def free(self, sequence: Sequence) -> None:
        """The sequence is finished, aborted or preempted: it gives its blocks back."""
        if sequence.slot >= 0:
            let_go = release_hybrid if self._has_states else release
            let_go(self.arrays, sequence.slot)
            self._unseat(sequence)
            self.check()

    def hold_back(self, sequence: Sequence) -> HeldBlocks:
        """The sequence is over, but its blocks may not be handed out yet; see ``give_back``."""
        core = self.core
        note_leave(core.pool, core.tables, sequence.slot)
        held = held_blocks(core.tables, sequence.slot)
        self._unseat(sequence)
        return held

    def give_back(self, held: HeldBlocks) -> None:
        """Give back what was held back."""
        give_back_held(self.core.pool, self.core.tables.groups, *held)
        self.check()

    def reset(self) -> bool:
        """Empty the prefix cache; False, and nothing happens, while a block is in use."""
        if self._has_states:
            done = bool(forget_hybrid(self.arrays))
        else:
            done = bool(forget_all(self.core.pool))
        for follower in self._followers if done else ():
            follower.reset()
        return done

    def make_hit(self, answer: list[int]) -> Hit:
        """What a lookup found, from what it wrote to ``core.answer``."""
        hit, junction, *reach = answer
        return Hit(hit, junction, tuple(reach[: self._num_specs]))

    @property
    def is_plain(self) -> bool:
        """Whether it goes by the engine's own rules, by every hit cut alike, and nobody follows."""
        return not (self._has_states or self._uncut or self._policies or self._followers)

    def hold_slot(self, num_spans: int) -> int:
        """A slot for a sequence of so many spans that compiled code may seat."""
        if not self._idle_slots:
            self._add_slots()
        if num_spans >= self.core.tables.spans.shape[2]:  # one more for the answer
            self._widen_spans(2 * num_spans)
        return self._idle_slots.pop()

    def let_go_of_slot(self, slot: int) -> None:
        """A slot that holds no blocks is free again."""
        self._idle_slots.append(slot)

    def follow(self, follower: Follower) -> None:
        """Tell somebody of the time and of resets from now on."""
        self._followers.append(follower)

    def at(self, now_s: float) -> None:
        """It is ``now_s``, for who follows and goes by time; the cache itself has no clock."""
        for follower in self._followers:
            follower.at(now_s)

    def tell_request(
        self, sequence: Sequence, priority: int, keep_priority: int, keep_tokens: int, keep_s: float
    ) -> None:
        """What the request of a sequence that holds blocks wants, for policies.

        Args:
            sequence: the sequence.
            priority: of the request, lower is served first.
            keep_priority: 0 to 100, how much it wants its blocks kept; -1 where it says nothing.
            keep_tokens: how many of its first tokens that is about.
            keep_s: for how long after they are given back.
        """
        row = self.core.tables.sequences[sequence.slot]
        row["priority"] = priority
        row["keep_priority"] = keep_priority
        row["keep_tokens"] = keep_tokens
        row["keep_s"] = keep_s

    @property
    def notes(self) -> list[str]:
        """What people should know of its policies."""
        return [note for policy in self._policies for note in policy.notes]

    def check(self) -> None:
        """Stop a policy that did what none may do, see `FreeOrder.check`."""
        for policy in self._policies:
            policy.check()

    # --- steps of a cache with groups of states ---

    @property
    def has_states(self) -> bool:
        """Whether a group keeps states: then it has to be told of steps."""
        return self._has_states

    @property
    def has_drafts(self) -> bool:
        """Whether states are kept for draft tokens, so that more than what is known is computed."""
        return any(group.num_drafts for group in self.config.groups)

    def begin_step(self) -> None:
        """A step begins: what earlier ones computed can be started from."""
        begin_step(self.core.states)
        # Every running sequence may copy a block of each group before any other is admitted.
        self._make_room_for_copies(len(self.core.tables.sequences) * len(self.config.groups))
        self._make_room_for_offers(len(self.core.tables.sequences))

    def offer_states(self) -> None:
        """From now on states that are entered can be asked for with ``take_offers``."""
        self._offers_states = self._has_states
        self._make_room_for_offers(1)

    def take_offers(self) -> list[tuple[int, int, int, int]]:
        """States entered since the last call by sequences that still hold them.

        Returns:
            For each the sequence's slot, the group, the block, and the tokens of the prefix that
            it ends: group after group, each in the order of entering.
        """
        states = self.core.states
        if states is None or not states.meter[NUM_OFFERS]:
            return []
        offers = states.offers[: states.meter[NUM_OFFERS]]
        states.meter[NUM_OFFERS] = 0
        serials = self.core.tables.sequences["serial"][offers[:, OFFER_SLOT]]
        offers = offers[offers[:, OFFER_SERIAL] == serials]
        offers = offers[np.argsort(offers[:, OFFER_GROUP], kind="stable")]
        unit = int(self.core.rules["hash_block_size"][0])
        return [
            (slot, group, block, units * unit)
            for slot, group, block, units in offers[:, _OFFERED].tolist()
        ]

    def copies(self) -> Ids:
        """Ends of the copies this step makes, sources and destinations in turn; int32.

        In the order in which they are let go of.
        """
        states = self.core.states
        ids = np.zeros(2 * int(states.meter[NUM_COPIES]), dtype=np.int32)
        order_copies(states, len(self.config.groups), ids)
        return ids

    def let_go_of_copies(self) -> None:
        """The copies of this step are made: both ends of each are given back."""
        core = self.core
        let_go_of_copies(core.pool, core.states, core.tables.groups)

    def hold_back_copies(self) -> HeldBlocks:
        """The same, but the ends may not be handed out yet; see ``give_back``."""
        ids = self.copies()[::-1].copy()
        self.core.states.meter[NUM_COPIES] = 0
        num = len(self.config.groups)
        ends = np.full(num, len(ids), dtype=np.int64)
        nobody = np.zeros(1, dtype=self.core.tables.sequences.dtype)
        nobody["owner"] = -1
        return HeldBlocks(ids, ends, np.zeros(num, dtype=np.int64), nobody)

    def chunk(self, sequence: Sequence, start: int, num_new: int, most: int) -> int:
        """Tokens of a chunk of a sequence that waits: it ends where a state has to be kept.

        Args:
            sequence: with the junction that its last lookup saw.
            start: tokens before the chunk, hits included.
            num_new: tokens it could compute.
            most: tokens that any chunk can compute.

        Returns:
            At most ``num_new``; 0 where it has to wait for a step with more room.
        """
        num_tokens = sequence.content.num_tokens
        return int(
            aligned_chunk(
                self.core.rules,
                num_tokens,
                sequence.num_prompt,
                sequence.junction,
                start,
                num_new,
                most,
            )
        )

    def roll_back(self, sequence: Sequence, num_tokens: int) -> None:
        """Drafts were refused: so many tokens do not count as computed any more."""
        self.core.tables.sequences[sequence.slot]["num_computed"] -= num_tokens

    # --- what can be seen ---

    @property
    def num_free(self) -> int:
        """Blocks in the free queue."""
        return int(self.core.pool.totals[FREE])

    @property
    def num_cached(self) -> int:
        """Blocks whose prefix is in the index, in use or not."""
        return sum(self.num_cached_by_group)

    @property
    def num_free_cached(self) -> int:
        """Blocks in the free queue whose prefix is in the index: what there is to evict."""
        return int(self.core.pool.totals[FREE_CACHED])

    @property
    def num_cached_by_group(self) -> list[int]:
        """Blocks whose prefix is in the index, in use or not, of each group."""
        start = CACHED_BY_GROUP
        return self.core.pool.totals[start : start + len(self.config.groups)].tolist()  # type: ignore[no-any-return]

    @property
    def num_evicted(self) -> int:
        """Blocks that lost their prefix because they were taken, so far."""
        return int(self.core.pool.totals[EVICTED])

    @property
    def num_evicted_by_group(self) -> list[list[int]]:
        """The same by group: a row for each that took blocks, in it one count for each that lost.

        Rows and counts are in the order of the groups.
        """
        num = len(self.config.groups)
        counts = self.core.pool.totals[EVICTED_BY:LOG_LENGTH]
        counts = counts.reshape(NUM_GROUPS_MAX, NUM_GROUPS_MAX)
        return counts[:num, :num].tolist()  # type: ignore[no-any-return]

    def num_computed(self, sequence: Sequence) -> int:
        """Tokens of a sequence with room, hits included; 0 while it holds nothing."""
        if sequence.slot < 0:
            return 0
        return int(self.core.tables.sequences["num_computed"][sequence.slot])

    def num_tokens(self, sequence: Sequence) -> int:
        """Tokens of a sequence that are known."""
        if sequence.slot < 0:
            return sequence.content.num_tokens
        return int(self.core.tables.sequences["num_tokens"][sequence.slot])

    def num_blocks_to_admit(self, num_tokens: int) -> int:
        """Blocks that have to be free for a request of so many tokens, without a hit."""
        config = self.config
        needed = 0
        for group in config.groups:
            if group.kind == MAMBA:
                needed += self._num_states_to_admit(group, min(num_tokens, config.max_model_len))
                continue
            blocks = -(-min(num_tokens, config.max_model_len) // group.block_size)
            cap = group.admission_cap(config.max_in_flight_tokens, config.max_model_len)
            needed += blocks if cap is None else min(blocks, cap)
        return needed

    def num_blocks_lacking(self, num_tokens: int, hit: Hit) -> int:
        """Blocks that a request of so many tokens needs at least beyond what it hits."""
        num_tokens = min(num_tokens, self.config.max_model_len)
        lacking = 0
        for group, size, cap in self._sizes:
            held = max(hit.tokens, hit.reach[self.asked_at[group]]) // size
            lacking += max(0, min(-(-num_tokens // size), cap) - held)
        return lacking

    def num_blocks_to_hold(self, num_tokens: int) -> int:
        """Blocks that a sequence of so many computed tokens cannot do without on its way there."""
        chunks = [group.attention_chunk_size or num_tokens + 1 for group in self.config.groups]
        ends = {num_tokens, *(num_tokens // chunk * chunk for chunk in chunks)}
        return max(sum(group.least_held(end) for group in self.config.groups) for end in ends)

    def _num_states_to_admit(self, group: GroupSpec, num_tokens: int) -> int:
        """Blocks of states that a request takes at once; a chunk of all may export one."""
        rules = self.core.rules
        position = resumable(rules, num_tokens, int(rules["hit_unit"][0]))
        exports = not group.one_state and can_export(
            0,
            num_tokens,
            position,
            int(rules["hash_block_size"][0]),
            group.block_size,
            group.checkpoint_alignment or 0,
        )
        return group.state_blocks(num_tokens, int(exports))

    def reach_by_group(self, hit: Hit) -> tuple[int, ...]:
        """The reach of each group's spec, in the order of the groups."""
        return tuple(hit.reach[place] for place in self.asked_at)

    def block_table(self, sequence: Sequence, group: int, start: int = 0) -> Ids:
        """Block ids by position from ``start`` on, int32; 0 is the null block."""
        table = self.core.tables.tables[sequence.slot, group]
        row = self.core.tables.groups[group]
        positions = np.arange(start, int(table["length"]))
        ring = self.core.tables.rings[sequence.slot]
        ids = ring[row["ring"] + (positions & row["ring_mask"])]
        return np.where(positions < table["first"], 0, ids).astype(np.int32)

    def taken_in_order(self) -> Ids:
        """Block ids that the last allocation took, in order; int32. With groups of states."""
        states = self.core.states
        ids: Ids = states.taken[: states.meter[NUM_TAKEN]].copy()
        return ids

    def taken(self, sequence: Sequence) -> list[Ids]:
        """Block ids taken by a sequence's last allocation, per group; int32."""
        firsts = self.core.tables.tables["first_new"][sequence.slot]
        return [self.block_table(sequence, g, int(start)) for g, start in enumerate(firsts)]

    def hit_blocks(self, sequence: Sequence, hit: Hit) -> list[Ids]:
        """Block ids of a hit that still holds, per group by position; int32, 0 is null."""
        content = sequence.content
        self._seat(sequence)
        if self._uncut:
            self._note_beyond(hit)
        seat(
            self.arrays,
            sequence.slot,
            content.uids,
            content.ends,
            sequence.num_prompt,
            sequence.junction,
        )
        found = []
        core = self.core
        for group, spec in enumerate(self.config.groups):
            if self._has_states:
                of_cache = core.pool, core.tables, core.states, core.rules
                collect_group(*of_cache, sequence.slot, group, hit.tokens)
            else:
                collect_hit(core.pool, core.tables, sequence.slot, group, hit.tokens)
            first = core.tables.tables["first"][sequence.slot, group]
            row = core.tables.groups[group]
            positions = np.arange(-(-(hit.tokens + int(row["beyond"])) // spec.block_size))
            ids = self.core.tables.rings[sequence.slot][
                row["ring"] + (positions & row["ring_mask"])
            ]
            blocks = np.where(positions < first, 0, ids).astype(np.int32)
            if spec.sliding_window == 1 and hit.tokens:
                # A lookup matches a block for a window that needs none; it is not taken along.
                uid = content.uids[np.searchsorted(content.ends, hit.tokens)]
                key = block_key(int(uid), len(blocks), group)
                blocks[-1] = find_block(self.core.pool, key)
            found.append(blocks)
        self._unseat(sequence)
        return found

    def free_queue(self, most: int = MAX_BLOCKS) -> Ids:
        """Block ids in the order in which they will be taken, the first ``most``; int32."""
        if self.order is not None:
            return self.order.queue(most)
        after = self.core.pool.blocks["after"]
        ids: list[int] = []
        block = int(after[0])
        while block and len(ids) < most:
            ids.append(block)
            block = int(after[block])
        return np.array(ids, dtype=np.int32)

    def cached_blocks(self) -> Ids:
        """Ids of the cached blocks, rising; int32."""
        keys = self.core.pool.blocks["key"][: self.config.num_blocks]
        return np.flatnonzero(keys).astype(np.int32)

    def _note_beyond(self, hit: Hit | None) -> None:
        """By how much the hit in hand is exceeded by groups that are not cut back to it."""
        for group in self._uncut:
            reach = 0 if hit is None else hit.reach[self.asked_at[group]] - hit.tokens
            self.core.tables.groups[group]["beyond"] = max(0, reach)

    # --- slots ---

    def _seat(self, sequence: Sequence) -> None:
        """Give a sequence a slot, with room for its spans."""
        sequence.slot = self.hold_slot(len(sequence.content.ends))
        if sequence.owner >= 0:
            row = self.core.tables.sequences[sequence.slot]
            row["owner"], row["num_noted"] = sequence.owner, 0
        if self._has_states:
            self._make_room_for_aliases()

    def _stays(self, sequence: Sequence, answer: int) -> bool:
        """Whether a sequence got its first blocks; its slot is taken back where it did not."""
        self.check()
        if answer == TAKEN:
            return True
        self._unseat(sequence)
        if answer == STALE_HIT:
            raise ValueError("the hit no longer holds: blocks of it were evicted since the lookup")
        return False

    def _unseat(self, sequence: Sequence) -> None:
        self.let_go_of_slot(sequence.slot)
        sequence.slot = -1

    def _add_slots(self) -> None:
        """Double the slots. Rings are left untouched until used: the memory is the system's."""
        tables = self.core.tables
        have = len(tables.sequences)
        more = max(8, have)

        def longer(array: npt.NDArray[Any], fill: bool = True) -> npt.NDArray[Any]:
            shape = (have + more, *array.shape[1:])
            grown = np.zeros(shape, array.dtype) if fill else np.empty(shape, array.dtype)
            grown[:have] = array
            return grown

        self._replace_tables(
            sequences=longer(tables.sequences),
            tables=longer(tables.tables),
            rings=longer(tables.rings, fill=False),
            spans=longer(tables.spans),
        )
        if self._has_states:
            states = self.core.states._replace(rows=longer(self.core.states.rows))
            self._replace(states=states)
        self._idle_slots.extend(range(have + more - 1, have - 1, -1))

    def _widen_spans(self, width: int) -> None:
        spans = self.core.tables.spans
        wider = np.zeros((*spans.shape[:2], width), dtype=np.int64)
        wider[:, :, : spans.shape[2]] = spans
        self._replace_tables(spans=wider)

    def _make_room_for_copies(self, num: int) -> None:
        """Room for more copies in this step."""
        states = self.core.states
        needed = int(states.meter[NUM_COPIES]) + num
        if needed > len(states.copies):
            longer = np.zeros((2 * needed, 3), dtype=np.int32)
            longer[: len(states.copies)] = states.copies
            self._replace(states=states._replace(copies=longer))

    def _make_room_for_offers(self, num_sequences: int) -> None:
        """Room for what so many sequences can offer: of each group a load, copy, chunk, export."""
        if not self._offers_states:
            return
        states = self.core.states
        needed = int(states.meter[NUM_OFFERS]) + 4 * num_sequences * len(self.config.groups)
        if needed > len(states.offers):
            longer = np.zeros((2 * needed, OFFER_COLUMNS), dtype=np.int64)
            longer[: len(states.offers)] = states.offers
            self._replace(states=states._replace(offers=longer))

    def _make_room_for_aliases(self) -> None:
        """An idle row for the end of each seated prompt, in every full-attention group.

        A sequence adds no more than that: what a full block forgets it is given only once again.
        """
        if not self.core.rules["fine"][0]:
            return
        states, blocks = self.core.states, self.core.pool.blocks
        num_full = sum(group.kind == FULL for group in self.config.groups)
        seated = len(self.core.tables.sequences) - len(self._idle_slots)
        needed = int(states.meter[NUM_ALIASES]) + seated * num_full
        have = len(blocks) - self.config.num_blocks
        if needed <= have:
            return
        end = len(blocks) + needed
        longer = aligned_rows(end, BLOCK_ROW)
        longer[: len(blocks)] = blocks
        longer["after"][len(blocks) :] = np.arange(len(blocks) + 1, end + 1)
        longer["after"][-1] = states.meter[IDLE_ROW]
        states.meter[IDLE_ROW] = len(blocks)
        self._replace(pool=self.core.pool._replace(blocks=longer))

    def _replace_tables(self, **arrays: npt.NDArray[Any]) -> None:
        self._replace(tables=self.core.tables._replace(**arrays))

    def _replace(self, **parts: Any) -> None:
        self.core = self.core._replace(**parts)
        self.arrays = flatten(self.core)
