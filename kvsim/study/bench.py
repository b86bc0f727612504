"""Times the cache core alone, on a trace, so that machines and versions compare."""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from kvsim import catalog
from kvsim.errors import KvsimError

DEFAULT_NUM_BLOCKS = {"dsv4": 103_254, "full": 200_000}
_CHUNK_TOKENS = 8192
_LOOP = "s=0\nfor i in range(10_000_000): s+=i"


@dataclass(frozen=True)
class CoreTiming:
    """What the cache core took for a trace, one request after another.

    Attributes:
        requests: how many.
        seconds: lookups, allocations and frees of all of them; reading the trace left out.
        ms_per_request: milliseconds a request.
        hit_tokens: prompt tokens found cached.
        tokens: prompt tokens in all.
        loop_seconds: what ten million additions in a plain loop took in the same process.
    """

    requests: int
    seconds: float
    ms_per_request: float
    hit_tokens: int
    tokens: int
    loop_seconds: float

    def as_json(self) -> dict[str, float]:
        """The figures by name."""
        return asdict(self)


def time_core(
    trace: Path,
    *,
    groups: str = "dsv4",
    retention_interval: int | None = 0,
    num_blocks: int | None = None,
    limit: int | None = None,
) -> CoreTiming:
    """Time the cache core on the prompts of a Mooncake trace, in chunks of 8,192 tokens.

    Args:
        trace: the file.
        groups: ``dsv4`` (DeepSeek V4's five groups) or ``full`` (one full-attention group of
            16-token blocks).
        retention_interval: tokens, 0, or None for dense.
        num_blocks: blocks of the pool, block 0 included; None is the default for the groups.
        limit: first requests of the trace to take; None is all.

    Raises:
        KvsimError: the trace cannot be read, or the cache cannot be made or is too small.
    """
    from kvsim.cache.config import CacheConfig
    from kvsim.cache.manager import KVCache, Sequence
    from kvsim.cache.spec import FULL, GroupSpec
    from kvsim.capacity.memory import group_spec
    from kvsim.workload.traces import TraceOptions, open_trace_file

    if groups == "full":
        specs: tuple[GroupSpec, ...] = (GroupSpec(FULL, 16),)
    else:
        specs = tuple(group_spec(group) for group in catalog.model("deepseek-v4-pro").groups)
    try:
        config = CacheConfig(
            num_blocks=num_blocks or DEFAULT_NUM_BLOCKS[groups],
            groups=specs,
            max_model_len=1 << 20,
            max_in_flight_tokens=_CHUNK_TOKENS,
            retention_interval=retention_interval,
        )
    except ValueError as error:
        raise KvsimError(f"bench core: {error}") from None
    requests = open_trace_file(trace, TraceOptions(limit=limit)).requests()
    prompts = [(r.content, r.num_prompt_tokens) for r in requests]

    def drive(cache: KVCache, num: int) -> int:
        hit_tokens = 0
        for content, num_tokens in itertools.islice(prompts, num):
            sequence = Sequence(content, num_tokens)
            hit = cache.lookup(sequence)
            hit_tokens += hit.tokens
            done = hit.tokens
            room = cache.allocate(
                sequence, min(num_tokens - done, _CHUNK_TOKENS), hit=hit, full_fit=True
            )
            done += _CHUNK_TOKENS
            while room and done < num_tokens:
                room = cache.allocate(sequence, min(num_tokens - done, _CHUNK_TOKENS))
                done += _CHUNK_TOKENS
            if not room:
                raise KvsimError(
                    f"bench core: a prompt of {num_tokens} tokens does not fit in "
                    f"{config.num_blocks - 1} blocks. Give a larger --num-blocks."
                )
            cache.free(sequence)
        return hit_tokens

    # Loads the compiled code, up to a prompt that takes a second chunk.
    long = next((i for i, (_, tokens) in enumerate(prompts) if tokens > 2 * _CHUNK_TOKENS), 1)
    drive(KVCache(config), long + 1)
    cache = KVCache(config)
    start_s = time.perf_counter()
    hit_tokens = drive(cache, len(prompts))
    seconds = time.perf_counter() - start_s
    start_s = time.perf_counter()
    exec(_LOOP, {})  # the plain loop that others time in the same words
    loop_seconds = time.perf_counter() - start_s
    return CoreTiming(
        requests=len(prompts),
        seconds=seconds,
        ms_per_request=1000 * seconds / len(prompts),
        hit_tokens=hit_tokens,
        tokens=sum(num_tokens for _, num_tokens in prompts),
        loop_seconds=loop_seconds,
    )
