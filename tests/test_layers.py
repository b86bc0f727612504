"""Imports point down, and each outside library has its room."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kvsim"

# From the top down. A module may import from its own floor and from any floor below; rooms of one
# floor that do so stand in a line, never in a circle.
FLOORS = [
    ("cli", "api"),
    ("report", "plots"),
    ("study",),
    ("results", "verify"),
    ("fleet",),
    ("engine",),
    ("offload", "workload", "metrics"),
    ("scenario", "capacity", "times"),
    ("cache", "catalog", "planning", "policies", "routing"),
    ("errors", "units", "jit", "bundles"),
]
TOP = {"__init__", "api", "bundles", "errors", "units", "jit"}
"""Modules that stand beside the rooms."""
LONGEST_LINES = 450
LIBRARIES = {
    "simpy": ("engine", "fleet"),
    "matplotlib": ("plots",),
    "yaml": ("scenario", "catalog"),
    "typer": ("cli",),
}


def modules() -> dict[str, list[tuple[str, int]]]:
    """Every module's imports, those inside functions included, by module path."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        imports = []
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imports += [(alias.name, node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                imports += [
                    (f"{node.module}.{alias.name}" if node.module == "kvsim" else node.module,
                     node.lineno)
                    for alias in node.names
                ]  # fmt: skip
        found[name] = imports
    return found


def room(module: str) -> str | None:
    """The part of the package a module belongs to; None for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] not in ("__init__", "__main__") else None


def imports_between_rooms() -> list[tuple[str, str, str]]:
    """Importing room, imported room, and where, of every import that leaves its room."""
    return [
        (here, there, f"{importer}:{line} imports {imported}")
        for importer, imports in modules().items()
        for imported, line in imports
        if imported.startswith("kvsim.")
        and (here := room(importer)) is not None
        and (there := room(imported)) is not None
        and there != here
    ]


def test_every_room_has_a_floor() -> None:
    rooms = {room(name) for name in modules()} - {None}
    assert rooms == {name for floor in FLOORS for name in floor}


def test_only_the_ground_and_the_front_stand_beside_the_rooms() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == TOP


def test_imports_point_down() -> None:
    depth = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    wrong = [
        what
        for here, there, what in imports_between_rooms()
        if there in depth and depth[there] < depth[here]
    ]
    assert wrong == []


def test_rooms_stand_in_no_circle() -> None:
    below: dict[str, set[str]] = {}
    for here, there, _ in imports_between_rooms():
        below.setdefault(here, set()).add(there)
    list(TopologicalSorter(below).static_order())  # raises where there is a circle


def test_modules_stand_in_no_circle() -> None:
    known = modules()
    needs = {
        name: {imported for imported, _ in imports if imported in known and imported != name}
        for name, imports in known.items()
        if not name.endswith("__init__")
    }
    list(TopologicalSorter(needs).static_order())


def test_every_room_says_what_lives_there_and_what_may_come_in() -> None:
    for path in PACKAGE.glob("*/__init__.py"):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        assert len(text.splitlines()) >= 3, path
        assert "May come in: " in text, path


def test_files_are_short_or_say_why() -> None:
    long = {
        path: text
        for path in PACKAGE.rglob("*.py")
        if len((text := path.read_text(encoding="utf-8")).splitlines()) > LONGEST_LINES
    }
    silent = [path for path, text in long.items() if "One file because" not in text[:1500]]
    assert silent == []


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_a_library_stays_in_its_room(library: str) -> None:
    users = {
        room(importer)
        for importer, imports in modules().items()
        for imported, _ in imports
        if imported.split(".")[0] == library
    }
    assert users <= set(LIBRARIES[library])


def test_importing_kvsim_is_light() -> None:
    script = (
        "import sys, kvsim\n"
        "heavy = {'matplotlib', 'numba', 'pandas', 'pyarrow', 'simpy'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    seen = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert seen.stdout.strip() == "[]"
