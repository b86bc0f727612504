"""The fields of `kvsim-routing/1`, which depend on the router that answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvsim.verify.fields import (
    COUNT,
    FLAG,
    NAME,
    NUMBER,
    POSITIVE,
    SHARE,
    SPANS,
    Field,
    Fields,
    Kind,
    answered,
    asked,
    list_of,
    mapping_to,
    one_of,
    whole_number,
)

ROUTING = "kvsim-routing/1"

MAX_REPLICAS = 4096
"""Most replicas that are followed."""
REPLICAS = whole_number(1, MAX_REPLICAS)
REPLICA = whole_number(0, MAX_REPLICAS - 1)
_TIME = whole_number(0, 2**40)
_COUNTS = Kind(
    lambda value: (
        isinstance(value, list)
        and len(value) == 3
        and all(COUNT.fits(number) and number < 2**31 for number in value[:2])
        and SHARE.fits(value[2])
    ),
    "[waiting, running, KV usage]",
)
_KEYS = list_of(
    Kind(
        lambda value: list_of(COUNT, 2).fits(value) and value[0] < 2**35 and 1 <= value[1] < 2**24,
        "[uid below 2**35, tokens from 1]",
    )
)
_ANSWER = list_of(NUMBER)


@dataclass(frozen=True, slots=True)
class RouterFormat:
    """What a router's recordings look like.

    Attributes:
        engine: name of the package that answered.
        header: fields of the first line besides format, policy, engine and config.
        config: fields of its `config`.
        ops: by op, the fields of a line.
    """

    engine: str
    header: Fields
    config: Fields
    ops: Mapping[str, Fields]


_NUMBERS = list_of(list_of(Kind(lambda value: type(value) in (int, float), "a number")))


def _timed(fields: dict[str, Field]) -> dict[str, Field]:
    return {"t": asked(_TIME, required=False), **fields}


_VLLM_DP = RouterFormat(
    "vllm",
    {"publications": asked(one_of(("given", "answered")))},
    {
        "ranks": asked(REPLICAS),
        "clients": asked(REPLICAS),
        "lockstep": asked(FLAG, required=False),
        "min_interval_ms": asked(POSITIVE, required=False),
        "snapshot_delay_ms": asked(COUNT, required=False),
    },
    {
        "arrive": _timed(
            {
                "client": asked(REPLICA),
                "request": asked(NAME),
                "pinned": asked(REPLICA, required=False),
                "rank": answered(NUMBER),
            }
        ),
        "finish": _timed({"client": asked(REPLICA), "requests": asked(list_of(NAME))}),
        "snapshot": _timed(
            {"clients": asked(list_of(REPLICA)), "counts": asked(list_of(_COUNTS), required=False)}
        ),
        "state": _timed(
            {
                "client": asked(REPLICA),
                "counts": answered(_NUMBERS),
                "in_flight": answered(_ANSWER),
                "scan_start": answered(NUMBER),
            }
        ),
        "report": {
            "t": asked(_TIME),
            "rank": asked(REPLICA),
            "counts": asked(_COUNTS),
            "wave": asked(COUNT, required=False),
            "step": asked(COUNT, required=False),
        },
        "wave_start": {"t": asked(_TIME), "rank": asked(REPLICA), "wave": asked(COUNT)},
        "wave_complete": {"t": asked(_TIME), "rank": asked(REPLICA), "wave": asked(COUNT)},
        "publish": {
            "t": answered(NUMBER),
            "counts": answered(_NUMBERS),
            "wave": answered(NUMBER, required=False),
            "running": answered(FLAG, required=False),
        },
        "wave": {"t": answered(NUMBER), "wave": answered(NUMBER), "running": answered(FLAG)},
    },
)

_DYNAMO = RouterFormat(
    "ai-dynamo-runtime",
    {},
    {
        "workers": asked(REPLICAS),
        "block_size": asked(POSITIVE),
        "settings": asked(mapping_to(Kind(lambda value: isinstance(value, str), "text"))),
    },
    {
        "arrive": {
            "request": asked(NAME),
            "spans": asked(SPANS),
            "overlap": answered(_ANSWER),
            "prefill_tokens": answered(_ANSWER),
            "decode_blocks": answered(_ANSWER),
            "active": answered(_ANSWER),
            "worker": answered(REPLICA),
        },
        "events": {
            "worker": asked(REPLICA),
            "stored": asked(_KEYS),
            "removed": asked(_KEYS),
        },
        "prefill_complete": {"request": asked(NAME)},
        "finish": {"request": asked(NAME)},
    },
)

_SGLANG = RouterFormat(
    "sglang-router",
    {},
    {
        "workers": asked(REPLICAS),
        "cache_threshold": asked(SHARE),
        "balance_abs_threshold": asked(COUNT),
        "balance_rel_threshold": asked(
            Kind(lambda value: type(value) in (int, float) and value >= 0, "a number, at least 0")
        ),
        "eviction": asked(one_of(("never",))),
    },
    {
        "arrive": {
            "request": asked(NAME),
            "spans": asked(SPANS),
            "worker": answered(NUMBER),
        },
        "finish": {"request": asked(NAME)},
    },
)

ROUTER_FORMATS: dict[str, RouterFormat] = {
    "vllm-dp": _VLLM_DP,
    "dynamo-kv": _DYNAMO,
    "sglang-cache_aware": _SGLANG,
}
"""By the `policy` of the first line."""
