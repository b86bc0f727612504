"""Kinds of values that fields of a scenario take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field

from kvsim.errors import show
from kvsim.units import parse_bytes, parse_seconds

TOKENS_MAX = 2**24 - 1
"""Longest sequence in tokens; the core keeps positions in 24 bits."""


def _directory_name(value: str) -> str:
    # Runs are kept under these names, so they have to be one plain directory each.
    if not value or len(value) > 100 or value[0] in ".-" or value != value.strip():
        bad = True
    else:
        bad = any(character in '/\\:*?"<>|' or not character.isprintable() for character in value)
    if bad:
        raise ValueError(
            f"{show(value)} is no name for a directory. Use 1 to 100 letters, digits, '-', '_', "
            "'.', '=', not starting with '.' or '-'."
        )
    return value


def kind_of(default: str | None) -> Discriminator:
    """Alternatives by their `kind`, with the one that is meant where none is written."""

    def kind(value: object) -> str | None:
        if isinstance(value, Mapping):
            written = value.get("kind", default)
            return written if isinstance(written, str) else None
        return getattr(value, "kind", None)

    return Discriminator(kind)


Tokens = Annotated[int, Field(ge=1, le=TOKENS_MAX)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Bytes = Annotated[
    int, BeforeValidator(parse_bytes, json_schema_input_type=int | str), Field(ge=0, le=2**62)
]
Seconds = Annotated[
    float, BeforeValidator(parse_seconds, json_schema_input_type=float | str), Field(ge=0)
]
Text = Annotated[str, Field(min_length=1)]
DirectoryName = Annotated[str, AfterValidator(_directory_name)]
