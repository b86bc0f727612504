"""Searches: the largest load that meets an objective, the smallest cache that gives a hit rate.

Bisection over whole simulations. Every value is tried with the same seeds, so that the arrivals and
contents are the same and values differ by what they change alone (common random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError, Problems
from kvsim.results.tables import seconds
from kvsim.scenario import Scenario
from kvsim.study.fleet_quantities import is_nodes
from kvsim.study.objective import parse_objective
from kvsim.study.quantities import quantity as quantity_of
from kvsim.study.quantities import value_text
from kvsim.study.trials import Bench, Trial

if TYPE_CHECKING:
    import pandas as pd

TOLERANCE = 0.02
"""Where a bisection ends: met and missed values this much apart, as a fraction."""
NUM_DOUBLINGS_MAX = 24
"""Most times a value is doubled or halved to find one that is met and one that is missed."""
NUM_ALIKE_MAX = 3
"""Halvings of a load that leave the figures of an objective as they are, after which it is given
up: requests that arrive together stay together, however slowly they come."""
NUM_STUCK_MAX = 2
"""Doublings of a number of nodes that bring no figure nearer to its limit, after which it is given
up: spread over more caches, conversations find less."""


@dataclass(frozen=True, slots=True)
class FindResult:
    """What a search found.

    Attributes:
        quantity: what was varied: `request_rate`, `concurrency` or a dotted key.
        largest: whether the largest value that meets the objective was looked for, else the
            smallest.
        objective: what had to be met, as text.
        value: the best value that was tried and met it; None where none did.
        bracket: `value` and the next one that missed it; None for an end that was not found.
        noise: from the lowest to the highest value tried whose figures are no further from a limit
            than their interval reaches; None where all are.
        monotone: whether, of the values tried, none that missed it lies beyond one that met it.
        tried: every value, in order of size.
        notes: sentences for people.
    """

    quantity: str
    largest: bool
    objective: str
    value: float | None
    bracket: tuple[float | None, float | None]
    noise: tuple[float, float] | None
    monotone: bool
    tried: tuple[Trial, ...] = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def steady_s(self) -> float | None:
        """How long a steady state was seen at `value`, in s; None where that means nothing.

        That is how long sessions (requests, where there are none) still started after the first
        had ended.
        """
        seen = next((trial.steady for trial in self.tried if trial.value == self.value), None)
        return None if seen is None else seen.steady_s

    @property
    def trials(self) -> pd.DataFrame:
        """A row a value: the figures with their half widths, and whether they met the objective."""
        import pandas as pd

        rows = []
        for trial in self.tried:
            row: dict[str, Any] = {"value": trial.value, "met": trial.met, "clear": trial.clear}
            for name, figure in trial.figures.items():
                row |= {name: figure, f"{name}.half_width": trial.half_widths[name]}
            row |= {"num_seeds_met": trial.num_seeds_met, "num_seeds": trial.num_seeds}
            rows.append({**row, "message": trial.message})
        return pd.DataFrame(rows)

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values."""
        return {
            "quantity": self.quantity,
            "largest": self.largest,
            "objective": self.objective,
            "value": self.value,
            "bracket": list(self.bracket),
            "noise": None if self.noise is None else list(self.noise),
            "monotone": self.monotone,
            "steady_s": self.steady_s,
            "trials": [
                {
                    "value": trial.value,
                    "met": trial.met,
                    "clear": trial.clear,
                    "figures": dict(trial.figures),
                    "half_widths": dict(trial.half_widths),
                    "num_seeds_met": trial.num_seeds_met,
                    "num_seeds": trial.num_seeds,
                    "message": trial.message,
                }
                for trial in self.tried
            ],
            "notes": list(self.notes),
        }


