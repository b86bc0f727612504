"""How a router is written: a name, or a kind with its own keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from kvsim.errors import show


def _router(value: object) -> object:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, Mapping) and isinstance(value.get("kind"), str) and value["kind"]:
        return dict(value) if len(value) > 1 else value["kind"]
    if isinstance(value, Mapping):
        raise ValueError("names no kind. Write {kind: round-robin}, with the router's own keys.")
    raise ValueError(f"{show(value)} is no router. Name one, or write {{kind: round-robin}}.")


RouterSetting = Annotated[
    str | dict[str, Any],
    BeforeValidator(_router, json_schema_input_type=str | dict[str, Any]),
]
