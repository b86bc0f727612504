"""Parameters of routers: checked as the parts of a scenario are, with the same words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kvsim.errors import show, unknown_name
from kvsim.units import parse_seconds


class Parameters(BaseModel):
    """A router's parameters: frozen, closed to unknown keys, nothing converted silently.

    Subclass it with a field for each parameter; a router that has none uses it as it is.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True
    )


Seconds = Annotated[
    float, BeforeValidator(parse_seconds, json_schema_input_type=float | str), Field(ge=0)
]
Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]

ParametersT = TypeVar("ParametersT", bound=Parameters)


def check_parameters(
    kind: type[ParametersT], written: Mapping[str, Any]
) -> tuple[ParametersT | None, list[tuple[str, str]]]:
    """Check what was written against a class of parameters.

    Returns:
        The parameters, or None where something is wrong; and what is wrong, as place and text.
    """
    try:
        return kind.model_validate(dict(written)), []
    except ValidationError as error:
        known = list(kind.model_fields)
        return None, [_problem(found, known) for found in error.errors(include_url=False)]


_RULES = {
    "greater_than": ("gt", "is not above {}. Use a value above {}."),
    "greater_than_equal": ("ge", "is below {}. Use {} or more."),
    "less_than": ("lt", "is not below {}. Use a value below {}."),
    "less_than_equal": ("le", "is above {}. Use {} or less."),
}
_PLAIN = {
    "bool_type": "is not true or false. Write true or false.",
    "string_type": "is not text. Put it in quotes.",
    "finite_number": "is not a finite number. Write a finite one.",
    "float_type": "is not a number. Write a number.",
    "int_type": "is not a whole number. Write a whole number.",
    "int_from_float": "is not a whole number. Write a whole number.",
    "dict_type": "is not a mapping. Write key: value pairs below it.",
    "model_type": "is not a mapping. Write key: value pairs below it.",
}


def _problem(error: Any, known: list[str]) -> tuple[str, str]:
    place = ".".join(str(step) for step in error["loc"])
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    key = str(error["loc"][-1])
    if kind == "extra_forbidden":
        if not known:
            return place, f"unknown parameter {show(key)}. This router has none."
        return place, unknown_name("parameter", key, known)
    if kind == "missing":
        return place, "is missing. Give a value."
    if kind == "value_error":
        return place, str(context["error"])
    if kind in _RULES:
        name, rule = _RULES[kind]
        bound = f"{context[name]:g}"
        return place, f"{show(value)} {rule.format(bound, bound)}"
    if kind == "literal_error":
        choices = re.findall(r"[^\s',]+", context["expected"].replace(" or ", " "))
        if isinstance(value, str):
            return place, unknown_name(key, value, choices)
        return place, f"{show(value)} is no {key}. Choices: {', '.join(choices)}."
    return place, f"{show(value)} {_PLAIN.get(kind, kind.replace('_', ' ') + '.')}"
