"""Files that a scenario names: every key whose value is a path."""

from __future__ import annotations

from pathlib import Path

from kvsim.scenario.keys import ScenarioKeys

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
