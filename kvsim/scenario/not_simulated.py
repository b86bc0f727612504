"""What can be planned and measured for size, but not run."""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.scenario.keys import ScenarioKeys
from kvsim.scenario.model import NUM_GROUPS_MAX
from kvsim.scenario.pool_rules import each_pool
from kvsim.scenario.state_rules import state_problems
from kvsim.scenario.validation import Problem


def not_simulated(scenario: ScenarioKeys) -> Iterator[Problem]:
    """Everything that keeps a scenario from being run."""
    if scenario.fleet is not None and scenario.fleet.pools is not None:
        yield from each_pool(scenario, not_simulated)
        return
    remedy = "`kvsim capacity` takes it."
    groups = scenario.model_spec.groups
    if any(group.kind == "chunked_local" for group in groups):
        yield from _chunks(scenario, remedy)
    if any(group.kind == "mamba" for group in groups):
        yield from state_problems(scenario)
    if len(scenario.model_spec.groups) > NUM_GROUPS_MAX:
        text = f"has {len(scenario.model_spec.groups)} groups, and at most {NUM_GROUPS_MAX} are"
        yield Problem("model", f"{text} simulated. {remedy}")
    if scenario.node.pipeline_parallel > 1:
        yield from _pipeline(scenario, remedy)


_PIPELINE_PROFILE = "vllm-0.33"


def _pipeline(scenario: ScenarioKeys, remedy: str) -> Iterator[Problem]:
    """What keeps a pipeline from being run."""
    node, place = scenario.node, "node.pipeline_parallel"
    beside = {
        "offload": scenario.offload is not None,
        "node.data_parallel": node.data_parallel > 1,
        "fleet": scenario.fleet is not None,
        "engine.speculative": scenario.engine.speculative is not None,
        "step_time.kind: table": scenario.step_time.kind == "table",
    }
    for other in (other for other, is_there in beside.items() if is_there):
        text = f"{node.pipeline_parallel} stages beside {other} are not simulated yet. Leave one of"
        yield Problem(place, f"{text} them out. {remedy}", (other.partition(":")[0],))
    if scenario.engine.profile != _PIPELINE_PROFILE:
        text = f"{scenario.engine.profile} is not known to run a pipeline. Use"
        yield Problem("engine.profile", f"{text} {_PIPELINE_PROFILE}.", (place,))
    if scenario.model_spec.plan is None and node.num_blocks is None:
        text = "groups do not say which stage holds them. Give node.num_blocks, or layers:."
        yield Problem("model.groups", text, (place,))


def _chunks(scenario: ScenarioKeys, remedy: str) -> Iterator[Problem]:
    """What keeps a model with chunked local groups from being run; the engine's own limits."""
    groups = scenario.model_spec.groups
    chunked = [group for group in groups if group.kind == "chunked_local"]
    if any(group.kind == "mamba" for group in groups):
        text = "chunked local groups beside states are not simulated yet."
        yield Problem("model", f"{text} {remedy}")
    if scenario.drops_lookahead_block:
        text = "has chunked local groups and a drafter for which hits drop a block: the engine"
        remedied = f"{text} holds all layers as full attention then. Give the groups so."
        yield Problem("model", remedied, ("engine.speculative",))
    if scenario.offload is not None and scenario.offload.kind == "mooncake":
        text = "a store for a model with chunked local groups is not simulated yet. Leave it out."
        yield Problem("offload", f"{text} {remedy}", ("model",))
    sizes = {group.block_size for group in groups}
    if len(sizes) > 1 and scenario.cache.enable_prefix_caching:
        listed = " and ".join(str(size) for size in sorted(sizes))
        text = f"blocks of {listed} tokens: chunked local attention needs blocks of one size, or"
        yield Problem(
            "model", f"{text} cache.enable_prefix_caching: false.", ("engine.block_size",)
        )
    odd = [group for group in chunked if (group.attention_chunk_size or 0) % group.block_size]
    for group in odd[:1]:
        text = f"{group.block_size} does not divide the chunks of the model's attention"
        place, about = "engine.block_size", ("model",)
        yield Problem(place, f"{text} ({group.attention_chunk_size}). Use another.", about)
