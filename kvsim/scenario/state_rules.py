"""What keeps a model with groups of states from being run, or a tier from holding its states."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kvsim.policies.free_queue import FREE_QUEUE_POLICIES
from kvsim.policies.profiles import PROFILES
from kvsim.scenario.keys import ScenarioKeys
from kvsim.scenario.offload import CpuOffload
from kvsim.scenario.validation import Problem


def state_problems(scenario: ScenarioKeys) -> Iterator[Problem]:
    """What keeps a model with state groups from being run."""
    profile = scenario.engine.profile
    if not PROFILES[profile].has_states:
        known = ", ".join(name for name, other in PROFILES.items() if other.has_states)
        text = f"{profile} is not known to run the model's states. Use {known}."
        yield Problem("engine.profile", text, ("model",))
    if scenario.offload is not None:
        yield from _tier_of_states(scenario)
    own = {"cache.retention": scenario.cache.retention is not None}
    own["cache.free_queue"] = scenario.free_queue not in FREE_QUEUE_POLICIES
    for place, is_own in own.items():
        if is_own:
            text = "policies are not told of states yet. Use what the engine has, or leave it out."
            yield Problem(place, text, ("model",))
    if scenario.cache.enable_prefix_caching and any(
        group.one_state for group in scenario.model_spec.groups
    ):
        text = "none keeps no states to find. Set cache.enable_prefix_caching: false, or use align."
        yield Problem("engine.mamba_cache_mode", text, ("cache.enable_prefix_caching", "model"))


def _tier_of_states(scenario: ScenarioKeys) -> Iterator[Problem]:
    """What keeps a tier from holding a model's states."""
    groups, tier = scenario.model_spec.groups, scenario.offload
    states = [group for group in groups if group.kind == "mamba"]
    if not scenario.cache.enable_prefix_caching or any(group.one_state for group in states):
        text = "takes a model's states only where they are kept at boundaries, in vLLM 0.33."
        about = ("engine.mamba_cache_mode", "cache.enable_prefix_caching", "model")
        yield Problem("offload", f"{text} Enable prefix caching, or leave it out.", about)
        return
    sizes = sorted({group.block_size for group in states})
    if len(sizes) > 1 and isinstance(tier, CpuOffload):
        text = f"the model's groups of states have blocks of {', '.join(map(str, sizes))} tokens."
        yield Problem("offload", f"{text} The engine takes them if they agree.", ("model",))
    unit = scenario.engine.prefix_match_unit or math.gcd(*(group.block_size for group in groups))
    if unit >= sizes[-1]:
        return
    keys_of = ("engine.prefix_match_unit", "model")
    keys = f"with keys every {unit} tokens, so hits inside a block of states,"
    if isinstance(tier, CpuOffload) and tier.below is not None:
        text = f"a disk is not simulated {keys} yet. Leave the disk or the unit out."
        yield Problem("offload.below", text, keys_of)
    if scenario.engine.speculative is not None:
        text = f"drafts and a tier are not simulated {keys} yet. Leave one of them out."
        yield Problem("engine.speculative", text, keys_of)
