"""The variants of one scenario, on all cores."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.errors import KvsimError
from kvsim.results.store import RunResult
from kvsim.results.variants import run_variant
from kvsim.scenario import Scenario
from kvsim.study.parallel import check_backend, each, num_cores

if TYPE_CHECKING:
    from kvsim.fleet.parts import InParts

COMPILING = -1.0
"""Told instead of a share done while code is compiled, which happens once on a machine."""
_POLL_S = 0.1

Told = Callable[[str, float], None]
"""Called with a variant's name and the share of its workload that has arrived, or `COMPILING`."""


class _Task(NamedTuple):
    name: str
    scenario: Scenario
    arguments: tuple[str, ...]
    shares_file: str | None
    row: int
    num_rows: int


def run_side_by_side(
    variants: Mapping[str, Scenario],
    *,
    jobs: int | None = None,
    backend: str = "loky",
    arguments: Sequence[str] = (),
    on_progress: Told | None = None,
) -> Iterator[tuple[str, RunResult | KvsimError]]:
    """Simulate variants, several at once; the replicas of a single one in parts where they can be.

    Args:
        variants: by name; as of `expand_variants`.
        jobs: simulations at once, or parts of a fleet; None is all cores, of parts those of this
            machine.
        backend: one of `kvsim.study.parallel.BACKENDS`.
        arguments: the command line after the program's name, for the provenance.
        on_progress: told of each variant, from another thread.

    Yields:
        A variant's name and its result, or what is wrong with it, as they are done.

    Raises:
        KvsimError: there is no such backend; a worker was killed, as happens when memory runs out.
    """
    from kvsim.fleet.parts import runs_in_parts

    check_backend(backend, jobs)
    with _shares(list(variants), on_progress) as shares_file:
        tasks = [
            _Task(name, scenario, tuple(arguments), shares_file, row, len(variants))
            for row, (name, scenario) in enumerate(variants.items())
        ]
        if len(tasks) == 1 and runs_in_parts(tasks[0].scenario):
            spread = partial(each, jobs=jobs, backend=backend)
            num_parts = jobs or num_cores()
            yield tasks[0].name, _run(tasks[0], num_parts, spread)
            return
        for number, outcome in each(_run, tasks, jobs=jobs, backend=backend):
            yield tasks[number].name, outcome


def _run(
    task: _Task, num_parts: int = 1, in_parts: InParts | None = None
) -> RunResult | KvsimError:
    write = None
    if task.shares_file is not None and Path(task.shares_file).exists():  # not on other machines
        write = _writer(task.shares_file, task.row, task.num_rows)
    try:
        return run_variant(
            task.scenario,
            task.name,
            on_progress=write,
            on_compile=None if write is None else lambda: write(COMPILING),
            arguments=task.arguments,
            num_parts=num_parts,
            in_parts=in_parts,
        )
    except KvsimError as error:
        return error


def _writer(file: str, row: int, num_rows: int) -> Callable[[float], None]:
    shares: npt.NDArray[np.float64] = np.memmap(file, np.float64, "r+", shape=num_rows)

    def write(share: float) -> None:
        shares[row] = share

    return write


@contextlib.contextmanager
def _shares(names: Sequence[str], told: Told | None) -> Iterator[str | None]:
    """A file of the shares done, a number a variant, that is read out now and then."""
    if told is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="kvsim-") as folder:
        file = Path(folder) / "shares"
        np.zeros(len(names)).tofile(file)
        shares: npt.NDArray[np.float64] = np.memmap(file, np.float64, "r", shape=len(names))
        ended = threading.Event()

        def tell() -> None:
            last = np.zeros(len(names))
            while not ended.wait(_POLL_S):
                now = shares.copy()
                for row in np.flatnonzero(now != last).tolist():
                    told(names[row], float(now[row]))
                last = now

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        try:
            yield str(file)
        finally:
            ended.set()
            thread.join()
