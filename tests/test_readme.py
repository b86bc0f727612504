"""What the README says is so."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from kvsim.scenario import Scenario

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_a_front_door() -> None:
    assert len(README.splitlines()) <= 250


def test_ci_calls_the_test_command_of_the_readme() -> None:
    commands = re.findall(r"^python3 -m venv .*$", README, flags=re.MULTILINE)
    assert len(commands) == 2
    assert commands[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "kvsim run scenarios/b300_conversation.yaml" in commands[0]


def test_the_scenario_in_the_readme_is_one() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    scenario = Scenario.from_data(yaml.safe_load(blocks[0]))
    assert list(scenario.variants) == ["append-dense", "prepend-boundary"]
    script = {
        "name": "script",
        "model": {"groups": [{"kind": "full", "block_size": 16}]},
        "node": {"num_blocks": 99},
        "step_time": {"kind": "constant", "step_s": 0.01},
        **yaml.safe_load(blocks[1]),
    }
    assert Scenario.from_data(script).workload.kind == "script"


def test_every_command_is_listed() -> None:
    from kvsim.cli import app

    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    names |= {group.name for group in app.registered_groups}
    assert {name for name in names if f"`kvsim {name}" not in README} == set()
