"""Runs a scenario: simulates each variant, makes its summary, and writes what there is to keep."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.results.provenance import provenance
from kvsim.results.store import RunResult, write_run
from kvsim.scenario import Scenario
from kvsim.scenario.files import code_files, named_files
from kvsim.scenario.reading import resolved_yaml, shareable_yaml

if TYPE_CHECKING:
    from kvsim.engine.simulation import Simulation
    from kvsim.fleet.parts import InParts


def run_variant(
    scenario: Scenario,
    variant: str = "default",
    *,
    on_progress: Callable[[float], None] | None = None,
    on_compile: Callable[[], None] | None = None,
    arguments: Sequence[str] = (),
    num_parts: int = 1,
    in_parts: InParts | None = None,
) -> RunResult:
    """Simulate one scenario without variants.

    Args:
        scenario: one of `expand_variants`.
        variant: its name.
        on_progress: told the share of the workload that has arrived, 0 to 1.
        on_compile: called where code has to be compiled first, as a first run does.
        arguments: the command line after the program's name, for the provenance.
        num_parts: most parts that a fleet may be run in.
        in_parts: runs them; None for one process.

    Raises:
        KvsimError: the workload cannot be read, or none of its requests can run.
    """
    from kvsim.engine.simulation import fitted_range_warnings, simulate, trust_in_step_times
    from kvsim.fleet.outcome import FleetSimulation
    from kvsim.fleet.parts import simulate_in_parts
    from kvsim.fleet.simulation import simulate_fleet
    from kvsim.jit import watch_compilation
    from kvsim.metrics.fleet import fleet_summary
    from kvsim.metrics.records import fleet_timeline
    from kvsim.metrics.summary import summarize

    started, start_s = datetime.now(UTC), time.perf_counter()
    with watch_compilation(on_compile) as compilation:
        if scenario.is_fleet:
            if in_parts is None:
                fleet = simulate_fleet(scenario, on_progress=on_progress)
            else:
                fleet = simulate_in_parts(scenario, num_parts, in_parts, on_progress=on_progress)
            requests = fleet.requests.frame(fleet=True)
            timeline = fleet_timeline(fleet.timelines)
            simulation: Simulation | FleetSimulation = fleet
        else:
            alone = simulate(scenario, on_progress=on_progress)
            requests, timeline = alone.requests.frame(), alone.timeline.frame()
            simulation = alone
    summary = summarize(
        requests,
        simulation.counters,
        wall_s=time.perf_counter() - start_s - compilation.wall_s,
        objective=scenario.objective,
        warnings=(*simulation.warnings, *fitted_range_warnings(scenario, requests)),
        step_times=trust_in_step_times(scenario).as_json(),
    )
    if isinstance(simulation, FleetSimulation):
        summary["fleet"] = fleet_summary(simulation.figures, requests, summary)
    origin = provenance(
        scenario_yaml=shareable_yaml(scenario),
        seed=scenario.seed,
        started=started,
        arguments=arguments,
        inputs=(*named_files(scenario).values(), *code_files(scenario)),
    )
    return RunResult(variant, summary, requests, timeline, scenario, origin)


def write_variant(out_dir: Path, result: RunResult, directory: str | None = None) -> Path:
    """Write a result to `out_dir/<directory>`, whole or not at all; returns that directory.

    Args:
        out_dir: directory of the scenario's results.
        result: the run.
        directory: name of its directory; None for the variant's name.
    """
    name = result.variant if directory is None else directory
    return write_run(out_dir, result, resolved_yaml(result.scenario, out_dir / name), name)
