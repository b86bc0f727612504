"""Real request traces: one reader a format."""

from __future__ import annotations

from kvsim.scenario import TraceWorkload
from kvsim.workload.traces.formats import FORMATS, open_trace_file
from kvsim.workload.traces.reuse import SharedPrefixes
from kvsim.workload.traces.table import COLUMNS
from kvsim.workload.traces.trace import Trace, TraceOptions

__all__ = [
    "COLUMNS",
    "FORMATS",
    "Trace",
    "TraceOptions",
    "coarse_ids_warning",
    "open_trace",
    "open_trace_file",
]


def open_trace(config: TraceWorkload, seed: int = 0) -> Trace:
    """Open the trace that a scenario names.

    Args:
        config: the scenario's `workload`.
        seed: the scenario's, for the reuse that is drawn.

    Raises:
        KvsimError: the file cannot be read, or its first request is wrong.
    """
    drawn = config.reuse
    reuse = None
    if drawn is not None:
        reuse = SharedPrefixes(drawn.num_prefixes, drawn.prefix_tokens, drawn.zipf_exponent, seed)
    options = TraceOptions(
        limit=config.limit,
        time_scale=config.time_scale,
        start_s=config.start_s,
        block_tokens=config.block_tokens,
        shared_tails=config.partial_tail == "shared",
        strict=config.strict,
        skip_bad=config.on_bad == "skip",
        time_unit=config.time_unit,
        columns=None if config.columns is None else config.columns.named(),
        tokenizer=config.tokenizer_file,
        reuse=reuse,
    )
    return open_trace_file(config.file, options, trace_format=config.format, shown=config.path)


def coarse_ids_warning(
    trace: str, block_tokens: int, scheduler_block_tokens: int, *, shared_tails: bool
) -> str:
    """What a trace cannot tell whose ids cover more tokens than the unit of the model's hits."""
    ours, bound, other, others_bound = (
        ("shared", "an upper", "distinct", "a lower")
        if shared_tails
        else ("distinct", "a lower", "shared", "an upper")
    )
    return (
        f"{trace}: one id stands for {block_tokens} tokens, but this model's hits come in units of "
        f"{scheduler_block_tokens}, and the trace cannot tell where a shared prefix ends inside an "
        f"id. partial_tail {ours}, as here, gives {bound} bound of what prompts share, {other} "
        f"{others_bound} bound. It matters most for retention_interval 0, which keeps a prompt's "
        "end: compare both before ranking it against an interval."
    )
