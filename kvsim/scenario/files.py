"""Files that a scenario names: every key whose value is a path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvsim.errors import Problems
from kvsim.policies.finding import ENGINE_NAMES, Chosen, find_policy
from kvsim.routing import router_file
from kvsim.scenario.keys import ScenarioKeys
from kvsim.scenario.parts import PROFILE_DEFAULT
from kvsim.scenario.policies import POLICY_KEYS, Setting
from kvsim.scenario.pool_rules import SIDES, pool_scenario

PATH_KEYS: dict[str, tuple[str, ...]] = {
    "workload.path": (),
    "workload.tokenizer": ("characters",),
    "model.config": (),
    "step_time.constants": (),
    "step_time.path": (),
}
"""Dotted keys of paths, each with the values that are names of something else."""


def is_path(key: str, value: object) -> bool:
    """Whether the value of a dotted key is a path."""
    return isinstance(value, str) and key in PATH_KEYS and value not in PATH_KEYS[key]


def named_files(scenario: ScenarioKeys) -> dict[str, Path]:
    """Where the files are that a scenario's base reads, by dotted key."""
    files = {}
    for place in PATH_KEYS:
        section, _, key = place.partition(".")
        value = getattr(getattr(scenario, section), key, None)
        if is_path(place, value):
            files[place] = scenario.directory / str(value)
    return files


def named_policies(scenario: ScenarioKeys) -> Iterator[tuple[str, str, Setting]]:
    """Policies a scenario's base names that are not the engine's: dotted key, kind, setting."""
    for place, kind in POLICY_KEYS.items():
        section, _, key = place.partition(".")
        value: Setting | None = getattr(getattr(scenario, section), key, None)
        name = value.get("name") if isinstance(value, dict) else value
        if value is not None and name not in (PROFILE_DEFAULT, *ENGINE_NAMES.get(kind, ())):
            yield place, kind, value


def chosen_policy(scenario: ScenarioKeys, place: str) -> Chosen:
    """The policy that a dotted key of a scenario names, where it is none of the engine's.

    Raises:
        KvsimError: it cannot be had.
    """
    kind, setting = next(
        (k, written) for key, k, written in named_policies(scenario) if key == place
    )
    try:
        return find_policy(kind, setting, scenario.directory)
    except ValueError as error:
        raise Problems(f"scenario {scenario.name}", [f"{place}: {error}"]) from None


def code_files(scenario: ScenarioKeys) -> list[Path]:
    """Files with the code of its policies and routers that are not kvsim's own."""
    chosen = [
        find_policy(kind, setting, scenario.directory)
        for _, kind, setting in named_policies(scenario)
    ]
    files = [policy.file for policy in chosen]
    fleet = scenario.fleet
    pools = () if fleet is None or fleet.pools is None else SIDES
    routed = [pool_scenario(scenario, side) for side in pools] or [scenario]
    files += [router_file(one.router[0], scenario.directory) for one in routed]
    return [file for file in files if file is not None]
