"""What is drawn at random, as users write it: a plain value, or ``lognormal(median=200, sigma=1)``.

Three kinds of things are drawn, each in its own forms: lengths and counts, durations, and the times
at which sessions start. Arguments are numbers; those whose names end in ``_s`` may carry a unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BeforeValidator

from kvsim.errors import nearest, show, unknown_name
from kvsim.scenario.fields import TOKENS_MAX
from kvsim.units import parse_seconds

Forms = Mapping[str, Mapping[str, float | None]]
"""Arguments of each form by name, with their defaults; None where one has to be given."""

LENGTH_FORMS: Forms = {
    "uniform": {"low": None, "high": None},
    "lognormal": {"median": None, "sigma": None, "max": TOKENS_MAX},
    "geometric": {"mean": None, "least": 1},
    "recorded-prompt": {},
    "recorded-output": {},
}
"""Whole numbers: tokens, turns. The recorded forms draw from the workload's trace."""

DURATION_FORMS: Forms = {
    "uniform": {"low_s": None, "high_s": None},
    "exponential": {"mean_s": None},
    "lognormal": {"median_s": None, "sigma": None, "max_s": 1e9},
}
"""Seconds between two things."""

START_FORMS: Forms = {
    "together": {},
    "uniform": {"span_s": None},
    "constant": {"per_s": None},
    "poisson": {"per_s": None},
    "gamma": {"per_s": None, "cv": None},
    "ramp": {"from_per_s": None, "to_per_s": None, "over_s": None},
    "diurnal": {"mean_per_s": None, "swing": None, "period_s": 86400.0},
    "recorded": {},
}
"""When sessions start. `cv` is the gaps' standard deviation by their mean, above 1 for bursts."""


@dataclass(frozen=True)
class Draw:
    """A parsed draw.

    Attributes:
        form: its name, or "fixed".
        arguments: numbers by name; durations in seconds. "fixed" has `value`.
    """

    form: str
    arguments: Mapping[str, float] = field(default_factory=dict)


def parse_length(value: object, least: int = 1) -> Draw:
    """A draw of whole numbers.

    Args:
        value: a whole number, or text of one of `LENGTH_FORMS`.
        least: the smallest fixed value and bound allowed.

    Raises:
        ValueError: neither, or an argument out of range.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if not least <= value <= TOKENS_MAX:
            raise ValueError(f"{value} is out of range. Use {least} to {TOKENS_MAX}.")
        return Draw("fixed", {"value": value})
    example = "200 or 'lognormal(median=200, sigma=1)'"
    return _parse(value, "a whole number or a draw of them", LENGTH_FORMS, example)


def parse_duration(value: object) -> Draw:
    """A draw of durations: seconds, text with a unit, or text of one of `DURATION_FORMS`.

    Raises:
        ValueError: none of them, or an argument out of range.
    """
    if not isinstance(value, str) or "(" not in value:
        seconds = parse_seconds(value)
        if seconds < 0:
            raise ValueError(f"{show(value)} is below 0. Use 0 or more.")
        return Draw("fixed", {"value": seconds})
    return _parse(value, "a duration", DURATION_FORMS, "'exponential(mean_s=10)'")


def parse_starts(value: object) -> Draw:
    """When sessions start: text of one of `START_FORMS`.

    Raises:
        ValueError: no such form, or an argument out of range.
    """
    return _parse(value, "a way to start sessions", START_FORMS, "'poisson(per_s=2)'")


_CALL = re.compile(r"\s*([A-Za-z-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)


def _parse(value: object, what: str, forms: Forms, example: str) -> Draw:
    match = _CALL.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{show(value)} is not {what}. Write {example}.")
    form, inner = match[1], match[2] or ""
    if form not in forms:
        raise ValueError(f"{show(value)}: {unknown_name('form', form, forms)}")
    known = forms[form]
    arguments: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in inner.split(","))):
        name, equals, text = (piece.strip() for piece in part.partition("="))
        if not equals or not text:
            raise ValueError(
                f"{show(value)}: {show(part)} is no argument. Write {usage(form, known)}."
            )
        if name not in known:
            near = nearest(name, known)
            advice = f"Did you mean '{near}'?" if near else f"Write {usage(form, known)}."
            raise ValueError(f"{show(value)}: unknown argument '{name}'. {advice}")
        if name in arguments:
            raise ValueError(f"{show(value)}: gives {name} twice. Write {usage(form, known)}.")
        arguments[name] = _number(value, name, text)
    missing = [name for name, default in known.items() if default is None and name not in arguments]
    if missing:
        raise ValueError(f"{show(value)} lacks {', '.join(missing)}. Write {usage(form, known)}.")
    filled = {
        name: arguments.get(name, default if default is not None else 0.0)
        for name, default in known.items()
    }
    for low, high in (
        ("low", "high"),
        ("least", "mean"),
        ("low_s", "high_s"),
        ("median", "max"),
        ("median_s", "max_s"),
    ):
        if low in filled and high in filled and filled[low] > filled[high]:
            raise ValueError(
                f"{show(value)}: {low} is above {high}. Write the smaller one as {low}."
            )
    return Draw(form, filled)


def usage(form: str, known: Mapping[str, float | None]) -> str:
    """How a form is written, with its optional arguments left out."""
    needed = [f"{name}=..." for name, default in known.items() if default is None]
    return f"{form}({', '.join(needed)})" if needed else form


def _number(value: object, name: str, text: str) -> float:
    try:
        is_duration = name.endswith("_s") and not name.endswith("per_s")
        number = parse_seconds(text) if is_duration else float(text)
    except ValueError as error:
        reason = str(error) if "has an unknown unit" in str(error) else f"{text!r} is not a number."
        raise ValueError(f"{show(value)}: {name}: {reason}") from None
    low, high, rule = _RANGES.get(name, (0.0, 1e12, "Use 0 or more."))
    if not low <= number <= high:
        raise ValueError(f"{show(value)}: {name} is {text}. {rule}")
    return number


_TINY = 1e-12
_AT_LEAST_1 = (1.0, float(TOKENS_MAX), f"Use 1 to {TOKENS_MAX}.")
_ABOVE_0 = (_TINY, 1e12, "Use a value above 0.")
_RANGES = {
    "low": _AT_LEAST_1,
    "high": _AT_LEAST_1,
    "median": _AT_LEAST_1,
    "max": _AT_LEAST_1,
    "mean": _AT_LEAST_1,
    "least": _AT_LEAST_1,
    "sigma": (0.0, 10.0, "Use 0 to 10."),
    "median_s": _ABOVE_0,
    "mean_s": _ABOVE_0,
    "per_s": _ABOVE_0,
    "mean_per_s": _ABOVE_0,
    "to_per_s": _ABOVE_0,
    "cv": (0.01, 100.0, "Use 0.01 to 100."),
    "swing": (0.0, 1.0, "Use 0 to 1."),
    "period_s": _ABOVE_0,
    "over_s": _ABOVE_0,
}


def _length_or_0(value: object) -> object:
    parse_length(value, least=0)
    return value


def _length(value: object) -> object:
    parse_length(value)
    return value


def _duration(value: object) -> object:
    parse_duration(value)
    return value


def _starts(value: object) -> object:
    if value is not None:
        parse_starts(value)
    return value


# Kept as written, so that a scenario is written again as it was read.
Length = Annotated[int | str, BeforeValidator(_length)]
LengthOr0 = Annotated[int | str, BeforeValidator(_length_or_0)]
Duration = Annotated[int | float | str, BeforeValidator(_duration)]
Starts = Annotated[str | None, BeforeValidator(_starts)]
