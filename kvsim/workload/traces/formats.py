"""Opens a trace of any format."""

from __future__ import annotations

from pathlib import Path

from kvsim.errors import Problems, unknown_name
from kvsim.workload.traces.openers import FIXED_BLOCKS, OPENERS
from kvsim.workload.traces.recognition import FORMATS, recognised
from kvsim.workload.traces.trace import Trace, TraceOptions

__all__ = ["FORMATS", "open_trace_file"]


def open_trace_file(
    path: Path, options: TraceOptions, *, trace_format: str = "auto", shown: str | None = None
) -> Trace:
    """Open a trace.

    Args:
        path: the file.
        options: which part of it, and how it is read.
        trace_format: one of `FORMATS`, or "auto" to recognise it; a table where `options` names
            columns.
        shown: how messages name the file, by default its path.

    Raises:
        KvsimError: the file cannot be read, its format is not recognised, or its first request is
            wrong. Later ones are checked when they are read.
    """
    shown = str(path) if shown is None else shown
    if trace_format != "auto" and trace_format not in FORMATS:
        raise Problems(shown, [f"format: {unknown_name('format', trace_format, FORMATS)}"])
    if options.columns is not None and trace_format not in ("auto", "table"):
        problem = f"columns: format {trace_format} has columns of its own names."
        raise Problems(shown, [f"{problem} Leave it out, or use format table."])
    wanted = trace_format if options.columns is None else "table"
    name, file = recognised(path, shown, wanted)
    fixed = FIXED_BLOCKS.get(name)
    if fixed is not None and options.block_tokens not in (None, fixed):
        problem = f"block_tokens: {options.block_tokens}, where an id of {name} stands for {fixed}"
        raise Problems(shown, [f"{problem} tokens. Leave it out."])
    return OPENERS[name](file, options)
