"""Where a result comes from: versions, seed, hashes, start and command, without machine paths."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvsim.errors import Problems

_PACKAGES = ("kvsim", "numba", "numpy", "pandas", "pyarrow", "simpy")


def provenance(
    *,
    scenario_yaml: str,
    seed: int,
    started: datetime,
    arguments: Sequence[str],
    inputs: Iterable[Path] = (),
) -> dict[str, Any]:
    """Make the content of `provenance.json`.

    Args:
        scenario_yaml: the resolved scenario as text, files by their names alone.
        seed: the scenario's seed.
        started: when the run began, with a time zone.
        arguments: the command line after the program's name; empty for a run from Python.
        inputs: files that the run read, such as its trace.

    Raises:
        KvsimError: an input cannot be read.
    """
    return {
        "versions": {"python": platform.python_version(), **package_versions()},
        "platform": f"{platform.system()} {platform.machine()}",
        "started": started.astimezone(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "scenario_sha256": hashlib.sha256(scenario_yaml.encode()).hexdigest(),
        "inputs_sha256": {path.name: file_sha256(path) for path in inputs},
        "command": command_without_paths(arguments) if arguments else None,
    }


def package_versions() -> dict[str, str | None]:
    """Installed versions of this package and of those its results depend on, None for none."""
    from importlib.metadata import PackageNotFoundError, version

    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal.

    Raises:
        KvsimError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Problems(str(path), [f"path: cannot be read: {error.strerror}."]) from None


def command_without_paths(arguments: Sequence[str]) -> str:
    """The command line with every absolute path cut to its last part, quoted for a shell."""
    import shlex

    return shlex.join(["kvsim", *(_without_folders(argument) for argument in arguments)])


def _without_folders(argument: str) -> str:
    # Also the value in --out=/x/y and in --set workload.path=/x/y.
    key, equals, value = argument.rpartition("=")
    is_absolute = value.startswith("~") or Path(value).is_absolute()
    return f"{key}{equals}{Path(value).name}" if is_absolute else argument
