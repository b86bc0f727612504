"""The scenario and its parts: frozen, closed, each field with its unit and the reason for it.

Plain data; `Scenario.from_data` is the door that checks everything at once, and `reading` reads
files through it. What a field is for stands in its description, and for users in
``scenarios/reference.yaml``.
May come in: capacity, times, the catalog, policies, routing and the ground.
"""

from kvsim.scenario.fleet import Fleet, FleetEvent
from kvsim.scenario.model import AttentionTermConfig, CustomModel, KVGroupConfig, KVReadConfig
from kvsim.scenario.node import Node
from kvsim.scenario.offload import CpuOffload, DiskTier, MooncakeOffload, OwnLink
from kvsim.scenario.parts import (
    Cache,
    ConstantStepTime,
    Engine,
    Objective,
    Output,
    RooflineStepTime,
    TableStepTime,
)
from kvsim.scenario.pools import MooncakePush, NixlPull, Pool, Pools, Split
from kvsim.scenario.scenario import Scenario
from kvsim.scenario.sessions import Sessions
from kvsim.scenario.sweep import Sweep
from kvsim.scenario.synthetic import SyntheticWorkload
from kvsim.scenario.workload import Reuse, ScriptRequest, ScriptWorkload, TraceWorkload

__all__ = [
    "AttentionTermConfig",
    "Cache",
    "ConstantStepTime",
    "CpuOffload",
    "CustomModel",
    "DiskTier",
    "Engine",
    "Fleet",
    "FleetEvent",
    "KVGroupConfig",
    "KVReadConfig",
    "MooncakeOffload",
    "MooncakePush",
    "NixlPull",
    "Node",
    "Objective",
    "Output",
    "OwnLink",
    "Pool",
    "Pools",
    "Reuse",
    "RooflineStepTime",
    "Scenario",
    "ScriptRequest",
    "ScriptWorkload",
    "Sessions",
    "Split",
    "Sweep",
    "SyntheticWorkload",
    "TableStepTime",
    "TraceWorkload",
]
