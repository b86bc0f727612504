"""Every notebook runs from top to bottom at a small size; none is kept with its outputs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


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
    assert any("image/png" in output.get("data", {}) for output in outputs), "shows no plot"
    errors = [output["text"] for output in outputs if output.get("name") == "stderr"]
    assert errors == []
    answer = "".join(
        output.get("text", "") for output in notebook.cells[-1].get("outputs", [])
    ) or "".join(output.get("text", "") for output in outputs)
    assert any(character.isdigit() for character in answer), "ends without a figure"
    assert not list((ROOT / "notebooks").glob("results*"))
