"""From a scenario to what happened: arrivals, a replica, and the records of a run.

One file because all that a run is made of is put together here, in the order of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import simpy

from kvsim.cache.config import CacheConfig
from kvsim.cache.manager import KVCache
from kvsim.cache.misses import MissLedger
from kvsim.cache.spec import MAMBA
from kvsim.capacity.memory import group_spec
from kvsim.engine.clock import Clock
from kvsim.engine.feeding import RequestFeeder, Server, SessionFeeder
from kvsim.engine.hooks import Ticket
from kvsim.engine.jobs import SchedulerConfig
from kvsim.engine.pipeline import make_stage_times
from kvsim.engine.replica import Observer, Pace, Replica
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.stepper import Stepper
from kvsim.engine.tiers import SharedTiers, Tiers, make_tiers, tier_warnings
from kvsim.errors import Problems
from kvsim.metrics.records import RequestLog, TimelineLog
from kvsim.metrics.summary import RunCounters
from kvsim.policies.finding import Chosen
from kvsim.policies.free_queue import FREE_QUEUE_POLICIES
from kvsim.scenario import ConstantStepTime, RooflineStepTime, Scenario, TableStepTime
from kvsim.scenario.files import chosen_policy
from kvsim.scenario.keys import derive_blocks
from kvsim.scenario.layout import step_layout
from kvsim.scenario.not_simulated import not_simulated
from kvsim.times.constants import Constants, catalog_constants, constants_of
from kvsim.times.fitted_range import range_warnings
from kvsim.times.roofline import overrides, roofline
from kvsim.times.stages import NOT_MEASURED
from kvsim.times.step_time import (
    StepTimeParams,
    constant_step_time,
    step_seconds,
    table_step_time,
)
from kvsim.times.trust import Trust, trust_in_roofline
from kvsim.workload import open_workload
from kvsim.workload.request import Workload
from kvsim.workload.streams import stream

if TYPE_CHECKING:
    import pandas as pd


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


def make_cache(scenario: Scenario, log_entries: int = 0) -> KVCache:
    """An empty cache as the scenario describes it; see `CacheConfig` for the log."""
    groups = tuple(group_spec(group) for group in scenario.model_spec.groups)
    has_states = any(group.kind == MAMBA for group in groups)
    free_queue: str | Chosen = scenario.free_queue
    if isinstance(scenario.free_queue_setting, dict) or free_queue not in FREE_QUEUE_POLICIES:
        free_queue = chosen_policy(scenario, "cache.free_queue")
    retention = None
    if scenario.cache.retention is not None:
        retention = chosen_policy(scenario, "cache.retention")
    return KVCache(
        CacheConfig(
            num_blocks=derive_blocks(scenario).num_blocks,
            groups=groups,
            max_model_len=scenario.max_model_len,
            max_in_flight_tokens=scenario.max_in_flight_tokens,
            retention_interval=scenario.retention_interval,
            enable_caching=scenario.cache.enable_prefix_caching,
            use_eagle=scenario.drops_lookahead_block,
            key_lookahead_tokens=scenario.key_lookahead_tokens,
            profile=scenario.engine.profile,
            free_queue=free_queue,
            retention=retention,
            prefix_match_unit=scenario.engine.prefix_match_unit if has_states else None,
            context_parallel=scenario.node.decode_context_parallel,
            log_entries=log_entries,
        )
    )


def scheduler_config(scenario: Scenario, num_blocks: int) -> SchedulerConfig:
    """What the scheduler goes by, as the scenario says.

    Args:
        scenario: what to run.
        num_blocks: of the pool.
    """
    engine = scenario.engine
    return SchedulerConfig(
        max_num_batched_tokens=scenario.max_num_batched_tokens,
        max_num_seqs=min(scenario.max_num_seqs, num_blocks),  # each holds a block of its own
        max_model_len=scenario.max_model_len,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        max_num_active_seqs=engine.max_num_active_seqs,
        asynchronous=scenario.async_scheduling,
        stages=scenario.node.pipeline_parallel,
        by_priority=engine.policy == "priority",
        watermark_blocks=int(engine.watermark * num_blocks),
        reserve_whole_prompt=engine.scheduler_reserve_full_isl,
        prefill_schedule_interval=engine.prefill_schedule_interval,
        acceptance=() if engine.speculative is None else engine.speculative.chances,
        draw_key=int(stream(scenario.seed, "acceptance").integers(2**63)),
    )


def make_step_time(scenario: Scenario) -> StepTimeParams:
    """What a step's time depends on, as the scenario says.

    Raises:
        KvsimError: a file of constants or of a table cannot be used.
    """
    chosen = scenario.step_time
    if isinstance(chosen, ConstantStepTime):
        return constant_step_time(chosen.step_s, chosen.token_s)
    if isinstance(chosen, TableStepTime):
        return table_step_time(chosen.file)
    gpu = scenario.gpu_spec
    if gpu is None:
        raise TypeError("a roofline needs a GPU")
    return roofline(
        scenario.model_spec,
        gpu,
        step_layout(scenario),
        engine=chosen.engine,
        asynchronous=scenario.async_scheduling,
        constants=_constants(chosen),
        override=overrides(chosen.compute_efficiency, chosen.memory_efficiency, chosen.overhead_s),
    )


def tell_costs(cache: KVCache, params: StepTimeParams) -> None:
    """Tell the order of the free queue what a prefix costs: a straight line and a square.

    They meet the step time of two chunks of the most tokens a step can hold, one at the start of a
    sequence and one at the end of the longest.
    """
    if cache.order is None:
        return
    chunk = min(cache.config.max_in_flight_tokens, cache.config.max_model_len)
    last = max(chunk, cache.config.max_model_len - chunk)
    tokens = np.array([chunk], dtype=np.int64)
    first_s, last_s = (
        float(step_seconds(params, tokens, np.array([context], dtype=np.int64), 1))
        for context in (0, last)
    )
    # A chunk of c tokens behind p takes c * linear + c * (c + 2 * p) * square.
    square_s = max(0.0, last_s - first_s) / (2 * chunk * last)
    cache.order.computes_in(max(first_s / chunk - chunk * square_s, 0.0), square_s)


def trust_in_step_times(scenario: Scenario) -> Trust:
    """Who answers how long steps take, and how far that was off for set-ups like this one."""
    chosen = scenario.step_time
    gpu = scenario.gpu_spec
    is_one_stage = scenario.node.pipeline_parallel == 1
    if not isinstance(chosen, RooflineStepTime) or gpu is None or not is_one_stage:
        return Trust(chosen.kind)
    return trust_in_roofline(
        scenario.model_spec,
        gpu,
        chosen.engine,
        _constants(chosen),
    )


def fitted_range_warnings(scenario: Scenario, requests: pd.DataFrame) -> list[str]:
    """Where a run went beyond what its own constants were fitted to.

    Args:
        scenario: what ran.
        requests: with the columns of ``REQUEST_COLUMNS``.
    """
    chosen = scenario.step_time
    gpu = scenario.gpu_spec
    if not isinstance(chosen, RooflineStepTime) or not chosen.constants or gpu is None:
        return []
    ran = requests[requests["refused"].isna()]
    begun = np.sort((ran["arrival_s"] + ran["queue_s"]).to_numpy())
    ended = np.sort(ran["end_s"].to_numpy())
    # Those that began up to a moment, less those that ended before or at it.
    at_once = np.arange(1, len(begun) + 1) - np.searchsorted(ended, begun, side="right")
    batch = float(at_once.max(initial=0))
    longest = float((ran["prompt_tokens"] - ran["hit_tokens"].fillna(0)).max())
    reached = {
        "sequences": batch,
        "context_tokens": float((ran["prompt_tokens"] + ran["output_tokens"]).max()),
        "step_tokens": min(float(scenario.max_num_batched_tokens), batch * max(longest, 1.0)),
    }
    set_up = (scenario.model_spec.name, gpu.name, chosen.engine, str(scenario.num_ranks))
    constants = _constants(chosen) or catalog_constants()
    return range_warnings(constants, Path(chosen.constants).name, set_up, reached)


def _constants(chosen: RooflineStepTime) -> Constants | None:
    """Those of the file that is named; None for the catalog's."""
    path = chosen.constants_file
    return None if path is None else constants_of(path)


