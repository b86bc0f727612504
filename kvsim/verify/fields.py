"""The fields of each transcript format: what a line must hold, and which of it is an answer.

One file because the formats share most of their fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.cache.spec import MAX_BLOCKS
from kvsim.errors import show

MAX_COUNT = 2**53
"""Whole numbers above this are not exact in every JSON reader, and stand for nothing here."""
MAX_SEQUENCES = 2**16
"""Most requests that are followed at once."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    Attributes:
        fits: whether a value is of this kind.
        words: the kind in words, as in "... is not <words>".
    """

    fits: Callable[[Any], bool]
    words: str


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a line.

    Attributes:
        kind: what its value must be.
        required: False where the field may be absent.
        answers: True where the engine said it, False where it was asked.
    """

    kind: Kind
    required: bool = True
    answers: bool = False


Fields = Mapping[str, Field]


def whole_number(at_least: int, at_most: int = MAX_COUNT) -> Kind:
    """A whole number between bounds, both included."""
    bound = f"at least {at_least}" if at_most == MAX_COUNT else f"from {at_least} to {at_most}"
    return Kind(
        lambda value: type(value) is int and at_least <= value <= at_most,
        f"a whole number, {bound}",
    )


def list_of(kind: Kind, length: int | None = None) -> Kind:
    """A list with entries of one kind."""
    entries = "any number of entries" if length is None else f"{length} entries"
    return Kind(
        lambda value: (
            isinstance(value, list)
            and (length is None or len(value) == length)
            and all(kind.fits(entry) for entry in value)
        ),
        f"a list of {entries}, each {kind.words}",
    )


def mapping_to(kind: Kind) -> Kind:
    """A mapping from names to values of one kind."""
    return Kind(
        lambda value: isinstance(value, dict) and all(kind.fits(v) for v in value.values()),
        f"a mapping from names to {kind.words}",
    )


def or_null(kind: Kind) -> Kind:
    """The kind, or null."""
    return Kind(lambda value: value is None or kind.fits(value), f"{kind.words}, or null")


def one_of(names: Iterable[str]) -> Kind:
    """One of a few words."""
    names = tuple(names)
    return Kind(
        lambda value: isinstance(value, str) and value in names, f"one of {', '.join(names)}"
    )


ANY = Kind(lambda _: True, "anything")
COUNT = whole_number(0)
POSITIVE = whole_number(1)
FLAG = Kind(lambda value: isinstance(value, bool), "true or false")
NAME = Kind(lambda value: isinstance(value, str) and value != "", "a name")
SPAN = Kind(
    lambda value: list_of(COUNT, 2).fits(value) and value[0] < 2**35 and value[1] >= 1,
    "[uid below 2**35, tokens from 1]",
)
SPANS = Kind(lambda value: list_of(SPAN).fits(value) and value != [], f"a list of {SPAN.words}")
NUMBER = Kind(lambda value: type(value) is int, "a whole number")
INTERVAL = or_null(NUMBER)
SHARE = Kind(lambda value: type(value) in (int, float) and 0 <= value <= 1, "a number from 0 to 1")
TEXT = Kind(lambda value: isinstance(value, str), "text")
RUNS = list_of(list_of(NUMBER, 2))
"""Of answers only the shape is asked for: a wrong value is a difference, not a broken file."""


def asked(kind: Kind, required: bool = True) -> Field:
    """A field that says what was asked."""
    return Field(kind, required)


def answered(kind: Kind, required: bool = True) -> Field:
    """A field that says what the engine answered."""
    return Field(kind, required, answers=True)


