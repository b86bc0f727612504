"""What a node holds: memory line by line, requests at once, sessions that stay cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvsim.capacity.memory import (
    bytes_per_block_of_rank,
    group_spec,
    rank_weight_bytes,
    reported_concurrency_before_0_33,
)
from kvsim.capacity.requests import blocks_of_request, concurrency
from kvsim.capacity.sessions import (
    blocks_for_sessions,
    hits_of,
    session_blocks,
    sessions_cached,
)
from kvsim.errors import KvsimError
from kvsim.policies.chunks import chunk_bytes, num_chunks_in
from kvsim.policies.profiles import PROFILES
from kvsim.scenario import CpuOffload, Scenario
from kvsim.scenario.keys import derive_blocks, reserve_of
from kvsim.study.layouts import SplitRow, caching_of, layouts

LENGTHS = (8_192, 32_768, 131_072, 524_288)
"""Lengths that are looked at besides the longest, where no other is asked for."""
INTERVALS_OF_UNIT = (16, 128)
"""Retention intervals that are looked at, in scheduler blocks, besides 0 and dense."""
_GPUS_TRIED = (1, 2, 4, 8, 16, 32, 64, 72)


@dataclass(frozen=True)
class GroupRow:
    """One KV cache group.

    Attributes:
        name: for display.
        kind: ``full``, ``sliding_window``, ``chunked_local`` or ``mamba``.
        block_size: tokens of a block.
        sliding_window: tokens of a window, or of a chunk; None for the others.
        num_layers: layers of the group; None where not known.
        bytes_per_block: bytes its own layers need of a block, on one rank; None where not known.
        bytes_per_token: the same of a token; of states, of one state.
    """

    name: str
    kind: str
    block_size: int
    sliding_window: int | None
    num_layers: int | None
    bytes_per_block: int | None
    bytes_per_token: float | None


@dataclass(frozen=True)
class SessionsRow:
    """Sessions of one length under one retention interval.

    Attributes:
        retention_interval: tokens, 0, or None for dense.
        sessions: the most, one after another, with the first still whole; at least.
        sessions_at_most: likewise, an upper bound.
        blocks_left: blocks that one of them leaves cached.
        resend_tokens: found of the same prompt once more.
        branch_tokens: found of the first half of the prompt by another that shares it.
        next_turn_tokens: found of the prompt by one that goes on from its answer.
    """

    retention_interval: int | None
    sessions: int
    sessions_at_most: int
    blocks_left: int
    resend_tokens: int
    branch_tokens: int
    next_turn_tokens: int


@dataclass(frozen=True)
class LengthRow:
    """Requests of one length.

    Attributes:
        num_tokens: prompt and answer.
        blocks: of each group, at most.
        at_once: requests that fit, as the engine counts.
        intervals: sessions that stay cached, by retention interval.
    """

    num_tokens: int
    blocks: tuple[int, ...]
    at_once: float
    intervals: tuple[SessionsRow, ...]


@dataclass(frozen=True)
class TierRow:
    """A tier beyond the GPUs' memory.

    Attributes:
        kind: as in the scenario.
        num_chunks: it holds.
        chunk_bytes: of one.
        sessions: by length, how many of them it holds if it is given all that is worth keeping.
    """

    kind: str
    num_chunks: int
    chunk_bytes: int
    sessions: Mapping[int, int]


@dataclass(frozen=True)
class Needed:
    """What so many sessions of a length need.

    Attributes:
        num_sessions: of them.
        num_tokens: of each prompt.
        num_blocks: fewest, block 0 included.
        gpu_memory_utilization: least on this node; None where even all of it is too little, or
            nothing is known of the memory.
        gpus: fewest of this GPU, all tensor-parallel; None likewise.
    """

    num_sessions: int
    num_tokens: int
    num_blocks: int
    gpu_memory_utilization: float | None
    gpus: int | None


@dataclass(frozen=True)
class NodeCapacity:
    """What a node holds of a model.

    Attributes:
        model: its name.
        memory: the derivation of the pool, a line a step.
        num_blocks: of the pool, block 0 included.
        bytes_per_block: one GPU spends; None where the model does not say.
        unit_tokens: what hits are multiples of.
        max_model_len: longest request.
        kv_cache_tokens: of requests of that length, as the engine logs it.
        concurrency: requests of that length at once, by profile, as each logs it.
        groups: of the model.
        lengths: by length.
        tiers: beyond the GPUs' memory.
        splits: the same GPUs divided otherwise.
        needed: what was asked for in reverse; None where nothing was.
    """

    model: str
    memory: tuple[str, ...]
    num_blocks: int
    bytes_per_block: int | None
    unit_tokens: int
    max_model_len: int
    kv_cache_tokens: int
    concurrency: Mapping[str, float]
    groups: tuple[GroupRow, ...]
    lengths: tuple[LengthRow, ...]
    tiers: tuple[TierRow, ...]
    splits: tuple[SplitRow, ...]
    needed: Needed | None

    def as_json(self) -> dict[str, Any]:
        """The same as JSON knows it."""
        return asdict(self)


def node_capacity(
    scenario: Scenario,
    *,
    lengths: Sequence[int] = (),
    intervals: Sequence[int | None] | None = None,
    answer_tokens: int = 1,
    num_sessions: int | None = None,
    splits: bool = True,
) -> NodeCapacity:
    """What a scenario's node holds; nothing is simulated.

    Args:
        scenario: one without variants.
        lengths: tokens of the requests looked at; none is a few and the longest.
        intervals: retention intervals looked at; None is 0, a few, dense and the scenario's own.
        answer_tokens: of the answer that a next turn goes on from.
        num_sessions: also say what so many sessions of the last of the lengths need.
        splits: also divide the GPUs otherwise.

    Raises:
        KvsimError: no memory is left for the pool, or a length or interval cannot be.
    """
    model, blocks = scenario.model_spec, derive_blocks(scenario)
    longest, in_flight = scenario.max_model_len, scenario.max_in_flight_tokens
    unit = scenario.scheduler_block_tokens
    chosen = sorted({*lengths} or {*(x for x in LENGTHS if x < longest), longest})
    if odd := [length for length in chosen if not 1 <= length <= longest]:
        raise KvsimError(f"length: {odd[0]} is not between 1 and max_model_len ({longest}).")
    looked_at = _intervals(scenario, unit) if intervals is None else list(intervals)
    if wrong := [one for one in looked_at if one is not None and (one < 0 or one % unit)]:
        raise KvsimError(
            f"interval: {wrong[0]} is not a multiple of the scheduler block ({unit}). Use 0, "
            f"{unit}, {2 * unit}, ... or dense."
        )
    rows = tuple(
        LengthRow(
            length,
            blocks_of_request(model, length, in_flight),
            concurrency(model, blocks.num_blocks, length, in_flight),
            tuple(
                _sessions(scenario, blocks.num_blocks, length, interval, answer_tokens)
                for interval in looked_at
            ),
        )
        for length in chosen
    )
    at_once = concurrency(model, blocks.num_blocks, longest, in_flight)
    return NodeCapacity(
        model=model.name,
        memory=blocks.lines,
        num_blocks=blocks.num_blocks,
        bytes_per_block=blocks.bytes_per_block,
        unit_tokens=unit,
        max_model_len=longest,
        kv_cache_tokens=int(at_once * longest),
        concurrency=_concurrency(scenario, blocks.num_blocks, at_once),
        groups=_groups(scenario),
        lengths=rows,
        tiers=_tiers(scenario, chosen),
        splits=layouts(scenario) if splits else (),
        needed=None if num_sessions is None else _needed(scenario, num_sessions, chosen[-1]),
    )


def _intervals(scenario: Scenario, unit: int) -> list[int | None]:
    if not PROFILES[scenario.engine.profile].has_retention or all(
        group.kind == "full" for group in scenario.model_spec.groups
    ):
        return [None]
    own = scenario.retention_interval
    numbers = {0, *(unit * times for times in INTERVALS_OF_UNIT)} | ({own} if own else set())
    return [*sorted(numbers), None]


def _sessions(
    scenario: Scenario, num_blocks: int, length: int, interval: int | None, answer: int
) -> SessionsRow:
    model, caching = scenario.model_spec, caching_of(scenario, interval)
    least, most = sessions_cached(model, caching, num_blocks, length)
    if not scenario.cache.enable_prefix_caching:
        return SessionsRow(interval, 0, 0, 0, 0, 0, 0)
    hits = hits_of(model, caching, length, answer)
    left = session_blocks(model, caching, length).left
    return SessionsRow(interval, least, most, left, hits.resend, hits.branch, hits.next_turn)


def _concurrency(scenario: Scenario, num_blocks: int, at_once: float) -> dict[str, float]:
    """The log line of each profile: #48317 changed how it is counted."""
    model = scenario.model_spec
    sizes = [group.bytes_per_block for group in model.groups]
    known = [size for size in sizes if size is not None]
    found = {"vllm-0.33": at_once}
    if len(known) == len(sizes) and all(
        group.kind in ("full", "sliding_window") for group in model.groups
    ):
        before = reported_concurrency_before_0_33(
            num_blocks,
            tuple(group_spec(group) for group in model.groups),
            known,
            scenario.max_model_len,
            scenario.max_in_flight_tokens,
        )
        found = {"vllm-0.22": before, "vllm-0.23": before, **found}
    return found


