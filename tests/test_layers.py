"""Imports point down, and each outside library has its room."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kvsim"

# From the top down; a module may import from its own layer's package and from any layer below.
LAYERS = [
    ("cli",),
    ("api", "reference_results", "report"),
    ("plots",),
    ("findings", "probe", "runs"),
    ("comparison", "frames"),
    ("search", "sweeps"),
    ("bench", "description", "parallel", "quantities", "reuse", "variants", "verify"),
    ("results",),
    ("engine", "tables"),
    ("offload", "workload"),
    ("metrics", "provenance", "scenario", "schema"),
    ("capacity", "config"),
    ("cache", "catalog"),
    ("policies", "units"),
    ("errors", "jit"),
]
ROOMS = {
    "simpy": ("engine",),
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


def test_every_room_has_a_layer() -> None:
    rooms = {room(name) for name in modules()} - {None}
    assert rooms <= {name for layer in LAYERS for name in layer}


def test_imports_point_down() -> None:
    depth = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    wrong = [
        f"{importer}:{line} imports {imported}"
        for importer, imports in modules().items()
        for imported, line in imports
        if imported.startswith("kvsim.")
        and (here := room(importer)) is not None
        and (there := room(imported)) in depth
        and there != here
        and depth[there] < depth[here]
    ]
    assert wrong == []


@pytest.mark.parametrize("library", sorted(ROOMS))
def test_a_library_stays_in_its_room(library: str) -> None:
    users = {
        room(importer)
        for importer, imports in modules().items()
        for imported, _ in imports
        if imported.split(".")[0] == library
    }
    assert users <= set(ROOMS[library])


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