_TRANSCRIPT: dict[str, Fields] = {
    "lookup": {
        "req": asked(NAME),
        "spans": asked(SPANS),
        "num_prompt": asked(POSITIVE),
        "hit": answered(NUMBER),
        "shared_prefix_boundary": answered(NUMBER),
        "hit_blocks": answered(list_of(RUNS)),
    },
    "allocate": {
        "req": asked(NAME),
        "new": asked(POSITIVE),
        "lookahead": asked(COUNT, required=False),
        "full_fit": asked(FLAG, required=False),
        "ok": answered(FLAG),
        "blocks": answered(list_of(RUNS), required=False),
        "taken": answered(RUNS, required=False),
        "tables": answered(mapping_to(RUNS), required=False),
        "free": answered(NUMBER),
    },
    "append": {"req": asked(NAME), "span": asked(SPAN)},
    "free": {"req": asked(NAME)},
    "step": {"copies": answered(RUNS, required=False)},
    "rollback": {"req": asked(NAME), "tokens": asked(POSITIVE)},
    "forget": {"req": asked(NAME)},
    "reset": {"ok": answered(FLAG)},
    "state": {
        "free": answered(NUMBER),
        "queue_head": answered(list_of(NUMBER)),
        "queue_sha256": answered(TEXT),
        "cached": answered(NUMBER),
        "cached_sha256": answered(TEXT),
    },
}

_COUNTERS = ["queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits"]

_STEPS: dict[str, Fields] = {
    "request": {
        "req": asked(NAME),
        "arrives_before_step": asked(COUNT),
        "spans": asked(SPANS),
        "output_uid": asked(whole_number(0, 2**35 - 1)),
        "output": asked(POSITIVE),
    },
    "step": {
        "step": answered(NUMBER),
        "scheduled": answered(mapping_to(NUMBER)),
        "admitted": answered(mapping_to(NUMBER), required=False),
        "preempted": answered(list_of(TEXT), required=False),
        "finished": answered(list_of(TEXT), required=False),
        "free": answered(NUMBER),
    },
    "totals": {name: answered(NUMBER) for name in ("steps", *_COUNTERS)},
}

_OFFLOAD: dict[str, Fields] = {
    "request": _STEPS["request"],
    "step": {
        **_STEPS["step"],
        **{
            name: answered(ANY, required=False)
            for name in ("external", "waiting", "loads", "stores", "refused", "flushed")
        },
    },
    "totals": {
        name: answered(NUMBER)
        for name in (
            "steps",
            "stored",
            "loaded",
            "evicted",
            "refused",
            "external_queries",
            "external_hits",
            "queries",
            "hits",
        )
    },
}

_MOONCAKE: dict[str, Fields] = {
    "request": _STEPS["request"],
    "step": {
        **_STEPS["step"],
        **{name: answered(ANY, required=False) for name in ("external", "saves", "loads")},
        "queue": answered(list_of(NUMBER)),
    },
    "totals": {
        name: answered(NUMBER)
        for name in (
            "steps",
            "external_queries",
            "external_hits",
            "queries",
            "hits",
            "saved",
            "loaded",
        )
    },
}

_MASK_KINDS = one_of(("full", "sliding_window", "mamba"))
_GROUP_KINDS = one_of(("full", "sliding_window", "chunked_local", "mamba"))

_MASKS: dict[str, Fields] = {
    "mask": {
        "kind": asked(_MASK_KINDS),
        "block_size": asked(POSITIVE),
        "start_block": asked(COUNT),
        "end_block": asked(whole_number(0, MAX_BLOCKS)),
        "alignment_tokens": asked(or_null(POSITIVE)),
        "retention_interval": asked(INTERVAL),
        "reachable_boundaries": asked(list_of(COUNT)),
        "sliding_window": asked(POSITIVE, required=False),
        "use_eagle": asked(FLAG, required=False),
        "dcp_world_size": asked(POSITIVE, required=False),
        "final_segment_end_block": asked(COUNT, required=False),
        "kept": answered(or_null(list_of(NUMBER))),
    },
    "store_mask": {
        "groups": asked(list_of(Kind(lambda value: isinstance(value, dict), "a mapping"))),
        "scheduler_block_size": asked(POSITIVE),
        "use_eagle": asked(FLAG),
        "eagle_group": asked(or_null(COUNT)),
        "retention_interval": asked(INTERVAL),
        "aligned_token_len": asked(COUNT),
        "start_token": asked(COUNT),
        "num_prompt_tokens": asked(or_null(POSITIVE)),
        "kept": answered(list_of(or_null(list_of(NUMBER)))),
    },
    "replay_boundaries": {
        "num_prompt_tokens": asked(POSITIVE),
        "scheduler_block_size": asked(POSITIVE),
        "use_eagle": asked(FLAG),
        "boundaries": answered(list_of(NUMBER)),
    },
}

