"""What is worth keeping: the mask of blocks that some later request could resume from.

A sliding-window group resumes at a boundary from the last few blocks before it, a Mamba group
from the one state there; all other blocks can serve no hit. Three choices of boundaries, by the
retention interval: None keeps the run at every aligned boundary (dense), N the run every N
tokens, 0 none of these; 0 and N keep the runs at the reachable boundaries as well: where this
prompt can be replayed, and where siblings are known to diverge. Full attention keeps everything.

The engine's rules: vLLM #43447 (retention), with the junction and the EAGLE-aware boundaries of
later releases. The Mooncake store (#44774) and the OffloadingConnector (#51886) use the same mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvsim.jit import njit

DENSE = -1
"""The retention interval None, for compiled code."""
_NO_FINAL_SEGMENT = -1
NO_BOUNDARY = -(1 << 40)
"""Fills up an array of boundaries: no block belongs to it."""


@njit
def keep_window_runs(
    kept: npt.NDArray[np.bool_],
    start_block: int,
    end_block: int,
    block_size: int,
    alignment_tokens: int,
    num_needed: int,
    shift: int,
    retention_interval: int,
    boundaries: npt.NDArray[np.int64],
    final_segment_end_block: int,
) -> bool:
    """Mark the blocks of a sliding-window group that are worth keeping.

    Args:
        kept: written where True; block ``start_block + i`` is ``kept[i]``. All False at first.
        start_block: first block looked at.
        end_block: block after the last one looked at.
        block_size: tokens a block, scaled for decode context parallelism.
        alignment_tokens: unit of hits in tokens, a multiple of ``block_size``.
        num_needed: blocks a hit matches at a boundary, a dropped look-ahead block included.
        shift: 1 where the run ends one block after the boundary (look-ahead), else 0.
        retention_interval: tokens between kept runs; 0 none, -1 dense.
        boundaries: reachable boundaries in tokens, not yet rounded.
        final_segment_end_block: block after the request's last segment; -1 where not given.

    Returns:
        True where every block is worth keeping; ``kept`` is then left alone.
    """
    segment_tokens = alignment_tokens if retention_interval == DENSE else retention_interval
    if segment_tokens > 0:
        per_segment = segment_tokens // block_size
        if num_needed >= per_segment:
            return True
        # Runs end at shift + k * per_segment; the first that can reach start_block is looked for.
        end = shift + max(0, (start_block - shift) // per_segment) * per_segment
        while end - num_needed < end_block:
            for block in range(max(start_block, shift, end - num_needed), min(end_block, end)):
                kept[block - start_block] = True
            end += per_segment
        if final_segment_end_block != _NO_FINAL_SEGMENT and shift == 0:
            size = final_segment_end_block % per_segment
            low = max(final_segment_end_block - size, final_segment_end_block - num_needed)
            for block in range(max(start_block, low), min(end_block, final_segment_end_block)):
                kept[block - start_block] = True
    if retention_interval != DENSE:
        for boundary in boundaries:
            end = boundary // alignment_tokens * alignment_tokens // block_size + shift
            for block in range(max(start_block, end - num_needed), min(end_block, end)):
                kept[block - start_block] = True
    return False


def _keep_states(
    kept: npt.NDArray[np.bool_],
    start_block: int,
    block_size: int,
    alignment_tokens: int,
    retention_interval: int,
    boundaries: Sequence[int],
) -> bool:
    """Mark the Mamba states worth keeping; True where all are."""
    if retention_interval > 0:
        per_segment = retention_interval // block_size
        if per_segment <= 1:
            return True
        kept[(-start_block - 1) % per_segment :: per_segment] = True
    for boundary in boundaries:
        index = boundary // alignment_tokens * alignment_tokens // block_size - 1 - start_block
        if 0 <= index < len(kept):
            kept[index] = True
    return False


def reachable_block_mask(
    kind: str,
    start_block: int,
    end_block: int,
    block_size: int,
    alignment_tokens: int | None,
    retention_interval: int | None,
    reachable_boundaries: Sequence[int] = (),
    *,
    sliding_window: int | None = None,
    use_eagle: bool = False,
    dcp_world_size: int = 1,
    final_segment_end_block: int | None = None,
) -> npt.NDArray[np.bool_] | None:
    """Which blocks of one group are worth keeping.

    Args:
        kind: ``full``, ``sliding_window``, ``chunked_local`` or ``mamba``.
        start_block: first block looked at.
        end_block: block after the last one.
        block_size: tokens a block holds.
        alignment_tokens: unit hits come in, in tokens; None: no constraint, everything is kept.
        retention_interval: None (dense), 0, or a number of tokens.
        reachable_boundaries: token positions a later request can resume at, not yet rounded.
        sliding_window: tokens, for window groups.
        use_eagle: the group drops a look-ahead block.
        dcp_world_size: decode context parallelism; a window block counts that many times its
            size, a Mamba state is not scaled.
        final_segment_end_block: the block after the request's last segment, where stores may
            pass it; keeps the run before it when the interval is dense or N, without EAGLE.

    Returns:
        One bool a block from ``start_block`` on; None where every block is worth keeping.

    Raises:
        ValueError: an unknown kind, or a window group without its window.
    """
    if kind not in ("full", "sliding_window", "chunked_local", "mamba"):
        known = "full, sliding_window, chunked_local, mamba"
        raise ValueError(f"kind {kind!r} is none of {known}")
    if kind in ("full", "chunked_local") or alignment_tokens is None:
        return None
    kept = np.zeros(max(0, end_block - start_block), dtype=np.bool_)
    if kind == "mamba":
        if retention_interval is None:
            return None
        every = _keep_states(
            kept,
            start_block,
            block_size,
            alignment_tokens,
            retention_interval,
            reachable_boundaries,
        )
        return None if every else kept
    if sliding_window is None:
        raise ValueError("a sliding_window group needs its sliding_window")
    tokens = block_size * dcp_world_size
    if alignment_tokens % tokens != 0:
        return None  # a mask of whole blocks cannot express a boundary inside one
    every = keep_window_runs(
        kept,
        start_block,
        end_block,
        tokens,
        alignment_tokens,
        -(-(sliding_window - 1) // tokens) + int(use_eagle),
        int(use_eagle),
        DENSE if retention_interval is None else retention_interval,
        np.array(reachable_boundaries, dtype=np.int64),
        _NO_FINAL_SEGMENT if final_segment_end_block is None else final_segment_end_block,
    )
    return None if every else kept


def replay_boundaries(
    num_prompt_tokens: int, scheduler_block_size: int, use_eagle: bool
) -> tuple[int, ...]:
    """The positions at which a later request can resume this prompt, in tokens, rising.

    A resend must recompute the last prompt token. Where a look-ahead block is dropped, a hit
    lands one scheduler block lower, and a resend and an extension of a prompt that ends on a
    boundary land on different ones: both are kept.
    """
    if not use_eagle:
        return (num_prompt_tokens - 1,)
    size = scheduler_block_size
    resend = (num_prompt_tokens - 1) // size * size - size
    extension = num_prompt_tokens // size * size - size
    return tuple(sorted({max(0, resend), max(0, extension)}))
