"""A pipeline in time: steps go through its stages in order, and each stage has one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kvsim.scenario import RooflineStepTime, Scenario
from kvsim.scenario.layout import step_layout
from kvsim.times.constants import constants_of
from kvsim.times.roofline import overrides, roofline_stages
from kvsim.times.stages import stage_times
from kvsim.times.step_time import StepTimeParams


class Pipeline:
    """When steps that were put in flight come out of the last stage."""

    def __init__(self, num_stages: int) -> None:
        """Empty.

        Args:
            num_stages: of the pipeline.
        """
        self._free_s = [0.0] * num_stages
        self._ends_s: deque[float] = deque()
        self._busy_until_s = 0.0

    def begin(self, now_s: float, stage_seconds: Sequence[float]) -> float:
        """A step enters the first stage as soon as that is free.

        Args:
            now_s: when it was planned, or what it reads is there.
            stage_seconds: how long each stage takes for it.

        Returns:
            Seconds by which it lengthens the time in which some stage is at work.
        """
        begins_s = at_s = max(now_s, self._free_s[0])
        for stage, seconds in enumerate(stage_seconds):
            at_s = max(at_s, self._free_s[stage]) + seconds
            self._free_s[stage] = at_s
        self._ends_s.append(at_s)
        added_s = at_s - max(begins_s, min(self._busy_until_s, at_s))
        self._busy_until_s = at_s
        return added_s

    @property
    def newest_end_s(self) -> float:
        """When the step that entered last comes out."""
        return self._ends_s[-1]

    def take_end_s(self) -> float:
        """When the oldest step comes out; it is forgotten."""
        return self._ends_s.popleft()


def make_stage_times(scenario: Scenario, whole: StepTimeParams) -> tuple[StepTimeParams, ...]:
    """What the step of each stage of a pipeline depends on; none for a single stage.

    Args:
        scenario: what to run.
        whole: the step of all layers.
    """
    num_stages, chosen = scenario.node.pipeline_parallel, scenario.step_time
    if num_stages == 1:
        return ()
    gpu = scenario.gpu_spec
    if not isinstance(chosen, RooflineStepTime) or gpu is None:
        return stage_times(whole, [1] * num_stages)
    path = chosen.constants_file
    return roofline_stages(
        scenario.model_spec,
        gpu,
        step_layout(scenario),
        whole,
        num_stages,
        engine=chosen.engine,
        asynchronous=scenario.async_scheduling,
        constants=None if path is None else constants_of(path),
        override=overrides(chosen.compute_efficiency, chosen.memory_efficiency, chosen.overhead_s),
    )
