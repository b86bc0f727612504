"""Lengths and times of a trace, for draws that follow them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.config import TraceWorkload
from kvsim.workload.synthetic.drawing import Recorded
from kvsim.workload.traces import open_trace


@dataclass(frozen=True)
class RecordedTrace:
    """What is taken from a trace.

    Attributes:
        lengths: of its requests.
        times_s: their arrivals, ascending from 0.
    """

    lengths: Recorded
    times_s: npt.NDArray[np.float64]


def read_recorded(file: Path, shown: str) -> RecordedTrace:
    """Read lengths and times, 24 bytes a request.

    Raises:
        KvsimError: the trace cannot be read.
    """
    config = TraceWorkload.model_validate(
        {"kind": "trace", "path": str(file)}, context={"directory": Path()}
    )
    rows = [
        (request.num_prompt_tokens, request.num_output_tokens, request.arrival_s)
        for request in open_trace(config).requests()
    ]
    prompt_tokens, output_tokens, times_s = zip(*rows, strict=True)
    times = np.array(times_s)
    lengths = Recorded(np.array(prompt_tokens), np.array(output_tokens))
    return RecordedTrace(lengths, times - times[0])
