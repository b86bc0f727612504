"""Searches: the largest load that meets an objective, the smallest cache that gives a hit rate.

Bisection over whole simulations. Every value is tried with the same seeds, so that the arrivals and
contents are the same and values differ by what they change alone (common random numbers).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError, Problems, show, unknown_name
from kvsim.metrics.figures import flat_figures
from kvsim.metrics.summary import SUMMARY_KEYS
from kvsim.scenario import Scenario
from kvsim.study.quantities import Quantity, value_text
from kvsim.study.quantities import quantity as quantity_of
from kvsim.units import parse_bytes, parse_bytes_per_s, parse_seconds

if TYPE_CHECKING:
    import pandas as pd

TOLERANCE = 0.02
"""Where a bisection ends: met and missed values this much apart, as a fraction."""
NUM_DOUBLINGS_MAX = 24
NUM_ALIKE_MAX = 3
"""Halvings of a load that leave the figures of an objective as they are, after which it is given
up: requests that arrive together stay together, however slowly they come."""
"""Most times a value is doubled or halved to find one that is met and one that is missed."""
_COMPARISON = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|<|>)\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class Clause:
    """One comparison of an objective.

    Attributes:
        figure: dotted name in a summary laid flat, as `ttft_s.p99`.
        is_below: whether the figure has to be below the limit, else above.
        strict: whether being at the limit is missing it.
        limit: bound of the figure, in its unit.
    """

    figure: str
    is_below: bool
    strict: bool
    limit: float

    def meets(self, value: float | None) -> bool:
        """Whether a figure meets it; one that does not exist never does."""
        if value is None or math.isnan(value):
            return False
        if value == self.limit:
            return not self.strict
        return (value < self.limit) == self.is_below

    def __str__(self) -> str:
        """As it is written."""
        sign = ("<" if self.is_below else ">") + ("" if self.strict else "=")
        return f"{self.figure} {sign} {self.limit:g}"


def parse_objective(text: str) -> tuple[Clause, ...]:
    """Read ``ttft_s.p99 < 2 and token_hit_rate >= 0.5``; limits may carry units.

    Raises:
        Problems: all parts that are no comparison of a known figure with a number.
    """
    clauses, problems = [], []
    for part in re.split(r"\s+and\s+", text.strip()):
        match = _COMPARISON.fullmatch(part)
        if match is None:
            problems.append(
                f"{show(part)} is no comparison. Write it as in 'ttft_s.p99 < 2 and "
                "token_hit_rate >= 0.5'."
            )
            continue
        figure, sign, limit = match.groups()
        if figure.split(".")[0] not in SUMMARY_KEYS:
            problems.append(unknown_name("figure", figure.split(".")[0], SUMMARY_KEYS))
            continue
        try:
            bound = parse_number(limit)
        except ValueError as error:
            problems.append(f"{figure}: {error}")
            continue
        clauses.append(Clause(figure, sign[0] == "<", len(sign) == 1, bound))
    if problems:
        raise Problems("objective", problems)
    return tuple(clauses)


def parse_number(value: object) -> float:
    """A number, or a size, bandwidth or time with its unit, in bytes, bytes a second or seconds.

    Raises:
        ValueError: it is none of them.
    """
    for parse in (parse_seconds, parse_bytes_per_s, parse_bytes):
        try:
            return float(parse(value))
        except ValueError:
            continue
    raise ValueError(f"{show(value)} is no number. Write one, as in 2, '15 ms' or '80 GiB'.")


@dataclass(frozen=True, slots=True)
class Trial:
    """One value that was tried.

    Attributes:
        value: of the quantity.
        figures: mean over the seeds of each figure of the objective; None where a run has none.
        half_widths: half the width of its 95% interval; None where there is none.
        met: whether the means meet the objective.
        clear: whether they would, or would not, anywhere in their intervals; None without any.
        num_seeds_met: seeds that meet it each for itself.
        num_seeds: seeds it was tried with.
        message: why a run failed, or did not count; else None.
    """

    value: float
    figures: Mapping[str, float | None]
    half_widths: Mapping[str, float | None]
    met: bool
    clear: bool | None
    num_seeds_met: int
    num_seeds: int
    message: str | None = None


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
    bench = _Bench(scenario, quantity_of(scenario, quantity), clauses, num_seeds, jobs, on_trial)
    lowest, highest = _ends(bench, largest, low, high)
    return _bisected(bench, objective, largest, lowest, highest, tolerance)


class _Bench:
    """Tries values, each once."""

    def __init__(
        self,
        scenario: Scenario,
        setting: Quantity,
        clauses: Sequence[Clause],
        num_seeds: int,
        jobs: int | None,
        on_trial: Callable[[Trial], None] | None,
    ) -> None:
        self.scenario = scenario
        self.setting = setting
        self.clauses = clauses
        self.seeds = tuple(range(scenario.seed, scenario.seed + num_seeds))
        self.jobs = jobs
        self.tell = on_trial or (lambda trial: None)
        self.trials: dict[float, Trial] = {}
        self.notes: list[str] = list(setting.notes)
        self.results: dict[float, tuple[Mapping[str, float | None], ...]] = {}

    def rounded(self, value: float) -> float:
        """The value nearest to it that is possible."""
        return self.setting.rounded(value)

    def meets(self, value: float) -> bool:
        """Whether a value meets the objective."""
        value = self.rounded(value)
        if value not in self.trials:
            trial = self._try(value)
            self.trials[value] = trial
            self.tell(trial)
        return self.trials[value].met

    def same_results(self, value: float, other: float) -> bool:
        """Whether two values gave the same in every figure: the quantity has no effect there."""
        pair = [self.results.get(self.rounded(one)) for one in (value, other)]
        return pair[0] is not None and pair[0] == pair[1]

    def alike(self, value: float, other: float) -> bool:
        """Whether two values gave the same figures of the objective, but for rounding."""
        one, two = (self.trials[self.rounded(v)].figures for v in (value, other))
        return all(
            a is not None and b is not None and math.isclose(a, b, rel_tol=1e-6)
            for a, b in zip(one.values(), two.values(), strict=True)
        )

    def _try(self, value: float) -> Trial:
        from kvsim.study.parallel import each

        names = tuple(dict.fromkeys(clause.figure for clause in self.clauses))
        nothing = dict.fromkeys(names)
        try:
            changed = self.scenario.replace(self.setting.overrides(value), "find")
        except Problems as error:
            if not self.trials:
                raise
            message = "; ".join(error.problems)
            return Trial(value, nothing, nothing, False, True, 0, len(self.seeds), message)
        tasks = [changed.replace({"seed": seed}, "find") for seed in self.seeds]
        outcomes = dict(each(_measure, [(task, names) for task in tasks], jobs=self.jobs))
        runs = [outcomes[number] for number in range(len(tasks))]
        if not self.trials and len(runs) > 1 and all(run == runs[0] for run in runs[1:]):
            runs, self.seeds = runs[:1], self.seeds[:1]
            self.notes.append(
                "Nothing is drawn at random in this scenario: all seeds give the same run, so one "
                "was used."
            )
        failed = next((run for run in runs if isinstance(run, str)), None)
        measured = [run for run in runs if not isinstance(run, str)]
        if failed is not None or not measured:
            return Trial(value, nothing, nothing, False, True, 0, len(runs), failed)
        if not self.trials:
            self._check_figures(measured[0].known, names)
        self.results[value] = tuple(run.everything for run in measured)
        return self._judged(value, measured, names)

    def _check_figures(self, known: Sequence[str], names: Iterable[str]) -> None:
        problems = [unknown_name("figure", name, known) for name in names if name not in known]
        if problems:
            raise Problems("objective", problems)

    def _judged(self, value: float, runs: Sequence[_Measured], names: Sequence[str]) -> Trial:
        from kvsim.metrics.uncertainty import half_width

        means: dict[str, float | None] = {}
        widths: dict[str, float | None] = {}
        for name in names:
            values = [run.figures[name] for run in runs]
            known = [figure for figure in values if figure is not None]
            complete = len(known) == len(values)
            means[name] = math.fsum(known) / len(known) if complete else None
            if len(runs) > 1:
                widths[name] = half_width(known) if complete else None
            else:
                widths[name] = runs[0].half_widths.get(name)
        met_by = [all(c.meets(run.figures[c.figure]) for c in self.clauses) for run in runs]
        met = all(clause.meets(means[clause.figure]) for clause in self.clauses)
        message = None
        refused = max(run.num_refused for run in runs)
        if refused and met and "num_refused" not in names:
            met, met_by = False, [False] * len(runs)
            message = (
                f"{refused} request{' is' if refused == 1 else 's are'} refused, so it does not "
                f"count as met. Add 'and num_refused <= {refused}' to the objective to allow that."
            )
        clear = None
        if message is None and all(width is not None for width in widths.values()):
            clear = self._is_clear(means, widths)
        return Trial(value, means, widths, met, clear, sum(met_by), len(runs), message)

    def _is_clear(
        self, means: Mapping[str, float | None], widths: Mapping[str, float | None]
    ) -> bool:
        """Whether the answer is the same at both ends of every interval."""
        at_best, at_worst = [], []
        for clause in self.clauses:
            mean, width = means[clause.figure], widths[clause.figure] or 0.0
            sign = -1 if clause.is_below else 1
            at_best.append(clause.meets(None if mean is None else mean + sign * width))
            at_worst.append(clause.meets(None if mean is None else mean - sign * width))
        return all(at_best) == all(at_worst)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Of one run: the figures asked for, their half widths over stretches, and all there are.

    `everything` leaves real time out, and the sizes of the pool and of tiers, which are no results;
    `known` names all figures.
    """

    figures: Mapping[str, float | None]
    half_widths: Mapping[str, float]
    num_refused: int
    everything: Mapping[str, float | None]
    known: Sequence[str]


