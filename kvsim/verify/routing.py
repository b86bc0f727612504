"""`kvsim-routing/1`: where routers' own code sends requests, choice by choice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from kvsim.cache.content import POSITION_BITS, Content
from kvsim.routing.block_runs import prefix_key
from kvsim.routing.contract import RoutedRequest, Router, Surroundings
from kvsim.routing.coordinator import Coordinator, Publication, as_counts
from kvsim.routing.decider import Decider
from kvsim.routing.dynamo import DynamoKv
from kvsim.routing.names import make_router
from kvsim.routing.vllm_dp import VllmDp
from kvsim.verify.reading import Line, Transcript
from kvsim.verify.report import Answer, Following

_MS_PER_S = 1000
_NO_PROMPT = Content(np.array([0], np.int64), np.array([1], np.int64))


def follow(transcript: Transcript) -> Following:
    """Let requests arrive, and yield every answer beside that of kvsim's router.

    Raises:
        TranscriptError: a request that stands twice or is not there, or a replica that is not.
    """
    yield from _FOLLOWERS[transcript.header["policy"]](transcript)


class _Requests:
    """The requests on the way, by name."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._known: dict[str, RoutedRequest] = {}
        self._seen: set[str] = set()

    def arrive(self, line: Line, pinned: int | None = None) -> RoutedRequest:
        name = line.fields["request"]
        if name in self._seen:
            self._transcript.refuse(line.number, f"arrive request: {name!r} stands twice")
        self._seen.add(name)
        content = _NO_PROMPT
        if "spans" in line.fields:
            if sum(length for _, length in line.fields["spans"]) >= 1 << POSITION_BITS:
                problem = f"arrive spans: longer than 2**{POSITION_BITS} - 1 tokens"
                self._transcript.refuse(line.number, problem)
            content = Content.from_spans(line.fields["spans"])
        request = RoutedRequest(name, content, content.num_tokens, 0.0, pinned=pinned)
        self._known[name] = request
        return request

    def leave(self, line: Line, name: str) -> RoutedRequest:
        return self._known.pop(self._there(line, name))

    def stay(self, line: Line, name: str) -> RoutedRequest:
        return self._known[self._there(line, name)]

    def _there(self, line: Line, name: str) -> str:
        if name not in self._known:
            self._transcript.refuse(line.number, f"{line.op}: no request {name!r} is on the way")
        return name


def _decider(router: Router[Any]) -> Decider:
    return Decider(router, random.Random(0))


def _check_replica(transcript: Transcript, line: Line, name: str, known: int) -> int:
    replica: int = line.fields[name]
    if replica >= known:
        problem = f"{line.op} {name}: {replica} is not there. Use 0 to {known - 1}."
        transcript.refuse(line.number, problem)
    return replica


# ------------------------------------------------------------- vLLM's ranks and their coordinator


def _follow_vllm_dp(transcript: Transcript) -> Following:
    config = transcript.config
    ranks, clients = config["ranks"], config["clients"]
    answered = transcript.header["publications"] == "answered"
    coordinator = Coordinator(ranks, lockstep=config.get("lockstep", False))
    fronts = [
        _decider(
            VllmDp(
                VllmDp.Parameters(), Surroundings(ranks, router_index=index, num_routers=clients)
            )
        )
        for index in range(clients)
    ]
    requests = _Requests(transcript)
    published: Publication | None = None
    wave: Publication | None = None
    wave_ms = 0
    for line in transcript.lines:
        fields, op = line.fields, line.op
        if answered and "t" not in fields:
            transcript.refuse(line.number, f"{op} t is missing")
        now_ms: int = fields.get("t", 0)
        due_ms = round(coordinator.due_s * _MS_PER_S)
        if answered and op != "publish" and due_ms < now_ms:
            yield Answer(line.number, op, "publish t", None, due_ms)
        if wave is not None and op != "wave":
            yield Answer(line.number, op, "wave t", None, wave_ms)
        for name in ("client", "rank"):
            if name in fields and not (op == "arrive" and name == "rank"):
                _check_replica(transcript, line, name, clients if name == "client" else ranks)
        now_s = now_ms / _MS_PER_S
        if op == "arrive":
            if fields.get("pinned") is not None:
                _check_replica(transcript, line, "pinned", ranks)
            request = requests.arrive(line, fields.get("pinned"))
            rank = fronts[fields["client"]].route(request, now_s)
            yield Answer(line.number, op, "rank", fields["rank"], rank)
        elif op == "finish":
            for name in fields["requests"]:
                fronts[fields["client"]].finished(requests.leave(line, name), now_s)
        elif op == "snapshot":
            counts = fields.get("counts")
            if counts is None:
                if published is None or published.counts is None:
                    transcript.refuse(line.number, "snapshot counts: nothing was published yet")
                counts = published.counts
            if len(counts) != ranks or max(fields["clients"], default=0) >= clients:
                transcript.refuse(line.number, f"snapshot: is not for {ranks} ranks' clients")
            for client in fields["clients"]:
                for rank, values in enumerate(counts):
                    fronts[client].counts(rank, values, now_s)
        elif op == "state":
            yield from _state(line, fronts[fields["client"]])
        elif op == "report":
            stamp = {name: fields.get(name, 0) for name in ("wave", "step")}
            coordinator.report(fields["rank"], as_counts(fields["counts"]), now_s, **stamp)
        elif op == "wave_start":
            wave, wave_ms = coordinator.start_wave(fields["wave"], now_s), now_ms
        elif op == "wave_complete":
            wave, wave_ms = coordinator.complete_wave(fields["wave"], now_s), now_ms
        elif op == "publish":
            published = coordinator.publish(now_s)
            yield from _publication(line, published, due_ms)
        else:
            yield from _publication(line, wave, wave_ms)
            wave = None


