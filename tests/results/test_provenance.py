"""Provenance: enough to run it again, nothing about the machine's folders."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import KvsimError
from kvsim.results.provenance import (
    command_without_paths,
    file_sha256,
    package_versions,
    provenance,
)

STARTED = datetime(2026, 3, 1, 12, 0, 5, 999, tzinfo=timezone(timedelta(hours=2)))


def test_what_is_kept(tmp_path: Path) -> None:
    trace = tmp_path / "chat.jsonl"
    trace.write_bytes(b"abc")
    kept = provenance(
        scenario_yaml="name: x\n",
        seed=7,
        started=STARTED,
        arguments=["run", str(tmp_path / "x.yaml"), "--json"],
        inputs=[trace],
    )
    assert kept["started"] == "2026-03-01T10:00:05+00:00"
    assert kept["seed"] == 7
    assert kept["scenario_sha256"] == hashlib.sha256(b"name: x\n").hexdigest()
    assert kept["inputs_sha256"] == {"chat.jsonl": hashlib.sha256(b"abc").hexdigest()}
    assert kept["command"] == "kvsim run x.yaml --json"
    assert kept["versions"]["numpy"] == np.__version__
    assert kept["versions"]["python"].count(".") == 2
    assert str(tmp_path) not in json.dumps(kept)


def test_a_run_from_python_has_no_command() -> None:
    kept = provenance(scenario_yaml="", seed=0, started=datetime.now(UTC), arguments=[])
    assert kept["command"] is None
    assert kept["inputs_sha256"] == {}


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.results.provenance._PACKAGES", ("numpy", "no-such-package"))
    assert package_versions() == {"numpy": np.__version__, "no-such-package": None}


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["run", "scenarios/a.yaml"], "kvsim run scenarios/a.yaml"),
        (["run", "/home/me/a.yaml", "--out=/tmp/x"], "kvsim run a.yaml --out=x"),
        (["run", "a.yaml", "--out", "/tmp/x/"], "kvsim run a.yaml --out x"),
        (["--set", "workload.path=/data/t.gz"], "kvsim --set workload.path=t.gz"),
        (["--set", "a.b={c: 1}"], "kvsim --set 'a.b={c: 1}'"),
        (["run", "~/a.yaml"], "kvsim run a.yaml"),
    ],
)
def test_a_command_without_folders(arguments: list[str], command: str) -> None:
    assert command_without_paths(arguments) == command


def test_an_input_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(KvsimError) as caught:
        file_sha256(tmp_path / "gone")
    assert str(caught.value) == (
        f"{tmp_path / 'gone'}: 1 problem\n  path: cannot be read: No such file or directory."
    )
