"""The GPUs of a node divided in every way there is, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvsim.capacity.memory import rank_weight_bytes
from kvsim.capacity.requests import concurrency
from kvsim.capacity.sessions import Caching, sessions_cached
from kvsim.errors import KvsimError
from kvsim.scenario import Scenario
from kvsim.scenario.keys import derive_blocks


@dataclass(frozen=True)
class SplitRow:
    """The same GPUs, divided otherwise.

    Attributes:
        tensor_parallel: GPUs that split heads and weights.
        data_parallel: ranks with a cache and requests of their own.
        decode_context_parallel: GPUs that split the tokens of full attention.
        num_blocks: of one rank's pool; None where it cannot be.
        weight_bytes: of one GPU; None where it is not known.
        rank_tokens: tokens of KV of one rank, in requests of the longest length.
        node_tokens: of all ranks.
        at_once: requests of the longest length, all ranks together.
        sessions: of that length that stay cached, all ranks together.
        problem: why it cannot be.
    """

    tensor_parallel: int
    data_parallel: int
    decode_context_parallel: int
    num_blocks: int | None = None
    weight_bytes: float | None = None
    rank_tokens: int | None = None
    node_tokens: int | None = None
    at_once: float | None = None
    sessions: int | None = None
    problem: str | None = None


def caching_of(scenario: Scenario, interval: int | None) -> Caching:
    """How a scenario's pool keeps blocks under a retention interval."""
    return Caching(
        scenario.scheduler_block_tokens,
        interval,
        scenario.free_queue != "append",
        scenario.max_in_flight_tokens,
        scenario.plan_settings.max_num_batched_tokens,
    )


def layouts(scenario: Scenario) -> tuple[SplitRow, ...]:
    """The GPUs of a node divided in every way there is; none where there is one GPU."""
    gpus, rows = scenario.node.gpus, []
    if gpus == 1:
        return ()
    for ranks in (n for n in range(gpus, 0, -1) if gpus % n == 0):
        for context in (n for n in (1, 2, 4, 8) if ranks % n == 0 and (n == 1 or ranks > 1)):
            row = _split(scenario, ranks, gpus // ranks, context)
            if context == 1 or row.problem is None:
                rows.append(row)
    return tuple(rows)


def _split(scenario: Scenario, ranks: int, replicas: int, context: int) -> SplitRow:
    sizes: dict[str, Any] = {
        "node.tensor_parallel": ranks,
        "node.data_parallel": replicas,
        "node.decode_context_parallel": context,
        "fleet": None,
    }
    if "pipeline_parallel" in scenario.node.model_fields_set:
        sizes["node.pipeline_parallel"] = 1
    try:
        other = scenario.replace(sizes)
        blocks = derive_blocks(other).num_blocks
        caching = caching_of(other, other.retention_interval)
        sessions, _ = sessions_cached(other.model_spec, caching, blocks, other.max_model_len)
        if not other.cache.enable_prefix_caching:
            sessions = 0
        at_once = concurrency(
            other.model_spec, blocks, other.max_model_len, other.max_in_flight_tokens
        )
    except KvsimError as error:
        text = str(error).rpartition("\n")[2].strip()
        return SplitRow(ranks, replicas, context, problem=text)
    model = other.model_spec
    tokens = int(at_once * other.max_model_len)
    return SplitRow(
        ranks,
        replicas,
        context,
        blocks,
        rank_weight_bytes(model, ranks, 1, replicas) if model.weight_bytes else None,
        tokens,
        replicas * tokens,
        replicas * at_once,
        replicas * sessions,
    )
