"""Traces made from traces: a share of one, or several at once."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from kvsim.cache.content import Content
from kvsim.workload.prompts import Prompts
from kvsim.workload.request import Request

_HUB_SHARE = 0.01
_LEAST_HUB = 20


def families(prompts: Prompts) -> list[int | None]:
    """What each prompt belongs to, by what it shares: None for one that shares with all or none.

    Prompts with the same beginning are a family, such as the turns of a conversation. A beginning
    that more than 1 % of all prompts have (and more than 20) is no family but a system prompt: what
    lies behind it tells them apart.
    """
    counts = np.bincount(prompts.uids)
    most = max(_LEAST_HUB, _HUB_SHARE * prompts.num_requests)
    tells = (counts <= most) & (counts > 1)
    places = np.where(tells[prompts.uids], np.arange(len(prompts.uids)), len(prompts.uids))
    found: list[int | None] = []
    begin = 0
    for end in prompts.span_ends.tolist():
        place = int(places[begin:end].min(initial=len(prompts.uids)))
        found.append(int(prompts.uids[place]) if place < end else None)
        begin = end
    return found


def sampled(
    requests: Iterable[Request],
    share: float,
    seed: int,
    kin: Sequence[int | None] | None = None,
) -> Iterator[Request]:
    """A random share of the sessions, each whole, or of families or requests where there are none.

    Whether one is kept depends on its name and the seed alone, so a larger share keeps all that a
    smaller one does.

    Args:
        requests: in order.
        share: 0 to 1.
        seed: what is drawn follows from it.
        kin: the family of each request, as from `families`; None to draw requests.
    """
    for number, request in enumerate(requests):
        name = request.request_id if request.session_id is None else request.session_id
        if request.session_id is None and kin is not None and kin[number] is not None:
            name = f"family {kin[number]}"
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
