"""A request as a replica has it, and who hears of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import simpy

from kvsim.metrics.records import RequestRecord
from kvsim.workload.request import Request


class Watcher(Protocol):
    """Who hears what becomes of one request, at once and before anything else happens."""

    def first_token(self, now_s: float) -> None:
        """Its first token is there; told again where it had to begin anew."""

    def ended(self, now_s: float) -> None:
        """It is finished, or was refused."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A submitted request.

    Attributes:
        request: what arrived.
        record: what happened to it.
        done: an event to trigger at its end.
        watcher: who hears of its first token and its end.
    """

    request: Request
    record: RequestRecord
    done: simpy.Event | None
    watcher: Watcher | None = None
