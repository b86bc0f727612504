"""`kvsim validate`."""

from __future__ import annotations

import sys
from pathlib import Path

from kvsim.cli.terminal import ScenarioFile, Settings


def validate(scenario: ScenarioFile, settings: Settings = []) -> None:  # noqa: B006
    """Check a scenario: print it as resolved and what follows from it, or all its problems."""
    from kvsim.description import describe
    from kvsim.scenario import expand_variants, load_scenario, resolved_yaml

    loaded = load_scenario(scenario, settings)
    text = describe(expand_variants(loaded))
    sys.stdout.write(f"{resolved_yaml(loaded, Path.cwd())}\n{text}\n")
