"""Transcripts written for the tests."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]

CACHE_CONFIG: Record = {
    "num_blocks": 10,
    "groups": [{"kind": "full", "block_size": 4}],
    "hash_block_size": 4,
    "scheduler_block_size": 4,
    "max_model_len": 64,
    "max_in_flight_tokens": 16,
    "retention_interval": None,
    "enable_caching": True,
    "use_eagle": False,
}
HISTORY: list[Record] = [
    {"format": "kvsim-transcript/1", "engine": "vllm 0.33.0", "config": CACHE_CONFIG},
    {
        "op": "lookup",
        "req": "a",
        "spans": [[1, 9]],
        "num_prompt": 9,
        "hit": 0,
        "shared_prefix_boundary": 0,
        "hit_blocks": [[]],
    },
    {"op": "allocate", "req": "a", "new": 9, "ok": True, "blocks": [[[1, 3]]], "free": 6},
    {"op": "append", "req": "a", "span": [2, 1]},
    {"op": "allocate", "req": "a", "new": 1, "ok": True, "blocks": [[]], "free": 6},
    {"op": "free", "req": "a"},
    {"op": "reset", "ok": True},
]
"""One request on a cache of nine blocks; nine answers."""

_STEPS_CONFIG: Record = {
    **{
        name: value
        for name, value in CACHE_CONFIG.items()
        if name not in ("max_in_flight_tokens", "use_eagle")
    },
    "max_num_batched_tokens": 16,
    "max_num_seqs": 2,
    "long_prefill_token_threshold": 0,
}
_NO_PREEMPTIONS = {"preempted_requests": 0, "preempted_queries": 0, "preempted_hits": 0}
STEPS: list[Record] = [
    {"format": "kvsim-steps/1", "engine": "vllm 0.33.0", "config": _STEPS_CONFIG},
    {
        "op": "request",
        "req": "a",
        "arrives_before_step": 1,
        "spans": [[1, 9]],
        "output_uid": 2,
        "output": 2,
    },
    {
        "op": "request",
        "req": "b",
        "arrives_before_step": 2,
        "spans": [[1, 9]],
        "output_uid": 3,
        "output": 1,
    },
    {"op": "step", "step": 1, "scheduled": {"a": 9}, "admitted": {"a": 0}, "free": 6},
    {
        "op": "step",
        "step": 2,
        "scheduled": {"a": 1, "b": 1},
        "admitted": {"b": 8},
        "finished": ["a", "b"],
        "free": 9,
    },
    {"op": "totals", "steps": 3, "queries": 18, "hits": 8, **_NO_PREEMPTIONS},
]
"""Two requests of which the second hits the first's blocks; 18 answers."""

MASKS: list[Record] = [
    {"format": "kvsim-masks/1", "engine": "vllm 0.33.0"},
    {
        "op": "mask",
        "kind": "sliding_window",
        "block_size": 8,
        "start_block": 0,
        "end_block": 16,
        "alignment_tokens": 32,
        "retention_interval": 64,
        "reachable_boundaries": [99],
        "sliding_window": 8,
        "use_eagle": False,
        "dcp_world_size": 1,
        "kept": [7, 11, 15],
    },
    {
        "op": "store_mask",
        "groups": [{"kind": "full", "block_size": 16}],
        "scheduler_block_size": 16,
        "use_eagle": False,
        "eagle_group": None,
        "retention_interval": None,
        "aligned_token_len": 32,
        "start_token": 0,
        "num_prompt_tokens": None,
        "kept": [None],
    },
    {
        "op": "replay_boundaries",
        "num_prompt_tokens": 64,
        "scheduler_block_size": 16,
        "use_eagle": True,
        "boundaries": [32, 48],
    },
]
"""A mask, a store mask and replay boundaries; three answers."""


def write(path: Path, records: list[Record]) -> Path:
    """Write a transcript."""
    with gzip.open(path, "wt") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in records)
    return path


def changed(records: list[Record], line: int, **fields: Any) -> list[Record]:
    """A copy in which one line, counted from 1, has other values; None takes a field away."""
    copied = copy.deepcopy(records)
    for name, value in fields.items():
        if value is None:
            del copied[line - 1][name]
        else:
            copied[line - 1][name] = value
    return copied
