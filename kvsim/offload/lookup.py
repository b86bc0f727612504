"""The hit a tier can serve beyond the local one: up to where all groups have what they need."""

from __future__ import annotations

from kvsim.cache.content import Ints
from kvsim.offload.cpu_tier import ASK_AGAIN, any_being_read, prefix_hit, window_hit
from kvsim.offload.geometry import GroupChunks
from kvsim.policies.host_chunks import Chunks


def lookup_order(groups: tuple[GroupChunks, ...]) -> tuple[int, ...]:
    """Full attention first, then the others, larger windows first; each in the model's order."""
    return tuple(
        sorted(
            range(len(groups)),
            key=lambda g: (groups[g].window is not None, -(groups[g].window or 0)),
        )
    )


def external_hit(
    chunks: Chunks,
    groups: tuple[GroupChunks, ...],
    order: tuple[int, ...],
    keys: Ints,
    starts: list[int],
    num_tokens: int,
    num_local: int,
    *,
    load_once: bool = True,
    state_tokens: int = 0,
) -> int | None:
    """Tokens that can be loaded beyond the local hit.

    Groups are asked in turn, each bounded by those before it; where a window shortens a bound that
    another window was asked with, the windows are asked again. A hit may end inside a chunk.

    Args:
        chunks: what the tier holds.
        groups: the model's.
        order: in which they are asked.
        keys: int64, the request's chunks, group after group.
        starts: where each group's begin.
        num_tokens: the request's length.
        num_local: the local hit in tokens.
        load_once: a request waits for what another one is loading. The engine has that with prefix
            caching only, as the other's blocks are no local hit without.
        state_tokens: a chunk of states, at whose end a hit has to end; 0 without.

    Returns:
        The tokens; 0 for less than a chunk; None where a chunk of the hit is being written, or is
        being loaded for somebody else: to be asked again.
    """
    windows = tuple(g for g in order if groups[g].window is not None)
    # A window model recomputes the last token; the others load it and recompute it all the same.
    bound = num_tokens - 1 if windows else num_tokens
    if state_tokens:
        bound -= bound % state_tokens
    hit = 0
    pending = False
    dropped: set[int] = set()
    to_ask = order
    while to_ask:
        now, to_ask = to_ask, ()
        window_asked = False
        for g in now:
            group = groups[g]
            num_keys = num_tokens // group.tokens
            bound = min(bound, num_keys * group.tokens)
            if bound - num_local < group.tokens:
                return 0
            drop = group.eagle and g not in dropped
            ahead = min(bound + group.tokens, num_keys * group.tokens) if drop else bound
            num_asked = min(-(-ahead // group.tokens), num_keys)
            first = num_local // group.tokens
            start, end = starts[g] + first, starts[g] + num_asked
            if group.window is None:
                found = prefix_hit(chunks, keys, start, end)
            else:
                candidate = min(bound, (num_asked - drop) * group.tokens)
                last = group.window_at(candidate) or 0
                found = window_hit(chunks, keys, start, end, group.window + drop, last + drop)
            if found == 0:
                return 0
            if found == ASK_AGAIN:
                pending = True
            else:
                if drop:
                    found -= 1
                    dropped.add(g)
                bound = min(bound, group.tokens * (first + found))
            if bound - num_local < group.tokens:
                return 0
            if bound - num_local < hit:
                if not group.eagle:
                    dropped.clear()
                if pending:
                    pending = False
                    to_ask = order
                elif window_asked and not to_ask:
                    to_ask = windows
            window_asked = window_asked or group.window is not None
            hit = bound - num_local
    if pending:
        return None
    if load_once and _loading(chunks, groups, keys, starts, num_local, num_local + hit):
        return None
    return hit


def _loading(
    chunks: Chunks,
    groups: tuple[GroupChunks, ...],
    keys: Ints,
    starts: list[int],
    num_local: int,
    num_total: int,
) -> bool:
    """Whether a chunk of the hit is on its way to the device for another request."""
    for group, offset in zip(groups, starts, strict=True):
        start, end = num_local // group.tokens, -(-num_total // group.tokens)
        window = group.window_at(num_total)
        if window is not None:
            start = max(start, end - window)
        if any_being_read(chunks, keys, offset + start, offset + end):
            return True
    return False
