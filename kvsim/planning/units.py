"""In what units prefixes are keyed and found (vLLM 0.33.0, resolve_kv_cache_block_sizes)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.errors import KvsimError
from kvsim.planning.groups import Group
from kvsim.planning.settings import Settings
from kvsim.planning.specs import CROSS, FULL, MLA, STATE


@dataclass(frozen=True)
class Units:
    """Tokens of each unit.

    Attributes:
        scheduler_block_size: what whole hits are multiples of.
        hash_block_size: tokens of a key.
        hit_alignment: what hits are multiples of.
    """

    scheduler_block_size: int
    hash_block_size: int
    hit_alignment: int


def resolve_units(groups: Sequence[Group], settings: Settings) -> Units:
    """The units of a model's groups.

    Raises:
        KvsimError: a ``prefix_match_unit`` that the blocks are no multiples of.
    """
    context = settings.decode_context_parallel
    sizes = [
        group.block_size * (context if group.kind != STATE else 1)
        for group in groups
        if group.kind != CROSS
    ]
    scheduler, unit = math.lcm(*sizes), settings.prefix_match_unit
    if len(sizes) == 1:
        if unit is not None and unit != scheduler:
            raise KvsimError(
                f"engine.prefix_match_unit: {unit} is not the only group's block ({scheduler}). "
                "Leave it out."
            )
        return Units(scheduler, scheduler, scheduler)
    if not settings.enable_prefix_caching or (
        settings.state_mode != "align" and any(group.kind == STATE for group in groups)
    ):
        return Units(scheduler, scheduler, scheduler)
    plain = [group.block_size for group in groups if group.kind != CROSS]
    hashed = math.gcd(*plain) if unit is None else unit
    for group in groups:
        if group.block_size % hashed:
            raise KvsimError(
                f"engine.prefix_match_unit: {unit} does not divide the block of {group.block_size} "
                f"tokens of a {group.kind} group. Use one that divides {math.gcd(*plain)}."
            )
    return Units(scheduler, hashed, hashed if _fine(groups, hashed, context) else scheduler)


def _fine(groups: Sequence[Group], hashed: int, context: int) -> bool:
    """Whether hits may end inside a state's block, at a unit of keys."""
    states = [group for group in groups if group.kind == STATE]
    larger = any(
        group.block_size > hashed or (context > 1 and group.block_size == hashed)
        for group in states
    )
    return larger and all(
        group.kind in (FULL, MLA, STATE) or group.block_size == hashed for group in groups
    )