def find(
    scenario: Scenario,
    quantity: str,
    objective: str,
    *,
    largest: bool,
    low: float | None = None,
    high: float | None = None,
    num_seeds: int = 1,
    tolerance: float = TOLERANCE,
    jobs: int | None = None,
    on_trial: Callable[[Trial], None] | None = None,
) -> FindResult:
    """Find the largest or smallest value of a quantity that meets an objective.

    Args:
        scenario: one without variants.
        quantity: `request_rate`, `concurrency`, a dotted key with a number above 0, or a key and
            a text with ``{}`` for the number, as in ``workload.sessions.starts=poisson(per_s={})``.
        objective: as `parse_objective` reads it; it has to hold for the mean over the seeds.
        largest: whether the largest value is looked for, else the smallest.
        low: where the bracket begins; None looks for it by halving the scenario's value.
        high: where it ends; None looks for it by doubling.
        num_seeds: seeds that each value is tried with, from the scenario's own up.
        tolerance: where to end, as a fraction of the value; whole numbers may be closer.
        jobs: simulations at once, of the seeds; None is all cores.
        on_trial: told each value when it has been tried.

    Raises:
        KvsimError: the quantity, the objective or the bracket is wrong, or no run can be made.
    """
    clauses = parse_objective(objective)
    problems = []
    if not 0 < tolerance < 1:
        problems.append(f"tolerance: {tolerance:g} is not between 0 and 1. Use 0.02, say.")
    if num_seeds < 1:
        problems.append(f"seeds: {num_seeds} is below 1. Use 1 or more.")
    for name, end in (("low", low), ("high", high)):
        if end is not None and not 0 < end < math.inf:
            problems.append(f"{name}: {end:g} is not above 0. Use a finite value above 0.")
    if low is not None and high is not None and low >= high:
        problems.append(f"low: {low:g} is not below high ({high:g}). Swap them.")
    if problems:
        raise Problems("find", problems)
    bench = Bench(scenario, quantity_of(scenario, quantity), clauses, num_seeds, jobs, on_trial)
    lowest, highest = _ends(bench, largest, low, high)
    return _bisected(bench, objective, largest, lowest, highest, tolerance)


def _ends(
    bench: Bench, largest: bool, low: float | None, high: float | None
) -> tuple[float, float]:
    """Where to bisect: two values, tried, of which one is met and one missed if there are such."""
    easy, hard = (low, high) if largest else (high, low)
    known = [bench.rounded(end) for end in (low, high) if end is not None]
    start = bench.setting.start
    if start is None and not known:
        raise KvsimError(
            f"quantity: {bench.setting.name} has no number in this scenario to start from. "
            "Give low or high."
        )
    # Towards where it is easier to meet, and away from it.
    easier, harder = (0.5, 2.0) if largest else (2.0, 0.5)
    begin = bench.rounded(start if start is not None else known[0])
    if low is not None:
        begin = max(begin, bench.rounded(low))
    if high is not None:
        begin = min(begin, bench.rounded(high))
    if easy is None:
        easy = _walk(bench, begin if hard is None else bench.rounded(hard), easier, until=True)
    if hard is None:
        hard = _walk(bench, easy if bench.meets(easy) else begin, harder, until=False)
    bench.meets(easy)
    bench.meets(hard)
    return tuple(sorted((bench.rounded(easy), bench.rounded(hard))))  # type: ignore[return-value]


def _walk(bench: Bench, value: float, factor: float, *, until: bool) -> float:
    """Double or halve until the objective is met, or missed, or nothing changes any more."""
    value = begin = bench.rounded(value)
    num_alike = num_stuck = 0
    for _ in range(NUM_DOUBLINGS_MAX):
        if bench.meets(value) is until:
            return value
        further = bench.rounded(value * factor)
        if further == value:
            return value
        bench.meets(further)
        # Larger pools and links come to an end of their effect; smaller ones may be short of it.
        if factor > 1 and bench.same_results(value, further) and bench.meets(further) is not until:
            bench.notes.append(
                f"From {value_text(value)} to {value_text(further)} all figures are the same: "
                "going further would change nothing."
            )
            return further
        num_stuck = 0 if bench.nearer(value, further) else num_stuck + 1
        if is_nodes(bench.setting.name) and until and num_stuck == NUM_STUCK_MAX:
            bench.notes.append(
                f"From {value_text(begin)} to {value_text(further)} nodes, the last "
                f"{NUM_STUCK_MAX} doublings brought no figure nearer to what it has to meet: more "
                "nodes will not do."
            )
            return further
        num_alike = num_alike + 1 if bench.alike(value, further) else 0
        if factor < 1 and until and num_alike == NUM_ALIKE_MAX:
            bench.notes.append(
                f"From {value_text(begin)} down to {value_text(further)} the figures of the "
                "objective come to a stop short of it: going further would change nothing."
            )
            return further
        value = further
    return value


