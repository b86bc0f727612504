"""Routers of one's own, found by module and by file."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from kvsim.errors import KvsimError
from kvsim.policies.finding import trust_policies
from kvsim.routing import Decider, Surroundings, make_router, router_class, router_file
from kvsim.scenario.files import code_files
from kvsim.scenario.reading import load_scenario, resolved_yaml
from tests.routing.fleets import history, request

OWN = Path(__file__).parents[1] / "data" / "shortest_queue.py"


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSIM_TRUST", "")  # as it was, afterwards
    trust_policies()


def test_ones_own_runs_only_where_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVSIM_TRUST", raising=False)
    with pytest.raises(KvsimError, match="would run the code in .* give --trust"):
        router_class(f"{OWN.name}:ShortestQueue", OWN.parent)


@pytest.mark.usefixtures("trusted")
def test_one_of_ones_own_by_its_file() -> None:
    kind = f"{OWN.name}:ShortestQueue"
    around = Surroundings(4)
    router = make_router(kind, {"grace_tokens": 100}, around, OWN.parent)
    fleet = Decider(router, random.Random(1), kind)
    assert fleet.route(request("a", (1, 400)), 0.0) == 0
    assert fleet.route(request("b", (2, 90), session_id="s"), 0.0) == 1
    assert fleet.route(request("c", (3, 90), session_id="s"), 0.0) == 1  # 90 more, within its grace
    assert fleet.route(request("d", (4, 90), session_id="s"), 0.0) == 2
    again = Decider(make_router(kind, {}, around, OWN.parent), random.Random(1), kind)
    assert len(history(again, seed=3)) > 100
    assert router_class(kind, OWN.parent) is type(router)
    assert router_file(kind, OWN.parent) == OWN


def test_ones_own_router_takes_twenty_lines() -> None:
    lines = [line for line in OWN.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) <= 26


def test_one_of_a_module() -> None:
    kind = "kvsim.routing.plain:RoundRobin"
    assert router_class(kind) is router_class("round-robin")
    assert router_file(kind) is None
    assert router_file("round-robin") is None


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("dynamo-kw", "unknown router 'dynamo-kw'. Did you mean 'dynamo-kv'? One's own is named"),
        ("nowhere.py:Router", "'nowhere.py:Router': there is no file "),
        (
            "kvsim.nowhere:Router",
            "'kvsim.nowhere:Router': there is no module kvsim.nowhere.",
        ),
        ("kvsim.routing.plain:Rando", "kvsim.routing.plain: unknown router 'Rando'. Did you mean"),
        ("kvsim.routing.views:Views", "kvsim.routing.views:Views: is no router. Write a class"),
        ("kvsim.errors:Router", "kvsim.errors: unknown router 'Router'. Known: none there."),
        (
            "broken.py:Router",
            "'broken.py:Router' cannot be loaded: NameError: name 'nothing'",
        ),
    ],
)
@pytest.mark.usefixtures("trusted")
def test_what_cannot_be_found_is_said(tmp_path: Path, kind: str, problem: str) -> None:
    (tmp_path / "broken.py").write_text("nothing\n", encoding="utf-8")
    with pytest.raises(KvsimError) as caught:
        router_class(kind, tmp_path)
    assert str(caught.value).startswith(problem)


@pytest.mark.usefixtures("trusted")
def test_its_path_moves_with_the_scenario(tmp_path: Path) -> None:
    own = {"kind": "shortest_queue.py:ShortestQueue", "grace_tokens": 5}
    (tmp_path / "shortest_queue.py").write_bytes(OWN.read_bytes())
    pools = {"prefill": {"router": own}, "decode": {"router": own["kind"]}}
    for fleet in ({"router": own}, {"pools": pools}):
        data = {
            "model": "qwen3-0.6b",
            "node": {"gpu": "h100"},
            "fleet": fleet,
            "workload": {"kind": "script", "requests": [{"prompt": [["a", 10]]}]},
        }
        (tmp_path / "s.yaml").write_text(json.dumps(data), encoding="utf-8")
        loaded = load_scenario(tmp_path / "s.yaml")
        assert {*code_files(loaded)} == {tmp_path / "shortest_queue.py"}
        elsewhere = tmp_path / "results" / "run"
        elsewhere.mkdir(parents=True, exist_ok=True)
        (elsewhere / "s.yaml").write_text(resolved_yaml(loaded, elsewhere), encoding="utf-8")
        moved = load_scenario(elsewhere / "s.yaml")
        assert code_files(moved) == code_files(loaded)
