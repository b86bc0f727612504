"""Routers: who gets a request, decided from views with an age, never from the truth.

One small file each, found by name, by `module:Class` or by `path.py:Class`; and the ways vLLM and
others keep and publish what they decide from. Driven by calls: no clock and no event loop.
May come in: policies, by whose rules routers are found, and the ground.
"""

from __future__ import annotations

from kvsim.routing.block_runs import BlockRuns, prefix_key
from kvsim.routing.contract import RoutedRequest, Router, Surroundings
from kvsim.routing.coordinator import Coordinator, Publication
from kvsim.routing.decider import Decider, NoReplicaError, RouterError
from kvsim.routing.names import (
    check_router,
    description,
    make_router,
    router_class,
    router_file,
    router_names,
)
from kvsim.routing.parameters import Parameters
from kvsim.routing.sees import Sees, SeesSetting
from kvsim.routing.views import Counts, Views

__all__ = [
    "BlockRuns",
    "Coordinator",
    "Counts",
    "Decider",
    "NoReplicaError",
    "Parameters",
    "Publication",
    "RoutedRequest",
    "Router",
    "RouterError",
    "Sees",
    "SeesSetting",
    "Surroundings",
    "Views",
    "check_router",
    "description",
    "make_router",
    "prefix_key",
    "router_class",
    "router_file",
    "router_names",
]