def _bisected(
    bench: Bench, objective: str, largest: bool, low: float, high: float, tolerance: float
) -> FindResult:
    # `met_end` is the end that the best value is nearest to from the met side.
    met_end, missed_end = (low, high) if largest else (high, low)
    if bench.meets(met_end) and not bench.meets(missed_end):
        while True:
            middle = bench.rounded(math.sqrt(met_end * missed_end))
            near = max(met_end, missed_end) <= min(met_end, missed_end) * (1 + tolerance)
            if near or middle in (met_end, missed_end):
                break
            if bench.meets(middle):
                met_end = middle
            else:
                missed_end = middle
    tried = tuple(bench.trials[value] for value in sorted(bench.trials))
    return _concluded(bench, objective, largest, tried)


def _steady_notes(name: str, tried: Sequence[Trial], value: float | None) -> list[str]:
    """How long a steady state was seen at the answer, and that it was a burst where it was not."""
    seen = next((trial.steady for trial in tried if trial.value == value), None)
    if seen is None or value is None:
        return []
    one = seen.what.removesuffix("s")
    at = f"at {name} {value_text(value)}"
    facts = (
        f"the {seen.count:,} {seen.what} start within {seconds(seen.starts_s)}, and a {one} lasts "
        f"{seconds(seen.lasting_s)} (median)"
    )
    overload = seen.overload
    growing = [] if overload is None else [f"{at[0].upper()}{at[1:]}: {overload.sentence()}."]
    if not seen.is_burst:
        return [f"A steady state was seen for {seconds(seen.steady_s)} {at}: {facts}.", *growing]
    held = f"only for {seconds(seen.steady_s)}" if seen.steady_s else "not at all"
    return [
        f"Start-up burst: a steady state was seen {held} {at}: {facts}. The answer holds for a "
        f"burst of {seen.count:,} {seen.what}, not for a load that lasts. Use a workload with more "
        f"{seen.what}.",
        *growing,
    ]


def _concluded(bench: Bench, objective: str, largest: bool, tried: tuple[Trial, ...]) -> FindResult:
    notes = list(bench.notes)
    # In order from the easy side to the hard one.
    outward = tried if largest else tried[::-1]
    met = [trial.met for trial in outward]
    monotone = met == sorted(met, reverse=True)
    # Up to the first that missed: beyond it, one that met is luck or a real gap, but no promise.
    num_met = met.index(False) if False in met else len(met)
    value = outward[num_met - 1].value if num_met else None
    missed = outward[num_met].value if num_met < len(outward) else None
    if not monotone:
        others = ", ".join(value_text(t.value) for t in outward[num_met:] if t.met)
        notes.append(
            f"Not monotone: {value_text(missed or 0)} misses the objective, and {others} beyond it "
            "meets it. The answer is the last value before the first that missed; a search assumes "
            "that there is one crossing, and here there are several."
        )
    if value is None:
        notes.append("No value that was tried meets the objective.")
    elif missed is None:
        word = "largest" if largest else "smallest"
        notes.append(
            f"Every value tried meets it: {value_text(value)} is only the {word} one tried."
        )
    notes += _steady_notes(bench.setting.name, tried, value)
    unclear = [trial.value for trial in tried if trial.clear is False]
    if all(trial.clear is None or trial.message for trial in tried):
        notes.append("There is no interval for these figures: noise is not known.")
    elif len(bench.seeds) == 1:
        notes.append(
            "One seed: intervals are over stretches of the workload (block bootstrap), and tell "
            "how much a figure rests on a part of it, not what other traffic would give."
        )
    return FindResult(
        bench.setting.name,
        largest,
        objective,
        value,
        (value, missed),
        (min(unclear), max(unclear)) if unclear else None,
        monotone,
        tried,
        tuple(notes),
    )
