"""Routers by name: the table of those that are here, and where others are found."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError, Problems, unknown_name
from kvsim.policies.finding import load_code, own_file
from kvsim.routing.contract import Router, Surroundings
from kvsim.routing.parameters import Parameters, check_parameters

_ROUTERS = {
    "random": "plain:Random",
    "round-robin": "plain:RoundRobin",
    "least-requests": "least_loaded:LeastRequests",
    "power-of-two": "least_loaded:PowerOfTwo",
    "session": "session:Session",
    "vllm-dp": "vllm_dp:VllmDp",
    "production-stack": "production_stack:ProductionStack",
    "sglang-cache-aware": "sglang:SglangCacheAware",
    "sglang-prefix-hash": "sglang:SglangPrefixHash",
    "dynamo-kv": "dynamo:DynamoKv",
    "llm-d": "llm_d:LlmD",
    "sticky-until-saturated": "sticky:StickyUntilSaturated",
    "aibrix-prefix": "aibrix:AibrixPrefix",
    "oracle": "oracle:Oracle",
}
"""By name, the module of this room and the class."""


def router_names() -> tuple[str, ...]:
    """Names of the routers that are here, in the order of the documentation."""
    return tuple(_ROUTERS)


def router_class(kind: str, directory: Path | None = None) -> type[Router[Any]]:
    """The class of a router.

    Args:
        kind: a name, ``module:Class``, or ``path/to/file.py:Class``.
        directory: what a path is relative to; the current directory without it.

    Raises:
        KvsimError: there is none of this name, what is there is no router, or it is code that the
            user has not said may run.
    """
    if kind in _ROUTERS:
        module, _, name = _ROUTERS[kind].partition(":")
        found: type[Router[Any]] = getattr(importlib.import_module(f"kvsim.routing.{module}"), name)
        return found
    place, colon, name = kind.rpartition(":")
    if not colon:
        advice = unknown_name("router", kind, router_names())
        raise KvsimError(f"{advice} One's own is named module:Class or path.py:Class.")
    try:
        code = load_code(place, kind, directory or Path())
    except ValueError as error:
        raise KvsimError(str(error)) from None
    if not hasattr(code, name):
        classes = [
            key
            for key, value in vars(code).items()
            if inspect.isclass(value) and issubclass(value, Router) and value is not Router
        ]
        raise KvsimError(f"{place}: {unknown_name('router', name, classes or ['none there'])}")
    router = getattr(code, name)
    if not (inspect.isclass(router) and issubclass(router, Router)):
        raise KvsimError(
            f"{kind}: is no router. Write a class that inherits from kvsim.routing.Router."
        )
    return router


def router_file(kind: str, directory: Path | None = None) -> Path | None:
    """The file of a router of one's own; None for one of kvsim.

    Raises:
        KvsimError: there is none of this name.
    """
    return own_file(sys.modules[router_class(kind, directory).__module__])


def description(router: type[Router[Any]]) -> str:
    """A router in one line."""
    lines = (router.__doc__ or "").strip().splitlines()
    return lines[0] if lines else ""


def check_router(
    kind: str, written: Mapping[str, Any], directory: Path | None = None
) -> tuple[Parameters | None, list[tuple[str, str]]]:
    """Check a router's name and parameters; nothing is started.

    Returns:
        The parameters, or None; and what is wrong, as place (``kind`` for the name) and text.
    """
    try:
        router = router_class(kind, directory)
    except KvsimError as error:
        return None, [("kind", str(error))]
    return check_parameters(router.Parameters, written)


def make_router(
    kind: str,
    written: Mapping[str, Any],
    surroundings: Surroundings,
    directory: Path | None = None,
) -> Router[Any]:
    """A router for one process.

    Args:
        kind: a name, ``module:Class``, or ``path/to/file.py:Class``.
        written: its parameters as written.
        surroundings: what it is told at the start.
        directory: what a path is relative to.

    Raises:
        KvsimError: there is none of this name.
        Problems: everything that is wrong with the parameters.
    """
    router = router_class(kind, directory)
    parameters, problems = check_parameters(router.Parameters, written)
    if parameters is None:
        raise Problems(f"router {kind}", [f"{place}: {text}" for place, text in problems])
    return router(parameters, surroundings)
