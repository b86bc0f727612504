"""Tables of reference results inside documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.errors import Problems
from kvsim.report.documents import with_tables

ROOT = Path(__file__).parents[2]


def reference(folder: Path) -> None:
    (folder / "plan").mkdir()
    summary = {"token_hit_rate": 0.25, "ttft_s": {"p50": 0.5}, "bytes_stored": 2_000_000_000}
    content = {
        **dict.fromkeys(("command", "kvsim", "scenario", "scenario_sha256"), "x"),
        "variants": {"dense": summary},
    }
    (folder / "plan" / "summary.json").write_text(json.dumps(content))


def document(folder: Path, opening: str) -> Path:
    file = folder / "doc.md"
    file.write_text(f"Before.\n\n{opening}\nold\n<!-- end -->\n\nAfter.\n")
    return file


def test_figures_are_made_again(tmp_path: Path) -> None:
    reference(tmp_path)
    opening = "<!-- figures plan: token_hit_rate, ttft_s.p50, bytes_stored -->"
    assert with_tables(document(tmp_path, opening), tmp_path) == (
        f"Before.\n\n{opening}\n"
        "| variant | `token_hit_rate` | `ttft_s.p50` | `bytes_stored` |\n"
        "|---|---|---|---|\n"
        "| dense | 25.0% | 500 ms | 2.00 GB |\n"
        "<!-- end -->\n\nAfter.\n"
    )


def test_a_figure_that_is_not_there_is_named(tmp_path: Path) -> None:
    reference(tmp_path)
    with pytest.raises(Problems, match=r"figures plan: dense has no tpot_s\.p50\."):
        with_tables(document(tmp_path, "<!-- figures plan: tpot_s.p50 -->"), tmp_path)


@pytest.mark.parametrize("name", ["README.md", "results/validation.md"])
def test_the_documents_show_the_reference_results(name: str) -> None:
    file = ROOT / name
    assert with_tables(file, ROOT / "results" / "reference") == file.read_text(encoding="utf-8")
