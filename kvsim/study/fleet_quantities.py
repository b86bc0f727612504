"""What a search varies of a fleet: its nodes, and the numbers of its router."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel

from kvsim.errors import KvsimError, unknown_name
from kvsim.routing import check_router
from kvsim.scenario import Scenario
from kvsim.scenario.pool_rules import pool_scenario

NODES = "fleet.nodes"
NODES_MAX = 1024
"""Most nodes that a search goes to."""
_ROUTER = re.compile(r"fleet\.(?:pools\.(prefill|decode)\.)?router\.(\w+)")


def is_nodes(name: str) -> bool:
    """Whether a quantity is how many nodes serve."""
    return name in (NODES, "fleet.pools.prefill.nodes", "fleet.pools.decode.nodes")


def start_of_nodes(scenario: Scenario) -> float:
    """The nodes a scenario has, which may have no fleet yet.

    Raises:
        KvsimError: its nodes are in two pools.
    """
    if scenario.fleet is not None and scenario.fleet.pools is not None:
        raise KvsimError(
            f"quantity: {NODES}: prefill and decode are apart (fleet.pools). Vary "
            "fleet.pools.prefill.nodes or fleet.pools.decode.nodes."
        )
    return float(scenario.num_nodes)


def router_parameters(scenario: Scenario, key: str) -> tuple[BaseModel, str] | None:
    """The parameters of a router that a dotted key is of, and the key's last part.

    None where the key is no router's.

    Raises:
        KvsimError: the router has no such parameter.
    """
    match = _ROUTER.fullmatch(key)
    if match is None:
        return None
    pool, last = match.groups()
    if scenario.fleet is None or (pool and scenario.fleet.pools is None):
        place = "fleet" if scenario.fleet is None else "fleet.pools"
        raise KvsimError(f"quantity: {key}: {place} is null in this scenario. Write it out.")
    of = pool_scenario(scenario, pool) if pool else scenario
    kind, written = of.router
    parameters, _ = check_router(kind, written, scenario.directory)
    fields: Any = {} if parameters is None else type(parameters).model_fields
    if parameters is None or last not in fields:
        if not fields:
            raise KvsimError(f"quantity: {key}: router {kind} has no numbers to vary.")
        raise KvsimError(f"quantity: router {kind}: {unknown_name('key', last, list(fields))}")
    return parameters, last
