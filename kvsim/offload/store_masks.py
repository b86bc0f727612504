"""What the Mooncake store saves and looks up: masks over the blocks of every group.

A prompt is saved in whole scheduler blocks while it is computed. Of each such unit full attention
saves all blocks; a sliding window the runs the prefix cache would keep, but for the junction, which
the store does not know; Mamba nothing (its states are handed over another way). A lookup asks for
the blocks of the dense mask: the runs at every scheduler block. Where decode context parallelism
splits blocks over ranks, the specs handed in are scaled already, so nothing is scaled here.

vLLM #44774; the same functions as the prefix cache's make the masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvsim.cache.groups import same_spec
from kvsim.cache.spec import MAMBA, GroupSpec
from kvsim.policies.retention import reachable_block_mask, replay_boundaries

Mask = npt.NDArray[np.bool_] | None
"""One bool a block; None where every block is meant."""


def look_ahead_groups(groups: Sequence[GroupSpec], use_eagle: bool) -> frozenset[int]:
    """The groups that drop a look-ahead block.

    Args:
        groups: the groups in order; those that hold draft layers are marked.
        use_eagle: where no group is marked, all drop one.

    Returns:
        Indices: the marked ones and all with the spec of a marked one, as they are looked up
        together.
    """
    marked = [group for group in groups if group.eagle]
    if not marked:
        return frozenset(range(len(groups))) if use_eagle else frozenset()
    return frozenset(
        index
        for index, group in enumerate(groups)
        if any(same_spec(group, other) for other in marked)
    )


def store_masks(
    groups: Sequence[GroupSpec],
    scheduler_block_size: int,
    num_tokens: int,
    *,
    start_token: int = 0,
    num_prompt_tokens: int | None = None,
    retention_interval: int | None = None,
    use_eagle: bool = False,
) -> tuple[Mask, ...]:
    """Which blocks of each group are saved.

    Args:
        groups: the groups in order, scaled for decode context parallelism.
        scheduler_block_size: unit of hits and of saving, in tokens.
        num_tokens: saved up to here, a multiple of ``scheduler_block_size``.
        start_token: what was saved before; rounded up to a block of each group.
        num_prompt_tokens: length of the prompt, for its replay boundaries; None: not known.
        retention_interval: None (dense), 0, or a number of tokens.
        use_eagle: a look-ahead block is dropped, by the marked groups or, without any, by all.

    Returns:
        A mask a group, for its blocks from ``start_token`` to ``num_tokens``.

    Raises:
        ValueError: ``num_tokens`` is no whole number of units.
    """
    if num_tokens % scheduler_block_size:
        raise ValueError(f"{num_tokens} tokens are no multiple of {scheduler_block_size}")
    dropping = look_ahead_groups(groups, use_eagle)
    boundaries: tuple[int, ...] = ()
    if num_prompt_tokens is not None:
        boundaries = replay_boundaries(num_prompt_tokens, scheduler_block_size, bool(dropping))
    masks: list[Mask] = []
    for index, group in enumerate(groups):
        end = num_tokens // group.block_size
        start = min(end, -(-start_token // group.block_size))
        if group.kind == MAMBA:
            masks.append(np.zeros(end - start, dtype=np.bool_))
            continue
        masks.append(
            reachable_block_mask(
                group.kind,
                start,
                end,
                group.block_size,
                scheduler_block_size,
                retention_interval,
                boundaries,
                sliding_window=group.sliding_window,
                use_eagle=index in dropping,
            )
        )
    return tuple(masks)


def lookup_masks(
    groups: Sequence[GroupSpec],
    scheduler_block_size: int,
    num_tokens: int,
    *,
    use_eagle: bool = False,
) -> tuple[Mask, ...]:
    """Which blocks of each group a lookup asks for: dense, whatever the interval; Mamba all.

    Args:
        groups: the groups in order.
        scheduler_block_size: unit of hits in tokens.
        num_tokens: looked up to here, a multiple of ``scheduler_block_size``.
        use_eagle: as in ``store_masks``.
    """
    masks = store_masks(groups, scheduler_block_size, num_tokens, use_eagle=use_eagle)
    return tuple(
        None if group.kind == MAMBA else mask for group, mask in zip(groups, masks, strict=True)
    )
