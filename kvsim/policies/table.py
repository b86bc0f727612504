"""The policies that come with kvsim: a line each, by the name used in scenarios."""

from __future__ import annotations

from kvsim.policies.contract import FREE_QUEUE, HOST_EVICTION, RETENTION

_ORDERS = "kvsim.policies.orders"
_RETENTIONS = "kvsim.policies.retentions"

TABLE: dict[str, dict[str, str]] = {
    FREE_QUEUE: {
        "lru": f"{_ORDERS}.lru:lru",
        "lfu": f"{_ORDERS}.lfu:lfu",
        "hit-first": f"{_ORDERS}.hit_first:hit_first",
        "earned": f"{_ORDERS}.earned:earned",
        "tail-first": f"{_ORDERS}.tail_first:tail_first",
        "gdsf": f"{_ORDERS}.gdsf:gdsf",
        "priority": f"{_ORDERS}.priority:priority",
        "ttl": f"{_ORDERS}.ttl:ttl",
        "pinned": f"{_ORDERS}.pinned:pinned",
        "2q": f"{_ORDERS}.two_queues:two_queues",
        "sieve": f"{_ORDERS}.sieve:sieve",
        "s3-fifo": f"{_ORDERS}.s3_fifo:s3_fifo",
        "arc": f"{_ORDERS}.arc:arc",
    },
    RETENTION: {
        "dense": f"{_RETENTIONS}.spaced:dense",
        "interval": f"{_RETENTIONS}.spaced:interval",
        "boundary": f"{_RETENTIONS}.boundaries:boundary",
        "junction": f"{_RETENTIONS}.boundaries:junction",
        "next-turn": f"{_RETENTIONS}.boundaries:next_turn",
        "exponential": f"{_RETENTIONS}.spaced:exponential",
        "hit-driven": f"{_RETENTIONS}.learning:hit_driven",
        "budget": f"{_RETENTIONS}.learning:budget",
    },
    HOST_EVICTION: {
        "lru": "kvsim.policies.host_lru:LRU",
        "arc": "kvsim.policies.host_arc:ARC",
    },
}
"""By kind and name: the module, and the policy's name in it."""
