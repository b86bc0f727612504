"""What `import kvsim` offers to programs and notebooks; the command line does the same things."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError, Problems, unknown_name
from kvsim.scenario import Scenario
from kvsim.scenario.reading import expand_variants, load_scenario

if TYPE_CHECKING:
    from kvsim.results.store import RunResult
    from kvsim.study.search import FindResult
    from kvsim.study.sweep_table import SweepResult
    from kvsim.study.sweeps import Progress
    from kvsim.study.trials import Trial


def run(scenario: Scenario | Path | str, variant: str | None = None) -> RunResult:
    """Simulate one run; nothing is written.

    Args:
        scenario: a scenario, or the file of one.
        variant: which of its variants; needed where it has any.

    Raises:
        KvsimError: something is wrong with the scenario or its workload, or it has variants and
            none of them is named.
    """
    from kvsim.results.variants import run_variant

    return run_variant(*_one(_scenario(scenario), variant))


def sweep(
    scenario: Scenario | Path | str,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    only: Sequence[str] = (),
    out: Path | str | None = None,
    jobs: int | None = None,
    backend: str = "loky",
    on_progress: Callable[[Progress], None] | None = None,
) -> SweepResult:
    """Run every variant along every axis with every seed, in parallel; what is there is kept.

    Args:
        scenario: a scenario, or the file of one; its `sweep` section is part of what is run.
        grid: further axes, dotted keys and their values.
        seeds: how many seeds, or which; None as the scenario says.
        only: names of the variants to run; none for all.
        out: directory of the runs and their table; None is `results/<scenario name>/sweep`.
        jobs: simulations at once; None is all cores.
        backend: ``loky`` (this machine), ``ray`` or ``dask``.
        on_progress: told at the start and after each run.

    Raises:
        KvsimError: something is wrong with the sweep; a run that fails is a row of its table.
    """
    from kvsim.study.sweeps import sweep as run_sweep

    chosen = seeds if seeds is None or isinstance(seeds, int) else list(seeds)
    loaded = with_axes(with_variants(_scenario(scenario), only), grid or {}, chosen)
    out_dir = sweep_destination(loaded) if out is None else Path(out)
    return run_sweep(loaded, out_dir, jobs=jobs, backend=backend, on_progress=on_progress)


def find(
    scenario: Scenario | Path | str,
    *,
    objective: str,
    largest: str | None = None,
    smallest: str | None = None,
    variant: str | None = None,
    low: float | str | None = None,
    high: float | str | None = None,
    seeds: int = 1,
    tolerance: float | None = None,
    jobs: int | None = None,
    on_trial: Callable[[Trial], None] | None = None,
) -> FindResult:
    """Find the largest load that meets an objective, or the smallest cache that does.

    Args:
        scenario: a scenario, or the file of one.
        objective: what has to be met, as in ``"ttft_s.p99 < 2 and tpot_s.p50 < 0.05"``.
        largest: look for the largest ``request_rate``, ``concurrency`` or number at a dotted key;
            ``key=text {}`` puts the number into a text.
        smallest: or for the smallest, as of ``node.num_blocks``. Exactly one of the two.
        variant: which of its variants; needed where it has any.
        low: where the bracket begins, with or without a unit; None looks for it.
        high: where it ends, likewise.
        seeds: how many seeds each value is tried with, from the scenario's own up.
        tolerance: where to end, as a fraction of the value; None is 0.02.
        jobs: simulations at once, of the seeds; None is all cores.
        on_trial: told each value when it has been tried.

    Raises:
        KvsimError: something is wrong with what is asked, or no run can be made.
    """
    from kvsim.study.objective import parse_number
    from kvsim.study.search import TOLERANCE
    from kvsim.study.search import find as search

    if (largest is None) == (smallest is None):
        raise KvsimError("find: give either largest or smallest, and what it is of.")
    ends: dict[str, float | None] = {}
    problems = []
    for name, end in (("low", low), ("high", high)):
        try:
            ends[name] = None if end is None else parse_number(end)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise Problems("find", problems)
    chosen, _ = _one(_scenario(scenario), variant)
    return search(
        chosen,
        str(smallest if largest is None else largest),
        objective,
        largest=largest is not None,
        low=ends["low"],
        high=ends["high"],
        num_seeds=seeds,
        tolerance=TOLERANCE if tolerance is None else tolerance,
        jobs=jobs,
        on_trial=on_trial,
    )


def with_variants(scenario: Scenario, only: Sequence[str], where: str = "only") -> Scenario:
    """The scenario with some of its variants alone; all of them where none is named.

    Raises:
        KvsimError: a name is none of a variant; all of them at once.
    """
    known = scenario.variants or {"default": {}}
    if unknown := [name for name in only if name not in known]:
        raise KvsimError(
            "\n".join(f"{where}: {unknown_name('variant', name, known)}" for name in unknown)
        )
    if not only or not scenario.variants:
        return scenario
    data = scenario.written()
    data["variants"] = {name: data["variants"][name] for name in known if name in only}
    return Scenario.from_data(data, f"scenario {scenario.name}", scenario.directory)


def with_axes(
    scenario: Scenario, grid: Mapping[str, Sequence[Any]], seeds: int | Sequence[int] | None
) -> Scenario:
    """The scenario with axes added to the grid of its sweep, and with other seeds.

    Raises:
        Problems: everything that is wrong with them; a key that is an axis already is.
    """
    data = scenario.written()
    section = data.setdefault("sweep", {}) or {}
    axes = section.setdefault("grid", {})
    if twice := [key for key in grid if key in axes]:
        problems = [f"sweep.grid.{key}: is an axis already. Vary it in one place." for key in twice]
        raise Problems(f"scenario {scenario.name}", problems)
    axes |= {key: list(values) for key, values in grid.items()}
    if seeds is not None:
        section["seeds"] = seeds
    data["sweep"] = section
    where = f"scenario {scenario.name}"
    return Scenario.from_data(data, where, scenario.directory)


def sweep_destination(scenario: Scenario) -> Path:
    """Where a sweep is kept unless another place is given."""
    return Path("results") / scenario.name / "sweep"


def _scenario(scenario: Scenario | Path | str) -> Scenario:
    return scenario if isinstance(scenario, Scenario) else load_scenario(scenario)


def _one(scenario: Scenario, variant: str | None) -> tuple[Scenario, str]:
    """One of a scenario's variants and its name, or the scenario itself where it has none."""
    variants = expand_variants(scenario)
    if variant is None and not scenario.variants:
        variant = next(iter(variants))
    if variant is None:
        raise KvsimError(
            f"scenario {scenario.name}: has variants ({', '.join(variants)}). Name one, as in "
            f"variant={next(iter(variants))!r}; sweep runs them all."
        )
    if variant not in variants:
        raise KvsimError(f"scenario {scenario.name}: {unknown_name('variant', variant, variants)}")
    return variants[variant], variant
