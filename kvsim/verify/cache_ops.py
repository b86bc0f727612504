"""`kvsim-transcript/1`: the KV cache manager, operation by operation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.manager import Hit, KVCache, Sequence
from kvsim.cache.spec import MAMBA, GroupSpec
from kvsim.verify.fields import OPS
from kvsim.verify.reading import Transcript
from kvsim.verify.report import Answer, Following

_HEAD_LENGTH = 32
"""So many ids of the free queue stand in a transcript as such."""


def follow(transcript: Transcript) -> Following:
    """Do what the transcript says, and yield every answer beside the core's.

    Raises:
        TranscriptError: an operation on a request that is not there, or that could not be done.
    """
    follower = _Follower(
        KVCache(
            cache_config(
                transcript,
                max_in_flight_tokens=transcript.config["max_in_flight_tokens"],
                use_eagle=transcript.config["use_eagle"],
            )
        )
    )
    for line in transcript.lines:
        fields = OPS[transcript.format][line.op]
        asked = {name: v for name, v in line.fields.items() if not fields[name].answers}
        try:
            got = getattr(follower, line.op)(**asked)
        except ValueError as error:
            transcript.refuse(line.number, f"{line.op}: {error}")
        for what, field in fields.items():
            if field.answers and (what in line.fields or what in got):
                yield Answer(line.number, line.op, what, line.fields.get(what), got.get(what))


def cache_config(
    transcript: Transcript,
    *,
    max_in_flight_tokens: int,
    use_eagle: bool,
    key_lookahead_tokens: int = 0,
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
                group.get("speculative_blocks", 0),
                group.get("checkpoint_alignment"),
                group.get("mode") == "none",
                group.get("attention_chunk_size"),
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
            key_lookahead_tokens=config.get("hash_lookahead_tokens", key_lookahead_tokens),
            profile=transcript.profile,
            prefix_match_unit=_match_unit(config),
            shared_prefix_checkpoint=config.get("shared_prefix_checkpoint", False),
        )
    except ValueError as error:
        transcript.refuse(1, f"config: {error}")
    sizes = [group.block_size for group in groups]
    for name, rule, size in (
        ("hash_block_size", "greatest common divisor", made.hash_block_tokens),
        ("scheduler_block_size", "least common multiple", math.lcm(*sizes)),
    ):
        if config[name] != size:
            transcript.refuse(1, f"config.{name}: {config[name]} is not the groups' {rule}, {size}")
    return made


def _match_unit(config: dict[str, Any]) -> int | None:
    """The hash block, which with states may be smaller than the groups' common divisor."""
    has_states = any(group["kind"] == "mamba" for group in config["groups"])
    unit: int | None = config["hash_block_size"] if has_states else None
    return unit if config["enable_caching"] else None


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


class _Follower:
    """The cache and the requests it knows by name; a method for each op.

    Every method returns the answers by the names they have in the transcript, and raises
    ValueError for what cannot be done.
    """

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.sequences: dict[str, Sequence] = {}
        self.hits: dict[str, Hit] = {}

    def lookup(self, req: str, spans: list[list[int]], num_prompt: int) -> dict[str, Any]:
        if req in self.sequences:
            raise ValueError(f"request '{req}' is there already")
        sequence = Sequence(Content.from_spans(spans), num_prompt)
        self.check_length(sequence.content.num_tokens)
        if num_prompt > sequence.content.num_tokens:
            raise ValueError(f"num_prompt {num_prompt} is more than the spans hold")
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
        sequence = self.known(req)
        hit = self.hits.get(req)
        computed = self.cache.num_computed(sequence) if hit is None else hit.tokens
        left = sequence.content.num_tokens - computed
        if new > left and not self.cache.has_drafts:
            raise ValueError(f"new {new} is more than the request has left to compute, {left}")
        ok = self.cache.allocate(sequence, new, hit=hit, lookahead=lookahead, full_fit=full_fit)
        got: dict[str, Any] = {"ok": ok, "free": self.cache.num_free}
        if ok and self.cache.has_states:
            got["taken"] = runs(self.cache.taken_in_order().tolist())
            got["tables"] = {
                str(index): runs(self.cache.block_table(sequence, index).tolist())
                for index, group in enumerate(self.cache.config.groups)
                if group.kind == MAMBA
            }
        elif ok:
            got["blocks"] = [runs(ids.tolist()) for ids in self.cache.taken(sequence)]
        if ok:
            self.hits.pop(req, None)
        elif hit is not None:  # it never got room: it is forgotten
            del self.sequences[req], self.hits[req]
        return got

    def append(self, req: str, span: list[int]) -> dict[str, Any]:
        sequence = self.known(req)
        uid, num_tokens = span
        self.check_length(sequence.content.num_tokens + num_tokens)
        self.cache.append(sequence, uid, num_tokens)
        return {}

    def free(self, req: str) -> dict[str, Any]:
        self.cache.free(self.known(req))
        del self.sequences[req]
        self.hits.pop(req, None)
        return {}

    def step(self) -> dict[str, Any]:
        """The step is over, and the next one begins."""
        if not self.cache.has_states:
            raise ValueError("steps are told only to a cache with mamba groups")
        ends = self.cache.copies().tolist()
        self.cache.let_go_of_copies()
        self.cache.begin_step()
        copies = [list(pair) for pair in zip(ends[::2], ends[1::2], strict=True)]
        return {"copies": copies} if copies else {}

    def rollback(self, req: str, tokens: int) -> dict[str, Any]:
        """Drafts were refused."""
        sequence = self.known(req)
        computed = self.cache.num_computed(sequence)
        if tokens > computed:
            raise ValueError(f"{tokens} tokens are more than are computed, {computed}")
        self.cache.roll_back(sequence, tokens)
        return {}

    def forget(self, req: str) -> dict[str, Any]:
        """A request that was looked up was not scheduled."""
        if self.hits.pop(req, None) is None:
            raise ValueError(f"request '{req}' was not looked up, or is scheduled")
        del self.sequences[req]
        return {}

    def known(self, req: str) -> Sequence:
        if req not in self.sequences:
            raise ValueError(f"request '{req}' is not there")
        return self.sequences[req]

    def check_length(self, num_tokens: int) -> None:
        most = self.cache.config.max_model_len
        if num_tokens > most:
            raise ValueError(f"{num_tokens} tokens are more than max_model_len, {most}")

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
