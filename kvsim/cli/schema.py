"""`kvsim schema`."""

from __future__ import annotations

from kvsim.cli.terminal import print_json


def schema() -> None:
    """Print the JSON schema of scenario files, for editors.

    With the YAML language server, put this into the first line of a scenario:

    # yaml-language-server: $schema=kvsim.scenario.schema.json
    """
    from kvsim.scenario.schema import scenario_schema

    print_json(scenario_schema())