def _state(line: Line, front: Decider) -> Following:
    router, views = front.router, front.views
    assert isinstance(router, VllmDp)
    got = {
        "counts": router.seen_counts(views),
        "in_flight": views.of(views.in_flight).tolist(),
        "scan_start": router.scan_start,
    }
    for what, value in got.items():
        yield Answer(line.number, line.op, what, line.fields[what], value)


def _publication(line: Line, got: Publication | None, time_ms: int) -> Following:
    values: dict[str, Any] = {"t": None if got is None else time_ms}
    if got is not None:
        counts = None if got.counts is None else [list(counts) for counts in got.counts]
        values |= {"counts": counts, "wave": got.wave, "running": got.running}
    for what, expected in line.fields.items():
        yield Answer(line.number, line.op, what, expected, values.get(what))


# ---------------------------------------------------------------- Dynamo's KV router

_SETTINGS = {
    "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT": "overlap_credit",
    "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY": "overlap_credit_decay",
    "DYN_ROUTER_PREFILL_LOAD_SCALE": "prefill_scale",
    "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT": "request_weight",
    "DYN_ROUTER_TEMPERATURE": "temperature",
}
_FIXED_SETTINGS = {"DYN_ROUTER_USE_KV_EVENTS": "true"}


def _follow_dynamo(transcript: Transcript) -> Following:
    config = transcript.config
    workers, block = config["workers"], config["block_size"]
    router = make_router("dynamo-kv", _settings(transcript), Surroundings(workers, block))
    assert isinstance(router, DynamoKv)
    decider = _decider(router)
    requests = _Requests(transcript)
    for line in transcript.lines:
        fields, op = line.fields, line.op
        if op == "arrive":
            worker = _check_replica(transcript, line, "worker", workers)
            # Whoever was drawn among equals gets it, so that both go on alike.
            request = requests.arrive(line, pinned=worker)
            view = router.look(request, decider.views, 0.0)
            costs = view.costs
            values = {
                "overlap": view.overlap_tokens // block,
                "prefill_tokens": view.prefill_tokens + request.prompt_tokens - view.overlap_tokens,
                "decode_blocks": view.decode_blocks,
                "active": view.active,
            }
            for what, got in values.items():
                yield Answer(line.number, op, what, fields[what], got.tolist())
            is_least = costs[worker] == costs.min()
            least = worker if is_least else int(costs.argmin())
            yield Answer(line.number, op, "worker", worker, least)
            decider.route(request, 0.0)
        elif op == "events":
            worker = _check_replica(transcript, line, "worker", workers)
            stored, removed = (
                [prefix_key(uid, end) for uid, end in fields[name]]
                for name in ("stored", "removed")
            )
            decider.events(worker, stored, removed, 0.0)
        elif op == "prefill_complete":
            decider.first_token(requests.stay(line, fields["request"]), 0.0)
        else:
            decider.finished(requests.leave(line, fields["request"]), 0.0)


def _settings(transcript: Transcript) -> dict[str, float]:
    written: dict[str, float] = {}
    for name, value in transcript.config["settings"].items():
        if _FIXED_SETTINGS.get(name) == value:
            continue
        try:
            written[_SETTINGS[name]] = float(value)
        except (KeyError, ValueError):
            transcript.refuse(1, f"config.settings.{name}: {value!r} is not followed")
    if written.get("temperature"):
        transcript.refuse(1, "config.settings.DYN_ROUTER_TEMPERATURE: only 0 can be followed")
    return written


# ---------------------------------------------------------------- SGLang's router


def _follow_sglang(transcript: Transcript) -> Following:
    config = transcript.config
    names = ("cache_threshold", "balance_abs_threshold", "balance_rel_threshold")
    written = {name: config[name] for name in names} | {"eviction_interval": 0.0}
    decider = _decider(make_router("sglang-cache-aware", written, Surroundings(config["workers"])))
    requests = _Requests(transcript)
    for line in transcript.lines:
        if line.op == "arrive":
            worker = decider.route(requests.arrive(line), 0.0)
            yield Answer(line.number, line.op, "worker", line.fields["worker"], worker)
        else:
            decider.finished(requests.leave(line, line.fields["request"]), 0.0)


_FOLLOWERS: dict[str, Callable[[Transcript], Following]] = {
    "vllm-dp": _follow_vllm_dp,
    "dynamo-kv": _follow_dynamo,
    "sglang-cache_aware": _follow_sglang,
}
