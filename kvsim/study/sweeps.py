"""Runs of one scenario that differ: expanded, run in parallel, kept, and put in one table.

A run is kept in a directory named after the hash of its resolved scenario, so a sweep that was
interrupted, or gets more axes, runs only what is not there yet.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvsim.errors import KvsimError, Problems
from kvsim.results.store import RunResult
from kvsim.scenario import Scenario
from kvsim.study.sweep_points import expand_sweep, seeds_note
from kvsim.study.sweep_table import SweepResult, kept_summaries, table_of, write_sweep

_LOCK_FILE = ".lock"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep is.

    Attributes:
        num_done: runs that ended now, failed ones included.
        num_to_do: runs that had to be run, without those that were there already.
        num_failed: runs that failed.
    """

    num_done: int
    num_to_do: int
    num_failed: int


def sweep(
    scenario: Scenario,
    out_dir: Path,
    *,
    jobs: int | None = None,
    backend: str = "loky",
    on_progress: Callable[[Progress], None] | None = None,
    arguments: Sequence[str] = (),
) -> SweepResult:
    """Run what is not there yet of a sweep, and write its table.

    Args:
        scenario: with its `sweep` and `variants`.
        out_dir: where the runs and the table go.
        jobs: simulations at once; None is all cores.
        backend: one of `kvsim.study.parallel.BACKENDS`.
        on_progress: told at the start and after each run.
        arguments: the command line after the program's name, for the provenance.

    Raises:
        KvsimError: the sweep is wrong, the place cannot be written to or another sweep is writing
            there, or a worker was killed. Runs that were finished are kept, and the table says
            which are missing.
    """
    from kvsim.results.variants import write_variant
    from kvsim.study.parallel import check_backend, each

    check_backend(backend, jobs)
    points = expand_sweep(scenario)
    told = on_progress or (lambda progress: None)
    axes = scenario.sweep.axes if scenario.sweep else ()
    with _claimed(out_dir):
        summaries = kept_summaries(out_dir, [point.run for point in points])
        to_do = {
            point.run: point
            for point in points
            if point.scenario is not None and point.run not in summaries
        }
        messages: dict[str, str] = {}
        tasks = [
            (point.scenario, point.variant, tuple(arguments))
            for point in to_do.values()
            if point.scenario is not None
        ]
        runs = list(to_do)
        # There from the start, so that a sweep that is cut short, however, is known for one.
        write_sweep(out_dir, scenario, table_of(points, axes, summaries, messages))
        told(Progress(0, len(runs), 0))
        if tasks:
            ended = each(_simulate, tasks, jobs=jobs, backend=backend)
            with contextlib.closing(ended):
                for num_done, (number, outcome) in enumerate(ended, start=1):
                    if isinstance(outcome, str):
                        messages[runs[number]] = outcome
                    else:
                        write_variant(out_dir, outcome, runs[number])
                        summaries[runs[number]] = outcome.summary
                    told(Progress(num_done, len(runs), len(messages)))
        table = table_of(points, axes, summaries, messages)
        write_sweep(out_dir, scenario, table)
    return SweepResult(out_dir, scenario, axes, table, seeds_note(scenario, points))


def _simulate(task: tuple[Scenario, str, tuple[str, ...]]) -> RunResult | str:
    """A run, or why there is none."""
    from kvsim.results.variants import run_variant

    scenario, variant, arguments = task
    try:
        return run_variant(scenario, variant, arguments=arguments)
    except Problems as error:
        return "; ".join(error.problems)
    except KvsimError as error:
        return str(error)
    except Exception as error:  # one run's defect must not take the others with it
        return f"{type(error).__name__}: {error}. This is a defect of kvsim."


@contextlib.contextmanager
def _claimed(out_dir: Path) -> Iterator[None]:
    """The directory for this sweep alone, without what one that was killed left half done."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        lock = (out_dir / _LOCK_FILE).open("w")
    except OSError as error:
        problem = f"out: cannot be written to: {error.strerror}. Give another --out."
        raise Problems(str(out_dir), [problem]) from None
    with lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on Windows: two sweeps there do the same work twice
            pass
        except OSError:
            problem = "out: another sweep is writing there. Wait for it, or give another --out."
            raise Problems(str(out_dir), [problem]) from None
        for left in itertools.chain(out_dir.glob(".*.new-*"), out_dir.glob(".*.old-*")):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        yield
