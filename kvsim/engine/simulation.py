"""From a scenario to what happened: arrivals, a replica, and the records of a run."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import simpy

from kvsim.cache.manager import CacheConfig, KVCache
from kvsim.capacity.memory import group_spec
from kvsim.engine.clock import Clock
from kvsim.engine.feeding import SessionFeeder
from kvsim.engine.replica import Replica
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.tiers import make_tiers, tier_warnings
from kvsim.errors import Problems
from kvsim.metrics.records import RequestLog, TimelineLog
from kvsim.metrics.summary import RunCounters
from kvsim.scenario import ConstantStepTime, Scenario
from kvsim.scenario.keys import derive_blocks
from kvsim.scenario.rules import not_simulated
from kvsim.times.step_time import StepTimeParams, constant_step_time, step_time_params
from kvsim.workload import open_workload
from kvsim.workload.request import Workload


@dataclass(frozen=True)
class Simulation:
    """What a run leaves behind.

    Attributes:
        requests: a record a request.
        timeline: the state of the pool over time.
        counters: sums over the run.
        warnings: what the workload cannot show, for people.
    """

    requests: RequestLog
    timeline: TimelineLog
    counters: RunCounters
    warnings: tuple[str, ...]


def make_cache(scenario: Scenario) -> KVCache:
    """An empty cache as the scenario describes it."""
    groups = tuple(group_spec(group) for group in scenario.model_spec.groups)
    return KVCache(
        CacheConfig(
            num_blocks=derive_blocks(scenario).num_blocks,
            groups=groups,
            max_model_len=scenario.max_model_len,
            max_in_flight_tokens=scenario.max_in_flight_tokens,
            retention_interval=scenario.retention_interval,
            enable_caching=scenario.cache.enable_prefix_caching,
            use_eagle=any(group.eagle for group in groups),
            profile=scenario.engine.profile,
            free_queue=scenario.free_queue,
        )
    )


def make_step_time(scenario: Scenario) -> StepTimeParams:
    """What a step's time depends on, as the scenario says."""
    chosen = scenario.step_time
    if isinstance(chosen, ConstantStepTime):
        return constant_step_time(chosen.step_s, chosen.token_s)
    return step_time_params(
        model=scenario.model_spec,
        gpu=scenario.gpu_spec,
        tensor_parallel=scenario.num_ranks,
        compute_efficiency=chosen.compute_efficiency,
        memory_efficiency=chosen.memory_efficiency,
        overhead_s=chosen.overhead_s,
    )


def simulate(
    scenario: Scenario,
    *,
    on_progress: Callable[[float], None] | None = None,
    one_by_one: bool = False,
) -> Simulation:
    """Run a scenario that has no variants; a function of the scenario and its seed.

    Args:
        scenario: what to run.
        on_progress: told the share of the workload that has arrived, 0 to 1, now and then.
        one_by_one: an event for every step; slower, with the same results.

    Raises:
        KvsimError: the workload cannot be read, or none of its requests can run.
    """
    if refused := [str(problem) for problem in not_simulated(scenario)]:
        raise Problems(f"scenario {scenario.name}", refused)
    workload = open_workload(scenario.workload, scenario.scheduler_block_tokens, scenario.seed)
    cache = make_cache(scenario)
    clock = Clock()
    step_time = make_step_time(scenario)
    tiers = make_tiers(scenario, clock, cache, step_time)
    scheduler = Scheduler(
        cache,
        max_num_batched_tokens=scenario.engine.max_num_batched_tokens,
        max_num_seqs=scenario.engine.max_num_seqs,
        max_model_len=scenario.max_model_len,
        long_prefill_token_threshold=scenario.engine.long_prefill_token_threshold,
        connector=None if tiers is None else tiers.offloading.connector,
    )
    requests, timeline = RequestLog(), TimelineLog()
    replica = Replica(
        clock,
        scheduler,
        step_time,
        requests,
        timeline,
        timeline_interval_s=scenario.output.timeline_interval_s,
        one_by_one=one_by_one,
        offloading=None if tiers is None else tiers.offloading,
    )
    told = on_progress or (lambda share: None)
    if workload.sessions is not None:
        SessionFeeder(clock, workload, replica, told)
    else:
        feeder = _one_after_another if workload.concurrency else _by_arrival_time
        clock.process(feeder(clock, workload, replica, told))
    clock.run()
    told(1.0)
    if replica.num_refused == len(requests):
        reason = requests.first_refusal()
        raise Problems(
            f"scenario {scenario.name}",
            [f"workload: none of its {len(requests)} requests can run. The first one {reason}."],
        )
    counters = scheduler.counters
    return Simulation(
        requests,
        timeline,
        RunCounters(
            num_blocks=cache.config.num_blocks,
            num_steps=scheduler.num_steps,
            scheduled_tokens=scheduler.num_scheduled_tokens,
            queried_tokens=counters.queries,
            hit_tokens=counters.hits,
            preemptions=counters.preemptions,
            preempted_queried_tokens=counters.preempted_queries,
            preempted_hit_tokens=counters.preempted_hits,
            evicted_blocks=cache.num_evicted,
            external_queried_tokens=0 if tiers is None else tiers.num_queried_tokens,
            external_hit_tokens=0 if tiers is None else tiers.num_hit_tokens,
            evicted_by_group=cache.num_evicted_by_group,
            simulated_s=replica.end_s,
            tiers=() if tiers is None else tiers.figures(replica.end_s),
        ),
        (*workload.warnings, *tier_warnings(scenario)),
    )


_PROGRESS_EVERY = 64  # arrivals


def _by_arrival_time(
    clock: Clock, workload: Workload, replica: Replica, told: Callable[[float], None]
) -> Generator[simpy.Event, None, None]:
    """Requests arrive when the workload says, before anything else of that moment."""
    for number, request in enumerate(workload.requests):
        if request.arrival_s > clock.now:
            yield clock.at(request.arrival_s, before_others=True)
        if number % _PROGRESS_EVERY == 0:
            told(workload.share_read())
        replica.submit(request)


def _one_after_another(
    clock: Clock, workload: Workload, replica: Replica, told: Callable[[float], None]
) -> Generator[simpy.Event, None, None]:
    """A request arrives when one of those before it has ended, so that ``concurrency`` run."""
    under_way: list[simpy.Event] = []
    for number, request in enumerate(workload.requests):
        if len(under_way) == workload.concurrency:
            yield simpy.AnyOf(clock, under_way)
            under_way = [event for event in under_way if not event.triggered]
        if number % _PROGRESS_EVERY == 0:
            told(workload.share_read())
        done = clock.event()
        under_way.append(done)
        replica.submit(request, done)
