"""What policies are told: the facts of a block that is given back, and of a run that may be kept.

Rows of arrays, so that compiled code reads and writes them in place. Times are seconds on the clock
of the run, positions are tokens from the start of the sequence.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

FULL_ATTENTION, SLIDING_WINDOW, STATE = 0, 1, 2
"""Kinds of groups, as policies are told them."""
NO_BOUNDARY, INTERVAL, REPLAY, JUNCTION = 0, 1, 2, 3
"""Which kind of boundary a block's run is kept for."""

FRONT = -math.inf
"""The front of the free queue: the block leaves before all others, as the engine's prepended."""
BACK = math.inf
"""The end of the free queue: the block leaves after all others."""

ERA_S = 2.0**32
"""Longer than any run: added to a time it makes a second queue behind the first."""

NOT_GIVEN = -1

BLOCK_FACTS: dict[str, str] = {
    "block": "id of the block",
    "kind": "of its group: FULL_ATTENTION (chunked local too), SLIDING_WINDOW or STATE",
    "group": "KV cache group",
    "cached": "1 where a lookup can find it; 0 only where the order asked for such blocks too",
    "tokens": "tokens of a block of its group",
    "end_tokens": "position of its end",
    "in_answer": "1 where its last token is generated, 0 where it is of the prompt",
    "boundary": "kind of boundary its run is kept for: NO_BOUNDARY for full attention",
    "boundary_tokens": "position of that boundary, 0 for none",
    "num_hits": "how often it was found again since it was computed",
    "priority": "of the request that gives it back, as the engine's: lower is served first",
    "keep_priority": "0 to 100, how much that request wants it kept; NOT_GIVEN where it says none",
    "ghost_tag": "what was noted of this content when it was last evicted; NOT_GIVEN if long ago",
    "ghost_age": "contents evicted with that tag since",
    "pool_blocks": "blocks of the pool",
    "now_s": "the time",
    "given_back_s": "when it was given back: before now where it is asked about again",
    "admitted_s": "when the request that gives it back was admitted",
    "last_hit_s": "when it was last found again; -inf for never",
    "keep_s": "how long keep_priority holds once it is given back; inf for always",
    "prefix_s": "seconds to compute everything up to its end",
    "own_s": "seconds to compute its own tokens, after all before them",
    "score": "what the policy last said of this content; -inf at first",
    "floor": "the score of the block that left last, by its score",
}
"""Each fact of a block, with its meaning. Those in seconds and scores are floats."""

RUN_FACTS: dict[str, str] = {
    "kind": "of the group: SLIDING_WINDOW or STATE",
    "group": "KV cache group",
    "tokens": "tokens of a block of the group",
    "run_blocks": "blocks that are kept if this boundary is",
    "boundary_tokens": "position of the boundary",
    "unit_tokens": "unit of hits, which the boundary is a multiple of",
    "prompt_tokens": "length of the prompt",
    "is_replay": "1 where the prompt is replayed from here",
    "is_junction": "1 where siblings are known to diverge",
    "in_answer": "1 where the boundary lies behind the prompt",
    "num_hits": "hits that have landed at this boundary of this content",
    "cached_blocks": "blocks that are kept in window and state groups now",
    "pool_blocks": "blocks of the pool",
    "now_s": "the time",
}
"""Each fact of a boundary whose run may be kept, with its meaning."""

_FLOATS = {
    "now_s",
    "given_back_s",
    "admitted_s",
    "last_hit_s",
    "keep_s",
    "prefix_s",
    "own_s",
    "score",
    "floor",
}


def _row(facts: dict[str, str]) -> np.dtype[np.void]:
    kinds = [(name, np.float64 if name in _FLOATS else np.int64) for name in facts]
    # Set by the call itself: 1 once the policy has answered.
    return np.dtype([*kinds, ("answered", np.int64)])


BLOCK_ROW_FACTS = _row(BLOCK_FACTS)
RUN_ROW_FACTS = _row(RUN_FACTS)

Facts = npt.NDArray[np.void]
Block = Any
"""A row of block facts: ``block.num_hits``, ``block.now_s``."""
Run = Any
"""A row of run facts."""
