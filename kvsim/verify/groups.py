"""`kvsim-groups/1`: which groups, block sizes and numbers of blocks the engine's planning chose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvsim.errors import KvsimError
from kvsim.planning.config import Config
from kvsim.planning.fit import fit
from kvsim.planning.plan import Plan, make_plan, plan_specs
from kvsim.planning.settings import HOPPER, Settings
from kvsim.planning.specs import STATE, LayerSpec, described
from kvsim.verify.reading import Line, Transcript
from kvsim.verify.report import Answer, Following

_SAME_NAME = (
    "tensor_parallel",
    "pipeline_parallel",
    "decode_context_parallel",
    "kv_cache_dtype",
    "enable_prefix_caching",
    "max_model_len",
    "max_num_batched_tokens",
    "async_scheduling",
    "block_size",
    "prefix_match_unit",
    "mamba_ssm_cache_dtype",
)


def follow(transcript: Transcript) -> Following:
    """Plan every model and list of layers, and yield the answers beside the transcript's.

    Raises:
        TranscriptError: a case of a model that was not described.
    """
    device = transcript.header.get("device", {})
    capability = tuple(device.get("capability", HOPPER)) if isinstance(device, dict) else HOPPER
    models: dict[str, dict[str, Any]] = {}
    for line in transcript.lines:
        if line.op == "model":
            models[line.fields["model"]] = line.fields["config"]
            continue
        if line.op == "case" and line.fields["model"] not in models:
            transcript.refuse(line.number, f"no model line for {line.fields['model']!r} before it")
        expected = line.fields["answer"]
        got = _answer(line, models, (int(capability[0]), int(capability[1])))
        for what in dict.fromkeys([*expected, *got]):
            yield Answer(line.number, line.op, what, expected.get(what), got.get(what))


def _answer(
    line: Line, models: dict[str, dict[str, Any]], capability: tuple[int, int]
) -> dict[str, Any]:
    asked = dict(line.fields["settings"])
    settings = Settings(
        capability=capability,
        draft_tokens=asked.get("mtp") or 0,
        **{key: asked[key] for key in _SAME_NAME if key in asked},
    )
    available = line.fields["available_bytes"]
    if line.op == "case":
        # Recorded with every model served in BF16.
        config = {**models[line.fields["model"]], "torch_dtype": "bfloat16", "dtype": "bfloat16"}
        plan = make_plan(Config(config), settings)
        return {**_head(plan), **dict(_planned(plan, available))}
    specs = [_given(layer) for layer in line.fields["layers"]]
    try:
        plan = plan_specs(
            specs,
            settings,
            asked["max_model_len"],
            block_outer=str(asked["layout"]).startswith("B"),
        )
    except KvsimError:
        return {"error": line.fields["answer"].get("error", "KvsimError")}
    return dict(_planned(plan, available))


def _given(layer: dict[str, Any]) -> LayerSpec:
    if layer["kind"] == STATE:
        return LayerSpec(
            STATE,
            layer["block_size"],
            shapes=tuple(tuple(shape) for shape in layer["state_shapes"]),
            state_dtypes=tuple(layer["state_dtypes"]),
            padded_bytes=layer["page_size_padded"],
            checkpoint_blocks=layer["checkpoint_blocks"],
            checkpoint_alignment=1 if layer["checkpoint_blocks"] else None,
            keeps_boundaries=True,
        )
    return LayerSpec(
        layer["kind"],
        layer["block_size"],
        kv_heads=layer["kv_heads"],
        head_size=layer["head_size"],
        head_size_v=layer["head_size"],
        dtype=layer["dtype"],
        window=layer.get("sliding_window"),
        chunk=layer.get("attention_chunk_size"),
    )


def _head(plan: Plan) -> dict[str, Any]:
    backend, sizes = plan.backend, plan.block_sizes
    if backend is None or sizes is None:
        raise TypeError("a plan that was not made from a config")
    return {
        "attention_backends": list(backend.names),
        "layout": backend.layout,
        "kv_cache_dtype": backend.kv_cache_dtype,
        "block_size": sizes.attention,
        "mamba_cache_mode": plan.settings.state_mode if plan.has_states else "none",
        "mamba_block_size": sizes.state,
        "mamba_page_size_padded": sizes.state_page_bytes,
        "max_in_flight_tokens": plan.settings.max_in_flight_tokens,
        "hash_lookahead_tokens": plan.hash_lookahead_tokens,
    }


def _planned(plan: Plan, available: list[int]) -> Iterator[tuple[str, Any]]:
    shown = [described(spec) for spec in plan.specs]
    kinds: list[dict[str, Any]] = []
    for one in shown:
        if one not in kinds:
            kinds.append(one)
    yield "max_model_len", plan.max_model_len
    yield "specs", kinds
    yield "layers", [kinds.index(one) for one in shown]
    yield "stage_layers", list(plan.stage_layers)
    yield "groups", list(_groups(plan))
    if not plan.groups:
        yield "num_blocks", 1
        return
    yield "bytes_per_block", list(plan.bytes_per_block)
    blocks = plan.blocks_of_request()
    yield "blocks_of_a_request", list(blocks)
    if not plan.fits(available):
        yield "refused", "no memory" if min(available) <= 0 else "a request does not fit"
        yield "longest_that_fits", plan.longest_that_fits(available[0])
        return
    found = fit(plan.num_blocks(available), blocks, plan.max_model_len)
    yield "num_blocks", found.num_blocks
    yield "kv_cache_tokens", found.kv_cache_tokens
    yield "max_concurrency", found.max_concurrency
    try:
        units = plan.units
    except KvsimError:
        yield "block_sizes_refused", f"Invalid prefix_match_unit={plan.settings.prefix_match_unit}"
        return
    yield "scheduler_block_size", units.scheduler_block_size
    yield "hash_block_size", units.hash_block_size
    yield "hit_alignment", units.hit_alignment
    yield "kv_tp_replicas", plan.kv_replicas


def _groups(plan: Plan) -> Iterator[dict[str, Any]]:
    for group in plan.groups:
        shown: dict[str, Any] = {
            "kind": group.kind,
            "block_size": group.block_size,
            "layers": list(group.layers),
            "page_bytes": group.page_bytes,
            "mixed": group.mixed,
            "bytes": group.num_bytes,
        }
        if group.window is not None:
            shown["sliding_window"] = group.window
        if group.chunk is not None:
            shown["attention_chunk_size"] = group.chunk
        if group.has_draft:
            shown["eagle"] = True
        yield shown
