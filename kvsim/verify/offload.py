"""`kvsim-offload/1`: the scheduler with a connector over a CPU tier, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvsim.cache.content import GROUP_BITS, NUMBER_BITS
from kvsim.cache.manager import KVCache
from kvsim.engine.jobs import StepPlan
from kvsim.engine.scheduler import Scheduler
from kvsim.offload.connector import OffloadConnector
from kvsim.offload.cpu_tier import ChunkTier
from kvsim.offload.transfers import Connector, Transfers
from kvsim.verify.cache_ops import cache_config
from kvsim.verify.reading import Line, Transcript
from kvsim.verify.report import Answer, Following
from kvsim.verify.steps import read_arrivals, scheduler_config

NOTHING: dict[str, Any] = {
    "admitted": {},
    "preempted": [],
    "finished": [],
    "external": {},
    "waiting": [],
    "loads": [],
    "stores": [],
    "saves": [],
    "refused": [],
    "flushed": 0,
}
"""What an absent answer says, of any tier."""


def follow(transcript: Transcript) -> Following:
    """Let the requests arrive, run step after step, and yield every answer beside the core's.

    Raises:
        TranscriptError: a request that stands twice or is longer than the model takes, or a tier
            that no engine would accept.
    """
    yield from follow_engine(transcript, _Offload(transcript))


def follow_engine(transcript: Transcript, engine: TieredEngine) -> Following:
    """Yield every answer of a transcript beside that of an engine with the transcript's tier."""
    recorded = iter([line for line in transcript.lines if line.op != "request"])
    for got in engine.steps():
        line = next(recorded)
        if line.op == "totals":  # the engine had come to its end
            yield from _compare(line, {"step": got["step"]})
            return
        yield from _compare(line, got)
    line = next(recorded)
    if line.op == "step":  # the engine went on
        yield from _compare(line, {"step": None})
    else:
        yield from _compare(line, engine.totals())


def _compare(line: Line, got: dict[str, Any]) -> Iterator[Answer]:
    for what, value in got.items():
        expected = line.fields[what] if what in line.fields else NOTHING.get(what)
        yield Answer(line.number, line.op, what, expected, value)


