"""Lengths and times of a trace, for draws that follow them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.scenario import TraceWorkload
from kvsim.workload.synthetic.drawing import Recorded
from kvsim.workload.traces import open_trace


@dataclass(frozen=True)
class RecordedTrace:
    """What is taken from a trace.

    Attributes:
        lengths: of its requests.
        times_s: their arrivals, ascending from 0; None where they are not recorded.
    """

    lengths: Recorded
    times_s: npt.NDArray[np.float64] | None


def read_recorded(path: str, directory: Path) -> RecordedTrace:
    """Read lengths and times, 24 bytes a request.

    Args:
        path: the trace, as written.
        directory: what it is relative to.

    Raises:
        KvsimError: the trace cannot be read.
    """
    config = TraceWorkload.model_validate(
        {"kind": "trace", "path": path}, context={"directory": directory}
    )
    trace = open_trace(config)
    timed = not trace.has_sessions or (trace.starts_recorded and trace.timed)
    requests = (
        trace.requests()
        if timed
        else (turn.request for session in trace.sessions() for turn in session.turns)
    )
    rows = np.array([(r.num_prompt_tokens, r.num_output_tokens, r.arrival_s) for r in requests])
    lengths = Recorded(rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64))
    return RecordedTrace(lengths, rows[:, 2] - rows[0, 2] if timed else None)
