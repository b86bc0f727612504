"""The mode in which compiled code checks the bounds of its arrays."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim import jit

PROGRAM = """
import numpy as np
from kvsim import jit


@jit.njit
def third(array):
    return array[2]


(folder,) = jit._FOLDERS
print(folder.name.split("-")[2:], jit.CHECKS_BOUNDS, third(np.arange(3)))
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
    assert done.stdout == "['checked'] True 2\n"
    assert done.returncode == 1
    assert done.stderr.endswith("IndexError: index is out of bounds\n")


def test_without_them_it_costs_nothing_and_what_is_compiled_is_kept_apart(tmp_path: Path) -> None:
    done = run(tmp_path, "0")
    assert (done.stdout, done.returncode) == ("[] False 2\n", 0)


def test_a_mode_keeps_what_the_other_compiled() -> None:
    path = jit._PACKAGE / "cache" / "content.py"
    digest = jit._digest(path)
    folder = jit._cache_folder(path)
    assert folder is not None
    plain = f"cache.content-{digest}"
    other = folder.parent / (plain if jit.CHECKS_BOUNDS else f"{plain}-checked")
    other.mkdir(exist_ok=True)
    outdated = folder.parent / "cache.content-0123456789abcdef"
    outdated.mkdir()
    of_another = folder.parent / "cache.contents-0123456789abcdef"
    of_another.mkdir()
    jit._cache_folder.cache_clear()
    assert jit._cache_folder(path) == folder
    assert other.is_dir()
    assert of_another.is_dir()
    assert not outdated.exists()
    of_another.rmdir()


def test_what_a_file_imports_from_however_far_away_tells_its_versions_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "kvsim"
    (package / "room").mkdir(parents=True)
    texts = {
        "top.py": "from kvsim.room import (\n    middle,\n)\n",
        "room/middle.py": "def late():\n    from kvsim.room.bottom import N\n",
        "room/bottom.py": "N = 1\n",
        "room/apart.py": "N = 1\n",
    }
    for name, text in texts.items():
        (package / name).write_text(text)
    monkeypatch.setattr(jit, "_PACKAGE", package)

    def digest() -> str:
        jit._source.cache_clear()
        jit._digest.cache_clear()
        return jit._digest(package / "top.py")

    before = digest()
    (package / "room/apart.py").write_text("N = 2\n")
    assert digest() == before
    (package / "room/bottom.py").write_text("N = 2\n")
    assert digest() != before
    monkeypatch.undo()
    jit._source.cache_clear()
    jit._digest.cache_clear()


def test_every_import_of_the_package_is_in_the_form_that_the_digest_reads() -> None:
    """It reads `from kvsim... import ...` alone."""
    for path in jit._PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert all(not name.name.startswith("kvsim") for name in node.names), path
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
