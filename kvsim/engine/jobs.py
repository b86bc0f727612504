"""What the scheduler keeps of requests, and what it says of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvsim.cache.manager import Hit, Sequence
from kvsim.offload.transfers import Transfers
from kvsim.workload.request import Request


@dataclass(slots=True, eq=False)
class Job:
    """A request in the engine.

    Attributes:
        request: what arrived.
        sequence: its tokens and the blocks they hold.
        num_preemptions: how often it lost its blocks.
        hit: what its first admission found; None before.
        num_external: tokens beyond the hit that were loaded when it last got its blocks.
        num_stale: scheduled tokens that were in flight when it lost its blocks, and still are.
        eligible: number of the plan from which on it may decode again, when it lost its blocks.
        misses: why its first admission found no more, of `MissLedger.find`; None where nobody asks.
    """

    request: Request
    sequence: Sequence
    num_preemptions: int = 0
    hit: Hit | None = None
    num_external: int = 0
    num_stale: int = 0
    eligible: int = 0
    misses: npt.NDArray[np.int64] | None = None

    @property
    def rank(self) -> tuple[int, float, str]:
        """Its place where requests have priorities: the least comes first."""
        return self.request.priority, self.request.arrival_s, self.request.request_id


@dataclass(slots=True, eq=False)
class Load:
    """A request that holds the blocks it loads to, and does not run yet.

    Attributes:
        job: the request.
        hit: the local hit it holds as well.
        has_arrived: what it loads is there.
        is_cached: and is entered in the index.
    """

    job: Job
    hit: Hit
    has_arrived: bool = False
    is_cached: bool = False


@dataclass(slots=True)
class StepPlan:
    """What a step does.

    Attributes:
        started: requests admitted for the first time, in order, with their hits.
        resumed: requests that come back after a preemption, in order, with their hits.
        preempted: requests that lost their blocks, in order.
        stuck: a request that cannot ever be admitted: it does not fit though nothing runs.
        external: requests that asked the connector, with the tokens it can load, in order.
        deferred: requests that the connector wants to be asked again, in order.
        loading: requests that got blocks to load to, in order.
        transfers: what the step moves; None without a connector.
        num_computing: how many requests compute something in it.
    """

    started: list[tuple[Job, Hit]] = field(default_factory=list)
    resumed: list[tuple[Job, Hit]] = field(default_factory=list)
    preempted: list[Job] = field(default_factory=list)
    stuck: Job | None = None
    external: list[tuple[Job, int]] = field(default_factory=list)
    deferred: list[Job] = field(default_factory=list)
    loading: list[Load] = field(default_factory=list)
    transfers: Transfers | None = None
    num_computing: int = 0


@dataclass(slots=True)
class Counters:
    """Prefix-cache counters in tokens: first admissions, and readmissions apart.

    All stay 0 with caching off, as the engine's do.
    """

    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What a scheduler goes by.

    Attributes:
        max_num_batched_tokens: tokens a step can compute.
        max_num_seqs: requests that can run at once.
        max_model_len: longest sequence in tokens.
        long_prefill_token_threshold: most tokens of a chunk while more than one request is in the
            system; 0 for no limit.
        max_num_active_seqs: requests that can run at once, where fewer than ``max_num_seqs``.
        asynchronous: a step is planned while the one ahead of it runs.
        stages: of a pipeline, each of which can compute another step.
        by_priority: requests with a lower priority number go first, and are preempted last.
        watermark_blocks: blocks an admission leaves free once a step has something to compute.
        reserve_whole_prompt: admit only if a request fits whole.
        prefill_schedule_interval: steps from one in which prompts are computed to the next, while
            requests decode and nobody waits for room.
        acceptance: the chance of each draft token where those before it are accepted; empty for
            no drafts.
        draw_key: what the draws of accepted drafts depend on.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    long_prefill_token_threshold: int = 0
    max_num_active_seqs: int | None = None
    asynchronous: bool = False
    stages: int = 1
    by_priority: bool = False
    watermark_blocks: int = 0
    reserve_whole_prompt: bool = True
    prefill_schedule_interval: int = 1
    acceptance: tuple[float, ...] = ()
    draw_key: int = 0

    @property
    def max_in_flight_tokens(self) -> int:
        """Tokens that can be scheduled and not yet processed."""
        return self.depth * self.max_num_batched_tokens

    @property
    def depth(self) -> int:
        """Steps that are in flight at most: one a stage, and one that is planned ahead."""
        return self.stages + self.asynchronous

    @property
    def most_chunk(self) -> int:
        """Tokens of a chunk of a prompt at most."""
        limit = self.long_prefill_token_threshold or self.max_num_batched_tokens
        return min(limit, self.max_num_batched_tokens)

    @property
    def most_running(self) -> int:
        """Requests that can run at once."""
        return min(self.max_num_seqs, self.max_num_active_seqs or self.max_num_seqs)
