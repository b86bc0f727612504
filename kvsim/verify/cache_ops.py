"""`kvsim-transcript/1`: the KV cache manager, operation by operation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.cache.content import POSITION_BITS, Content
from kvsim.cache.manager import MAX_LOOKAHEAD_TOKENS, CacheConfig, Hit, KVCache, Sequence
from kvsim.cache.spec import GroupSpec
from kvsim.verify.fields import OPS
from kvsim.verify.reading import Line, Transcript
from kvsim.verify.report import Answer, Following

_HEAD_LENGTH = 32
"""So many ids of the free queue stand in a transcript as such."""


def follow(transcript: Transcript) -> Following:
    """Do what the transcript says, and yield every answer beside the core's.

    Raises:
        TranscriptError: an operation on a request that is not there, or that could not be.
    """
    _check_requests(transcript)
    cache = KVCache(
        cache_config(
            transcript,
            max_in_flight_tokens=transcript.config["max_in_flight_tokens"],
            use_eagle=transcript.config["use_eagle"],
        )
    )
    follower = _Follower(cache)
    for line in transcript.lines:
        try:
            got = getattr(follower, line.op)(**_asked(line))
        except ValueError as error:
            transcript.refuse(line.number, f"{line.op}: {error}")
        for what, value in got.items():
            expected = line.fields.get(what)
            yield Answer(line.number, line.op, what, expected, value)


def cache_config(
    transcript: Transcript, *, max_in_flight_tokens: int, use_eagle: bool
) -> CacheConfig:
    """The configuration that the first line describes.

    Raises:
        TranscriptError: one that no engine would accept.
    """
    config = transcript.config
    try:
        groups = tuple(
            GroupSpec(
                group["kind"],
                group["block_size"],
                group.get("sliding_window"),
                group.get("eagle", False),
            )
            for group in config["groups"]
        )
        made = CacheConfig(
            num_blocks=config["num_blocks"],
            groups=groups,
            max_model_len=config["max_model_len"],
            max_in_flight_tokens=max_in_flight_tokens,
            retention_interval=config["retention_interval"],
            enable_caching=config["enable_caching"],
            use_eagle=use_eagle,
            profile=transcript.profile,
        )
    except ValueError as error:
        transcript.refuse(1, f"config: {error}")
    sizes = [group.block_size for group in groups]
    for name, rule, size in (
        ("hash_block_size", "greatest common divisor", math.gcd(*sizes)),
        ("scheduler_block_size", "least common multiple", math.lcm(*sizes)),
    ):
        if config[name] != size:
            transcript.refuse(1, f"config.{name}: {config[name]} is not the groups' {rule}, {size}")
    return made


def check_tokens(transcript: Transcript, line: Line, name: str, num_tokens: int) -> None:
    """Refuse content that is longer than the model takes.

    Raises:
        TranscriptError: naming the line.
    """
    most = min(transcript.config["max_model_len"], (1 << POSITION_BITS) - 1)
    if num_tokens > most:
        transcript.refuse(
            line.number,
            f"{line.op} {name}: {num_tokens} tokens are more than max_model_len, {most}",
        )


def runs(ids: Iterable[int]) -> list[list[int]]:
    """Block ids as `[first, how many]` of each rising run; null blocks make a run of their own."""
    found: list[list[int]] = []
    for block in ids:
        if found:
            first, count = found[-1]
            expected = first + count if first else 0
            if block == expected and bool(block) == bool(first):
                found[-1][1] += 1
                continue
        found.append([block, 1])
    return found


def _asked(line: Line) -> dict[str, Any]:
    fields = OPS["kvsim-transcript/1"][line.op]
    return {name: value for name, value in line.fields.items() if not fields[name].answers}


def _check_requests(transcript: Transcript) -> None:
    """Refuse operations that make no sense, going by what the engine answered."""
    num_tokens: dict[str, int] = {}
    num_computed: dict[str, int] = {}
    seated: set[str] = set()
    most_new = transcript.config["max_in_flight_tokens"]
    for line in transcript.lines:
        fields = line.fields
        name = fields.get("req")
        if name is None:
            continue
        if (name in num_tokens) == (line.op == "lookup"):
            state = "is there already" if line.op == "lookup" else "is not there"
            transcript.refuse(line.number, f"{line.op}: request '{name}' {state}")
        if line.op == "lookup":
            num_tokens[name] = sum(count for _, count in fields["spans"])
            num_computed[name] = fields["hit"]
            if fields["num_prompt"] > num_tokens[name]:
                transcript.refuse(
                    line.number,
                    f"lookup num_prompt: {fields['num_prompt']} is more than the spans hold, "
                    f"{num_tokens[name]}",
                )
            check_tokens(transcript, line, name, num_tokens[name])
        elif line.op == "append":
            num_tokens[name] += fields["span"][1]
            check_tokens(transcript, line, name, num_tokens[name])
        elif line.op == "allocate":
            left = min(num_tokens[name] - num_computed[name], most_new)
            if fields["new"] > left:
                transcript.refuse(
                    line.number,
                    f"allocate new: {fields['new']} is more than can be computed, {left}",
                )
            if fields.get("lookahead", 0) > MAX_LOOKAHEAD_TOKENS:
                transcript.refuse(
                    line.number,
                    f"allocate lookahead: {fields['lookahead']} is above {MAX_LOOKAHEAD_TOKENS}",
                )
            if fields["ok"] != ("blocks" in fields):
                transcript.refuse(line.number, "allocate: blocks belong to ok, and only there")
            if fields["ok"]:
                num_computed[name] += fields["new"]
                seated.add(name)
            elif name not in seated:
                del num_tokens[name]
        else:
            del num_tokens[name]
            seated.discard(name)


class _Follower:
    """The cache and the requests it knows by name; a method for each op.

    Every method returns the answers by the names they have in the transcript.
    """

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.sequences: dict[str, Sequence] = {}
        self.hits: dict[str, Hit] = {}

    def lookup(self, req: str, spans: list[list[int]], num_prompt: int) -> dict[str, Any]:
        sequence = Sequence(Content.from_spans(spans), num_prompt)
        hit = self.cache.lookup(sequence)
        self.sequences[req] = sequence
        self.hits[req] = hit
        blocks = self.cache.hit_blocks(sequence, hit)
        return {
            "hit": hit.tokens,
            "shared_prefix_boundary": hit.junction,
            "hit_blocks": [runs(ids.tolist()) for ids in blocks],
        }

    def allocate(
        self, req: str, new: int, lookahead: int = 0, full_fit: bool = False
    ) -> dict[str, Any]:
        sequence = self.sequences[req]
        hit = self.hits.pop(req, None)
        ok = self.cache.allocate(sequence, new, hit=hit, lookahead=lookahead, full_fit=full_fit)
        got: dict[str, Any] = {"ok": ok}
        if ok:
            got["blocks"] = [runs(ids.tolist()) for ids in self.cache.taken(sequence)]
        elif hit is not None:
            del self.sequences[req]
        return {**got, "free": self.cache.num_free}

    def append(self, req: str, span: list[int]) -> dict[str, Any]:
        self.cache.append(self.sequences[req], *span)
        return {}

    def free(self, req: str) -> dict[str, Any]:
        self.cache.free(self.sequences.pop(req))
        self.hits.pop(req, None)
        return {}

    def reset(self) -> dict[str, Any]:
        return {"ok": self.cache.reset()}

    def state(self) -> dict[str, Any]:
        queue, cached = self.cache.free_queue(), self.cache.cached_blocks()
        return {
            "free": self.cache.num_free,
            "queue_head": queue[:_HEAD_LENGTH].tolist(),
            "queue_sha256": _digest(queue),
            "cached": len(cached),
            "cached_sha256": _digest(cached),
        }


def _digest(ids: npt.NDArray[np.int32]) -> str:
    return hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest()
