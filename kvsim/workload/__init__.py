"""What is asked of the engine: requests from a trace, a script, or made at random.

Readers of traces, sessions, generators, and what a workload offers to reuse; no engine.
May come in: the scenario, the cache's contents and the ground.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from kvsim.errors import Problems
from kvsim.scenario import ScriptWorkload, SyntheticWorkload, TraceWorkload
from kvsim.workload.request import Request, Session, Workload
from kvsim.workload.script import open_script
from kvsim.workload.sessions import in_open_loop, with_starts
from kvsim.workload.synthetic import open_synthetic
from kvsim.workload.traces import coarse_ids_warning, open_trace
from kvsim.workload.traces.trace import Trace

__all__ = ["Request", "Workload", "open_workload"]

_Item = TypeVar("_Item", Request, Session)


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
    return _open_trace(config, scheduler_block_tokens, seed)


def _open_trace(config: TraceWorkload, scheduler_block_tokens: int, seed: int) -> Workload:
    trace = open_trace(config, seed)
    warnings = []
    if trace.block_tokens is not None and trace.block_tokens > scheduler_block_tokens:
        warnings.append(
            coarse_ids_warning(
                Path(trace.shown).name,
                trace.block_tokens,
                scheduler_block_tokens,
                shared_tails=config.partial_tail == "shared",
            )
        )
    workload = Workload(
        requests=iter(()),
        warnings=warnings,
        block_tokens=trace.block_tokens,
        share_read=trace.share_read,
    )
    played = config.sessions
    if played is None:
        workload.requests = _with_notices(trace.requests(), trace, workload)
        return workload
    if not trace.has_sessions:
        raise _no_sessions(trace)
    sessions = trace.sessions()
    if played.concurrency is None:
        sessions = with_starts(sessions, played.starts, seed, trace.shown)
    sessions = _with_notices(sessions, trace, workload)
    workload.concurrency = played.concurrency
    if played.loop == "open":
        workload.requests = in_open_loop(sessions)
    else:
        workload.sessions = sessions
    return workload


def _with_notices(items: Iterator[_Item], trace: Trace, workload: Workload) -> Iterator[_Item]:
    """Passes requests or sessions on, and adds what was noticed when all are read."""
    gaps_for_delays = without_times = False
    for item in items:
        if isinstance(item, Session):
            gaps_for_delays |= not item.delays_recorded
            without_times |= not item.timed
        yield item
    workload.warnings += trace.warnings
    if gaps_for_delays and workload.sessions is not None:
        workload.warnings.append(
            f"{Path(trace.shown).name}: no think or tool times are recorded, so a turn comes as "
            "long after the end of the answer before it as it was recorded after its arrival: "
            "sessions last longer than they did."
        )
    if without_times and workload.sessions is None:
        workload.warnings.append(
            f"{Path(trace.shown).name}: in this open loop, turns without a recorded time come as "
            "long after the arrival of the turn before as their delay says, not after its answer."
        )


def _no_sessions(trace: Trace) -> Problems:
    text = f"sessions: format {trace.format} has none here. Leave the section out."
    return Problems(trace.shown, [text])
