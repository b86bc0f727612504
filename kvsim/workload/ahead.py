"""Workloads that a second process draws or reads ahead of the run, which then has the core alone.

The workload is the same to the last digit. The second process is an interpreter of its own that
imports nothing of the one who asked but kvsim, so scripts, notebooks and workers may ask alike. It
sends batches through a pipe and waits when the pipe is full, so it is some batches ahead at most.
Where it cannot be started, or is lost, the run draws for itself, from where it was.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import islice
from typing import IO, Any

from kvsim.errors import KvsimError
from kvsim.scenario import ScriptWorkload, SyntheticWorkload, TraceWorkload
from kvsim.workload import open_workload
from kvsim.workload.packing import pack, unpack
from kvsim.workload.request import Request, Session, Workload

LEAST_SESSIONS = 10_000
"""To start a process takes 2 s; drawing a session takes 0.1 ms for each of its turns."""
LEAST_REQUESTS = 20_000
"""Of a trace, by its `limit`."""
LEAST_BYTES = 16 * 2**20
"""Of a trace file; of a packed one an eighth."""
_BATCH_REQUESTS = 256
_BATCH_SPANS = 2**16
_LENGTH_BYTES = 8
_BEGIN = "import sys; sys.path[:] = sys.argv[1:]; from kvsim.workload.ahead import serve; serve()"

_cores_are_taken: ContextVar[bool] = ContextVar("cores_are_taken", default=False)


@contextlib.contextmanager
def cores_taken() -> Iterator[None]:
    """Runs inside are some of many at once: each stays on its core."""
    token = _cores_are_taken.set(True)
    try:
        yield
    finally:
        _cores_are_taken.reset(token)


@contextlib.contextmanager
def open_ahead(
    config: TraceWorkload | ScriptWorkload | SyntheticWorkload,
    scheduler_block_tokens: int,
    seed: int = 0,
) -> Iterator[Workload]:
    """Open a workload as `open_workload` does, read ahead by a second process where that pays.

    It pays with many requests and a core to spare. The process ends with the context at the latest.

    Raises:
        KvsimError: as `open_workload`; what is found later is raised in the same place too.
    """
    workload = open_workload(config, scheduler_block_tokens, seed)
    process = _start(config, scheduler_block_tokens, seed) if pays(config) else None
    if process is None:
        yield workload
        return
    assert process.stdout is not None
    try:
        let_read(workload, process.stdout)
        yield workload
    finally:
        process.kill()
        with contextlib.suppress(OSError):  # what it never read
            process.communicate()


def pays(config: TraceWorkload | ScriptWorkload | SyntheticWorkload) -> bool:
    """Whether a workload is long enough, and a core is there for it."""
    if isinstance(config, ScriptWorkload):
        return False
    if isinstance(config, SyntheticWorkload):
        long = config.num_sessions >= LEAST_SESSIONS
    else:
        with_limit = config.limit is not None and config.limit < LEAST_REQUESTS
        num_bytes = config.file.stat().st_size * (8 if config.file.suffix in (".gz", ".zst") else 1)
        long = not with_limit and num_bytes >= LEAST_BYTES
    if not long or _cores_are_taken.get() or multiprocessing.parent_process() is not None:
        return False
    import joblib

    return int(joblib.cpu_count()) > 1


def _start(*asked: Any) -> subprocess.Popen[bytes] | None:
    """The process that opens a workload, given the arguments of `open_workload`, and sends it."""
    if not sys.executable or getattr(sys, "frozen", False):
        return None
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it is gone already, which is seen when it sends nothing
        pickle.dump(asked, process.stdin)
        # Stays open: its end tells the process that nobody reads any more.
        process.stdin.flush()
    return process


def serve() -> None:
    """Of the second process: send the workload that is asked for on standard input."""
    # Whoever interrupts the run interrupts the one who reads here, who ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed may come between
    asked = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_reader, daemon=True).start()
    with contextlib.suppress(OSError):  # nobody reads any more
        try:
            send(open_workload(*asked), out)
        except Exception as error:
            _write(out, "error", _portable(error))
        out.flush()
    os._exit(0)  # the thread is in the middle of a read


def _end_with_reader() -> None:
    os.read(0, 1)
    os._exit(0)


def send(workload: Workload, out: IO[bytes]) -> None:
    """Write a whole workload, in messages that `let_read` reads.

    Raises:
        KvsimError: what reading the workload raises, after all that came before it was written.
    """
    items: Iterator[Request | Session] = (
        workload.requests if workload.sessions is None else workload.sessions
    )
    batch: list[Request | Session] = []
    num_requests = num_spans = 0
    try:
        for item in items:
            batch.append(item)
            contents = (
                [item.content]
                if isinstance(item, Request)
                else [turn.request.content for turn in item.turns]
            )
            num_requests += max(1, len(contents))
            num_spans += max((len(content.uids) for content in contents), default=0)
            if num_requests >= _BATCH_REQUESTS or num_spans >= _BATCH_SPANS:
                _write(out, "items", workload.share_read(), pack(batch))
                out.flush()
                batch.clear()
                num_requests = num_spans = 0
    finally:
        _write(out, "items", workload.share_read(), pack(batch))
    _write(out, "end", workload.warnings)


def _write(out: IO[bytes], *message: Any) -> None:
    data = pickle.dumps(message, protocol=5)
    out.write(len(data).to_bytes(_LENGTH_BYTES, "little"))
    out.write(data)


def _read(source: IO[bytes]) -> tuple[Any, ...]:
    """The next message; one of a kind of its own where there is none, or not all of it."""
    length = int.from_bytes(source.read(_LENGTH_BYTES), "little")
    data = source.read(length)
    if not length or len(data) < length:
        return ("lost",)
    message: tuple[Any, ...] = pickle.loads(data)
    return message


def _portable(error: Exception) -> Exception:
    """An error that can be sent, with where it was raised if it is none for users."""
    where = "".join(traceback.format_exception(error))
    if not isinstance(error, KvsimError):
        error.add_note(f"In the process that reads ahead:\n{where}")
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(where)
    return error if str(again) == str(error) else RuntimeError(where)


def let_read(workload: Workload, source: IO[bytes]) -> None:
    """Let the items of a workload come from what `send` writes of the same workload.

    Args:
        workload: opened and not read; its own items are drawn where the source ends too early.
        source: messages.
    """
    own_share_read = workload.share_read
    own: Iterator[Any] = workload.requests if workload.sessions is None else workload.sessions
    share = 0.0

    def items() -> Iterator[Any]:
        nonlocal share
        num_given = 0
        while True:
            kind, *said = _read(source)
            if kind == "error":
                raise said[0]
            if kind == "end":
                workload.warnings[:] = said[0]
                return
            if kind == "lost":
                workload.share_read = own_share_read
                yield from islice(own, num_given, None)
                return
            share_after, packed = said
            step = (share_after - share) / max(1, packed.num_items)
            for item in unpack(packed):
                num_given += 1
                share += step
                yield item
            share = share_after

    workload.share_read = lambda: share
    if workload.sessions is None:
        workload.requests = items()
    else:
        workload.sessions = items()
