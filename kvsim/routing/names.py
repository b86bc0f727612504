"""Routers by name: the table of those that are here, and where others are found."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError, Problems, unknown_name
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
        KvsimError: there is none of this name, or what is there is no router.
    """
    if kind in _ROUTERS:
        module, _, name = _ROUTERS[kind].partition(":")
        found: type[Router[Any]] = getattr(importlib.import_module(f"kvsim.routing.{module}"), name)
        return found
    place, colon, name = kind.rpartition(":")
    if not colon:
        advice = unknown_name("router", kind, router_names())
        raise KvsimError(f"{advice} One's own is named module:Class or path.py:Class.")
    code = _file(place, directory) if place.endswith(".py") else _module(place)
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


def is_own_code(kind: str) -> bool:
    """Whether a name stands for code that is not part of kvsim."""
    return kind not in _ROUTERS and ":" in kind


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


def _module(place: str) -> Any:
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise KvsimError(f"{place}: cannot be imported: {error}") from None
    except Exception as error:
        raise KvsimError(f"{place}: failed when imported: {_words(error)}") from error


def _file(place: str, directory: Path | None) -> Any:
    path = ((directory or Path()) / place).resolve()
    if not path.is_file():
        raise KvsimError(f"{place}: there is no such file")
    # Under a name of its own, so that classes of it can be pickled within this process.
    name = f"kvsim_router_{path.stem}_{zlib.crc32(str(path).encode()):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise KvsimError(f"{place}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise KvsimError(f"{place}: failed when read: {_words(error)}") from error
    return module


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
