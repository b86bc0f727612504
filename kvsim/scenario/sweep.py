"""Runs that differ from one another: axes over any keys, and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict

from kvsim.errors import show
from kvsim.scenario.fields import Text
from kvsim.scenario.validation import Problem, Section

NUM_SEEDS_MAX = 1000
"""Most seeds of a sweep."""
_FIXED = {
    "name": "cannot vary. Leave it out.",
    "variants": "cannot vary: a sweep runs every variant anyway. Leave it out.",
    "sweep": "cannot vary. Leave it out.",
    "seed": "cannot stand here. Use seeds.",
}


def _seeds(value: object) -> object:
    numbers = value if isinstance(value, list | tuple) else [value]
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**63:
            raise ValueError(
                f"{show(number)} is no seed. Use a number of seeds, or a list of seeds from 0 up."
            )
    if isinstance(value, int):
        if not 1 <= value <= NUM_SEEDS_MAX:
            raise ValueError(f"{value} is no number of seeds. Use 1 to {NUM_SEEDS_MAX}.")
        return value
    if not 1 <= len(numbers) <= NUM_SEEDS_MAX:
        raise ValueError(f"has {len(numbers)} entries. Give 1 to {NUM_SEEDS_MAX}.")
    if len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise ValueError(f"{twice} is given twice. A run is the same for the same seed.")
    return tuple(numbers)


Values = Annotated[tuple[Any, ...], Strict(False), Field(min_length=1)]


class Sweep(Section):
    """Axes of a sweep: all in `grid`, those in `zip` together, and the points of `list`."""

    grid: dict[Text, Values] = Field(
        default={}, description="dotted key and the values it takes; every combination is run"
    )
    zip: dict[Text, Values] = Field(
        default={},
        description="dotted key and the values it takes; keys change together, value by value",
    )
    list: Annotated[tuple[dict[Text, Any], ...], Strict(False)] = Field(
        default=(), description="mappings of dotted keys to values, one after another"
    )
    seeds: Annotated[
        int | tuple[int, ...],
        BeforeValidator(_seeds, json_schema_input_type=int | tuple[int, ...]),
    ] = Field(
        default=1,
        description="how many seeds each is run with, from the scenario's own up; or a list",
    )

    @property
    def axes(self) -> tuple[str, ...]:
        """Dotted keys of all axes, each once, in order."""
        listed = [key for point in self.list for key in point]
        return tuple(dict.fromkeys([*self.grid, *self.zip, *listed]))

    def seeds_from(self, seed: int) -> tuple[int, ...]:
        """The seeds of the runs, for a scenario's own seed."""
        return (
            self.seeds if isinstance(self.seeds, tuple) else tuple(range(seed, seed + self.seeds))
        )


def broken_sweep(sweep: Sweep, variants: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    """Every rule that the axes of a sweep break, against one another and against variants."""
    places: dict[str, list[str]] = {"grid": list(sweep.grid), "zip": list(sweep.zip)}
    places["list"] = list(dict.fromkeys(key for point in sweep.list for key in point))
    for part, keys in places.items():
        for key in keys:
            if text := _FIXED.get(key.split(".")[0]):
                yield Problem(f"sweep.{part}.{key}", text)
    yield from _overlaps(places)
    lengths = {key: len(values) for key, values in sweep.zip.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{key} {length}" for key, length in lengths.items())
        yield Problem("sweep.zip", f"its keys have different numbers of values ({shown}). Align.")
    for number, point in enumerate(sweep.list):
        if not point:
            yield Problem(f"sweep.list.{number}", "sets nothing. Give keys, or take it out.")
    for axis in sweep.axes:
        names = [name for name, keys in variants.items() if any(_overlap(k, axis) for k in keys)]
        if names:
            what = f"variant{'s' if len(names) > 1 else ''} {', '.join(names)}"
            yield Problem("sweep", f"{axis} is also set by {what}. Vary it in one place.")


def _overlaps(places: Mapping[str, list[str]]) -> Iterator[Problem]:
    """Keys that two axes set; within `list` each point speaks for itself."""
    seen: list[tuple[str, str]] = []
    for part, keys in places.items():
        for key in keys:
            for other_part, other in seen:
                if _overlap(key, other) and (part, other_part) != ("list", "list"):
                    yield Problem(
                        f"sweep.{part}.{key}",
                        f"is also set by sweep.{other_part}.{other}. Vary it in one place.",
                    )
            seen.append((part, key))


def _overlap(key: str, other: str) -> bool:
    """Whether two dotted keys are the same, or one stands in the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")
