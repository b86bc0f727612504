"""How GPUs share the model in a step, as a scenario says."""

from __future__ import annotations

from kvsim.scenario.keys import ScenarioKeys
from kvsim.times.work import Layout


def step_layout(scenario: ScenarioKeys) -> Layout:
    """How GPUs share the model, and the drafts that a decode checks.

    Data-parallel ranks of a dense model have nothing in common: each is as one alone.
    """
    speculative, node = scenario.engine.speculative, scenario.node
    ranks = scenario.expert_ranks if scenario.has_experts else 1
    return Layout(
        scenario.num_ranks,
        data_parallel=ranks,
        expert_parallel=scenario.num_ranks * ranks if node.expert_parallel else 1,
        draft_tokens=0 if speculative is None else speculative.tokens,
    )
