"""A request and a step as a replica has them, and who hears of the request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from kvsim.metrics.records import RequestRecord
from kvsim.offload.transfers import Transfers
from kvsim.workload.request import Request


class Done(Protocol):
    """What is triggered at the end of a request; an event of SimPy is one."""

    def succeed(self) -> object:
        """It has ended now; whoever waits goes on after what happens at this moment already."""


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
        done: to be triggered at its end.
        watcher: who hears of its first token and its end.
        token_s: in a pipeline, when the last token that is under way for it comes out.
    """

    request: Request
    record: RequestRecord
    done: Done | None
    watcher: Watcher | None = None
    token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """A step in flight.

    Attributes:
        computes: whether it computes anything; it takes no time otherwise.
        transfers: what it moves; None without a tier.
        names: of the requests that compute something, where there is a tier.
        is_early: requests can run in the next step though their loads are under way.
    """

    computes: bool = True
    transfers: Transfers | None = None
    names: list[str] = field(default_factory=list)
    is_early: bool = False


IN_FLIGHT = Step()
"""One without transfers."""
NOTHING = Step(computes=False)
"""One that computes nothing, and takes its place in a pipeline's queue all the same."""
