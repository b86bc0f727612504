"""The scenario and its parts: frozen, closed, each field with its unit and the reason for it.

Plain data; `Scenario.from_data` is the door that checks everything at once, and `kvsim.scenario`
reads files through it. What a field is for stands in its description, and for users in
``scenarios/reference.yaml``.
"""

from kvsim.config.model import AttentionTermConfig, CustomModel, KVGroupConfig, KVReadConfig
from kvsim.config.offload import CpuOffload, DiskTier, MooncakeOffload, OwnLink
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
from kvsim.config.sessions import Sessions
from kvsim.config.sweep import Sweep
from kvsim.config.synthetic import SyntheticWorkload
from kvsim.config.workload import Reuse, ScriptRequest, ScriptWorkload, TraceWorkload

__all__ = [
    "AttentionTermConfig",
    "Cache",
    "ConstantStepTime",
    "CpuOffload",
    "CustomModel",
    "DiskTier",
    "Engine",
    "KVGroupConfig",
    "KVReadConfig",
    "MooncakeOffload",
    "Node",
    "Objective",
    "Output",
    "OwnLink",
    "Reuse",
    "RooflineStepTime",
    "Scenario",
    "ScriptRequest",
    "ScriptWorkload",
    "Sessions",
    "Sweep",
    "SyntheticWorkload",
    "TraceWorkload",
]