_MAPPING = Kind(lambda value: isinstance(value, dict), "a mapping")
_GROUPS: dict[str, Fields] = {
    "model": {
        "model": asked(NAME),
        "source": asked(TEXT),
        "config": asked(_MAPPING),
        "note": asked(TEXT, required=False),
    },
    "case": {
        "model": asked(NAME),
        "settings": asked(_MAPPING),
        "available_bytes": asked(list_of(COUNT)),
        "answer": answered(_MAPPING),
    },
    "layers": {
        "layers": asked(list_of(_MAPPING)),
        "settings": asked(_MAPPING),
        "available_bytes": asked(list_of(COUNT)),
        "answer": answered(_MAPPING),
    },
}

_ASYNC: dict[str, Fields] = {
    "request": {**_STEPS["request"], "priority": asked(NUMBER, required=False)},
    "step": {
        "step": answered(NUMBER),
        "scheduled": answered(mapping_to(NUMBER)),
        "admitted": answered(mapping_to(NUMBER), required=False),
        "drafts": answered(mapping_to(NUMBER), required=False),
        "preempted": answered(list_of(TEXT), required=False),
        "free": answered(NUMBER),
    },
    "output": {
        "step": answered(NUMBER),
        "made": answered(mapping_to(NUMBER)),
        "finished": answered(list_of(TEXT), required=False),
        "free": answered(NUMBER),
    },
    "totals": {
        **{
            name: answered(NUMBER)
            for name in (
                *_COUNTERS,
                "steps",
                "last_step",
                "evicted",
                "preemptions",
                "scheduled_tokens",
            )
        },
        **{
            name: answered(NUMBER, required=False)
            for name in ("external_hits", "external_queries", "loads", "stores")
        },
    },
}

OPS: dict[str, dict[str, Fields]] = {
    "kvsim-transcript/1": _TRANSCRIPT,
    "kvsim-steps/1": _STEPS,
    "kvsim-masks/1": _MASKS,
    "kvsim-offload/1": _OFFLOAD,
    "kvsim-groups/1": _GROUPS,
    "kvsim-async/1": _ASYNC,
    "kvsim-mooncake/1": _MOONCAKE,
}
"""By format and op, the fields of a line besides `op`."""

HEADERS = {"kvsim-groups/1": ("device", "layers")}
"""By format, fields of the first line besides ``format``, ``engine`` and ``config``."""

GROUP: Fields = {
    "kind": asked(_GROUP_KINDS),
    "block_size": asked(POSITIVE),
    "sliding_window": asked(POSITIVE, required=False),
    "eagle": asked(FLAG, required=False),
    "attention_chunk_size": asked(POSITIVE, required=False),
    "checkpoint_alignment": asked(or_null(POSITIVE), required=False),
    "speculative_blocks": asked(whole_number(0, 64), required=False),
    "mode": asked(one_of(("align", "none")), required=False),
}

