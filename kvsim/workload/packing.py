"""Requests and sessions as plain rows and two arrays, which go between processes at little cost.

What is unpacked is what was packed, but that prompts which share spans share arrays: nobody writes
to contents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvsim.cache.content import Content, Ints
from kvsim.workload.request import After, Request, Session, Turn


class Packed(NamedTuple):
    """Requests or sessions.

    A request is a row: where the spans of its prompt begin and end in the arrays, and the fields of
    `Request` in order but for the content.

    Attributes:
        uids: int64, of the spans of all prompts, one prompt after another; a prompt that begins as
            the one before it does lies in the same place.
        ends: int64, of the same spans, tokens of their prompt.
        requests: rows.
        sessions: a row each: where the spans of its prompts begin and end, its turns, and the other
            fields of `Session` in order. A turn is what it waits for, `Turn.not_before_s`, and the
            row of the request with places counted from where those of the session begin.
    """

    uids: Ints
    ends: Ints
    requests: list[tuple[Any, ...]]
    sessions: list[tuple[Any, ...]]

    @property
    def num_items(self) -> int:
        """Requests or sessions."""
        return len(self.requests) + len(self.sessions)


def pack(items: Sequence[Request | Session]) -> Packed:
    """Pack requests or sessions."""
    spans = _Spans()
    requests: list[tuple[Any, ...]] = []
    sessions: list[tuple[Any, ...]] = []
    for item in items:
        if isinstance(item, Request):
            requests.append(_row(item, spans, 0))
            continue
        first = spans.begin_anew()
        turns = [
            (
                [(after.turn, after.delay_s, after.event) for after in turn.after],
                turn.not_before_s,
                *_row(turn.request, spans, first),
            )
            for turn in item.turns
        ]
        session = (item.session_id, item.start_s, item.timed, item.delays_recorded)
        sessions.append((first, spans.num, turns, *session))
    return Packed(spans.uids(), spans.ends(), requests, sessions)


def unpack(packed: Packed) -> Iterator[Request | Session]:
    """What was packed, one after another."""
    uids, ends = packed.uids, packed.ends
    for begin, end, request_id, arrival_s, *others in packed.requests:
        content = Content(uids[begin:end], ends[begin:end])
        yield Request(request_id, arrival_s, content, *others)
    for first, last, turn_rows, session_id, start_s, timed, delays_recorded in packed.sessions:
        # Arrays of its own: sessions last, and would hold those of all others.
        uids, ends = packed.uids[first:last].copy(), packed.ends[first:last].copy()
        turns = []
        for waits, not_before_s, begin, end, request_id, arrival_s, *others in turn_rows:
            content = Content(uids[begin:end], ends[begin:end])
            request = Request(request_id, arrival_s, content, *others)
            turns.append(Turn(request, tuple([After(*after) for after in waits]), not_before_s))
        yield Session(session_id, start_s, turns, timed, delays_recorded)


class _Spans:
    """Spans of prompts one after another, those that the next one begins with kept once.

    They are compared and kept as bytes: most prompts have a few.

    Attributes:
        num: spans so far.
    """

    def __init__(self) -> None:
        self.num = 0
        self._uids: list[bytes] = []
        self._ends: list[bytes] = []
        self._last_uids = self._last_ends = b""
        self._begin = 0

    def begin_anew(self) -> int:
        """The next prompt shares no place with those before; where it will be."""
        self._last_uids = self._last_ends = b""
        self._begin = self.num
        return self.num

    def place(self, content: Content) -> tuple[int, int]:
        """Where the spans of a prompt begin and end, which are added where they are new."""
        uids, ends = content.uids.tobytes(), content.ends.tobytes()
        num = len(content.uids)
        if not (self._last_uids.startswith(uids) and self._last_ends.startswith(ends)):
            if not (uids.startswith(self._last_uids) and ends.startswith(self._last_ends)):
                self.begin_anew()
            known = len(self._last_uids)
            self._uids.append(uids[known:])
            self._ends.append(ends[known:])
            self._last_uids, self._last_ends = uids, ends
            self.num = self._begin + num
        return self._begin, self._begin + num

    def uids(self) -> Ints:
        """Of all spans."""
        return np.frombuffer(bytearray(b"".join(self._uids)), dtype=np.int64)

    def ends(self) -> Ints:
        """Of all spans."""
        return np.frombuffer(bytearray(b"".join(self._ends)), dtype=np.int64)


def _row(request: Request, spans: _Spans, first: int) -> tuple[Any, ...]:
    begin, end = spans.place(request.content)
    return (
        begin - first,
        end - first,
        request.request_id,
        request.arrival_s,
        request.num_prompt_tokens,
        request.num_output_tokens,
        request.output_uid,
        request.session_id,
        request.priority,
        request.keep_priority,
        request.keep_tokens,
        request.keep_s,
    )
