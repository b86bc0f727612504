"""`kvsim plot`: what it draws, and errors in the words of its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.errors import KvsimError
from kvsim.results.store import RunResult


def test_the_command_draws(tmp_path: Path, results: dict[str, RunResult]) -> None:
    from typer.testing import CliRunner

    from kvsim.cli import app
    from kvsim.results.variants import write_variant

    for result in results.values():
        write_variant(tmp_path / "runs", result)
    out = tmp_path / "pool.svg"
    arguments = ["plot", "pool", str(tmp_path / "runs"), "--run", "dense", "--out", str(out)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.output == f"Plot: {out}\n"
    assert out.read_text().lstrip().startswith("<?xml")

    def problem(*arguments: str) -> str:
        with pytest.raises(KvsimError) as caught:
            CliRunner().invoke(app, ["plot", *arguments], catch_exceptions=False)
        return str(caught.value).replace(str(tmp_path), ".")

    runs = str(tmp_path / "runs")
    assert problem("pol", runs) == "KIND: unknown kind of plot 'pol'. Did you mean 'pool'?"
    assert problem("pool", runs) == (
        "./runs: this plot shows one run. Name one with --run: append, dense, boundary."
    )
    assert problem("pool", runs, "--run", "dens") == (
        "./runs: --run: unknown run 'dens'. Did you mean 'dense'?"
    )
    assert problem("hit-rate", runs) == (
        "./runs: this plot needs a capacity that was varied (node.num_blocks, offload.capacity, "
        "offload.num_chunks), and none is. Sweep one of them, or name a column with --x."
    )
    assert problem("heat-map", runs) == (
        "./runs: a heat map needs two axes, and none was varied. Sweep two keys, or name columns "
        "with --x and --y."
    )
    assert problem("pool", runs, "--out", str(tmp_path / "x.bmp")).startswith("./x.bmp: ending")
