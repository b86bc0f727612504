"""The slow model gives every answer of the recorded transcripts too.

It is what the core is held against in random histories, so it has to be right by itself.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import pytest

from kvsim.cache.spec import GroupSpec
from tests.conformance.transcripts import label, lines, recorded_faults, transcripts, with_states
from tests.slow_model.slow_cache import SlowCache
from tests.slow_model.slow_scheduler import SlowScheduler
from tests.slow_model.slow_states import SlowStates

PROFILES = {
    "vllm 0.22.1": "vllm-0.22",
    "vllm 0.23.0": "vllm-0.23",
    "vllm 0.32.0": "vllm-0.32",
    "vllm 0.33.0": "vllm-0.33",
}
OPERATIONS = [
    path
    for path in transcripts() + with_states() + recorded_faults()
    if lines(path)[0]["format"] == "kvsim-transcript/1"
]
STEPS = [
    path
    for path in transcripts("steps-") + with_states() + recorded_faults()
    if lines(path)[0]["format"] == "kvsim-steps/1"
]


def release(head: dict[str, Any]) -> str:
    """Which release answered, without what it was built for."""
    return str(head["engine"]).partition("+")[0]


def slow_states(config: dict[str, Any], max_in_flight_tokens: int) -> SlowStates:
    caching = config["enable_caching"]
    return SlowStates(
        num_blocks=config["num_blocks"],
        groups=[
            GroupSpec(
                group["kind"],
                group["block_size"],
                group.get("sliding_window"),
                group.get("eagle", False),
                group.get("speculative_blocks", 0),
                group.get("checkpoint_alignment"),
                group.get("mode") == "none",
            )
            for group in config["groups"]
        ],
        max_model_len=config["max_model_len"],
        max_in_flight_tokens=max_in_flight_tokens,
        retention_interval=config["retention_interval"],
        enable_caching=caching,
        use_eagle=config["use_eagle"],
        key_lookahead_tokens=config["hash_lookahead_tokens"],
        prefix_match_unit=config["hash_block_size"] if caching else None,
        shared_prefix_checkpoint=config["shared_prefix_checkpoint"],
    )


def slow_cache(head: dict[str, Any], max_in_flight_tokens: int) -> SlowCache:
    config = head["config"]
    if any(group["kind"] == "mamba" for group in config["groups"]):
        return slow_states(config, max_in_flight_tokens)
    return SlowCache(
        num_blocks=config["num_blocks"],
        groups=[GroupSpec(**group) for group in config["groups"]],
        max_model_len=config["max_model_len"],
        max_in_flight_tokens=max_in_flight_tokens,
        retention_interval=config["retention_interval"],
        enable_caching=config["enable_caching"],
        use_eagle=config.get("use_eagle", False),
        profile=PROFILES[release(head)],
    )


def unfold(runs: list[list[int]]) -> list[int]:
    return [0 if start == 0 else start + i for start, count in runs for i in range(count)]


def digest(ids: list[int]) -> str:
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()


def answer(cache: Any, record: dict[str, Any]) -> dict[str, Any]:
    """Do what a line says. Answers by name, block ids written out."""
    match record["op"]:
        case "lookup":
            hit, junction, blocks = cache.lookup(
                record["req"], record["spans"], record["num_prompt"]
            )
            return {"hit": hit, "shared_prefix_boundary": junction, "hit_blocks": blocks}
        case "allocate":
            taken = cache.allocate(
                record["req"],
                record["new"],
                record.get("lookahead", 0),
                record.get("full_fit", False),
            )
            got = {"ok": taken is not None, "free": cache.num_free}
            if taken is not None and isinstance(cache, SlowStates):
                tables = cache.sequences[record["req"]].tables
                got["taken"] = taken[0]
                got["tables"] = {
                    str(g): [block.number for block in tables[g]]
                    for g, spec in enumerate(cache.groups)
                    if spec.kind == "mamba"
                }
            elif taken is not None:
                got["blocks"] = taken
            elif isinstance(cache, SlowStates) and cache.sequences[record["req"]].hit_blocks:
                cache.forget(record["req"])
            return got
        case "step":
            copies = cache.step()
            return {"copies": copies} if copies else {}
        case "rollback":
            cache.rollback(record["req"], record["tokens"])
        case "forget":
            cache.forget(record["req"])
        case "append":
            cache.append(record["req"], *record["span"])
        case "free":
            cache.free(record["req"])
        case "reset":
            return {"ok": cache.reset()}
        case "state":
            queue, cached = cache.free_queue(), cache.cached_blocks()
            return {
                "free": len(queue),
                "queue_head": queue[:32],
                "queue_sha256": digest(queue),
                "cached": len(cached),
                "cached_sha256": digest(cached),
            }
    return {}


@pytest.mark.parametrize("path", OPERATIONS, ids=label)
def test_the_slow_cache_answers_as_recorded(path: Path) -> None:
    head, *records = lines(path)
    cache = slow_cache(head, head["config"]["max_in_flight_tokens"])
    for number, record in enumerate(records, start=2):
        expected = dict(record)
        for name in ("blocks", "hit_blocks"):
            if name in expected:
                expected[name] = [unfold(runs) for runs in expected[name]]
        if "taken" in expected:
            expected["taken"] = unfold(expected["taken"])
            expected["tables"] = {g: unfold(runs) for g, runs in expected["tables"].items()}
        got = answer(cache, record)
        assert got == {name: expected[name] for name in got}, f"line {number}"


@pytest.mark.parametrize("path", STEPS, ids=label)
def test_the_slow_scheduler_steps_as_recorded(path: Path) -> None:
    head, *records = lines(path)
    config = head["config"]
    cache = slow_cache(head, config["max_num_batched_tokens"])
    scheduler = SlowScheduler(
        cache,
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_num_seqs=config["max_num_seqs"],
        max_model_len=config["max_model_len"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
    )
    coming = sorted(
        (record for record in records if record["op"] == "request"),
        key=lambda record: record["arrives_before_step"],
    )
    recorded = [record for record in records if record["op"] == "step"]
    step = 0
    preempted: set[str] = set()
    while coming or scheduler.busy:
        while coming and coming[0]["arrives_before_step"] <= step:
            new = coming.pop(0)
            scheduler.add(new["req"], new["spans"], new["output"], new["output_uid"])
        done = scheduler.step()
        if done.scheduled or done.preempted or done.finished:
            expected = recorded.pop(0)
            assert step == expected["step"]
            assert list(done.scheduled.items()) == list(expected["scheduled"].items())
            admitted = done.admitted
            if PROFILES[release(head)] != "vllm-0.33":  # it named those that come back apart
                admitted = {name: hit for name, hit in admitted.items() if name not in preempted}
            preempted.update(done.preempted)
            assert list(admitted.items()) == list(expected.get("admitted", {}).items())
            assert sorted(done.preempted) == expected.get("preempted", [])
            assert sorted(done.finished) == expected.get("finished", [])
            assert cache.num_free == expected["free"]
        step += 1
    assert recorded == []
    assert {"op": "totals", "steps": step, **scheduler.counters} == records[-1]
