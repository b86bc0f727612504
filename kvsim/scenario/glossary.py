"""Every key of a scenario with its default, its choices and what it is for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic_core import PydanticUndefined

from kvsim.errors import show
from kvsim.scenario.scenario import Scenario
from kvsim.scenario.validation import Section, sections


@dataclass(frozen=True)
class Key:
    """A key of a scenario.

    Attributes:
        place: dotted, as overrides use it; entries of lists go by ``0``.
        kind: the kind of section it stands in, where there are several; else empty.
        default: as written in YAML; ``required`` where there is none.
        choices: the words it may have, where they are fixed.
        meaning: what it is for, with its unit.
    """

    place: str
    kind: str
    default: str
    choices: tuple[str, ...]
    meaning: str


def scenario_keys() -> list[Key]:
    """All keys, section by section, in the order in which they are documented."""
    return [
        Key(
            f"{place}.{name}" if place else name,
            _kind(section),
            _default(field.default),
            tuple(dict.fromkeys(_choices(field.annotation))),
            field.description or "",
        )
        for place, section in sections(Scenario)
        for name, field in section.model_fields.items()
    ]


def _kind(section: type[Section]) -> str:
    """The value of `kind` that a section is chosen by."""
    field = section.model_fields.get("kind")
    choices = list(_choices(field.annotation)) if field is not None else []
    return choices[0] if len(choices) == 1 else ""


def _default(default: Any) -> str:
    if default is PydanticUndefined:
        return "required"
    if isinstance(default, Section):
        return "as below"
    return show(default).strip("'")


def _choices(annotation: Any) -> Iterator[str]:
    parts = get_args(annotation)
    if "Literal" in str(getattr(annotation, "__origin__", "")):
        yield from (str(part) for part in parts if isinstance(part, str))
        return
    for part in parts:
        yield from _choices(part)
