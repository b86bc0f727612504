"""Why a prefix hit ended where it did."""

from __future__ import annotations

from kvsim.cache.manager import Hit, KVCache
from kvsim.cache.spec import FULL


def why_no_longer(
    cache: KVCache, prompt_tokens: int, hit: Hit
) -> tuple[str, tuple[int, ...] | None]:
    """Why a hit ended where it did, and the reach of each group where they differ."""
    if not cache.config.enable_caching:
        return "caching is off", None
    reach = cache.reach_by_group(hit)
    most = (prompt_tokens - 1) // cache.alignment_tokens * cache.alignment_tokens
    if hit.tokens >= most:
        return "end of prompt", None
    # The first group that can serve no more than the hit is the one that ended it.
    group = min(range(len(reach)), key=lambda g: (reach[g] > hit.tokens, cache.asked_at[g]))
    kind = "full attention" if cache.config.groups[group].kind == FULL else "sliding window"
    return f"group {group} ({kind})", None if len(set(reach)) == 1 else reach
