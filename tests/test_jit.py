"""The mode in which compiled code checks the bounds of its arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import numpy as np
from kvsim import jit


@jit.njit
def third(array):
    return array[2]


print(jit._FOLDER.name.partition("-")[2], jit.CHECKS_BOUNDS, third(np.arange(3)))
third(np.arange(2))
"""


def run(tmp_path: Path, checks: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "KVSIM_BOUNDSCHECK": checks, "PYTHONPATH": root}
    return subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False
    )


def test_with_checks_an_access_outside_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "1")
    assert done.stdout == "checked True 2\n"
    assert done.returncode == 1
    assert done.stderr.endswith("IndexError: index is out of bounds\n")


def test_without_them_it_costs_nothing_and_what_is_compiled_is_kept_apart(tmp_path: Path) -> None:
    done = run(tmp_path, "0")
    assert (done.stdout, done.returncode) == (" False 2\n", 0)


def test_a_mode_keeps_what_the_other_compiled() -> None:
    from kvsim import jit

    assert jit._FOLDER is not None
    digest = jit._digest()
    other = jit._FOLDER.parent / (digest if jit.CHECKS_BOUNDS else f"{digest}-checked")
    other.mkdir(exist_ok=True)
    outdated = jit._FOLDER.parent / "0123456789abcdef"
    outdated.mkdir()
    assert jit._cache_folder() == jit._FOLDER
    assert other.is_dir()
    assert not outdated.exists()
