"""`kvsim-async/1`: steps planned and processed, one in flight or two, with drafts and a tier.

The loop is the engine core's: while fewer steps are in flight than may be, and there is work, the
next is planned; else the oldest one's output is processed. A step that computes nothing takes its
place in that queue as well.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvsim.cache.manager import KVCache
from kvsim.engine.jobs import Job, SchedulerConfig, StepPlan
from kvsim.engine.scheduler import Scheduler
from kvsim.offload.connector import OffloadConnector
from kvsim.offload.cpu_tier import ChunkTier
from kvsim.verify.cache_ops import cache_config
from kvsim.verify.reading import Line, Transcript
from kvsim.verify.report import Answer, Following
from kvsim.verify.steps import read_arrivals

_NOTHING: dict[str, Any] = {"admitted": {}, "drafts": {}, "preempted": [], "finished": []}
"""What an absent answer says."""

_MOST_IDLE = 400  # plans in a row that compute nothing: the recorder gave up here


def follow(transcript: Transcript) -> Following:
    """Let the requests arrive, plan and process steps, and yield every answer beside the core's.

    Raises:
        TranscriptError: a request that stands twice or is longer than the model takes, or a tier
            that no engine would accept.
    """
    engine = _Engine(transcript)
    recorded = iter([line for line in transcript.lines if line.op != "request"])
    for op, got in engine.events():
        line = next(recorded)
        if line.op != op:  # it went on, or did something else
            yield Answer(line.number, line.op, "op", line.op, op)
            return
        yield from _compare(line, got)
    line = next(recorded)
    if line.op == "totals":
        yield from _compare(line, engine.totals(line.fields))
    else:
        yield Answer(line.number, line.op, "op", line.op, "totals")


def _compare(line: Line, got: dict[str, Any]) -> Iterator[Answer]:
    for what, value in got.items():
        expected = line.fields[what] if what in line.fields else _NOTHING.get(what)
        yield Answer(line.number, line.op, what, expected, value)


@dataclass(slots=True)
class _Step:
    """A planned step in the engine's queue.

    Attributes:
        number: of the step.
        plan: what the scheduler said.
        jobs: for each request that computes something its job, how many drafts are checked, and
            whether it makes a token.
    """

    number: int
    plan: StepPlan
    jobs: list[tuple[Job, int, bool]]


class _Engine:
    """A scheduler, a queue of steps, and where there is one a tier with transfers in steps."""

    def __init__(self, transcript: Transcript) -> None:
        config = transcript.config
        self._arrivals = read_arrivals(transcript)
        spec = config["spec"] or {}
        tier = config.get("tier")
        num_drafts = spec.get("k", 0)
        drops = num_drafts > 0 and (tier is not None or not spec.get("lookahead_hashes", True))
        modules = spec.get("modules", 1)
        limits = SchedulerConfig(
            max_num_batched_tokens=config["max_num_batched_tokens"],
            max_num_seqs=config["max_num_seqs"],
            max_model_len=config["max_model_len"],
            long_prefill_token_threshold=config["long_prefill_token_threshold"],
            asynchronous=config["mode"] == "async",
            stages=config.get("pipeline_parallel", 1),
            by_priority=config["policy"] == "priority",
            watermark_blocks=int(config.get("watermark", 0.0) * config["num_blocks"]),
            reserve_whole_prompt=config.get("reserve_full_isl", True),
            prefill_schedule_interval=config.get("prefill_schedule_interval", 1),
            acceptance=(spec.get("accept", 0.0),) * num_drafts,
        )
        cache = KVCache(
            cache_config(
                transcript,
                max_in_flight_tokens=limits.max_in_flight_tokens,
                use_eagle=drops,
                key_lookahead_tokens=0 if drops or not num_drafts else modules,
            )
        )
        self._load_steps: int = tier["load_steps"] if tier else 1
        self._store_steps: int = tier["store_steps"] if tier else 1
        self._connector: OffloadConnector | None = None
        if tier is not None:
            try:
                self._connector = OffloadConnector(
                    cache,
                    ChunkTier(tier["chunks"], tier["eviction"]),
                    blocks_per_chunk=tier["blocks_per_chunk"],
                    prompt_only=tier["prompt_only"],
                )
            except ValueError as error:
                transcript.refuse(1, f"config: {error}")
        self._scheduler = Scheduler(cache, limits, self._connector)
        self._depth = limits.depth
        self._acceptance = spec.get("accept", 0.0)
        self._draws = random.Random(f"accept{config['seed']}")
        self._left: dict[Job, int] = {}  # tokens still to come
        self._due: dict[int, int] = {}  # by transfer, the step it is reported with
        self._queue: deque[_Step] = deque()
        self._step = 0
        self._has_news = False  # a request is finished, which the next plan passes on
        self._num_steps = self._num_tokens = self._num_loads = self._num_stores = 0

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The answers of each step and each output that did something; ends where all hangs."""
        scheduler, queue = self._scheduler, self._queue
        num_idle = 0
        while self._arrivals or self._has_work or queue:
            while self._arrivals and self._arrivals[0][0] <= self._step:
                scheduler.add(self._arrivals.popleft()[1])
            if not self._has_work and not queue:
                self._step += 1
                continue
            if self._has_work:
                step = self._plan()
                ran = bool(step.jobs)
                if ran or step.plan.preempted:
                    yield "step", self._step_answers(step)
                num_idle = 0 if ran else num_idle + 1
                if num_idle > _MOST_IDLE or step.plan.stuck is not None:
                    return
                if ran:
                    self._step += 1
                elif not any(other.jobs for other in queue):
                    self._step += 1  # nothing is computed: time passes
                queue.append(step)
                if len(queue) < self._depth and (ran or scheduler.has_work):
                    continue
            step = queue.popleft()
            got = self._process(step)
            if step.jobs or got["finished"]:
                yield "output", got

    @property
    def _has_work(self) -> bool:
        scheduler = self._scheduler
        return bool(
            scheduler.running
            or scheduler.waiting
            or scheduler.loading
            or scheduler.transfers_in_flight
            or self._has_news
        )

    def _plan(self) -> _Step:
        scheduler = self._scheduler
        self._has_news = False
        plan = scheduler.plan()
        jobs = []
        if plan.num_computing:
            scheduled = scheduler.scheduled()
            for (job, num), (drafts, makes) in zip(
                scheduled, scheduler.planned_tokens(), strict=True
            ):
                jobs.append((job, drafts, makes))
                self._num_tokens += num
            self._num_steps += 1
        return _Step(self._step, plan, jobs)

    def _step_answers(self, step: _Step) -> dict[str, Any]:
        plan = step.plan
        admitted = {}
        for job, hit in plan.started + plan.resumed:
            # Where all of it was loaded, the last token is computed again.
            most = job.sequence.content.num_tokens - 1
            admitted[job.request.request_id] = min(hit.tokens + job.num_external, most)
        return {
            "step": step.number,
            "scheduled": {job.request.request_id: num for job, num in self._scheduler.scheduled()},
            "admitted": admitted,
            "drafts": {job.request.request_id: drafts for job, drafts, _ in step.jobs if drafts},
            "preempted": sorted(job.request.request_id for job in plan.preempted),
            "free": self._scheduler.cache.num_free,
        }

    def _process(self, step: _Step) -> dict[str, Any]:
        """The output of the oldest step in the queue."""
        accepted = [self._draw(drafts) if makes else 0 for _, drafts, makes in step.jobs]
        made = {}
        for (job, _, makes), num in zip(step.jobs, accepted, strict=True):
            if makes:
                made[job.request.request_id] = self._made(job, 1 + num)
        finished: list[Job] = []
        if step.jobs:
            _, finished = self._scheduler.end_step(accepted)
            self._has_news |= bool(finished)
        self._scheduler.complete(self._done(step))
        return {
            "step": step.number,
            "made": made,
            "finished": sorted(job.request.request_id for job in finished),
            "free": self._scheduler.cache.num_free,
        }

    def _made(self, job: Job, num: int) -> int:
        """How many of its new tokens a request takes: no more than to its end.

        One that has come to its end already is answered all the same.
        """
        if job not in self._left:
            room = self._scheduler.config.max_model_len - job.request.num_prompt_tokens
            self._left[job] = min(job.request.num_output_tokens, room)
        left = self._left[job]
        taken = min(num, left) if left else num
        self._left[job] = max(0, left - num)
        return taken

    def _draw(self, num_drafts: int) -> int:
        """How many drafts of one request the recorder accepted."""
        accepted = 0
        while accepted < num_drafts and self._draws.random() < self._acceptance:
            accepted += 1
        return accepted

    def _done(self, step: _Step) -> list[int]:
        """The transfers that are reported with a step."""
        transfers = step.plan.transfers
        if transfers is None:
            return []
        for job in transfers.loads:
            self._due[job.number] = step.number + self._load_steps - 1
        for job in transfers.stores:
            self._due[job.number] = step.number + self._store_steps
        self._num_loads += len(transfers.loads)
        self._num_stores += len(transfers.stores)
        for number in transfers.flushed:
            if number in self._due:
                self._due[number] = step.number
        done = [number for number, due in self._due.items() if due <= step.number]
        for number in done:
            del self._due[number]
        return done

    def totals(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The last line's answers, as far as they are asked for."""
        scheduler = self._scheduler
        counters, connector = scheduler.counters, self._connector
        got = {
            "queries": counters.queries,
            "hits": counters.hits,
            "preempted_requests": counters.preempted_requests,
            "preempted_queries": counters.preempted_queries,
            "preempted_hits": counters.preempted_hits,
            "external_hits": 0 if connector is None else connector.external_hits,
            "external_queries": 0 if connector is None else connector.external_queries,
            "loads": self._num_loads,
            "stores": self._num_stores,
            "steps": self._num_steps,
            "last_step": self._step,
            "evicted": scheduler.cache.num_evicted,
            "preemptions": counters.preemptions,
            "scheduled_tokens": self._num_tokens,
        }
        return {name: value for name, value in got.items() if name in asked}
