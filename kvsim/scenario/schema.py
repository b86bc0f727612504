"""The JSON schema of a scenario file, for editors that complete and check YAML."""

from __future__ import annotations

from typing import Any

from kvsim import catalog
from kvsim.scenario import Scenario


def scenario_schema() -> dict[str, Any]:
    """The schema, draft 2020-12: keys, kinds, choices, defaults and what each key is for.

    Rules between keys are not in it; ``kvsim validate`` checks them.
    """
    schema = Scenario.model_json_schema(mode="validation")
    # A file without a name has that of the file.
    schema["required"] = [key for key in schema["required"] if key != "name"]
    parts = {"node": schema["$defs"]["Node"]["properties"]["gpu"]}
    _name_choices(parts["node"], catalog.gpu_names())
    _name_choices(schema["properties"]["model"], catalog.model_names())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "kvsim scenario",
    }


def _name_choices(field: dict[str, Any], names: tuple[str, ...] | list[str]) -> None:
    """Give the text alternative of a field the names of the catalog as its choices."""
    if field.get("type") == "string":
        field["enum"] = list(names)
    for alternative in (*field.get("anyOf", ()), *field.get("oneOf", ())):
        _name_choices(alternative, names)
