"""What a run of several replicas leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.metrics.fleet import FleetFigures
from kvsim.metrics.records import RequestLog, TimelineLog
from kvsim.metrics.summary import RunCounters


@dataclass(frozen=True)
class FleetSimulation:
    """What a run of several replicas leaves behind.

    Attributes:
        requests: a record a request, of all replicas.
        timelines: the state of each replica's pool over time, with the replica's number.
        counters: sums over all replicas.
        figures: what there is to say of the fleet.
        warnings: what the workload cannot show, for people.
    """

    requests: RequestLog
    timelines: list[tuple[int, TimelineLog]]
    counters: RunCounters
    figures: FleetFigures
    warnings: tuple[str, ...]
