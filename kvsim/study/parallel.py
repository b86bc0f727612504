"""Many simulations at once, on this machine's cores or on a Ray or Dask cluster, through joblib.

Workers only compute: what they return is written by the one who asked, so that a cluster needs no
shared place for results, only the trace under the same path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from kvsim.errors import KvsimError, unknown_name

BACKENDS = ("loky", "ray", "dask")
"""Where simulations run: processes of this machine, a Ray cluster, a Dask cluster."""
_EXTRAS = {"ray": "ray", "dask": "distributed"}

T = TypeVar("T")
R = TypeVar("R")


def check_backend(backend: str, jobs: int | None = None) -> None:
    """Refuse a backend that does not exist or is not installed, and a number of jobs below 1.

    Raises:
        KvsimError: says which, and what to do.
    """
    from importlib.util import find_spec

    if backend not in BACKENDS:
        raise KvsimError(f"backend: {unknown_name('backend', backend, BACKENDS)}")
    if jobs is not None and jobs < 1:
        raise KvsimError(f"jobs: {jobs} is below 1. Use 1 or more.")
    extra = _EXTRAS.get(backend)
    if extra is not None and find_spec(extra) is None:
        raise KvsimError(
            f"backend: {backend} is not installed. Install it: pip install 'kvsim[{backend}]'."
        )


def num_cores() -> int:
    """Cores of this machine that the process may use."""
    import joblib

    return int(joblib.cpu_count())


def each(
    work: Callable[[T], R],
    tasks: Sequence[T],
    *,
    jobs: int | None = None,
    backend: str = "loky",
) -> Generator[tuple[int, R], None, None]:
    """Do each task; with one job or one task in this process, else in others.

    Args:
        work: a function of a module, so that workers find it.
        tasks: what it is called with.
        jobs: processes; None is all cores, or all that a cluster has.
        backend: one of `BACKENDS`.

    Yields:
        The number of a task and its result, as they are done.

    Raises:
        KvsimError: a worker was killed, or a cluster cannot be used.
    """
    check_backend(backend, jobs)
    numbered = list(enumerate(tasks))
    if backend == "loky":
        jobs = min(jobs or num_cores(), len(numbered))
        if jobs <= 1:
            yield from ((number, work(task)) for number, task in numbered)
            return
    import joblib

    from kvsim.jit import is_cold

    with contextlib.ExitStack() as stack:
        num_workers, options = _open(backend, jobs, stack)
        streams = backend != "ray"  # joblib can stream results from all but Ray's backend
        parts = [numbered]
        if is_cold():
            # One compiles and keeps what it compiled, so that the others need not do the same.
            parts = [numbered[:1], numbered[1:]]
        if not streams:
            size = 4 * num_workers
            parts = [part[at : at + size] for part in parts for at in range(0, len(part), size)]
        for part in parts:
            pool = joblib.Parallel(
                n_jobs=num_workers,
                batch_size=1,
                return_as="generator_unordered" if streams else "list",
                **options,
            )
            calls = (joblib.delayed(_numbered)(work, number, task) for number, task in part)
            with _stream(pool(calls), num_workers) as results:
                for result in results:  # noqa: UP028 - so that an early end is ours to handle
                    yield result


@contextlib.contextmanager
def _stream(results: Iterable[R], num_workers: int) -> Iterator[Iterable[R]]:
    """Results as they come; ends the workers quietly where the reader ends early."""
    import warnings

    try:
        yield results
    except Exception as error:
        if type(error).__name__ in {"TerminatedWorkerError", "BrokenProcessPool"}:
            raise KvsimError(
                "a worker process was killed, as happens when memory runs out. Finished runs are "
                f"kept. Call it again with fewer jobs than {num_workers}."
            ) from None
        raise
    finally:
        if isinstance(results, Generator):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that tasks were cancelled
                results.close()


def _numbered(work: Callable[[T], R], number: int, task: T) -> tuple[int, R]:
    from kvsim.workload.ahead import cores_taken

    with cores_taken():
        return number, work(task)


def _open(
    backend: str, jobs: int | None, stack: contextlib.ExitStack
) -> tuple[int, dict[str, Any]]:
    """The number of workers and what joblib has to be told; closed by the stack what was opened."""
    if backend == "ray":
        return _open_ray(jobs, stack)
    if backend == "dask":
        return _open_dask(jobs, stack)
    import joblib

    stack.enter_context(joblib.parallel_config(backend="loky", initializer=_leave_interrupts))
    return jobs or num_cores(), {}


def _leave_interrupts() -> None:
    """Of a worker: the one who asked is interrupted too, and ends it without a traceback."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _open_ray(jobs: int | None, stack: contextlib.ExitStack) -> tuple[int, dict[str, Any]]:
    import os

    import joblib
    import ray
    from ray.util.joblib import register_ray

    if not ray.is_initialized():
        try:
            # Joins the cluster of RAY_ADDRESS; without one a local cluster is started, even where
            # another is running on this machine (RAY_ADDRESS=auto joins that).
            local = {"address": "local", "num_cpus": jobs or num_cores()}
            options = {} if "RAY_ADDRESS" in os.environ else local
            ray.init(log_to_driver=False, logging_level="ERROR", **options)
        except ConnectionError as error:
            raise KvsimError(f"backend: no Ray cluster answers ({error}).") from None
        stack.callback(ray.shutdown)
    register_ray()
    num_cpus = int(ray.cluster_resources().get("CPU", 1))
    num_workers = min(jobs or num_cpus, num_cpus)
    stack.enter_context(joblib.parallel_config(backend="ray"))
    return num_workers, {}


def _open_dask(jobs: int | None, stack: contextlib.ExitStack) -> tuple[int, dict[str, Any]]:
    import dask
    import joblib
    from distributed import Client, get_client

    try:
        client = get_client()
    except ValueError:
        try:
            # Joins the scheduler of DASK_SCHEDULER_ADDRESS; without one a local cluster is started.
            if dask.config.get("scheduler-address", None):
                client = Client()
            else:
                client = Client(
                    n_workers=jobs or num_cores(), threads_per_worker=1, dashboard_address=None
                )
        except OSError as error:
            raise KvsimError(f"backend: no Dask scheduler answers ({error}).") from None
        stack.enter_context(client)
    stack.enter_context(joblib.parallel_config(backend="dask", client=client))
    return sum(client.ncores().values()), {}