def _is_no_result(figure: str) -> bool:
    return figure in {"wall_s", "num_blocks"} or figure.endswith(".capacity_bytes")


def _measure(task: tuple[Scenario, tuple[str, ...]]) -> _Measured | str:
    """The figures of one run, or why it failed."""
    from kvsim.metrics.uncertainty import level_half_widths
    from kvsim.results.variants import run_variant

    scenario, names = task
    try:
        result = run_variant(scenario)
    except Problems as error:
        return "; ".join(error.problems)
    flat = flat_figures(result.summary)
    return _Measured(
        {name: flat.get(name) for name in names},
        {name: w for name, w in level_half_widths(result.requests).items() if name in names},
        result.summary["num_refused"],
        {name: value for name, value in flat.items() if not _is_no_result(name)},
        tuple(flat),
    )


def _ends(
    bench: _Bench, largest: bool, low: float | None, high: float | None
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


def _walk(bench: _Bench, value: float, factor: float, *, until: bool) -> float:
    """Double or halve until the objective is met, or missed, or nothing changes any more."""
    value = begin = bench.rounded(value)
    num_alike = 0
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
    bench: _Bench, objective: str, largest: bool, low: float, high: float, tolerance: float
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


def _concluded(
    bench: _Bench, objective: str, largest: bool, tried: tuple[Trial, ...]
) -> FindResult:
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
