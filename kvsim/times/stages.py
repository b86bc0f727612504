"""Step times of a pipeline's stages: each has a share of the layers, and passes its tokens on.

Derived from the step of all layers together, and not held against measurements: the public ones
this package goes by have no pipeline. What a step costs whatever it holds, and the host's part, are
paid by each stage, for each has processes of its own; the output head runs on the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.times import step_time as entry
from kvsim.times.step_time import StepTimeParams

RESIDUAL_TENSORS = 2
"""A stage sends what its last layer made and the residual stream (vLLM 0.33.0,
``IntermediateTensors``), in two bytes an element."""

NOT_MEASURED = (
    "node.pipeline_parallel: how long each stage takes is derived from the step of all layers, "
    "and was not held against measurements; what is scheduled and hit is as the engine has it"
)
"""What is said of every run with stages."""

_OF_LAYERS = (
    entry.PROMPT_STEP,
    entry.TOKEN,
    entry.SHARED_TOKEN,
    entry.DENSE,
    entry.DENSE_TOKEN,
    entry.EXPERTS,
    entry.EXPERT_TOKEN,
    entry.EXPERT_PADDING,
    entry.KV_BYTE,
    entry.DECODE_FLOP,
    entry.PROMPT_FLOP,
)
"""Scalars that grow with the layers alone."""


def stage_times(
    whole: StepTimeParams,
    layers: Sequence[int],
    *,
    step_s: float = 0.0,
    sequence_s: float = 0.0,
    transfer_token_s: float = 0.0,
) -> tuple[StepTimeParams, ...]:
    """What the step of each stage depends on.

    Args:
        whole: of all layers on one stage, no table.
        layers: of each stage.
        step_s: the part of a step's launches that each stage pays, however few layers it has.
        sequence_s: the part of a sequence's time that the last stage alone pays.
        transfer_token_s: seconds a token's activations are on their way to the next stage.
    """
    found = []
    for stage, held in enumerate(layers):
        share, last = held / sum(layers), stage == len(layers) - 1
        scalars = whole.scalars.copy()
        for number in _OF_LAYERS:
            scalars[number] *= share
        scalars[entry.STEP] = step_s + share * (whole.scalars[entry.STEP] - step_s)
        scalars[entry.SEQUENCE] = share * (whole.scalars[entry.SEQUENCE] - sequence_s)
        if last:
            scalars[entry.SEQUENCE] += sequence_s
        else:
            scalars[entry.HEAD] = scalars[entry.HEAD_SEQUENCE] = 0.0
            scalars[entry.TOKEN] += transfer_token_s
        found.append(whole._replace(scalars=scalars))
    return tuple(found)
