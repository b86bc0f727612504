"""Checks data against closed, frozen classes and says everything that is wrong with it at once.

Knows nothing of scenarios: places are dotted keys (``model.groups.0.block_size``), the same that
overrides use, and texts give the value, the rule and the remedy.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from kvsim.errors import UnknownNameError, nearest, show, unknown_name


class Section(BaseModel):
    """A part of a scenario: frozen, closed to unknown keys, nothing converted silently."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
    )


SectionT = TypeVar("SectionT", bound=Section)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        place: dotted key, empty for the whole.
        text: the value, the rule and the remedy.
        about: other places the finding rests on.
    """

    place: str
    text: str
    about: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As a line of `Problems`."""
        return f"{self.place}: {self.text}" if self.place else self.text


@dataclass
class Examined(Generic[SectionT]):
    """What an examination found.

    Attributes:
        problems: what is wrong with single fields.
        value: the data as a section; where there are problems, what could be kept of it, good for
            finding further problems only.
        doubtful: places whose value in `value` is not what was written.
    """

    problems: list[Problem] = field(default_factory=list)
    value: SectionT | None = None
    doubtful: set[str] = field(default_factory=set)

    def stands(self, problem: Problem) -> bool:
        """Whether a finding about `value` rests on nothing doubtful."""
        places = (problem.place, *problem.about)
        return not any(
            place == bad or place.startswith(f"{bad}.") for place in places for bad in self.doubtful
        )


def sections(section: type[Section], place: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Every class of sections in a tree, with its place; alternatives come under the same place."""
    yield place, section
    for key, field_info in section.model_fields.items():
        for part in sections_in(field_info.annotation):
            yield from sections(part, f"{place}.{key}" if place else key)


def examine(
    section: type[SectionT],
    data: Mapping[str, Any],
    context: Mapping[str, Any],
    stand_ins: Mapping[str, Any],
) -> Examined[SectionT]:
    """Check data against a section and its parts, and keep what is good for further checks.

    Args:
        section: the class at the top.
        data: what was written.
        context: handed to the sections when they are made.
        stand_ins: for keys at the top that have no default, a value to go on with.
    """
    found: Examined[SectionT] = Examined()
    found.value, errors = _try(section, data, context)
    if not errors:
        return found
    tree = list(sections(section))
    found.problems = [_problem(error, data, tree) for error in errors]
    kept = copy.deepcopy(dict(data))
    for error, problem in zip(errors, found.problems, strict=True):
        cause = error.get("ctx", {}).get("error")
        near = cause.near if isinstance(cause, UnknownNameError) else None
        _put(kept, _steps(error, data), near)
        if near is None:
            found.doubtful.add(problem.place)
    found.value, errors = _try(section, kept, context)
    for error in errors:
        key = error["loc"][0]
        kept.pop(key, None)
        if key in stand_ins:
            kept[key] = stand_ins[key]
        found.doubtful.add(key)
    if errors:
        found.value, _ = _try(section, kept, context)
    return found


def without_odd_keys(data: Any) -> tuple[Any, list[Problem]]:
    """A copy of the data without keys that are no text, and what was left out."""
    problems: list[Problem] = []

    def kept(value: Any, place: str) -> Any:
        if isinstance(value, list | tuple):
            return [kept(part, f"{place}.{number}") for number, part in enumerate(value)]
        if not isinstance(value, Mapping):
            return value
        odd = [key for key in value if not isinstance(key, str)]
        problems.extend(
            Problem(place, f"key {show(key)} is not text. Put it in quotes.") for key in odd
        )
        return {
            key: kept(part, f"{place}.{key}" if place else key)
            for key, part in value.items()
            if isinstance(key, str)
        }

    return kept(data, ""), problems


def lay_over(
    data: Mapping[str, Any], overrides: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Problem]]:
    """A copy of the data with values replaced, by dotted key; a number stands for a list's entry.

    A section given as a mapping is laid over the one that is there, key by key; one that names its
    `kind` takes its place, and so does a mapping whose keys are the user's own (`variants`, the
    axes of a sweep, a policy with its parameters).
    """
    laid = copy.deepcopy(dict(data))
    problems = []
    for place, value in overrides.items():
        text = _override(laid, place, copy.deepcopy(value))
        if text:
            problems.append(Problem(place, text))
    return laid, problems


_BY_NAME = {"router"}
"""Sections that may be written as a name alone, which is their `kind`."""
_OWN_KEYS = {"variants", "grid", "zip", "free_queue", "retention", "eviction"}


def _override(data: dict[str, Any], place: str, value: Any) -> str | None:
    *path, last = place.split(".")
    node: Any = data
    for depth, key in enumerate(path):
        if isinstance(node, dict):
            if node.get(key) is None:
                node[key] = {}
            elif key in _BY_NAME and isinstance(node[key], str):
                node[key] = {"kind": node[key]}
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return _no_entry(".".join(path[:depth]), node, key)
    if isinstance(node, list) and last.isdecimal() and int(last) < len(node):
        node[int(last)] = value
        return None
    if not isinstance(node, dict):
        return _no_entry(".".join(path), node, last)
    there = node.get(last)
    is_section = last not in _OWN_KEYS and isinstance(value, dict) and "kind" not in value
    if isinstance(there, dict) and is_section:
        for key, inner in value.items():
            text = _override(there, str(key), inner)
            if text:
                return text
        return None
    node[last] = value
    return None


def _no_entry(place: str, node: Any, key: str) -> str:
    if isinstance(node, list):
        return f"{place} has no entry {key}. It has {len(node)}, counted from 0."
    return f"{place} is {show(node)}, which has no key {show(key)}. Replace {place} whole."


def _try(
    section: type[SectionT], data: Mapping[str, Any], context: Mapping[str, Any]
) -> tuple[SectionT | None, list[Any]]:
    try:
        return section.model_validate(data, context=dict(context)), []
    except ValidationError as error:
        # A list also counts as too short where its entries are wrong; they speak for themselves.
        return None, [
            found
            for found in error.errors(include_url=False)
            if found["type"] != "too_short" or len(found["input"]) < found["ctx"]["min_length"]
        ]


def _put(data: Any, steps: tuple[str, ...], value: Any) -> None:
    """Replace the value at a place, or take it away where None is given."""
    *path, last = steps
    for key in path:
        if isinstance(data, dict):
            data = data.get(key)
        elif isinstance(data, list) and key.isdecimal():
            data = data[int(key)]
    if isinstance(data, dict):
        if value is None:
            data.pop(last, None)
        elif last in data:
            data[last] = value


def sections_in(annotation: Any) -> list[type[Section]]:
    """The sections that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [part for inner in get_args(annotation) for part in sections_in(inner)]


