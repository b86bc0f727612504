"""Traces made from traces: a share of one, or several at once."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from kvsim.cache.content import Content
from kvsim.workload.request import Request


def sampled(requests: Iterable[Request], share: float, seed: int) -> Iterator[Request]:
    """A random share of the sessions, each whole, or of the requests where there are none.

    Whether one is kept depends on its name and the seed alone, so a larger share keeps all that a
    smaller one does.
    """
    for request in requests:
        name = request.request_id if request.session_id is None else request.session_id
        digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
        if int.from_bytes(digest, "little") < share * 2**64:
            yield request


def merged(traces: Sequence[Iterator[Request]]) -> Iterator[Request]:
    """The requests of several traces by time, ties in the order of the traces.

    No content of one is content of another, and sessions are named after their trace.
    """
    uids: dict[tuple[int, int], int] = {}

    def own(number: int, request: Request) -> Request:
        named = [uids.setdefault((number, uid), len(uids)) for uid in request.content.uids.tolist()]
        session_id = request.session_id
        return replace(
            request,
            request_id=f"{number}-{request.request_id}",
            content=Content(np.array(named, dtype=np.int64), request.content.ends),
            output_uid=uids.setdefault((number, request.output_uid), len(uids)),
            session_id=None if session_id is None else f"{number}-{session_id}",
        )

    def numbered(number: int, trace: Iterator[Request]) -> Iterator[tuple[int, Request]]:
        for request in trace:
            yield number, request

    streams = [numbered(number, trace) for number, trace in enumerate(traces, start=1)]
    for number, request in heapq.merge(*streams, key=lambda entry: entry[1].arrival_s):
        yield own(number, request)
