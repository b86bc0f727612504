"""One request, and a stream of them, as the engine takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvsim.cache.content import Content


@dataclass(slots=True)
class Request:
    """A prompt that arrives, and how long its answer is.

    Attributes:
        request_id: unique in a run; ordered by name as by number (zero-padded).
        arrival_s: seconds on the clock of the run.
        content: the prompt's spans.
        num_prompt_tokens: length of the prompt, at least 1.
        num_output_tokens: tokens to generate, at least 1 (the first comes with the prefill).
        output_uid: uid of the span that holds the answer, which follows the prompt.
    """

    request_id: str
    arrival_s: float
    content: Content
    num_prompt_tokens: int
    num_output_tokens: int
    output_uid: int


def _nothing_read() -> float:
    return 0.0


@dataclass(slots=True)
class Workload:
    """A stream of requests, read once; open the workload again to read it again.

    Attributes:
        requests: in order of arrival. Reading on may raise a `KvsimError`, since a trace is checked
            line by line as it is read.
        warnings: sentences for the user about what this workload cannot show.
        concurrency: None to start requests at their arrival; n to keep n running, each next one
            starting when one ends, in the order of the stream.
        block_tokens: tokens that one content id stands for, None where content is exact.
        share_read: the share of the workload read so far, 0 to 1, for a progress bar.
    """

    requests: Iterator[Request]
    warnings: list[str] = field(default_factory=list)
    concurrency: int | None = None
    block_tokens: int | None = None
    share_read: Callable[[], float] = _nothing_read