_CACHE: dict[str, Field] = {
    "num_blocks": asked(whole_number(2, MAX_BLOCKS)),
    "groups": asked(list_of(Kind(lambda value: isinstance(value, dict), "a mapping"))),
    "hash_block_size": asked(POSITIVE),
    "scheduler_block_size": asked(POSITIVE),
    "max_model_len": asked(POSITIVE),
    "retention_interval": asked(INTERVAL),
    "enable_caching": asked(FLAG),
}
_STATES: dict[str, Field] = {
    "mamba_cache_mode": asked(one_of(("align", "none")), required=False),
    "hash_lookahead_tokens": asked(whole_number(0, 64), required=False),
    "shared_prefix_checkpoint": asked(FLAG, required=False),
    "use_eagle": asked(FLAG, required=False),
}
_SCHEDULER: dict[str, Field] = {
    "max_num_batched_tokens": asked(POSITIVE),
    "max_num_seqs": asked(whole_number(1, MAX_SEQUENCES)),
    "long_prefill_token_threshold": asked(COUNT),
}

_TRANSFER_TIMES: dict[str, Field] = {
    "load_steps": asked(POSITIVE),
    "store_steps": asked(POSITIVE),
}

DRAFTER: Fields = {
    "k": asked(whole_number(1, 64)),
    "accept": asked(SHARE),
    "lookahead_hashes": asked(FLAG, required=False),
    "modules": asked(whole_number(1, 64), required=False),
}
STEPPED_TIER: Fields = {
    "chunks": asked(POSITIVE),
    "blocks_per_chunk": asked(POSITIVE),
    "eviction": asked(one_of(("lru", "arc"))),
    "prompt_only": asked(FLAG),
    **_TRANSFER_TIMES,
}


def mapping_of(fields: Fields) -> Kind:
    """A mapping with these fields."""
    return Kind(
        lambda value: isinstance(value, dict) and field_problem(value, fields) is None,
        f"a mapping with {', '.join(fields)}",
    )


CONFIGS: dict[str, Fields] = {
    "kvsim-transcript/1": {
        **_CACHE,
        **_STATES,
        "max_in_flight_tokens": asked(POSITIVE),
        "use_eagle": asked(FLAG),
    },
    "kvsim-steps/1": {
        **_CACHE,
        **_STATES,
        **_SCHEDULER,
        "max_in_flight_tokens": asked(POSITIVE, required=False),
    },
    "kvsim-offload/1": {
        **_CACHE,
        **_STATES,
        **_SCHEDULER,
        "chunks": asked(POSITIVE),
        "blocks_per_chunk": asked(POSITIVE),
        "eviction": asked(one_of(("lru", "arc"))),
        "prompt_only": asked(FLAG),
        **_TRANSFER_TIMES,
    },
    "kvsim-async/1": {
        **_CACHE,
        **_STATES,
        **_SCHEDULER,
        "mode": asked(one_of(("sync", "async"))),
        "pipeline_parallel": asked(whole_number(1, 64), required=False),
        "policy": asked(one_of(("fcfs", "priority"))),
        "seed": asked(NUMBER),
        "spec": asked(or_null(mapping_of(DRAFTER))),
        "tier": asked(mapping_of(STEPPED_TIER), required=False),
        "watermark": asked(SHARE, required=False),
        "reserve_full_isl": asked(FLAG, required=False),
        "prefill_schedule_interval": asked(POSITIVE, required=False),
    },
    "kvsim-mooncake/1": {**_CACHE, **_STATES, **_SCHEDULER, **_TRANSFER_TIMES},
}
"""By format, the fields of the first line's `config`; `kvsim-masks/1` has none."""


def field_problem(record: Mapping[str, Any], fields: Fields) -> str | None:
    """What is wrong with the fields of a record, or None; the first that is found."""
    for name, field in fields.items():
        if name not in record:
            if field.required:
                return f"{name} is missing"
        elif not field.kind.fits(record[name]):
            return f"{name}: {show(record[name])} is not {field.kind.words}"
    for name in record:
        if name not in fields:
            return f"unknown field {show(name)}. Known: {', '.join(fields)}"
    return None


def num_answers(fields: Fields) -> int:
    """How many answers a line with these fields gives; an absent one says that there is none."""
    return sum(field.answers for field in fields.values())
