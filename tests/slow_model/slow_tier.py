"""What a tier of chunks can serve of a prompt, found by trying every length there is.

For models with one full-attention spec, one window at most, and groups of states, whose blocks are
equally long. Nothing is remembered: the tier is read anew for each lookup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.cache.content import GROUP_BITS, NUMBER_BITS, Content
from kvsim.cache.manager import Sequence
from kvsim.cache.spec import GroupSpec

if TYPE_CHECKING:
    from tests.offload.engine import Engine

Prefix = tuple[int, int, int]
"""Group, uid of the span that holds the last token, tokens."""


def readable(engine: Engine) -> set[Prefix]:
    """The prefixes whose blocks are in the tier and can be read."""
    keys = np.unique(engine.tier.chunks.rows["key"])
    found = set()
    for key in keys[engine.tier.holds(keys)].tolist():
        group = key & ((1 << GROUP_BITS) - 1)
        number = key >> GROUP_BITS & ((1 << NUMBER_BITS) - 1)
        tokens = engine.connector.key_tokens[group]
        found.add((group, key >> (GROUP_BITS + NUMBER_BITS), number * tokens))
    return found


def longest(
    held: set[Prefix],
    groups: tuple[GroupSpec, ...],
    content: Content,
    num_prompt: int,
    num_local: int,
    blocks_per_chunk: int,
    unit: int | None,
) -> int:
    """Tokens that the tier can serve beyond the local hit."""
    chunk = groups[0].block_size * blocks_per_chunk
    first = num_local // chunk

    def there(group: int, end: int) -> bool:
        uid = next(uid for uid, last in zip(content.uids, content.ends, strict=True) if end <= last)
        return (group, int(uid), end) in held

    def serves(end: int) -> bool:
        last = end // chunk
        for number, group in enumerate(groups):
            start = first
            if group.kind == "mamba":
                start = last - 1
            elif group.sliding_window is not None:
                start = max(first, last - -(-group.sliding_window // chunk))
            if not all(there(number, (index + 1) * chunk) for index in range(start, last)):
                return False
        return True

    most = (content.num_tokens - 1) // chunk * chunk
    ends = [end for end in range(num_local + chunk, most + 1) if end % chunk == 0 and serves(end)]
    hit = max(ends, default=num_local)
    step = unit or chunk
    inside = step < chunk and blocks_per_chunk == 1
    if inside and all(group.kind != "sliding_window" for group in groups):
        for end in range(hit + 1, min(hit + chunk, num_prompt)):
            if end % step == 0 and all(there(number, end) for number in range(len(groups))):
                hit = max(hit, end)
    return hit - num_local


def watch_hits(engine: Engine) -> None:
    """Hold every answer of an engine's connector against what was found by trying."""
    match = engine.connector.match

    def checked(sequence: Sequence, num_local: int) -> int | None:
        expected = longest(
            readable(engine),
            engine.groups,
            sequence.content,
            sequence.num_prompt,
            num_local,
            engine.blocks_per_chunk,
            engine.unit,
        )
        got = match(sequence, num_local)
        assert got in (None, expected)
        return got

    engine.connector.match = checked  # type: ignore[method-assign]
