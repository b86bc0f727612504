"""The scenario and its parts: frozen, closed, each field with its unit and the reason for it.

Plain data; `Scenario.from_data` is the door that checks everything at once, and `kvsim.scenario`
reads files through it. What a field is for stands in its description, and for users in
``scenarios/reference.yaml``.
"""

from kvsim.config.model import AttentionTermConfig, CustomModel, KVGroupConfig, KVReadConfig
from kvsim.config.parts import (
    Cache,
    ConstantStepTime,
    Engine,
    Node,
    Objective,
    Output,
    RooflineStepTime,
)
from kvsim.config.scenario import Scenario
from kvsim.config.sweep import Sweep
from kvsim.config.workload import ScriptRequest, ScriptWorkload, TraceWorkload

__all__ = [
    "AttentionTermConfig",
    "Cache",
    "ConstantStepTime",
    "CustomModel",
    "Engine",
    "KVGroupConfig",
    "KVReadConfig",
    "Node",
    "Objective",
    "Output",
    "RooflineStepTime",
    "Scenario",
    "ScriptRequest",
    "ScriptWorkload",
    "Sweep",
    "TraceWorkload",
]
