"""Every notebook runs from top to bottom at a small size; none is kept with its outputs."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


DRAWS = re.compile(r"\bplots\.(?!frame\b)\w+\(")
"""A call that draws a figure."""


def pictures(cell: Any) -> list[Any]:
    """The pictures that a cell shows, as pixels [rows, columns, colours] from 0 to 1."""
    return [
        imread(io.BytesIO(base64.b64decode(output["data"]["image/png"])), format="png")
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]


def is_blank(picture: Any) -> bool:
    """Whether there is hardly a pixel that differs from the corner's, or hardly a colour."""
    corner = picture[0, 0]
    inked = np.abs(picture - corner).max(axis=-1) > 0.05
    colors = {tuple(color) for color in (picture[inked][:, :3] * 8).astype(int)[::7]}
    return float(inked.mean()) < 0.02 or len(colors) < 5


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def test_the_notebooks_that_were_promised() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "01_first_run",
        "02_compare_policies",
        "03_which_retention_interval",
        "04_does_offload_pay",
        "05_capacity_review",
        "06_your_own_trace",
        "07_tp8_or_dp8",
        "08_better_than_the_engine",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_question_an_answer_and_no_outputs(path: Path) -> None:
    first, *others = cells(path)
    text = "".join(first["source"])
    assert text.startswith("# ")
    assert "?**" in text.replace("\n", " ")
    assert any("".join(cell["source"]).startswith("## Answer") for cell in others)
    code = [cell for cell in others if cell["cell_type"] == "code"]
    assert len(code) >= 3
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    folder = tmp_path / "notebooks"
    folder.mkdir()
    shutil.copy(path, folder)
    monkeypatch.setenv("KVSIM_SMALL", "1")
    python_path = os.environ.get("PYTHONPATH")
    paths = [str(ROOT), *([python_path] if python_path else [])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    drawing = [cell for cell in notebook.cells if DRAWS.search(cell.source)]
    assert drawing, "shows no plot"
    for cell in drawing:
        shown = pictures(cell)
        assert len(shown) == len(DRAWS.findall(cell.source)), f"not shown: {cell.source}"
        assert not any(is_blank(picture) for picture in shown), f"blank: {cell.source}"
    errors = [output["text"] for output in outputs if output.get("name") == "stderr"]
    assert errors == []
    answer = "".join(
        output.get("text", "") for output in notebook.cells[-1].get("outputs", [])
    ) or "".join(output.get("text", "") for output in outputs)
    assert any(character.isdigit() for character in answer), "ends without a figure"
    assert not list((ROOT / "notebooks").glob("results*"))
    if path.stem == "05_capacity_review":
        beyond = re.search(r"Beyond it, .*: ([\d.]+)% of requests within the objective", answer)
        assert beyond is not None
        assert float(beyond[1]) < 90


def test_what_counts_as_blank() -> None:
    assert is_blank(np.ones((40, 40, 4)))
    framed = np.ones((40, 40, 4))
    framed[0:40, 5] = framed[35, 0:40] = 0.2  # axes without anything on them
    assert is_blank(framed)