def _groups(scenario: Scenario) -> tuple[GroupRow, ...]:
    model = scenario.model_spec
    share = model.kv_share(scenario.num_ranks)
    rows = []
    for number, group in enumerate(model.groups):
        whole = group.bytes_per_block
        own = None if whole is None else round(whole * share)
        per = 1 if group.kind == "mamba" else group.block_size
        rows.append(
            GroupRow(
                group.name or f"group {number}",
                group.kind,
                group.block_size,
                group.sliding_window or group.attention_chunk_size,
                group.num_layers,
                own,
                None if own is None else own / per,
            )
        )
    return tuple(rows)


def _tiers(scenario: Scenario, lengths: Sequence[int]) -> tuple[TierRow, ...]:
    tier = scenario.offload
    if tier is None:
        return ()
    per_chunk, own = 1, None
    if isinstance(tier, CpuOffload):
        per_chunk, own = tier.blocks_per_chunk, tier.num_chunks
    size = chunk_bytes(scenario.tier_block_sizes.pool_bytes, per_chunk, 1)
    caching = caching_of(scenario, scenario.retention_interval)
    left = {x: session_blocks(scenario.model_spec, caching, x).left for x in lengths}

    def row(kind: str, num_chunks: int) -> TierRow:
        held = {x: num_chunks // max(1, -(-blocks // per_chunk)) for x, blocks in left.items()}
        return TierRow(kind, num_chunks, size, held)

    rows = [row(tier.kind, own or num_chunks_in(tier.capacity, size))]
    if isinstance(tier, CpuOffload) and tier.below is not None:
        rows.append(row(tier.below.kind, num_chunks_in(tier.below.capacity, size)))
    return tuple(rows)


def _needed(scenario: Scenario, num_sessions: int, length: int) -> Needed:
    if num_sessions < 1:
        raise KvsimError(f"sessions: {num_sessions} is below 1.")

    def fewest(one: Scenario) -> int:
        caching = caching_of(one, one.retention_interval)
        return blocks_for_sessions(one.model_spec, caching, num_sessions, length)

    blocks = fewest(scenario)
    return Needed(
        num_sessions,
        length,
        blocks,
        _least_utilization(scenario, blocks),
        _fewest_gpus(scenario, fewest),
    )


def _least_utilization(scenario: Scenario, num_blocks: int) -> float | None:
    model, gpu, node = scenario.model_spec, scenario.gpu_spec, scenario.node
    of_block = bytes_per_block_of_rank(model, scenario.num_ranks)
    if gpu is None or model.weight_bytes is None or of_block is None:
        return None
    weights = rank_weight_bytes(
        model, scenario.num_ranks, node.pipeline_parallel, node.data_parallel
    )
    needed = (weights + reserve_of(scenario).total_bytes + num_blocks * of_block) / gpu.hbm_bytes
    return needed if needed <= 1 else None


def _fewest_gpus(scenario: Scenario, fewest: Any) -> int | None:
    if scenario.gpu_spec is None or scenario.node.num_blocks is not None:
        return None
    for gpus in _GPUS_TRIED:
        sizes = {
            "node.gpus": gpus,
            "node.tensor_parallel": gpus,
            "node.data_parallel": 1,
            "node.pipeline_parallel": 1,
        }
        try:
            other = scenario.replace(sizes)
            if derive_blocks(other).num_blocks >= fewest(other):
                return gpus
        except KvsimError:
            continue
    return None
