"""How to get a report again: a scenario with all its runs, and the commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.report.markup import bullets, safe
from kvsim.results.store import RunResult
from kvsim.scenario.reading import as_yaml, resolved_data, shareable_yaml
from kvsim.study.runs import Runs


def reproduce(runs: Runs) -> str:
    """Commands, versions, hashes, and the scenario they run, every key spelled out."""
    origin = runs.provenance
    versions = origin.get("versions", {})
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    inputs = origin.get("inputs_sha256", {})
    rows = [f"Versions: {shown} on {origin.get('platform', 'unknown')}."]
    if inputs:
        rows.append("Files that it reads, to lie beside it:")
    rows += [f"{name}: SHA-256 {digest}." for name, digest in inputs.items()]
    rows.append("The same scenario and seed give the same results.")
    if command := origin.get("command"):
        rows.append(f"The first of these runs was made by: {command}.")
    file = f"{runs.scenario.name}.yaml"
    return (
        f"<p>Save the scenario below as {safe(file)}, then:</p>"
        f"<pre>{safe(chr(10).join(commands(runs)))}</pre>{bullets(rows)}"
        f"<p>{safe(file)}:</p><pre>{safe(scenario_text(runs))}</pre>"
    )


def commands(runs: Runs) -> list[str]:
    """What makes these runs and their report again from the scenario of `scenario_text`."""
    name = runs.scenario.name
    verb = "run" if runs.varied is None else "sweep"
    file, out = shlex.quote(f"{name}.yaml"), shlex.quote(f"{name}-again")
    return [f"kvsim {verb} {file} --out {out}", f"kvsim report {out}"]


def scenario_text(runs: Runs) -> str:
    """One scenario for all the runs, files by their names."""
    return shareable_yaml(runs.varied) if runs.varied is not None else _with_variants(runs.results)


def _with_variants(results: Mapping[str, RunResult]) -> str:
    """The first run's scenario, with a variant for each run that says what differs in it."""

    def plain(result: RunResult) -> dict[str, Any]:
        # Where files lie here says nothing elsewhere; their hashes do.
        return resolved_data(result.scenario, lambda path: Path(path).name)

    base = plain(next(iter(results.values())))
    variants = {}
    for label, result in results.items():
        changes = _changes(base, plain(result), "")
        variants[label] = {key: value for key, value in changes.items() if key != "name"}
    if list(variants) != ["default"]:
        base["variants"] = variants
    return as_yaml(base)


def _changes(base: Mapping[str, Any], other: Mapping[str, Any], place: str) -> dict[str, Any]:
    """What has to be laid over one to get the other, by dotted key."""
    changes: dict[str, Any] = {}
    for key, value in other.items():
        where, own = f"{place}.{key}" if place else key, base.get(key)
        if own == value:
            continue
        if isinstance(own, dict) and isinstance(value, dict) and own.keys() == value.keys():
            kind_stays = own.get("kind") == value.get("kind")
            changes |= _changes(own, value, where) if kind_stays else {where: value}
        else:
            changes[where] = value
    return changes