def _table_warnings(answered: int, outside: int) -> tuple[str, ...]:
    """Steps that a table had to go beyond its points for."""
    if outside == 0:
        return ()
    return (
        f"{outside:,} of {answered:,} steps lie outside of the table of step times: their times go "
        "on from its last two points. Measure further out.",
    )


def forgotten_evictions(engines: Iterable[Engine]) -> tuple[str, ...]:
    """That only the later evictions are remembered, where that is so."""
    ledgers = [engine.replica.scheduler.misses for engine in engines]
    num = sum(ledger.num_forgotten for ledger in ledgers if ledger is not None)
    if not num:
        return ()
    return (
        f"{num:,} evicted blocks are remembered no longer: tokens missed for want of them stand "
        "under evicted_earlier, or where windows or states are kept here and there under "
        "not_retained or no_state.",
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
    clock = Clock()
    step_time = make_step_time(scenario)
    requests, timeline = RequestLog(), TimelineLog()
    engine = make_engine(
        scenario,
        clock,
        step_time,
        requests,
        timeline=timeline,
        one_by_one=one_by_one,
        coarse_tokens=workload.block_tokens,
        stepper=Stepper.of(clock),
    )
    told = on_progress or (lambda share: None)
    feed(clock, workload, engine.replica, told)
    clock.run()
    told(1.0)
    check_some_ran(scenario, requests, engine.replica.num_refused)
    return Simulation(
        requests,
        timeline,
        replace(engine.counters(), missed_by_group=requests.missed_by_group()),
        (
            *run_warnings(scenario, workload.warnings, step_time.tables.outside.tolist()),
            *engine.replica.cache.notes,
            *forgotten_evictions([engine]),
        ),
    )


@dataclass(frozen=True)
class Engine:
    """One replica with its cache and tiers.

    Attributes:
        replica: the process.
        tiers: beyond the GPU's memory; None without.
        timeline: of its pool.
    """

    replica: Replica
    tiers: Tiers | None
    timeline: TimelineLog

    def lose(self) -> list[Ticket]:
        """It fails now; answers the requests it had."""
        if self.tiers is not None:
            self.tiers.lose()
        return self.replica.lose()

    def counters(self, since_s: float = 0.0) -> RunCounters:
        """What it has counted so far, from the start of its clock."""
        scheduler, cache, tiers = self.replica.scheduler, self.replica.cache, self.tiers
        counters = scheduler.counters
        return RunCounters(
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
            simulated_s=self.replica.end_s,
            tiers=() if tiers is None else tiers.figures(self.replica.end_s - since_s),
        )


def make_engine(
    scenario: Scenario,
    clock: Clock,
    step_time: StepTimeParams,
    requests: RequestLog,
    *,
    timeline: TimelineLog | None = None,
    log_entries: int = 0,
    one_by_one: bool = False,
    number: int | None = None,
    pace: Pace | None = None,
    observer: Observer | None = None,
    connect: Callable[[KVCache, Tiers | None], Tiers] | None = None,
    shared: SharedTiers | None = None,
    coarse_tokens: int | None = None,
    stepper: Stepper | None = None,
) -> Engine:
    """A replica as a scenario describes one, with a cold cache.

    Args:
        scenario: one without variants.
        clock: the simulation's.
        step_time: what a step's time depends on.
        requests: where ended requests are entered.
        timeline: where the state of the pool is entered; None makes one.
        log_entries: of the log of its cache; 0 for none.
        one_by_one: an event for every step.
        number: of several replicas which one it is.
        pace: lets its steps begin and end together with those of others.
        observer: looks at it before and after steps.
        shared: tiers that it uses together with others.
        coarse_tokens: that an id of the trace stands for; None where content is exact.
        connect: makes what its connector goes to, of its cache and the scenario's tiers.
        stepper: steps it, if it is a plain one.
    """
    cache = make_cache(scenario, log_entries)
    tell_costs(cache, step_time)
    tiers = make_tiers(scenario, clock, cache, step_time, shared)
    if connect is not None:
        tiers = connect(cache, tiers)
    misses = None
    if scenario.output.reasons and scenario.cache.enable_prefix_caching:
        misses = MissLedger(cache, coarse_tokens)
    scheduler = Scheduler(
        cache,
        scheduler_config(scenario, cache.config.num_blocks),
        None if tiers is None else tiers.offloading.connector,
        misses,
    )
    timeline = TimelineLog() if timeline is None else timeline
    replica = Replica(
        clock,
        scheduler,
        step_time,
        requests,
        timeline,
        timeline_interval_s=scenario.output.timeline_interval_s,
        one_by_one=one_by_one,
        offloading=None if tiers is None else tiers.offloading,
        number=number,
        pace=pace,
        observer=observer,
        stages=make_stage_times(scenario, step_time),
        stepper=stepper,
    )
    return Engine(replica, tiers, timeline)


def feed(clock: Clock, workload: Workload, server: Server, told: Callable[[float], None]) -> None:
    """Let the requests of a workload arrive at a replica, or at whoever takes them for several."""
    if workload.sessions is not None:
        SessionFeeder(clock, workload, server, told)
    elif workload.concurrency:
        clock.process(_one_after_another(clock, workload, server, told))
    else:
        RequestFeeder(clock, workload, server, told)


def check_some_ran(scenario: Scenario, requests: RequestLog, num_refused: int) -> None:
    """Refuse a run in which nothing ran.

    Raises:
        Problems: all requests were refused; says why the first one was.
    """
    if num_refused == len(requests):
        reason = requests.first_refusal()
        raise Problems(
            f"scenario {scenario.name}",
            [f"workload: none of its {len(requests)} requests can run. The first one {reason}."],
        )


def run_warnings(
    scenario: Scenario, of_workload: Sequence[str], table_steps: Sequence[int]
) -> tuple[str, ...]:
    """What a run cannot show; steps are those a table was asked for, and those outside of it."""
    found = (*of_workload, *tier_warnings(scenario), *_table_warnings(*table_steps))
    return found if scenario.node.pipeline_parallel == 1 else (*found, NOT_MEASURED)


_PROGRESS_EVERY = 64  # arrivals


def _one_after_another(
    clock: Clock, workload: Workload, server: Server, told: Callable[[float], None]
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
        server.submit(request, done)
