from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvsim.cli import app
from kvsim.errors import KvsimError
from kvsim.routing import router_names

OWN = Path(__file__).parents[1] / "data" / "shortest_queue.py"


def _said(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["routers", *arguments], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.output


def test_all_are_listed() -> None:
    said = _said()
    assert all(f"{name} " in said for name in router_names())
    listed = json.loads(_said("--json"))
    assert [entry["name"] for entry in listed] == list(router_names())
    assert all(entry["description"] and entry["source"] for entry in listed)


def test_one_is_shown_with_its_parameters_and_source() -> None:
    said = _said("dynamo-kv")
    assert "lib/kv-router/src/scheduling/selector/default.rs" in said
    assert "{events: 0.005}" in said
    assert "softmax" in said
    shown = json.loads(_said("llm-d", "--json"))
    assert shown["parameters"][0]["default"] == {"queue": 2.0, "kv-utilization": 2.0, "prefix": 3.0}
    assert "It has no parameters." in _said("random")


def test_ones_own_is_shown_too_where_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSIM_TRUST", "")  # as it was, afterwards
    refused = CliRunner().invoke(app, ["routers", f"{OWN}:ShortestQueue"])
    assert "give --trust" in str(refused.exception)
    assert "grace_tokens" in _said(f"{OWN}:ShortestQueue", "--trust")


def test_an_unknown_one_is_refused_with_the_nearest() -> None:
    result = CliRunner().invoke(app, ["routers", "dynamo-kw"])
    assert isinstance(result.exception, KvsimError)
    assert "Did you mean 'dynamo-kv'?" in str(result.exception)