class TieredEngine:
    """A scheduler and its tier, of one kind or another, with transfers timed in steps."""

    def __init__(self, transcript: Transcript) -> None:
        config = transcript.config
        self._arrivals = read_arrivals(transcript)
        cache = KVCache(
            cache_config(
                transcript, max_in_flight_tokens=config["max_num_batched_tokens"], use_eagle=False
            )
        )
        self._scheduler = Scheduler(
            cache, scheduler_config(config), self._connect(transcript, cache)
        )
        self._load_steps = config["load_steps"]
        self._store_steps = config["store_steps"]
        self._due: dict[int, int] = {}  # by job, the step it is reported with
        self._num_steps: int | None = 0

    def _connect(self, transcript: Transcript, cache: KVCache) -> Connector:
        """Make the tier, empty, and connect it to the cache."""
        raise NotImplementedError

    def _tier_answers(self, transfers: Transfers) -> dict[str, Any]:
        """What this kind of tier answers when a step is planned."""
        raise NotImplementedError

    def _end_answers(self) -> dict[str, Any]:
        """What it answers at the end of the step."""
        return {}

    def _tier_totals(self) -> dict[str, Any]:
        """The totals of this kind of tier."""
        raise NotImplementedError

    def steps(self) -> Iterator[dict[str, Any]]:
        """The answers of each step that did something, up to the last; ends where all hangs."""
        scheduler = self._scheduler
        step = 0
        while self._arrivals or self._is_busy:
            while self._arrivals and self._arrivals[0][0] <= step:
                scheduler.add(self._arrivals.popleft()[1])
            plan = scheduler.plan()
            if plan.stuck is not None:
                self._num_steps = None
                return
            scheduled = {job.request.request_id: num for job, num in scheduler.scheduled()}
            answers = self._answers(plan)
            _, finished = scheduler.end_step() if plan.num_computing else ([], [])
            scheduler.complete(self._done(step, plan))
            got = {
                "step": step,
                "scheduled": scheduled,
                **answers,
                "finished": sorted(job.request.request_id for job in finished),
                "free": scheduler.cache.num_free,
                **self._end_answers(),
            }
            if scheduled or any(got[name] != NOTHING[name] for name in got if name in NOTHING):
                yield got
            step += 1
            self._num_steps = step

    @property
    def _is_busy(self) -> bool:
        scheduler = self._scheduler
        return bool(
            scheduler.running
            or scheduler.waiting
            or scheduler.loading
            or scheduler.transfers_in_flight
        )

    def _done(self, step: int, plan: StepPlan) -> list[int]:
        """The jobs that are reported with a step."""
        transfers = plan.transfers
        assert transfers is not None, "the scheduler has a connector"
        for job in transfers.loads:
            self._due[job.number] = step + self._load_steps - 1
        for job in transfers.stores:
            self._due[job.number] = step + self._store_steps
        for number in transfers.flushed:
            self._due[number] = step
        done = [number for number, due in self._due.items() if due <= step]
        for number in done:
            del self._due[number]
        return done

    def _answers(self, plan: StepPlan) -> dict[str, Any]:
        transfers = plan.transfers
        assert transfers is not None, "the scheduler has a connector"
        admitted = {}
        for job, hit in plan.started + plan.resumed:
            # Where all of it was loaded, the last token is computed again.
            most = job.sequence.content.num_tokens - 1
            admitted[job.request.request_id] = min(hit.tokens + job.num_external, most)
        return {
            "admitted": admitted,
            "preempted": sorted(job.request.request_id for job in plan.preempted),
            "external": {job.request.request_id: num for job, num in plan.external},
            "waiting": [job.request.request_id for job in plan.deferred],
            **self._tier_answers(transfers),
        }

    def totals(self) -> dict[str, Any]:
        """The last line's answers; without a number of steps where all hangs."""
        if self._num_steps is None:
            return {"steps": None}
        counters = self._scheduler.counters
        return {
            "steps": self._num_steps,
            **self._tier_totals(),
            "queries": counters.queries,
            "hits": counters.hits,
        }


class _Offload(TieredEngine):
    """A scheduler and its CPU tier."""

    def _connect(self, transcript: Transcript, cache: KVCache) -> Connector:
        config = transcript.config
        self._tier = ChunkTier(config["chunks"], config["eviction"])
        try:
            self._connector = OffloadConnector(
                cache,
                self._tier,
                blocks_per_chunk=config["blocks_per_chunk"],
                prompt_only=config["prompt_only"],
            )
        except ValueError as error:
            transcript.refuse(1, f"config: {error}")
        return self._connector

    def _tier_answers(self, transfers: Transfers) -> dict[str, Any]:
        return {
            "loads": [self._names(keys) for keys in transfers.loaded],
            "stores": [
                {
                    "offered": self._names(offer.offered),
                    "stored": self._names(offer.stored),
                    "evicted": self._names(offer.evicted),
                }
                for offer in transfers.offers
                if offer.stored is not None
            ],
            "refused": [
                self._names(offer.offered) for offer in transfers.offers if offer.stored is None
            ],
            "flushed": len(transfers.flushed),
        }

    def _names(self, keys: np.ndarray[Any, np.dtype[np.int64]]) -> list[list[int]]:
        """Keys as ``[group, uid, tokens up to the chunk's end]``."""
        names = []
        for key in keys.tolist():
            group = key & ((1 << GROUP_BITS) - 1)
            number = (key >> GROUP_BITS) & ((1 << NUMBER_BITS) - 1)
            uid = key >> (GROUP_BITS + NUMBER_BITS)
            names.append([group, uid, number * self._connector.key_tokens[group]])
        return names

    def _tier_totals(self) -> dict[str, Any]:
        tier, connector = self._tier, self._connector
        return {
            "stored": tier.num_stored,
            "loaded": tier.num_loaded,
            "evicted": tier.num_evicted,
            "refused": tier.num_refused,
            "external_queries": connector.external_queries,
            "external_hits": connector.external_hits,
        }
