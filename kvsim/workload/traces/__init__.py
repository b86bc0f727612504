"""Real request traces: one reader a format."""

from __future__ import annotations

from kvsim.config import TraceWorkload
from kvsim.workload.request import Workload
from kvsim.workload.traces.mooncake import TraceOptions, open_mooncake

__all__ = ["TraceOptions", "open_trace"]


def open_trace(config: TraceWorkload, scheduler_block_tokens: int) -> Workload:
    """Open a trace in the format that the scenario names.

    Raises:
        KvsimError: the file cannot be read, or its first request is wrong.
    """
    options = TraceOptions(limit=config.limit, time_scale=config.time_scale, start_s=config.start_s)
    return open_mooncake(config.file, options, scheduler_block_tokens, shown=config.path)
