"""What follows from a scenario, in words: the pool and how large it is, tiers, the workload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvsim import catalog
from kvsim.capacity.requests import concurrency
from kvsim.catalog import KVGroup
from kvsim.policies.chunks import chunk_bytes, num_chunks_in
from kvsim.scenario import (
    ConstantStepTime,
    CpuOffload,
    Scenario,
    ScriptWorkload,
    SyntheticWorkload,
    TableStepTime,
    TraceWorkload,
)
from kvsim.scenario.defaults import async_default
from kvsim.scenario.keys import derive_blocks
from kvsim.scenario.offload import link_spec
from kvsim.scenario.pool_rules import SIDES, pool_scenario


def describe(variants: Mapping[str, Scenario]) -> str:
    """What follows from the variants of a scenario; what they share is said once.

    Raises:
        KvsimError: no memory is left for the pool, or the roofline lacks something.
    """
    texts = {name: _describe(variant) for name, variant in variants.items()}
    by_text: dict[str, list[str]] = {}
    for name, text in texts.items():
        by_text.setdefault(text, []).append(name)
    if len(by_text) == 1:
        return next(iter(by_text))
    return "\n\n".join(f"{', '.join(names)}:\n{text}" for text, names in by_text.items())


def _describe(scenario: Scenario) -> str:
    """Of a fleet with pools what follows for each of them, said once where it is the same."""
    if scenario.fleet is None or scenario.fleet.pools is None:
        return _describe_one(scenario)
    texts = {side: _describe_one(pool_scenario(scenario, side)) for side in SIDES}
    if len(set(texts.values())) == 1:
        return f"Prefill and decode pool alike:\n{texts['decode']}"
    return "\n\n".join(f"{side.capitalize()} pool:\n{text}" for side, text in texts.items())


def _describe_one(scenario: Scenario) -> str:
    model = scenario.model_spec
    gpu = scenario.gpu_spec
    blocks = derive_blocks(scenario)
    lines = [f"KV cache groups of {model.name} (in order):"]
    lines += [f"  {number}  {_group(group)}" for number, group in enumerate(model.groups)]
    size = scenario.scheduler_block_tokens
    lines.append(f"Prefix hits come in units of {size} tokens (the scheduler block).")
    lines.append("Blocks of the pool:")
    lines += [f"  {line}" for line in blocks.lines]
    at_once = concurrency(
        model, blocks.num_blocks, scenario.max_model_len, scenario.max_in_flight_tokens
    )
    lines.append(
        f"Concurrency as the engine reports it: {at_once:.2f} requests of "
        f"{scenario.max_model_len:,} tokens. It does not say how many sessions stay cached."
    )
    lines += _fleet(scenario)
    lines += _engine(scenario)
    lines += _tiers(scenario)
    lines += _workload(scenario.workload)
    lines.append("Step time:")
    if isinstance(scenario.step_time, ConstantStepTime):
        chosen = scenario.step_time
        lines.append(f"  constant: {chosen.step_s:g} s a step, {chosen.token_s:g} s a token")
    elif isinstance(scenario.step_time, TableStepTime):
        lines.append(f"  table of measured steps: {scenario.step_time.file}")
    elif gpu is not None:
        from kvsim.scenario.layout import step_layout
        from kvsim.times.constants import constants_of
        from kvsim.times.roofline import overrides, roofline_notes

        chosen_roofline = scenario.step_time
        lines += [
            f"  {note}"
            for note in roofline_notes(
                model,
                gpu,
                step_layout(scenario),
                engine=chosen_roofline.engine,
                asynchronous=scenario.async_scheduling,
                constants=None
                if chosen_roofline.constants_file is None
                else constants_of(chosen_roofline.constants_file),
                override=overrides(
                    chosen_roofline.compute_efficiency,
                    chosen_roofline.memory_efficiency,
                    chosen_roofline.overhead_s,
                ),
            )
        ]
    return "\n".join(lines)


def _fleet(scenario: Scenario) -> list[str]:
    """How many replicas there are, and who chooses among them."""
    if not scenario.is_fleet:
        return []
    node, ranks = scenario.node, scenario.node.data_parallel
    fleet, nodes = scenario.fleet, scenario.num_nodes
    lines = [
        "Fleet:",
        f"  {nodes:,} node{'s' * (nodes > 1)} of {node.gpus} GPU{'s' * (node.gpus > 1)}, "
        f"{ranks} rank{'s' * (ranks > 1)} each: {nodes * ranks:,} caches of the size above",
    ]
    if ranks > 1:
        together = "step together" if scenario.has_experts else "run each on its own"
        inside = {
            "internal": "API servers of its node, which is an engine of its own",
            "hybrid": "API servers of its node; one engine spans all nodes",
            "external": "the router",
        }[scenario.balancing]
        lines.append(f"  ranks {together}; a rank is chosen by {inside}")
    if fleet is not None and (nodes > 1 or scenario.balancing == "external"):
        several = fleet.router_replicas
        beside = f", {several} of them side by side" if several > 1 else ""
        lines.append(f"  router {scenario.router[0]}{beside}")
    for event in () if fleet is None else fleet.events or ():
        what = "is lost" if event.lose is not None else "is drained"
        if event.add is not None:
            what = f"is started, ready {event.ready_after:g} s later"
        pool = "" if event.pool is None else f"{event.pool} "
        lines.append(f"  at {event.at:g} s {pool}node {event.node} {what}")
    return lines


def _engine(scenario: Scenario) -> list[str]:
    """What a step holds and how steps follow each other, with the reason of each default."""
    engine, batch = scenario.engine, scenario.batch_defaults

    def reason(written: object, default: str) -> str:
        return default if written is None else "as set"

    async_reason = reason(engine.async_scheduling, async_default(engine.profile)[1])
    overlap = (
        f"two steps in flight, {scenario.max_in_flight_tokens:,} tokens"
        if scenario.async_scheduling
        else "one step at a time"
    )
    lines = [
        "Engine:",
        f"  {scenario.max_num_batched_tokens:,} tokens a step "
        f"({reason(engine.max_num_batched_tokens, batch.reason)})",
        f"  {scenario.max_num_seqs:,} requests running at once "
        f"({reason(engine.max_num_seqs, batch.reason)})",
        f"  asynchronous scheduling {'on' if scenario.async_scheduling else 'off'}: {overlap} "
        f"({async_reason})",
    ]
    drafts = engine.speculative
    if drafts is not None:
        several = f"{drafts.tokens} draft token{'s' * (drafts.tokens > 1)}"
        chances = ", ".join(f"{chance:.3g}" for chance in dict.fromkeys(drafts.chances))
        lines.append(
            f"  {several} a request and step, each accepted at {chances} after those before it"
        )
        lines.append(f"  {_lookahead(scenario)}")
    return lines


def _lookahead(scenario: Scenario) -> str:
    if not scenario.drops_lookahead_block:
        tokens = scenario.key_lookahead_tokens
        several = f"{tokens} token{'s' * (tokens > 1)}"
        return f"no block is dropped for the drafter: keys cover {several} behind a block"
    if scenario.offload is not None:
        return "hits drop a block for the drafter: so it is with offload"
    written = scenario.engine.speculative
    if written is not None and written.disable_lookahead_block_hashes:
        why = "so it is with fleet.pools and with disable_lookahead_block_hashes"
        return f"hits drop a block for the drafter: {why}"
    return f"hits drop a block for the drafter: so does {scenario.engine.profile}"


def _workload(workload: TraceWorkload | ScriptWorkload | SyntheticWorkload) -> list[str]:
    """Where requests come from and when, in words."""
    if isinstance(workload, ScriptWorkload):
        num, serial = len(workload.requests), workload.concurrency == 1
        when = "one after another in the order given" if serial else "at the times given"
        return ["Workload:", f"  {num:,} request{'s' * (num != 1)} written down, {when}"]
    if isinstance(workload, SyntheticWorkload):
        lines = [f"  {workload.num_sessions:,} sessions made at random, {_played(workload)}"]
        weights = [content.weight for content in workload.content]
        for content, weight in zip(workload.content, weights, strict=True):
            share = f"{weight / sum(weights):.1%} of the sessions: " if len(weights) > 1 else ""
            lines.append(f"  {share}{content.kind}")
        if workload.path is not None:
            lines.append(f"  recorded lengths or starts are those of {Path(workload.path).name}")
        return ["Workload:", *lines]
    count = "all requests" if workload.limit is None else f"the first {workload.limit:,} requests"
    after = f" from {workload.start_s:g} s on" if workload.start_s else ""
    scaled = f", all times x {workload.time_scale:g}" if workload.time_scale != 1 else ""
    form = "format recognised" if workload.format == "auto" else f"format {workload.format}"
    lines = [
        f"  {count}{after} of the trace {Path(workload.path).name} ({form})",
        f"  {_played(workload)}{scaled}",
    ]
    if workload.partial_tail == "shared":
        lines.append("  tails of prompts inside an id count as shared: an upper bound")
    if workload.reuse is not None:
        reuse = workload.reuse
        lines.append(
            f"  a trace of lengths gets {reuse.num_prefixes:,} shared prefixes of "
            f"{reuse.prefix_tokens:,} tokens (Zipf exponent {reuse.zipf_exponent:g})"
        )
    return ["Workload:", *lines]


def _played(workload: TraceWorkload | SyntheticWorkload) -> str:
    sessions = workload.sessions
    if sessions is None:
        return "each at its recorded time, whether or not those before have ended"
    if sessions.concurrency is not None:
        when = f"{sessions.concurrency:,} alive at once, the next starting as one ends"
    else:
        when = f"starting {sessions.starts or 'as recorded'}"
    if isinstance(workload, TraceWorkload):
        when = f"sessions: {when}"
    waits = "turns wait for answers" if sessions.loop == "closed" else "turns come by time"
    return f"{when}; {waits} ({sessions.loop} loop)"


def _tiers(scenario: Scenario) -> list[str]:
    tier = scenario.offload
    if tier is None:
        return []
    per_chunk, num_chunks = 1, None
    if isinstance(tier, CpuOffload):
        per_chunk, num_chunks = tier.blocks_per_chunk, tier.num_chunks
    size = chunk_bytes(scenario.tier_block_sizes.pool_bytes, per_chunk, 1)
    lines = ["Tiers:", _tier(tier.kind, num_chunks or num_chunks_in(tier.capacity, size), size)]
    lines += _link(link_spec(tier.link, tier.link_efficiency))
    if isinstance(tier, CpuOffload) and tier.below is not None:
        below = tier.below
        lines.append(_tier(below.kind, num_chunks_in(below.capacity, size), size))
        lines += _link(link_spec(below.link, below.link_efficiency))
    return lines


def _tier(kind: str, num_chunks: int, size: int) -> str:
    return f"  {kind}: {num_chunks:,} chunks of {size:,} bytes, blocks of any group"


def _link(link: catalog.LinkSpec) -> list[str]:
    rates = f"{link.store_bytes_per_s / 1e9:g} GB/s out, {link.load_bytes_per_s / 1e9:g} in"
    whose = "for each rank" if link.span == "rank" else "for the node"
    reason = link.origins.get("efficiency")
    return [
        f"    link {link.name}, one {whose}: {rates}, {link.efficiency:g} of that reached"
        + (f" ({reason})" if reason else "")
    ]


def _group(group: KVGroup) -> str:
    window = "" if group.sliding_window is None else f", window {group.sliding_window} tokens"
    if group.attention_chunk_size is not None:
        window = f", chunks of {group.attention_chunk_size} tokens"
    eagle = ", draft layers" if group.eagle else ""
    size = "" if group.bytes_per_block is None else f", {group.bytes_per_block:,} bytes a block"
    name = f"{group.name}: " if group.name else ""
    kind = "states" if group.kind == "mamba" else group.kind.replace("_", " ")
    return f"{name}{kind}, blocks of {group.block_size} tokens{window}{eagle}{size}"
