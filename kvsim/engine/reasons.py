"""Why a request could never run, and why a prefix hit ended where it did."""

from __future__ import annotations

from kvsim.cache.manager import Hit, KVCache
from kvsim.cache.spec import CHUNKED_LOCAL, FULL, MAMBA, SLIDING_WINDOW
from kvsim.workload.request import Request

_KINDS = {
    FULL: "full attention",
    SLIDING_WINDOW: "sliding window",
    CHUNKED_LOCAL: "chunked local",
    MAMBA: "states",
}


def why_never(cache: KVCache, request: Request) -> str | None:
    """Why a request could not run even alone, or None."""
    num_tokens = request.num_prompt_tokens + request.num_output_tokens
    config = cache.config
    if num_tokens <= config.max_model_len and cache.holds_longest:
        return None
    if num_tokens > config.max_model_len:
        return (
            f"{request.num_prompt_tokens} prompt and {request.num_output_tokens} output tokens "
            f"are more than max_model_len ({config.max_model_len})"
        )
    needed = cache.num_blocks_to_admit(request.num_prompt_tokens)
    needed = max(needed, cache.num_blocks_to_hold(num_tokens - 1))
    return None if needed < config.num_blocks else too_large(cache, needed)


def too_large(cache: KVCache, needed: int) -> str:
    """That a request needs more blocks than there are."""
    return f"needs {needed} blocks, and the pool has {cache.config.num_blocks - 1}"


def why_no_longer(
    cache: KVCache, prompt_tokens: int, hit: Hit
) -> tuple[str, tuple[int, ...] | None]:
    """Why a hit ended where it did, and the reach of each group where they differ."""
    if not cache.config.enable_caching:
        return "caching is off", None
    most = (prompt_tokens - 1) // cache.alignment_tokens * cache.alignment_tokens
    if hit.tokens >= most:
        return "end of prompt", None
    reach = cache.reach_by_group(hit)
    # The first group that can serve no more than the hit is the one that ended it.
    group = min(range(len(reach)), key=lambda g: (reach[g] > hit.tokens, cache.asked_at[g]))
    kind = cache.config.groups[group].kind
    return f"group {group} ({_KINDS[kind]})", None if len(set(reach)) == 1 else reach
