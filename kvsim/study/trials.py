"""Values that a search tries: each is simulated once, with every seed, and judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvsim.errors import Problems, unknown_name
from kvsim.metrics.figures import flat_figures
from kvsim.scenario import Scenario
from kvsim.study.objective import Clause
from kvsim.study.quantities import Quantity
from kvsim.study.steady import SteadyState, steady_state


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
        steady: what the run saw of a steady state, that of the seed that saw least; None where the
            quantity is no load.
    """

    value: float
    figures: Mapping[str, float | None]
    half_widths: Mapping[str, float | None]
    met: bool
    clear: bool | None
    num_seeds_met: int
    num_seeds: int
    message: str | None = None
    steady: SteadyState | None = None


class Bench:
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

    def nearer(self, value: float, other: float) -> bool:
        """Whether a figure that a value missed is nearer to its limit at another, by 1% or more."""
        one, two = (self.trials[self.rounded(v)].figures for v in (value, other))
        for clause in self.clauses:
            before, after = one[clause.figure], two[clause.figure]
            if clause.meets(before) or after is None:
                continue
            if before is None:
                return True
            gain = before - after if clause.is_below else after - before
            if gain > 0.01 * abs(before):
                return True
        return False

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
        outcomes = dict(
            each(_measure, [(task, names, self.setting.is_load) for task in tasks], jobs=self.jobs)
        )
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
        seen = [run.steady for run in runs if run.steady is not None]
        steady = min(seen, key=lambda one: one.steady_s, default=None)
        return Trial(value, means, widths, met, clear, sum(met_by), len(runs), message, steady)

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
    steady: SteadyState | None = None


def _is_no_result(figure: str) -> bool:
    return figure in {"wall_s", "num_blocks"} or figure.endswith(".capacity_bytes")


def _measure(task: tuple[Scenario, tuple[str, ...], bool]) -> _Measured | str:
    """The figures of one run, or why it failed."""
    from kvsim.metrics.uncertainty import level_half_widths
    from kvsim.results.variants import run_variant

    scenario, names, is_load = task
    try:
        result = run_variant(scenario)
    except Problems as error:
        return "; ".join(error.problems)
    flat = flat_figures(result.summary)
    widths = level_half_widths(result.requests, scenario.objective)
    return _Measured(
        {name: flat.get(name) for name in names},
        {name: width for name, width in widths.items() if name in names},
        result.summary["num_refused"],
        {name: value for name, value in flat.items() if not _is_no_result(name)},
        tuple(flat),
        steady_state(scenario, result.requests) if is_load else None,
    )
