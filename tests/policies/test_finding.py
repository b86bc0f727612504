"""How a policy is found: by name, module, file or package; and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from kvsim.errors import Problems
from kvsim.policies import finding
from kvsim.policies.finding import find_policy, policies_are_trusted, trust_policies
from kvsim.scenario import Scenario
from kvsim.scenario.policies import setting_name, with_policy_path

MINE = """
from kvsim.policies.contract import free_queue, seconds

@free_queue("newest first", source="me", slack=seconds(1.0, "a time"))
def newest(block, slack):
    return -block.now_s

not_one = 7
"""


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    trust_policies()
    yield path
    trust_policies(False)


def scenario(**cache: object) -> dict[str, object]:
    return {
        "name": "small",
        "model": {"groups": [{"kind": "full", "block_size": 4}]},
        "node": {"num_blocks": 30},
        "step_time": {"kind": "constant", "step_s": 0.01},
        "workload": {"kind": "script", "requests": [{"prompt": [["A", 9]]}] * 3},
        "cache": cache,
    }


def refused(kind: str, written: object, directory: Path | None = None) -> str:
    with pytest.raises(ValueError) as caught:
        find_policy(kind, written, directory)
    return str(caught.value)


def test_by_path_relative_to_the_scenario(mine: Path) -> None:
    chosen = find_policy("free_queue", {"name": "mine.py:newest", "slack": "2 min"}, mine.parent)
    assert chosen.parameters == (120.0,)
    assert chosen.file == mine.resolve()
    assert len(chosen.sha256) == 64
    assert find_policy("free_queue", f"{mine}:newest").policy.description == "newest first"


def test_code_of_others_asks_for_trust(mine: Path) -> None:
    trust_policies(False)
    assert not policies_are_trusted()
    assert refused("free_queue", "mine.py:newest", mine.parent) == (
        f"'mine.py:newest' would run the code in {mine.resolve()}, which is no installed package. "
        "Look at it; where you trust it, give --trust."
    )
    with pytest.raises(Problems, match="cache.free_queue: 'mine.py:newest' would run the code in"):
        Scenario.from_data(
            scenario(free_queue="mine.py:newest"), directory=mine.parent, check_files=True
        )


def test_what_is_not_there(mine: Path) -> None:
    directory = mine.parent
    said = refused("free_queue", "theirs.py:newest", directory)
    assert said.startswith("'theirs.py:newest': there is no file ")
    assert refused("free_queue", "mine.py:newes", directory).endswith("Did you mean 'newest'?")
    assert refused("free_queue", "mine.py:not_one", directory).startswith(
        "'mine.py:not_one' is no policy. Put @free_queue(...) of kvsim.policies.contract above it."
    )
    assert refused("retention", "mine.py:newest", directory) == (
        "'mine.py:newest' is a free-queue order. A retention belongs here."
    )
    assert refused("free_queue", "no_such_module:x").startswith("'no_such_module:x': there is no")
    assert refused("free_queue", "lf") == "unknown free_queue 'lf'. Did you mean 'lfu'?"
    assert refused("eviction".replace("eviction", "host_eviction"), "lfu") == (
        "unknown eviction 'lfu'. Did you mean 'lru'?"
    )
    assert refused("free_queue", {"half_life": 3}).startswith("has no name.")
    (directory / "broken.py").write_text("1 / 0")
    assert refused("free_queue", "broken.py:x", directory) == (
        "'broken.py:x' cannot be loaded: ZeroDivisionError: division by zero. Mend it."
    )


def test_modules_and_packages(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_policy("free_queue", "kvsim.policies.orders.lru:lru").file is None
    monkeypatch.syspath_prepend(str(mine.parent))
    try:
        assert find_policy("free_queue", "mine:newest").file == mine
        trust_policies(False)
        assert "give --trust" in refused("free_queue", "mine:newest")
        trust_policies()
        points = [EntryPoint("newest", "mine:newest", finding.ENTRY_POINTS)]
        monkeypatch.setattr(finding, "entry_points", lambda group: points)
        assert find_policy("free_queue", "newest").policy.source == "me"
    finally:
        sys.modules.pop("mine", None)


@pytest.mark.parametrize(
    ("cache", "text"),
    [
        (
            {"free_queue": {"name": "lfu", "half_live": 1}},
            "cache.free_queue: unknown parameter 'half_live'. Did you mean 'half_life'?",
        ),
        (
            {"free_queue": {"name": "lfu", "half_life": "600 bananas"}},
            "cache.free_queue: half_life: '600 bananas' has an unknown unit.",
        ),
        (
            {"free_queue": {"name": "append", "x": 1}},
            "cache.free_queue: 'append' has no parameters. Write the name alone.",
        ),
        ({"free_queue": {"half_life": 1}}, "cache.free_queue: has no name."),
        (
            {"retention": "hit-drive"},
            "cache.retention: unknown retention 'hit-drive'. Did you mean",
        ),
        (
            {"retention": "dense", "retention_interval": 0},
            "cache.retention_interval: is given beside cache.retention",
        ),
    ],
)
def test_scenarios_are_told_what_is_wrong(cache: dict[str, object], text: str) -> None:
    with pytest.raises(Problems) as caught:
        Scenario.from_data(scenario(**cache))
    assert text in str(caught.value)


def test_variants_replace_a_policy_whole() -> None:
    data = scenario(free_queue={"name": "lfu", "half_life": "60 s"})
    data["variants"] = {"b": {"cache.free_queue": {"name": "ttl", "ttl": "1 min"}}}
    made = Scenario.from_data(data)
    assert made.free_queue == "lfu (half_life 60 s)"
    assert made.resolved()["cache"]["free_queue"] == {"name": "lfu", "half_life": "60 s"}
    assert setting_name({"name": "a/b.py:mine", "x": 2}) == "mine (x 2)"
    assert with_policy_path("a/b.py:mine", lambda path: f"../{path}") == "../a/b.py:mine"
    assert with_policy_path("lru", lambda path: "?") == "lru"
