"""What happens to nodes, set on the clock."""

from __future__ import annotations

from collections.abc import Iterable

from kvsim.engine.clock import Clock
from kvsim.engine.feeding import call_at
from kvsim.fleet.front import Front
from kvsim.scenario import FleetEvent


def set_events(
    clock: Clock, events: Iterable[FleetEvent] | None, front: Front, *, resend: bool
) -> None:
    """Set on the clock what happens to nodes.

    Args:
        clock: the simulation's.
        events: of the nodes behind ``front``; None for none.
        front: told of each when it happens.
        resend: requests of a node that fails are sent again.
    """
    for event in events or ():

        def happen(event: FleetEvent = event) -> None:
            if event.lose is not None:
                front.lose(event.lose, resend=resend)
            elif event.drain is not None:
                front.drain(event.drain)
            elif event.add is not None:
                front.add(event.add, event.at)

        if event.add is not None:
            front.expect(1)
            call_at(clock, event.at + event.ready_after, happen)
        else:
            call_at(clock, event.at, happen)
