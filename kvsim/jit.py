"""Compiles the functions that touch every block, and keeps what was compiled.

The core works block by block, as the engine does; numba turns those loops into machine code.
Compiled code is kept between runs in a folder named after a digest of every source file that
can be compiled together: numba alone looks only at the file of the function it loads, and would
go on using a caller compiled with an older version of what it calls.

With ``KVSIM_BOUNDSCHECK=1`` in the environment every access to an array is checked against its
length: one outside raises IndexError where it would silently read or write other memory. That is
for tests; it is slower, and what it compiles is kept apart.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import event

F = TypeVar("F", bound=Callable[..., object])

CHECKS_BOUNDS = os.environ.get("KVSIM_BOUNDSCHECK", "0") not in ("", "0")
"""Whether compiled code checks the bounds of its arrays."""

_PACKAGE = Path(__file__).parent
_ROOMS = ("cache", "policies", "times", "offload", "engine", "fleet")
_SOURCES = ("jit.py", *(f"{room}/*.py" for room in _ROOMS))


def _digest() -> str:
    """A digest of the sources that may be compiled into one another."""
    digest = hashlib.sha256(numba.__version__.encode())
    for pattern in _SOURCES:
        for path in sorted(_PACKAGE.glob(pattern)):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> Path | None:
    """Where compiled code is kept, or None where nothing can be written."""
    digest = _digest()
    name = f"{digest}-checked" if CHECKS_BOUNDS else digest
    private = f"kvsim-jit-{os.getuid()}" if hasattr(os, "getuid") else "kvsim-jit"
    for parent in (_PACKAGE / "__pycache__" / "jit", Path(tempfile.gettempdir()) / private):
        folder = parent / name
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
                continue  # somebody else's: what lies there would be executed
            if not os.access(folder, os.W_OK):
                continue
            for other in parent.iterdir():
                if not other.name.startswith(digest):  # of an older version
                    shutil.rmtree(other, ignore_errors=True)
        except OSError:
            continue
        return folder
    return None


_FOLDER = _cache_folder()


def is_cold() -> bool:
    """Whether compiled code is kept between runs and there is none yet: the first will compile."""
    return _FOLDER is not None and next(_FOLDER.rglob("*.nbi"), None) is None


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
    before = settings.CACHE_DIR
    settings.CACHE_DIR = "" if _FOLDER is None else str(_FOLDER)
    try:
        compiled: F = decorate(
            cache=_FOLDER is not None,
            error_model="numpy",
            forceinline=inline,
            boundscheck=CHECKS_BOUNDS,
            _nrt=False,
        )(function)
    finally:
        settings.CACHE_DIR = before
    return compiled
