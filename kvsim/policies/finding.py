"""Finds a policy by what a scenario says of it, and reads its parameters.

A policy is one of the table's; or an entry point of the group ``kvsim.policies`` of an installed
package; or ``module:name``; or ``path/to/file.py:name``. Code that is not installed is run only
where the user has said that it may be: scenarios are passed on.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from kvsim.errors import UnknownNameError, nearest, show
from kvsim.policies.contract import KEYS, KINDS, Policy, Value
from kvsim.policies.table import TABLE

ENTRY_POINTS = "kvsim.policies"
_TRUST = "KVSIM_TRUST"
_PACKAGE = Path(__file__).parents[1]


def trust_policies(trusted: bool = True) -> None:
    """Let code run that is neither kvsim's nor an installed package's, in workers as well."""
    if trusted:
        os.environ[_TRUST] = "1"
    else:
        os.environ.pop(_TRUST, None)


def policies_are_trusted() -> bool:
    """Whether `trust_policies` was called, here or in the process that started this one."""
    return os.environ.get(_TRUST, "") == "1"


@dataclass(frozen=True)
class Chosen:
    """A policy with its parameters.

    Attributes:
        name: as written.
        policy: what it is.
        values: its parameters, those not written at their defaults.
        file: where its code is; None where that is kvsim itself.
        sha256: of that file, empty without one.
    """

    name: str
    policy: Policy
    values: tuple[tuple[str, Value], ...]
    file: Path | None = None
    sha256: str = ""

    @property
    def parameters(self) -> tuple[Value, ...]:
        """The values in the order in which its functions take them."""
        return tuple(value for _, value in self.values)


def find_policy(kind: str, written: object, directory: Path | None = None) -> Chosen:
    """The policy a scenario means.

    Args:
        kind: of ``KINDS``.
        written: its name, or a mapping with ``name`` and parameters.
        directory: what the path of a file is relative to.

    Raises:
        ValueError: there is none, it cannot be loaded, it is not trusted, or a parameter is wrong.
    """
    if isinstance(written, Mapping):
        name, values = written.get("name"), {k: v for k, v in written.items() if k != "name"}
        if not isinstance(name, str):
            raise ValueError(f"has no name. Write a {KINDS[kind]}'s, as in {{name: lru}}.")
    elif isinstance(written, str):
        name, values = written, {}
    else:
        raise ValueError(f"{show(written)} is no {KINDS[kind]}. Write a name, or {{name: ...}}.")
    policy, file = _load(kind, name, directory or Path())
    return Chosen(
        name,
        policy,
        tuple(policy.read(values).items()),
        file,
        "" if file is None else hashlib.sha256(file.read_bytes()).hexdigest(),
    )


def known_policies(kind: str) -> dict[str, str]:
    """Names of a kind, the table's and those of installed packages, with where each is."""
    found = dict(TABLE[kind])
    for point in entry_points(group=ENTRY_POINTS):
        found.setdefault(point.name, point.value)
    return found


def _load(kind: str, name: str, directory: Path) -> tuple[Policy, Path | None]:
    place = known_policies(kind).get(name)
    if place is None and ":" not in name:
        known = [known for known in known_policies(kind) if known in TABLE[kind]]
        raise UnknownNameError(KEYS[kind], name, [*ENGINE_NAMES.get(kind, ()), *known])
    module_name, _, attribute = (place or name).rpartition(":")
    module = load_code(module_name, name, directory)
    found = getattr(module, attribute, None)
    if found is None:
        names = [key for key, value in vars(module).items() if isinstance(value, Policy)]
        near = nearest(attribute, names)
        advice = f"Did you mean '{near}'?" if near else f"It has {', '.join(names) or 'none'}."
        raise ValueError(f"{show(name)}: {module_name} has no policy {show(attribute)}. {advice}")
    if not isinstance(found, Policy):
        raise ValueError(
            f"{show(name)} is no policy. Put @{kind}(...) of kvsim.policies.contract above it."
        )
    if found.kind != kind:
        raise ValueError(f"{show(name)} is a {KINDS[found.kind]}. A {KINDS[kind]} belongs here.")
    return found, own_file(module)


ENGINE_NAMES: dict[str, tuple[str, ...]] = {
    "free_queue": ("append", "prepend-uncached-window", "prepend-uncached")
}
"""What the engine itself has, which is no code to be found."""


def load_code(place: str, name: str, directory: Path) -> ModuleType:
    """The code that a policy or a router of one's own is in.

    Args:
        place: a module, or the path of a Python file.
        name: as it is written, for what is said.
        directory: what a path is relative to.

    Raises:
        ValueError: there is none, it is not trusted, or it fails.
    """
    if place.endswith(".py"):
        return _run_file(directory / place, name)
    return _import(place, name)


def own_file(module: ModuleType) -> Path | None:
    """The file of a module that is not kvsim's own."""
    file = Path(module.__file__) if module.__file__ else None
    return None if file is None or _PACKAGE in file.parents else file


def _import(module: str, name: str) -> ModuleType:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise ValueError(f"{show(name)}: there is no module {module}. Install it, or name a file.")
    if spec.origin is not None and not _is_installed(Path(spec.origin)):
        _ask_for_trust(name, Path(spec.origin))
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise ValueError(_failed(name, error)) from error


_RUN: dict[tuple[Path, str], ModuleType] = {}


def _run_file(path: Path, name: str) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise ValueError(f"{show(name)}: there is no file {path}. Paths are relative to the file.")
    _ask_for_trust(name, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if (path, digest) not in _RUN:
        spec: Any = importlib.util.spec_from_file_location(f"_policy_{digest[:16]}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # numba looks a function's module up
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[spec.name]
            raise ValueError(_failed(name, error)) from error
        _RUN[path, digest] = module
    return _RUN[path, digest]


def _failed(name: str, error: Exception) -> str:
    return f"{show(name)} cannot be loaded: {type(error).__name__}: {error}. Mend it."


def _is_installed(path: Path) -> bool:
    """Whether a file is kvsim's, an installed package's, or of Python itself."""
    roots = [_PACKAGE, *map(Path, site.getsitepackages()), Path(site.getusersitepackages())]
    roots += [Path(sysconfig.get_path(key)) for key in ("purelib", "platlib", "stdlib")]
    resolved = path.resolve()
    return any(root.resolve() in resolved.parents for root in roots)


def _ask_for_trust(name: str, path: Path) -> None:
    if not policies_are_trusted():
        raise ValueError(
            f"{show(name)} would run the code in {path}, which is no installed package. "
            "Look at it; where you trust it, give --trust."
        )