def _steps(error: Mapping[str, Any], data: Any) -> tuple[str, ...]:
    """Keys down to an error; names of alternatives, which are not in the data, are left out."""
    steps = [step for step in error["loc"] if step != "[key]"]
    place: list[str] = []
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        if isinstance(data, Mapping):
            if step in data:
                data = data[step]
            elif not last or error["type"] != "missing":
                continue
        elif isinstance(data, list | tuple) and isinstance(step, int) and step < len(data):
            data = data[step]
        elif last and isinstance(step, str):
            continue
        place.append(str(step))
    if error["type"].startswith("union_tag") and isinstance(error["input"], Mapping):
        place.append("kind")
    return tuple(place)


def _problem(error: Any, data: Any, tree: list[tuple[str, type[Section]]]) -> Problem:
    steps = _steps(error, data)
    place, key, above = ".".join(steps), steps[-1], steps[:-1]
    here = ".".join(step for step in above if not step.isdecimal())
    kind, value = error["type"], error["input"]
    known = [part for part_place, part in tree if part_place == here]
    if kind == "extra_forbidden":
        return Problem(place, _unknown_key(key, here, _chosen(known, data, above), tree))
    if kind == "missing":
        described = (
            part.model_fields[key].description for part in known if key in part.model_fields
        )
        return Problem(place, f"is missing. Give: {next(described, None) or 'a value'}.")
    if kind.startswith("union_tag"):
        if not isinstance(value, Mapping):
            return Problem(place, f"{show(value)} {_PLAIN_RULES['dict_type']}")
        choices = [str(get_args(part.model_fields["kind"].annotation)[0]) for part in known]
        written = value.get("kind")
        if "kind" not in value:
            return Problem(place, f"is missing. Choices: {', '.join(choices)}.")
        if not isinstance(written, str):
            return Problem(place, f"{show(written)} is no kind. Choices: {', '.join(choices)}.")
        return Problem(place, unknown_name("kind", written, choices))
    return Problem(place, _field_text(kind, key, value, error.get("ctx", {})))


