"""Memory arithmetic: how many blocks a node's GPUs hold, and how the engine reports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.cache.spec import FULL, MAMBA, MAX_BLOCKS, GroupSpec
from kvsim.catalog import Gpu, KVGroup, Model
from kvsim.errors import KvsimError, Problems

GIB = 1024**3

ACTIVATION_RESERVE_BYTES = 3_650_722_202  # 3.4 GiB
ACTIVATION_RESERVE_REASON = (
    "assumption: what a public capacity figure for DeepSeek V4 Pro on 8 B300 leaves, read as "
    "142.5 GiB of KV a GPU; the model does not say how wide it is"
)


@dataclass(frozen=True)
class BlockDerivation:
    """The number of blocks of a pool, and how it came about.

    Attributes:
        num_blocks: blocks of the pool, block 0 included.
        bytes_per_block: bytes one GPU spends on a block; None where a custom model does not say.
        lines: the derivation, one step a line, for people.
    """

    num_blocks: int
    bytes_per_block: int | None
    lines: tuple[str, ...]


def group_spec(group: KVGroup) -> GroupSpec:
    """What the cache core needs to know of a group of the catalog."""
    return GroupSpec(
        group.kind,
        group.block_size,
        group.sliding_window,
        group.eagle,
        group.draft_states,
        group.checkpoint_alignment,
        group.one_state,
        group.attention_chunk_size,
    )


def bytes_per_block_of_rank(model: Model, tensor_parallel: int) -> int | None:
    """Bytes one GPU spends on a block of the pool: the largest group's, its share of the KV heads.

    Of pipeline stages that hold different layers, the bytes of the one that spends most.

    Returns:
        The bytes, or None where a group does not say what its blocks need.
    """
    if model.plan is not None:
        return max(model.plan.bytes_per_block)
    whole = model.bytes_per_block
    return None if whole is None else round(whole * model.kv_share(tensor_parallel))


def derive_num_blocks(
    model: Model,
    gpu: Gpu | None,
    tensor_parallel: int,
    gpu_memory_utilization: float,
    activation_reserve_bytes: float = ACTIVATION_RESERVE_BYTES,
    num_blocks_override: int | None = None,
    activation_reserve_reason: str = ACTIVATION_RESERVE_REASON,
    *,
    pipeline_parallel: int = 1,
    data_parallel: int = 1,
    kv_cache_bytes: int | None = None,
) -> BlockDerivation:
    """Blocks of the pool: what weights and the reserve leave of a GPU, over the bytes of a block.

    The engine does the same: utilization times the memory that can be allocated, less weights,
    activations and graphs, rounded down to whole blocks. Block 0 is one of them.

    Args:
        model: its weights are split evenly over the ranks, its KV as ``Model.kv_share`` says.
        gpu: every rank has one; None where ``num_blocks_override`` is given.
        tensor_parallel: number of ranks.
        gpu_memory_utilization: part of the memory that can be allocated, above 0 and up to 1.
        activation_reserve_bytes: activations and graphs of one GPU.
        num_blocks_override: use this number instead, block 0 included.
        kv_cache_bytes: of one GPU; instead of what utilization, weights and the reserve leave.
        activation_reserve_reason: said beside the reserve.
        pipeline_parallel: stages, among which weights are split evenly.
        data_parallel: ranks with requests of their own, among which experts are split too.

    Raises:
        Problems: the model does not say what its weights or blocks need.
        KvsimError: less than two blocks fit (block 0 holds nothing).
    """
    block_bytes = bytes_per_block_of_rank(model, tensor_parallel)
    if num_blocks_override is not None:
        line = f"= {num_blocks_override:,} blocks, block 0 included: node.num_blocks, not derived"
        return BlockDerivation(num_blocks_override, block_bytes, (line,))
    if gpu is None and kv_cache_bytes is None:
        raise KvsimError("node.gpu: is missing. Name one, or give node.num_blocks.")
    problems = []
    if model.weight_bytes is None and kv_cache_bytes is None:
        problems.append("weight_bytes: is missing. Give it, or node.num_blocks.")
    if block_bytes is None:
        problems += [
            f"groups[{place}].bytes_per_block: is missing. Give it, or node.num_blocks."
            for place, group in enumerate(model.groups)
            if group.bytes_per_block is None
        ]
    if problems or block_bytes is None:
        raise Problems(f"model {model.name}", problems)
    if kv_cache_bytes is not None:
        return _blocks_in(model, kv_cache_bytes, block_bytes, tensor_parallel)
    assert gpu is not None and model.weight_bytes is not None, "said above"

    usable_bytes = gpu.hbm_bytes * gpu_memory_utilization
    weight_bytes = rank_weight_bytes(model, tensor_parallel, pipeline_parallel, data_parallel)
    kv_bytes = usable_bytes - weight_bytes - activation_reserve_bytes
    num_blocks = int(kv_bytes // block_bytes)
    num_gpus = tensor_parallel * pipeline_parallel * data_parallel
    if num_blocks < 2:
        left = _gib(kv_bytes) if kv_bytes > 0 else "nothing"
        raise KvsimError(
            f"node: {gpu.name} has {_gib(usable_bytes)} at gpu_memory_utilization "
            f"{gpu_memory_utilization:g}; weights of {model.name} over {num_gpus} "
            f"{'GPU' if num_gpus == 1 else 'GPUs'} take {_gib(weight_bytes)} and "
            f"activations {_gib(activation_reserve_bytes)}, so {left} is left and a pool "
            f"needs two blocks of {block_bytes:,} bytes. Use more GPUs, a larger GPU or a higher "
            "utilization."
        )
    _check_blocks(num_blocks, kv_bytes, block_bytes)
    over = f"{tensor_parallel} rank(s)"
    if pipeline_parallel > 1:
        over += f" of {pipeline_parallel} stages"
    if data_parallel > 1 and model.expert_bytes:
        over += f", experts over {data_parallel} such ranks"
    lines = (
        f"  {_gib(gpu.hbm_bytes)} HBM of a {gpu.name} that can be allocated"
        + _because(gpu.origins.get("hbm_bytes")),
        f"x {gpu_memory_utilization:g} gpu_memory_utilization = {_gib(usable_bytes)}",
        f"- {_gib(weight_bytes)} weights: {model.weight_bytes / 1e9:,.1f} GB over {over}"
        + _because(model.origins.get("weight_bytes")),
        f"- {_gib(activation_reserve_bytes)} reserve beside weights and KV"
        + _because(activation_reserve_reason),
        f"= {_gib(kv_bytes)} KV of a GPU",
        *_division(model, block_bytes, tensor_parallel, num_blocks),
    )
    return BlockDerivation(num_blocks, block_bytes, lines)


def _blocks_in(
    model: Model, kv_bytes: int, block_bytes: int, tensor_parallel: int
) -> BlockDerivation:
    """Blocks of a given memory for KV."""
    num_blocks = kv_bytes // block_bytes
    if num_blocks < 2:
        raise KvsimError(
            f"engine.kv_cache_memory: {kv_bytes} bytes do not hold two blocks of {block_bytes:,} "
            f"bytes, and block 0 holds nothing. Use {2 * block_bytes} or more."
        )
    _check_blocks(num_blocks, kv_bytes, block_bytes)
    lines = (
        f"  {_gib(kv_bytes)} KV of a GPU: engine.kv_cache_memory",
        *_division(model, block_bytes, tensor_parallel, num_blocks),
    )
    return BlockDerivation(num_blocks, block_bytes, lines)


def _check_blocks(num_blocks: int, kv_bytes: float, block_bytes: int) -> None:
    if num_blocks > MAX_BLOCKS:
        raise KvsimError(
            f"node: {_gib(kv_bytes)} of KV hold {num_blocks:,} blocks of {block_bytes:,} bytes, "
            f"and a pool has at most {MAX_BLOCKS:,}. Set node.num_blocks, or larger blocks."
        )


def _division(
    model: Model, block_bytes: int, tensor_parallel: int, num_blocks: int
) -> tuple[str, str]:
    """The last two lines of a derivation."""
    share = model.kv_share(tensor_parallel)
    held = "all of the KV on every rank" if share == 1.0 else f"{share:g} of the KV on each rank"
    largest = max(model.groups, key=lambda group: group.bytes_per_block or 0)
    return (
        f"/ {block_bytes:,} bytes a block: the largest group's"
        + (f", {largest.name}" if largest.name else "")
        + f"; {held}"
        + _because(largest.origin),
        f"= {num_blocks:,} blocks, block 0 included",
    )


def rank_weight_bytes(
    model: Model, tensor_parallel: int, pipeline_parallel: int = 1, data_parallel: int = 1
) -> float:
    """Bytes of weights on one GPU: split evenly by ranks and stages, experts by data too.

    Stages differ by embedding and head, which is left out here. Experts are split over all ranks
    of all kinds with or without expert parallelism (vLLM 0.33.0, FusedMoEParallelConfig).
    """
    whole, experts = model.weight_bytes or 0.0, model.expert_bytes
    split = tensor_parallel * pipeline_parallel
    return (whole - experts) / split + experts / (split * data_parallel)


def num_blocks_of_request(
    groups: Sequence[GroupSpec], max_model_len: int, max_in_flight_tokens: int
) -> tuple[int, ...]:
    """Blocks each group takes for a request of ``max_model_len`` tokens.

    Full attention takes ``ceil(tokens / block)``, a window group its admission cap, states a few
    whatever the length.

    Args:
        groups: of a model.
        max_model_len: tokens of the request.
        max_in_flight_tokens: tokens scheduled and not yet done: ``max_num_batched_tokens``.
    """
    counts = []
    for group in groups:
        if group.kind == MAMBA:
            counts.append(group.blocks_held)
            continue
        whole = -(-max_model_len // group.block_size)
        cap = group.admission_cap(max_in_flight_tokens, max_model_len)
        counts.append(whole if group.kind == FULL or cap is None else cap)
    return tuple(counts)


def reported_concurrency(
    num_blocks: int,
    groups: Sequence[GroupSpec],
    max_model_len: int,
    max_in_flight_tokens: int,
) -> float:
    """Requests of ``max_model_len`` that fit at once, as vLLM 0.33 reports it (#48317).

    ``num_blocks`` over the sum of the groups' blocks. It says nothing about cached sessions.
    """
    return num_blocks / sum(num_blocks_of_request(groups, max_model_len, max_in_flight_tokens))


def reported_concurrency_before_0_33(
    num_blocks: int,
    groups: Sequence[GroupSpec],
    group_bytes_per_block: Sequence[int],
    max_model_len: int,
    max_in_flight_tokens: int,
) -> float:
    """The same as vLLM reported it before #48317; the two cannot be compared.

    ``num_blocks / ceil(bytes of a request / bytes of a full page)``: each group counts with the
    bytes its own blocks need, a full page being the largest group's block.

    Args:
        num_blocks: blocks of the pool.
        groups: the groups.
        group_bytes_per_block: bytes a block of each group needs, in the order of ``groups``.
        max_model_len: tokens of a request.
        max_in_flight_tokens: tokens scheduled and not yet done.
    """
    counts = num_blocks_of_request(groups, max_model_len, max_in_flight_tokens)
    request_bytes = sum(
        count * size for count, size in zip(counts, group_bytes_per_block, strict=True)
    )
    return num_blocks / -(-request_bytes // max(group_bytes_per_block))


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:,.2f} GiB"


def _because(reason: str | None) -> str:
    return f" ({reason})" if reason else ""
