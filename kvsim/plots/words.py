"""Columns of frames in the words of axes, how their values are written, and which way is good."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.plots.scales import bytes_tick, percent_tick, tick
from kvsim.results.tables import percent, seconds, short

_WORDS = {
    "num_blocks": "Blocks in the pool",
    "node.num_blocks": "Blocks in the pool",
    "node.memory_utilization": "Share of GPU memory used",
    "offload.capacity": "Capacity of the tier",
    "offload.num_chunks": "Chunks in the tier",
    "offload.link": "Link to the tier",
    "offload.link_efficiency": "Share of the link's bandwidth reached",
    "cache.retention_interval": "Retention interval (tokens)",
    "cache.free_queue": "Free queue",
    "cache.enable_prefix_caching": "Prefix caching",
    "engine.max_num_batched_tokens": "Most tokens of a step",
    "engine.max_num_seqs": "Most requests at once",
    "workload.time_scale": "Factor on the workload's times (2 halves its rate)",
    "workload.limit": "First requests of the workload",
    "seed": "Seed",
    "variant": "Variant",
    "policy": "Policy",
    "label": "Run",
    "token_hit_rate": "Token hit rate",
    "found_rate": "Token hit rate, device and tier",
    "request_hit_rate": "Request hit rate",
    "goodput": "Goodput",
    "arrivals_per_s": "Requests arriving (1/s)",
    "requests_per_s": "Requests served (1/s)",
    "output_tokens_per_s": "Output tokens (1/s)",
    "evicted_blocks": "Cached blocks evicted",
    "preemptions": "Preemptions",
    "num_refused": "Requests refused",
    "bytes_stored": "Bytes stored",
    "bytes_loaded": "Bytes loaded",
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "queue_s": "Time in the queue",
}
_MORE_IS_BETTER = {
    "token_hit_rate",
    "found_rate",
    "request_hit_rate",
    "goodput",
    "requests_per_s",
    "output_tokens_per_s",
    "hit_tokens",
}
_LESS_IS_BETTER = {
    "ttft_s",
    "tpot_s",
    "queue_s",
    "evicted_blocks",
    "preemptions",
    "num_refused",
    "bytes_stored",
}


def words(column: str) -> str:
    """What a column is called on an axis, with its unit where it has one that is not in its ticks.

    A column that nobody gave words to goes by its own, without dots and underscores.
    """
    if column in _WORDS:
        return _WORDS[column]
    begin, _, end = column.rpartition(".")
    if begin in _WORDS:
        return f"{_WORDS[begin]} {end}"
    plain = column.replace(".", ", ").replace("_per_s", " per second")
    for ending, unit in (("_bytes", " (bytes)"), ("_tokens", " (tokens)"), ("_s", " (s)")):
        if plain.endswith(ending):
            plain = plain.removesuffix(ending) + unit
    plain = plain.replace("_s,", ",").replace("_", " ")
    return plain[0].upper() + plain[1:]


def is_share(column: str) -> bool:
    """Whether a column holds fractions of 1, shown in percent."""
    return column.endswith(
        ("_rate", "_share", "goodput", "utilization", "efficiency")
    ) or column.startswith("hit_split.")


def is_seconds(column: str) -> bool:
    """Whether a column holds times in seconds."""
    last = column.split(".")[0] if column.split(".")[0].endswith("_s") else column
    return last.endswith("_s") and not last.endswith("per_s")


def is_bytes(column: str) -> bool:
    """Whether a column holds sizes in bytes."""
    return column == "offload.capacity" or "bytes" in column.split(".")[-1]


def value_words(column: str) -> Callable[[float], str]:
    """How a figure of a column is written in a cell, rounded."""
    if is_share(column):
        return percent
    if is_seconds(column):
        return seconds
    return bytes_tick if column == "offload.capacity" else short


def tick_words(column: str) -> Callable[[float], str]:
    """How a value of a column is written at a tick, exactly."""
    if is_share(column):
        return percent_tick
    return bytes_tick if is_bytes(column) else tick


def more_is_better(column: str) -> bool | None:
    """Whether more of a figure is better; None where it is neither."""
    name = column.split(".")[0]
    if name in _MORE_IS_BETTER:
        return True
    return False if name in _LESS_IS_BETTER else None
