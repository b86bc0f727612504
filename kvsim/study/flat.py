"""A scenario laid flat, to tell what differs between two."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.results.store import RunResult
from kvsim.scenario import Scenario
from kvsim.scenario.reading import resolved_data

_MOST_ENTRIES = 16  # of a list whose entries are compared key by key: groups, contents, tiers


def flat_scenario(run: RunResult | Scenario) -> dict[str, str]:
    """A resolved scenario laid flat: JSON by dotted key, files by what is in them.

    Name, seed, variants and sweep are left out, as they are no part of what a run is.

    Args:
        run: a result, whose files go by the hashes it has of them; or a scenario, by their places.
    """
    hashes: Mapping[str, str] = {}
    if isinstance(run, RunResult):
        hashes, scenario = run.provenance.get("inputs_sha256", {}), run.scenario
    else:
        scenario = run

    def content(path: str) -> str:
        name = Path(path).name
        digest = hashes.get(name, "")
        return f"{name} ({digest[:12]})" if digest else str((scenario.directory / path).resolve())

    flat: dict[str, str] = {}

    def walk(value: Any, place: str) -> None:
        inner = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in inner:
            where = f"{place}.{key}" if place else str(key)
            if key == "router" and isinstance(part, str):
                flat[f"{where}.kind"] = json.dumps(part)  # as with keys of its own
            elif part and (isinstance(part, Mapping) or _is_of_mappings(part)):
                walk(part, where)
            else:
                flat[where] = json.dumps(part, ensure_ascii=False)

    data = resolved_data(scenario, content)
    walk({k: v for k, v in data.items() if k not in {"name", "seed", "variants", "sweep"}}, "")
    return flat


def _is_of_mappings(value: Any) -> bool:
    """Whether a list is short and each entry has keys of its own, so that they can be told."""
    few = isinstance(value, list) and len(value) <= _MOST_ENTRIES
    return few and all(isinstance(part, Mapping) for part in value)
