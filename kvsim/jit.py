"""Compiles the functions that touch every block, and keeps what was compiled.

The core works block by block, as the engine does; numba turns those loops into machine code.
Compiled code is kept between runs, for each file in a folder named after a digest of it and of all
files of this package that it imports from, however far away: numba alone looks only at the file of
the function it loads, and would go on using a caller compiled with an older version of what it
calls.

With ``KVSIM_BOUNDSCHECK=1`` in the environment every access to an array is checked against its
length: one outside raises IndexError where it would silently read or write other memory. That is
for tests; it is slower, and what it compiles is kept apart.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import event

F = TypeVar("F", bound=Callable[..., object])

CHECKS_BOUNDS = os.environ.get("KVSIM_BOUNDSCHECK", "0") not in ("", "0")
"""Whether compiled code checks the bounds of its arrays."""

_PACKAGE = Path(__file__).parent
_IMPORTS = re.compile(r"^[ \t]*from kvsim([\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)


@cache
def _source(path: Path) -> tuple[bytes, tuple[Path, ...]]:
    """A source file and the files of this package that it imports from."""
    source = path.read_bytes()
    found = []
    for module, names in _IMPORTS.findall(source.decode()):
        at = _PACKAGE.joinpath(*module.split(".")[1:])
        places = [at, *(at / name for name in re.findall(r"\w+", names))]
        found += [place.with_suffix(".py") for place in places]
    return source, tuple(place for place in found if place.is_file())


@cache
def _digest(path: Path) -> str:
    """A digest of what may be compiled into the functions of a file: it and all that it imports."""
    seen, ahead = {path}, [path]
    while ahead:
        for place in _source(ahead.pop())[1]:
            if place not in seen:
                seen.add(place)
                ahead.append(place)
    digest = hashlib.sha256(numba.__version__.encode())
    for place in sorted({*seen, Path(__file__)}):
        digest.update(place.name.encode())
        digest.update(_source(place)[0])
    return digest.hexdigest()[:16]


@cache
def _cache_folder(path: Path) -> Path | None:
    """Where the compiled functions of a file are kept, or None where nothing can be written."""
    inside = path.is_relative_to(_PACKAGE)
    prefix = ".".join(path.relative_to(_PACKAGE).with_suffix("").parts) if inside else path.stem
    digest = _digest(path)
    name = f"{prefix}-{digest}-checked" if CHECKS_BOUNDS else f"{prefix}-{digest}"
    private = f"kvsim-jit-{os.getuid()}" if hasattr(os, "getuid") else "kvsim-jit"
    for parent in (_PACKAGE / "__pycache__" / "jit", Path(tempfile.gettempdir()) / private):
        folder = parent / name
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
                continue  # somebody else's: what lies there would be executed
            if not os.access(folder, os.W_OK):
                continue
            for other in parent.glob(f"{prefix}-*"):
                if not other.name.startswith(f"{prefix}-{digest}"):  # of an older version
                    shutil.rmtree(other, ignore_errors=True)
        except OSError:
            continue
        return folder
    return None


_FOLDERS: set[Path | None] = set()
"""Where the functions that were declared so far are kept."""


def is_cold() -> bool:
    """Whether compiled code is kept between runs and there is none yet: the first will compile."""
    folders = [folder for folder in _FOLDERS if folder is not None]
    return bool(folders) and not any(next(at.rglob("*.nbi"), None) for at in folders)


class Compilation(event.Listener):
    """How long code was compiled while `watch_compilation` watched.

    Attributes:
        wall_s: real time spent compiling so far; loading kept code does not count.
    """

    def __init__(self, on_start: Callable[[], None] | None) -> None:
        self.wall_s = 0.0
        self._on_start = on_start
        self._depth = 0
        self._since_s = 0.0

    def on_start(self, event: object) -> None:
        """A function begins to be compiled, perhaps on behalf of another."""
        if self._depth == 0:
            if self._on_start is not None and self.wall_s == 0.0:
                self._on_start()
            self._since_s = time.perf_counter()
        self._depth += 1

    def on_end(self, event: object) -> None:
        """A function has been compiled."""
        self._depth -= 1
        if self._depth == 0:
            self.wall_s += time.perf_counter() - self._since_s


@contextmanager
def watch_compilation(on_start: Callable[[], None] | None = None) -> Iterator[Compilation]:
    """Watch what is compiled inside the block.

    Args:
        on_start: called once, when the first function begins to be compiled.
    """
    with event.install_listener("numba:compile", Compilation(on_start)) as compilation:
        yield compilation


def njit(function: F) -> F:
    """Compile a function with numba when it is first called; the result outlives the process.

    What calls it takes it in whole.

    Args:
        function: works on numpy arrays and numbers only, and makes no array of its own: its arrays
            belong to the caller, so that their references need not be counted. Counting them
            costs six times what the work itself does.

    Returns:
        The compiled function, with the signature of the given one.
    """
    return _compiled(function, inline=True)


def njit_apart(function: F) -> F:
    """The same for a function that stays apart from its callers: they do not grow by its code."""
    return _compiled(function, inline=False)


def _compiled(function: F, *, inline: bool) -> F:
    settings: Any = numba.config
    decorate: Any = numba.njit
    folder = _cache_folder(Path(function.__code__.co_filename))
    _FOLDERS.add(folder)
    before = settings.CACHE_DIR
    settings.CACHE_DIR = "" if folder is None else str(folder)
    try:
        compiled: F = decorate(
            cache=folder is not None,
            error_model="numpy",
            forceinline=inline,
            boundscheck=CHECKS_BOUNDS,
            _nrt=False,
        )(function)
    finally:
        settings.CACHE_DIR = before
    return compiled
