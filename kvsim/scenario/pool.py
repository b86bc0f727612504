"""How large the pool of a scenario is."""

from __future__ import annotations

from kvsim import catalog
from kvsim.capacity.memory import BlockDerivation, derive_num_blocks
from kvsim.scenario.keys import ScenarioKeys


def derive_blocks(scenario: ScenarioKeys) -> BlockDerivation:
    """The size of a scenario's pool, as set or derived line by line.

    Raises:
        KvsimError: nothing says how large it is, or no memory is left for it.
    """
    node = scenario.node
    return derive_num_blocks(
        scenario.model_spec,
        None if node.gpu is None else catalog.gpu(node.gpu),
        scenario.num_ranks,
        node.gpu_memory_utilization,
        node.activation_reserve,
        node.num_blocks,
        kv_cache_bytes=scenario.engine.kv_cache_memory,
    )
