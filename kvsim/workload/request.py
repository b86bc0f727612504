"""Requests and sessions of them, as the engine takes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from kvsim.cache.content import POSITION_BITS, Content


@dataclass(slots=True)
class Request:
    """A prompt that arrives, and how long its answer is.

    Attributes:
        request_id: unique in a run; ordered by name as by number (zero-padded).
        arrival_s: seconds on the clock of the run; within a session, after the session's start.
        content: the prompt's spans.
        num_prompt_tokens: length of the prompt, at least 1.
        num_output_tokens: tokens to generate, at least 1 (the first comes with the prefill).
        output_uid: uid of the span that holds the answer, which follows the prompt.
        session_id: the session it belongs to, None where there are no sessions.
        priority: where the engine goes by priorities, a lower number is served first.
        keep_priority: 0 to 100, how much its blocks are to be kept; -1 where it says nothing.
        keep_tokens: how many of its first tokens that is about.
        keep_s: seconds for which that holds once it has given them back.
    """

    request_id: str
    arrival_s: float
    content: Content
    num_prompt_tokens: int
    num_output_tokens: int
    output_uid: int
    session_id: str | None = None
    priority: int = 0
    keep_priority: int = -1
    keep_tokens: int = 1 << POSITION_BITS
    keep_s: float = math.inf


@dataclass(frozen=True, slots=True)
class After:
    """What a turn waits for.

    Attributes:
        turn: index of an earlier turn of the session.
        delay_s: seconds of think or tool time after it.
        event: whether its end counts, or its arrival ("start"), as for a sub-agent.
    """

    turn: int
    delay_s: float = 0.0
    event: Literal["end", "start"] = "end"


@dataclass(slots=True)
class Turn:
    """A request of a session, and when it arrives.

    In an open loop it arrives at ``request.arrival_s`` after the session's start. In a closed loop
    it arrives when all it waits for has happened, each with its delay, and not before
    ``not_before_s``.

    Attributes:
        request: the request; its prompt is whole, with earlier answers where they return.
        after: what it waits for in a closed loop.
        not_before_s: seconds after the session's start.
    """

    request: Request
    after: tuple[After, ...] = ()
    not_before_s: float = 0.0


@dataclass(slots=True)
class Session:
    """Turns that belong together.

    Attributes:
        session_id: unique in a run.
        start_s: seconds on the clock of the run or of the trace; None where it is not recorded.
        turns: each after those it waits for.
        timed: whether `Request.arrival_s` is known; an open loop needs it.
        delays_recorded: whether delays count from ends; False where they are gaps between
            recorded arrivals, with the time of the answer in them.
    """

    session_id: str
    start_s: float | None
    turns: list[Turn]
    timed: bool = True
    delays_recorded: bool = True


def _nothing_read() -> float:
    return 0.0


@dataclass(slots=True)
class Workload:
    """A stream of requests or of sessions, read once; open the workload again to read it again.

    Attributes:
        requests: in order of arrival. Reading on may raise a `KvsimError`, since a trace is checked
            line by line as it is read.
        warnings: sentences for the user about what this workload cannot show.
        sessions: for a closed loop, instead of requests: in order of their start, which is set.
        concurrency: None to start requests or sessions at their time; n to keep n running, each
            next one starting when one ends, in the order of the stream.
        block_tokens: tokens that one content id stands for, None where content is exact.
        share_read: the share of the workload read so far, 0 to 1, for a progress bar.
    """

    requests: Iterator[Request]
    warnings: list[str] = field(default_factory=list)
    sessions: Iterator[Session] | None = None
    concurrency: int | None = None
    block_tokens: int | None = None
    share_read: Callable[[], float] = _nothing_read
