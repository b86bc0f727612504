"""The queue of requests that hold no blocks: first come, first served, or by priority."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from kvsim.engine.jobs import Job


class WaitingQueue:
    """Jobs that wait, the next one first.

    Attributes:
        version: another one when any but an arrival at the end has changed the queue.
    """

    def __init__(self, *, by_priority: bool) -> None:
        """An empty queue.

        Args:
            by_priority: in the order of ``Job.rank``; else in the order of arrival, and who comes
                back goes before all others.
        """
        self._by_priority = by_priority
        self._jobs: deque[Job] = deque()
        self.version = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """The jobs in order."""
        return iter(self._jobs)

    @property
    def first(self) -> Job:
        """The next one."""
        return self._jobs[0]

    def pop(self) -> Job:
        """Take the next one out."""
        self.version += 1
        return self._jobs.popleft()

    def between(self, start: int, end: int) -> list[Job]:
        """The jobs in these places."""
        return list(islice(self._jobs, start, end))

    def add(self, job: Job) -> None:
        """One that arrives."""
        if self._by_priority:
            self._insert(job)
        else:
            self._jobs.append(job)

    def put_back(self, jobs: Iterable[Job]) -> None:
        """Jobs that were served or looked at before, in their order."""
        self.version += 1
        if self._by_priority:
            for job in jobs:
                self._insert(job)
        else:
            self._jobs.extendleft(reversed(list(jobs)))

    def remove(self, job: Job) -> None:
        """Take one out, wherever it is."""
        self.version += 1
        self._jobs.remove(job)

    def _insert(self, job: Job) -> None:
        self.version += 1
        insort(self._jobs, job, key=lambda one: one.rank)
