"""`kvsim-steps/1`: the scheduler, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from kvsim.cache.content import Content
from kvsim.cache.manager import KVCache
from kvsim.engine.jobs import SchedulerConfig
from kvsim.engine.scheduler import Scheduler
from kvsim.verify.cache_ops import cache_config
from kvsim.verify.reading import Line, Transcript
from kvsim.verify.report import Answer, Following
from kvsim.workload.request import Request

_NOTHING: dict[str, Any] = {"admitted": {}, "preempted": [], "finished": []}
"""What an absent answer says."""

_RESUMED_APART = ("vllm-0.22", "vllm-0.23", "vllm-0.32")
"""Releases that told their workers of requests that come back apart from those that start, so that
``admitted`` in their recordings names the latter only."""


def follow(transcript: Transcript) -> Following:
    """Let the requests arrive, run step after step, and yield every answer beside the core's.

    Raises:
        TranscriptError: a request that stands twice, or is longer than the model takes.
    """
    arrivals = read_arrivals(transcript)
    config = transcript.config
    cache = KVCache(
        cache_config(
            transcript, max_in_flight_tokens=config["max_num_batched_tokens"], use_eagle=False
        )
    )
    scheduler = Scheduler(cache, scheduler_config(config))
    recorded = iter([line for line in transcript.lines if line.op != "request"])
    num_steps = 0
    for step, got in _steps(scheduler, arrivals, transcript.profile not in _RESUMED_APART):
        num_steps = step + 1
        if got is None:
            continue
        line = next(recorded)
        if line.op == "totals":  # the engine had come to its end
            yield Answer(line.number, line.op, "step", None, step)
            return
        yield from _compare(line, got)
    line = next(recorded)
    if line.op == "step":  # the engine went on
        yield from _compare(line, {"step": None})
    elif scheduler.has_work:
        yield from _compare(line, {"steps": None})
    else:
        yield from _compare(line, {"steps": num_steps, **_counters(scheduler)})


def _compare(line: Line, got: dict[str, Any]) -> Iterator[Answer]:
    for what, value in got.items():
        expected = line.fields[what] if what in line.fields else _NOTHING.get(what)
        yield Answer(line.number, line.op, what, expected, value)


def _counters(scheduler: Scheduler) -> dict[str, int]:
    counters = scheduler.counters
    return {
        "queries": counters.queries,
        "hits": counters.hits,
        "preempted_requests": counters.preempted_requests,
        "preempted_queries": counters.preempted_queries,
        "preempted_hits": counters.preempted_hits,
    }


def _steps(
    scheduler: Scheduler, arrivals: deque[tuple[int, Request]], names_resumed: bool
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Number and answers of each step, up to the engine's last; None where it does nothing.

    Steps that can only do nothing are passed over. Where nothing can change any more it ends, be
    there work left or not.
    """
    step = 0
    while True:
        while arrivals and arrivals[0][0] <= step:
            scheduler.add(arrivals.popleft()[1])
        plan = scheduler.plan()
        if plan.stuck is not None:
            scheduler.waiting.put_back([plan.stuck])
            return
        scheduled = {job.request.request_id: num for job, num in scheduler.scheduled()}
        _, finished = scheduler.end_step() if plan.num_computing else ([], [])
        admitted = plan.started + (plan.resumed if names_resumed else [])
        got = {
            "step": step,
            "scheduled": scheduled,
            "admitted": {job.request.request_id: hit.tokens for job, hit in admitted},
            "preempted": sorted(job.request.request_id for job in plan.preempted),
            "finished": sorted(job.request.request_id for job in finished),
            "free": scheduler.cache.num_free,
        }
        acted = bool(scheduled or plan.preempted or finished)
        yield step, got if acted else None
        if acted and scheduler.has_work:
            step += 1
        elif arrivals:
            step = max(step + 1, arrivals[0][0])
        else:
            return


def scheduler_config(config: dict[str, Any]) -> SchedulerConfig:
    """The limits that a first line names; one step at a time."""
    return SchedulerConfig(
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_num_seqs=config["max_num_seqs"],
        max_model_len=config["max_model_len"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
    )


def read_arrivals(transcript: Transcript) -> deque[tuple[int, Request]]:
    """The requests by the step before which they arrive."""
    found: dict[str, tuple[int, Request]] = {}
    for line in transcript.lines:
        if line.op != "request":
            continue
        fields = line.fields
        name = fields["req"]
        if name in found:
            transcript.refuse(line.number, f"request '{name}' stands there twice")
        num_prompt = sum(count for _, count in fields["spans"])
        most = transcript.config["max_model_len"]
        if num_prompt >= most:
            transcript.refuse(
                line.number,
                f"request '{name}': a prompt of {num_prompt} tokens leaves no room for an answer "
                f"in max_model_len, {most}",
            )
        request = Request(
            request_id=name,
            arrival_s=float(fields["arrives_before_step"]),
            content=Content.from_spans(fields["spans"]),
            num_prompt_tokens=num_prompt,
            num_output_tokens=fields["output"],
            output_uid=fields["output_uid"],
            priority=fields.get("priority", 0),
        )
        found[name] = (fields["arrives_before_step"], request)
    return deque(sorted(found.values(), key=lambda arrival: arrival[0]))
