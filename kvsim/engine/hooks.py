"""What a replica tells others while it runs, and a request as it has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import simpy

from kvsim.metrics.records import RequestRecord
from kvsim.workload.request import Request

if TYPE_CHECKING:
    from kvsim.engine.replica import Replica


class Watcher(Protocol):
    """Who hears what becomes of one request, at once and before anything else happens."""

    def first_token(self, now_s: float) -> None:
        """Its first token is there; told again where it had to begin anew."""

    def ended(self, now_s: float) -> None:
        """It is finished, or was refused."""


class Observer(Protocol):
    """Who looks at a replica in whole."""

    def before_step(self, replica: Replica) -> None:
        """A step is about to be planned; whoever has arrived is known."""

    def after_step(self, replica: Replica) -> None:
        """A step has ended, or several without an arrival or an end between them."""


class Pace(Protocol):
    """Who lets steps of several replicas begin and end together."""

    def sleep(self, replica: Replica) -> None:
        """A replica has nothing to run."""

    def wake(self, replica: Replica) -> simpy.Event | None:
        """It has again; what it waits for before it plans."""

    def planned(self, replica: Replica) -> None:
        """It has planned a step that computes something."""

    def run(self, replica: Replica) -> simpy.Event:
        """Its oldest step may begin; the event is its end."""


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
