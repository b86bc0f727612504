"""What is asked of the engine: requests from a trace, a script, or made at random."""

from __future__ import annotations

from kvsim.config import ScriptWorkload, SyntheticWorkload, TraceWorkload
from kvsim.workload.request import Request, Workload
from kvsim.workload.script import open_script
from kvsim.workload.synthetic import open_synthetic
from kvsim.workload.traces import open_trace

__all__ = ["Request", "Workload", "open_workload"]


def open_workload(
    config: TraceWorkload | ScriptWorkload | SyntheticWorkload,
    scheduler_block_tokens: int,
    seed: int = 0,
) -> Workload:
    """Open the workload of a scenario.

    Args:
        config: the scenario's `workload`.
        scheduler_block_tokens: the unit of prefix hits of the model, in tokens; a trace whose ids
            are coarser gets a warning.
        seed: what is drawn follows from it.

    Raises:
        KvsimError: the trace cannot be read, or its first request is wrong. Later requests are
            checked when they are read.
    """
    if isinstance(config, ScriptWorkload):
        return open_script(config)
    if isinstance(config, SyntheticWorkload):
        return open_synthetic(config, seed)
    return open_trace(config, scheduler_block_tokens)
