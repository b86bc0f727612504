"""What a cache is made of, and what no engine would accept."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvsim.cache.content import GROUP_BITS, NUMBER_BITS, POSITION_BITS
from kvsim.cache.spec import (
    CHUNKED_LOCAL,
    FULL,
    MAMBA,
    MAX_BLOCKS,
    GroupSpec,
    scheduler_block_size,
)
from kvsim.policies.finding import Chosen
from kvsim.policies.free_queue import FREE_QUEUE_POLICIES
from kvsim.policies.profiles import PROFILES, retention_problem


@dataclass(frozen=True)
class CacheConfig:
    """What a cache is made of.

    Attributes:
        num_blocks: blocks in the pool, block 0 (the null block) included.
        groups: the model's KV cache groups, in order.
        max_model_len: longest sequence in tokens.
        max_in_flight_tokens: most tokens scheduled at once.
        retention_interval: None (dense), 0 (replay boundaries only) or tokens.
        enable_caching: prefix caching.
        use_eagle: drop a look-ahead block in the groups flagged so, in all where none is.
        key_lookahead_tokens: tokens behind a block that its key covers as well, so that a drafter
            finds what it reads there; then no block is dropped.
        profile: the engine's release whose rules apply.
        free_queue: an engine's free-queue order by name, or a policy; None is the profile's.
        retention: a policy that says what is kept, in place of the interval.
        prefix_match_unit: tokens a key stands for, where groups of states let hits end inside a
            block; None is the greatest common divisor of the groups' blocks.
        context_parallel: ranks that share each full-attention block, whose size here is of all.
        log_entries: what is entered in the index and removed is logged, up to so many entries
            between two readings (`Holders.read`); 0 for no log.
        shared_prefix_checkpoint: with EAGLE a state is kept at a junction inside a block as well.

    Raises:
        ValueError: what no engine would accept, with the rule that was broken.
    """

    num_blocks: int
    groups: tuple[GroupSpec, ...]
    max_model_len: int
    max_in_flight_tokens: int
    retention_interval: int | None = None
    enable_caching: bool = True
    use_eagle: bool = False
    key_lookahead_tokens: int = 0
    profile: str = "vllm-0.33"
    free_queue: str | Chosen | None = None
    retention: Chosen | None = None
    prefix_match_unit: int | None = None
    shared_prefix_checkpoint: bool = False
    context_parallel: int = 1
    log_entries: int = 0

    def __post_init__(self) -> None:
        """Refuse what no engine would accept."""
        if self.profile not in PROFILES:
            raise ValueError(f"profile {self.profile!r} is none of {', '.join(PROFILES)}")
        if isinstance(self.free_queue, str) and self.free_queue not in FREE_QUEUE_POLICIES:
            names = ", ".join(FREE_QUEUE_POLICIES)
            raise ValueError(f"free_queue {self.free_queue!r} is none of {names}")
        if not 1 <= len(self.groups) <= 1 << GROUP_BITS:
            raise ValueError(f"a model has 1 to {1 << GROUP_BITS} groups, not {len(self.groups)}")
        self._check_states()
        self._check_chunks()
        if self.num_blocks < 2:
            raise ValueError(f"num_blocks {self.num_blocks} leaves none: block 0 is never used")
        if self.num_blocks > MAX_BLOCKS:
            raise ValueError(f"num_blocks {self.num_blocks} is above {MAX_BLOCKS}")
        if not 1 <= self.max_model_len < 1 << POSITION_BITS:
            raise ValueError(
                f"max_model_len {self.max_model_len} is not in 1 .. 2**{POSITION_BITS} - 1"
            )
        smallest = min(self.hash_block_tokens, *(group.block_size for group in self.groups))
        if self.max_model_len // smallest >= 1 << (NUMBER_BITS - 1):
            raise ValueError(
                f"max_model_len {self.max_model_len} is 2**{NUMBER_BITS - 1} blocks of {smallest} "
                "tokens or more"
            )
        flagged = any(group.eagle for group in self.groups)
        drops = self.use_eagle or (flagged and not PROFILES[self.profile].has_key_lookahead)
        if self.key_lookahead_tokens and drops:
            raise ValueError("hits drop a look-ahead block, or keys cover what is behind a block")
        if self.max_in_flight_tokens < 1:
            raise ValueError(f"max_in_flight_tokens {self.max_in_flight_tokens} is below 1")
        problem = retention_problem(
            self.retention_interval,
            self.profile,
            scheduler_block_size(self.groups),
            any(group.kind not in (FULL, CHUNKED_LOCAL) for group in self.groups),
        )
        if problem:
            raise ValueError(f"retention_interval: {problem}")

    def _check_states(self) -> None:
        """Refuse groups of states under rules they are not known for."""
        states = [group for group in self.groups if group.kind == MAMBA]
        unit = self.prefix_match_unit
        if states and not PROFILES[self.profile].has_states:
            known = ", ".join(name for name, profile in PROFILES.items() if profile.has_states)
            raise ValueError(f"mamba groups are simulated for {known}, not {self.profile}")
        if self.enable_caching and any(group.one_state for group in states):
            raise ValueError("a group with one state a sequence needs prefix caching to be off")
        if states and (isinstance(self.free_queue, Chosen) or self.retention is not None):
            raise ValueError("policies are not told of mamba groups")
        if unit is None:
            return
        if not states:
            raise ValueError("prefix_match_unit needs a mamba group")
        if unit < 1 or any(group.block_size % unit for group in self.groups):
            sizes = ", ".join(str(group.block_size) for group in self.groups)
            raise ValueError(
                f"prefix_match_unit {unit} does not divide the groups' blocks, {sizes}"
            )

    def _check_chunks(self) -> None:
        """Refuse chunked local groups where the engine's lookup gives up on them."""
        chunked = [group for group in self.groups if group.kind == CHUNKED_LOCAL]
        if not chunked:
            return
        if any(group.kind == MAMBA for group in self.groups):
            raise ValueError("chunked_local groups beside mamba groups are not simulated")
        drops = self.use_eagle or not PROFILES[self.profile].has_key_lookahead
        unflagged = not any(group.eagle for group in self.groups)
        if (drops and any(group.eagle for group in chunked)) or (self.use_eagle and unflagged):
            raise ValueError("a chunked_local group cannot drop a look-ahead block")
        unit = scheduler_block_size(self.groups)
        sizes = [group.block_size for group in chunked if group.block_size != unit]
        if self.enable_caching and sizes:
            raise ValueError(
                f"a chunked_local group has blocks of {sizes[0]} tokens, and hits come in units "
                f"of {unit}: give all groups blocks of one size"
            )

    @property
    def hash_block_tokens(self) -> int:
        """Tokens that a key stands for."""
        if not self.enable_caching and any(group.kind == MAMBA for group in self.groups):
            return scheduler_block_size(self.groups)
        return self.prefix_match_unit or math.gcd(*(group.block_size for group in self.groups))

    @property
    def hits_end_inside_blocks(self) -> bool:
        """Whether hits are multiples of the hash block, and not of the scheduler block."""
        unit = self.hash_block_tokens
        return (
            self.enable_caching
            and len(self.groups) > 1
            and any(
                group.kind == MAMBA and group.block_size > unit - (self.context_parallel > 1)
                for group in self.groups
            )
            and all(
                group.kind in (FULL, MAMBA) or group.block_size == unit for group in self.groups
            )
        )
