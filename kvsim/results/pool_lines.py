"""Two pools in words for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvsim.metrics.handoff import PARTS
from kvsim.results.tables import percent, seconds, short

_WORDS = dict(
    zip(
        PARTS,
        ("queue", "prefill", "decode queue", "transfer", "first decode step"),
        strict=True,
    )
)


def pool_lines(pools: Mapping[str, Any]) -> Iterator[str]:
    """What there is to say of prefill and decode apart, a sentence a line.

    Args:
        pools: the keys of `kvsim.metrics.handoff.POOLS_KEYS`.
    """
    whole = pools["num_split"] + pools["num_unsplit"]
    num_failed = pools.get("loads_failed", 0)  # runs of before have none
    failed = f"; loads failed: {num_failed:,}" if num_failed else ""
    yield (
        f"prompts computed apart ({pools['connector']}): {pools['num_split']:,} of {whole:,}; "
        f"leases lost: {pools['leases_lost']:,}{failed}"
    )
    for side in ("prefill", "decode"):
        pool = pools[side]
        yield (
            f"{side}: {pool['nodes']} node{'s' * (pool['nodes'] != 1)}, router {pool['router']}, "
            f"token hits {percent(pool['token_hit_rate'])}, load {percent(pool['load'])}, "
            f"{short(pool['scheduled_tokens'])} tokens computed"
        )
    if pools["num_split"]:
        told = (f"{word} {seconds(pools[part]['p50'])}" for part, word in _WORDS.items())
        yield f"parts of TTFT, p50: {', '.join(told)}"
        yield (
            f"moved: {pools['moved_bytes'] / 1e9:,.4g} GB, {short(pools['moved_tokens'])} tokens, "
            f"{short(pools['descriptors'])} descriptors"
        )
