"""What a sweep runs: its points, each with its scenario and the name its run is kept under."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvsim import __version__
from kvsim.errors import KvsimError, Problems
from kvsim.results.provenance import file_sha256
from kvsim.scenario import Scenario, Sweep
from kvsim.scenario.reading import base_data, resolved_data
from kvsim.scenario.validation import lay_over
from kvsim.study.drawn import draws_at_random

NUM_RUNS_MAX = 100_000
"""Most runs of one sweep."""


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep before it is run.

    Attributes:
        variant: name of its variant.
        seed: its seed.
        axes: values of the axes by dotted key, resolved; as written where the scenario is wrong.
        scenario: what to run; None where it is wrong.
        run: name of its directory; empty where the scenario is wrong.
        message: what is wrong with it.
        other_seeds: further seeds that were asked for and would give the same run.
    """

    variant: str
    seed: int
    axes: Mapping[str, Any]
    scenario: Scenario | None
    run: str = ""
    message: str | None = None
    other_seeds: tuple[int, ...] = ()


def expand_sweep(scenario: Scenario) -> list[Point]:
    """Every run of a sweep, in order: variants, then grid, zip and list, then seeds.

    Where nothing is drawn at random, all seeds give the same run, and the first stands for them.
    A value that is wrong in every run it is part of is refused; where only some combinations are
    wrong, those are points with a message.

    Raises:
        Problems: all values that are wrong, each at its place.
    """
    sweep = scenario.sweep or Sweep()
    base = base_data(scenario)
    axes = list(_axes(sweep))
    seeds = sweep.seeds_from(scenario.seed)
    variants = scenario.variants or {"default": {}}
    num_runs = len(variants) * len(seeds)
    for _, steps in axes:
        num_runs *= len(steps)
    if num_runs > NUM_RUNS_MAX:
        problem = f"sweep: makes {num_runs} runs. Use at most {NUM_RUNS_MAX}."
        raise Problems(f"scenario {scenario.name}", [problem])
    hashes: dict[Path, str] = {}
    drawn = _Drawn()
    points: list[Point] = []
    choices: list[tuple[int, ...]] = []
    for variant, overrides in variants.items():
        laid, _ = lay_over(base, overrides)
        for choice in itertools.product(*(range(len(steps)) for _, steps in axes)):
            values: dict[str, Any] = {}
            for (_, steps), number in zip(axes, choice, strict=True):
                values |= steps[number]
            for seed in seeds:
                point = _point(scenario, laid, variant, seed, values, hashes)
                alone = len(seeds) > 1 and seed == seeds[0] and not drawn.by(point, seeds)
                points.append(replace(point, other_seeds=seeds[1:]) if alone else point)
                choices.append(choice)
                if alone:
                    break
    if problems := _wrong_everywhere(axes, points, choices):
        raise Problems(f"scenario {scenario.name}", problems)
    return points


def seeds_note(scenario: Scenario, points: Sequence[Point]) -> tuple[str, ...]:
    """A sentence where seeds that were asked for are not run, as they would change nothing."""
    alike = [point for point in points if point.other_seeds]
    if not alike:
        return ()
    count = 1 + len(alike[0].other_seeds)
    if len(alike) == len(points):
        what = f"scenario {scenario.name}"
    else:
        what = f"{len(alike)} of the {len(points)} runs"
    return (
        f"Nothing is drawn at random in {what}: all {count} seeds would give the same run, so one "
        f"is run, with seed {alike[0].seed}.",
    )


class _Drawn:
    """Whether workloads draw anything from their seed; each is read at most once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], bool] = {}

    def by(self, point: Point, seeds: Sequence[int]) -> bool:
        """Whether other seeds give a point other requests; one that is wrong is left as it is."""
        made = point.scenario
        if made is None:
            return True
        key = (made.workload.model_dump_json(), made.scheduler_block_tokens)
        if key not in self._known:
            try:
                self._known[key] = draws_at_random(made, seeds[:2])
            except KvsimError:
                self._known[key] = True  # the run says what is wrong
        return self._known[key]


def _axes(sweep: Sweep) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The axes, each with its place in the scenario and what its steps set."""
    for key, values in sweep.grid.items():
        yield f"sweep.grid.{key}", [{key: value} for value in values]
    if sweep.zip:
        steps = [
            dict(zip(sweep.zip, values, strict=True))
            for values in zip(*sweep.zip.values(), strict=True)
        ]
        yield "sweep.zip", steps
    if sweep.list:
        yield "sweep.list", [dict(point) for point in sweep.list]


def _point(
    scenario: Scenario,
    laid: Mapping[str, Any],
    variant: str,
    seed: int,
    values: Mapping[str, Any],
    hashes: dict[Path, str],
) -> Point:
    data, problems = lay_over(laid, {**values, "seed": seed})
    message = "; ".join(str(problem) for problem in problems)
    if not problems:
        try:
            made = Scenario.from_data(data, variant, scenario.directory, check_files=True)
        except Problems as error:
            message = "; ".join(error.problems)
        else:
            resolved = made.resolved()
            axes = scenario.sweep.axes if scenario.sweep else ()
            at = {key: _value_at(resolved, key) for key in axes}
            return Point(variant, seed, at, made, run_hash(made, hashes))
    return Point(variant, seed, values, None, message=message)


def _value_at(data: Any, key: str) -> Any:
    """The value at a dotted key, None where there is none."""
    for step in key.split("."):
        if isinstance(data, list) and step.isdecimal() and int(step) < len(data):
            data = data[int(step)]
        elif isinstance(data, Mapping):
            data = data.get(step)
        elif not (isinstance(data, str) and step == "kind"):  # a router is its kind
            return None
    return data


def _wrong_everywhere(
    axes: Sequence[tuple[str, list[dict[str, Any]]]],
    points: Sequence[Point],
    choices: Sequence[tuple[int, ...]],
) -> list[str]:
    """A problem for each step of an axis of which no run stands."""
    messages: dict[tuple[int, int], list[str | None]] = {}
    for point, choice in zip(points, choices, strict=True):
        for step in enumerate(choice):
            messages.setdefault(step, []).append(point.message)
    found: dict[str, str] = {}
    of_its_own: set[str] = set()
    for (axis, number), texts in messages.items():
        if any(text is None for text in texts):
            continue
        place, steps = axes[axis]
        text = str(texts[0])
        # Said of the axis that sets the key in question, not of every axis around it.
        own = [key for key in steps[number] if text.startswith(key)]
        if text not in found or (own and text not in of_its_own):
            short = text.removeprefix(f"{own[0]}: ") if own and place.endswith(own[0]) else text
            found[text] = f"{place}.{number}: {short}"
        if own:
            of_its_own.add(text)
    if not axes:
        found = {str(point.message): str(point.message) for point in points if point.message}
    return list(found.values())


def run_hash(scenario: Scenario, hashes: dict[Path, str] | None = None) -> str:
    """The name of a run: 12 digits of the hash of all that its result follows from.

    That is the resolved scenario, the content of the files it reads (not where they are) and the
    version of kvsim.

    Args:
        scenario: one without variants.
        hashes: SHA-256 by file, taken from and added to.

    Raises:
        KvsimError: a file cannot be read.
    """
    known = {} if hashes is None else hashes

    def content(path: str) -> str:
        file = (scenario.directory / path).resolve()
        if file not in known:
            known[file] = file_sha256(file)
        return known[file]

    data = {"kvsim": __version__, **resolved_data(scenario, content)}
    text = json.dumps(data, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