def _chosen(known: list[type[Section]], data: Any, steps: tuple[str, ...]) -> type[Section]:
    """Of alternative sections the one that the data's `kind` names."""
    for key in steps:
        data = data[int(key)] if isinstance(data, list) else data[key]
    for part in known:
        kind = part.model_fields.get("kind")
        if len(known) > 1 and kind and data.get("kind", kind.default) in get_args(kind.annotation):
            return part
    return known[0]


def _unknown_key(
    key: str, here: str, section: type[Section], tree: list[tuple[str, type[Section]]]
) -> str:
    if near := nearest(key, section.model_fields):
        return f"unknown key. Did you mean '{near}'?"
    above, _, last = key.rpartition(".")
    if any(place == above and last in part.model_fields for place, part in tree):
        text = "dotted keys are for variants and --set."
        return f"{text} Write {above.replace('.', ': {')}: {{{last}: ...}}{'}' * above.count('.')}."
    for place, part in tree:
        if place and place != here and key in part.model_fields:
            return f"unknown key here. Did you mean '{place}.{key}'?"
    kinds = (
        get_args(section.model_fields["kind"].annotation) if "kind" in section.model_fields else ()
    )
    what = f"unknown key for kind {kinds[0]}" if len(kinds) == 1 else "unknown key"
    return f"{what}. Known: {', '.join(section.model_fields)}."


_PLAIN_RULES = {
    "string_too_short": "is empty. Write at least one character.",
    "bool_type": "is not true or false. Write true or false.",
    "string_type": "is not text. Put it in quotes.",
    "finite_number": "is not a finite number. Write a finite one.",
    "list_type": "is not a list. Write one as in [a, b].",
    "tuple_type": "is not a list. Write one as in [a, b].",
    "dict_type": "is not a mapping. Write key: value pairs below it.",
    "model_type": "is not a mapping. Write key: value pairs below it.",
    "model_attributes_type": "is not a mapping. Write key: value pairs below it.",
}
_BOUNDS = {
    "greater_than": ("gt", "is not above {}. Use a value above {}."),
    "greater_than_equal": ("ge", "is below {}. Use {} or more."),
    "less_than": ("lt", "is not below {}. Use a value below {}."),
    "less_than_equal": ("le", "is above {}. Use {} or less."),
}
_WHOLE_NUMBER = {"int_type", "int_from_float", "int_parsing", "int_parsing_size"}


def _field_text(kind: str, key: str, value: Any, context: Mapping[str, Any]) -> str:
    """Words for one of pydantic's errors, such as ``greater_than`` with its bound in `context`."""
    if kind == "value_error":
        return str(context["error"])
    if kind in _PLAIN_RULES:
        return f"{show(value)} {_PLAIN_RULES[kind]}"
    if kind in _BOUNDS:
        name, rule = _BOUNDS[kind]
        bound = context[name]
        number = int(bound) if float(bound).is_integer() else bound
        return f"{show(value)} {rule.format(number, number)}"
    if kind in _WHOLE_NUMBER:
        return f"{show(value)} is not a whole number.{_write_number(value)}"
    if kind in {"float_type", "float_parsing"}:
        return f"{show(value)} is not a number.{_write_number(value)}"
    if kind == "literal_error":
        choices = re.findall(r"[^\s',]+", context["expected"].replace(" or ", " "))
        choices = ["null" if choice == "None" else choice for choice in choices]
        if isinstance(value, str):
            return unknown_name(key, value, choices)
        return f"{show(value)} is no {key}. Choices: {', '.join(choices)}."
    if kind in {"too_short", "too_long"}:
        at_least = kind == "too_short"
        bound = context["min_length" if at_least else "max_length"]
        return f"has {len(value)} entries. Give at {'least' if at_least else 'most'} {bound}."
    return f"{show(value)}: {kind.replace('_', ' ')}."


def _write_number(value: object) -> str:
    """The remedy for what is no number."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d+)?", value):
        return f" Write {value} without quotes."
    if isinstance(value, float) and value.is_integer():
        return f" Write {value:.0f}."
    return " Write a number without a unit." if isinstance(value, str) else " Write a number."
