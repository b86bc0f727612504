"""The prompts of a workload as arrays, the answers that come back in them, and ideal hits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvsim.cache.content import Ints
from kvsim.jit import njit
from kvsim.workload.request import Request

Window = Literal["all", "last-half"]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_CHUNK = 4096


@dataclass(frozen=True)
class Prompts:
    """All prompts, span by span: 16 bytes a span and 49 a prompt.

    Attributes:
        uids: int64, identity of each span, numbered from 0 without gaps.
        ends: int64, the token of its prompt at which each span ends.
        span_ends: int64, where each request's spans end in the arrays above; ascending.
        prompt_tokens: int64, length of each prompt.
        output_tokens: int64, length of each answer.
        times_s: float64, arrival of each request.
        answer_uids: int64, identity of each answer; -1 where no prompt holds it.
        returns: bool, whether another prompt holds the answer.
    """

    uids: Ints
    ends: Ints
    span_ends: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    times_s: Floats
    answer_uids: Ints
    returns: Bools

    @classmethod
    def from_requests(cls, requests: Iterable[Request]) -> Prompts:
        """Read all requests, in order of arrival."""
        collected = PromptsReader(requests)
        for _ in collected:
            pass
        return collected.prompts()

    @property
    def num_requests(self) -> int:
        """Requests in all."""
        return len(self.span_ends)

    def first_measured(self, window: Window) -> int:
        """The first request that counts; the others only fill the cache."""
        return self.num_requests // 2 if window == "last-half" else 0

    def num_tokens(self, window: Window = "all") -> int:
        """Prompt tokens of the requests that count."""
        return int(self.prompt_tokens[self.first_measured(window) :].sum())

    @cached_property
    def hit_tokens(self) -> Ints:
        """Tokens of each prompt that are found where nothing is evicted.

        A prefix may end at any token. Found are prompts that came before and the answers to them,
        so this is what separates `SharedTails` from contents as recorded.
        """
        found = np.zeros(self.num_requests, dtype=np.int64)
        num_uids = int(self.uids.max(initial=-1)) + 1
        _find_ideal_hits(
            self.uids,
            self.ends,
            self.span_ends,
            self.answer_uids,
            self.prompt_tokens + self.output_tokens,
            np.zeros(num_uids, dtype=np.int64),
            found,
        )
        return found

    def ideal_token_hit_rate(self, window: Window = "all") -> float:
        """Share of prompt tokens found where nothing is evicted and a prefix ends at any token."""
        first = self.first_measured(window)
        return float(self.hit_tokens[first:].sum()) / max(1, self.num_tokens(window))


class PromptsReader:
    """Passes requests on, in order, and keeps their prompts."""

    def __init__(self, requests: Iterable[Request]) -> None:
        """Read nothing yet."""
        self._requests = requests
        empty = np.empty(0, dtype=np.int64)
        self._uids, self._ends, self._counts = [empty], [empty], [empty]
        self._table = [np.empty((0, 4))]
        self._open: list[Request] = []

    def __iter__(self) -> Iterator[Request]:
        """Yield the requests."""
        for request in self._requests:
            self._open.append(request)
            if len(self._open) == _CHUNK:
                self._keep()
            yield request

    def _keep(self) -> None:
        chunk, self._open = self._open, []
        if not chunk:
            return
        self._uids.append(np.concatenate([request.content.uids for request in chunk]))
        self._ends.append(np.concatenate([request.content.ends for request in chunk]))
        self._counts.append(np.array([len(request.content.uids) for request in chunk]))
        rows = [
            (r.num_prompt_tokens, r.num_output_tokens, r.output_uid, r.arrival_s) for r in chunk
        ]
        # Uids are below 2**35, lengths below 2**31: exact as floats.
        self._table.append(np.array(rows, dtype=np.float64))

    def prompts(self) -> Prompts:
        """The prompts of the requests read so far."""
        self._keep()
        counts = np.concatenate(self._counts)
        table = np.concatenate(self._table)
        named, uids = np.unique(np.concatenate(self._uids), return_inverse=True)
        uids = uids.astype(np.int64)
        own = table[:, 2].astype(np.int64)
        places = np.searchsorted(named, own)
        places[places == len(named)] = 0
        known = named[places] == own if len(named) else np.zeros(len(own), dtype=bool)
        answer_uids = np.where(known, places, -1)
        by_others = uids != np.repeat(answer_uids, counts)
        held = np.zeros(len(named) + 1, dtype=bool)
        held[uids[by_others]] = True
        return Prompts(
            uids=uids,
            ends=np.concatenate(self._ends),
            span_ends=np.cumsum(counts),
            prompt_tokens=table[:, 0].astype(np.int64),
            output_tokens=table[:, 1].astype(np.int64),
            times_s=table[:, 3].copy(),
            answer_uids=answer_uids,
            returns=held[answer_uids] & known,
        )


@njit
def _find_ideal_hits(
    uids: Ints,
    ends: Ints,
    span_ends: Ints,
    answer_uids: Ints,
    sequence_tokens: Ints,
    longest: Ints,
    found: Ints,
) -> None:
    """Fills in `found`; `longest` has the last token up to which an identity has been seen."""
    begin = 0
    for request in range(len(span_ends)):
        for span in range(begin, span_ends[request]):
            known = longest[uids[span]]
            if known == 0:
                break
            found[request] = min(known, ends[span])
            if known < ends[span]:
                break
        for span in range(begin, span_ends[request]):
            longest[uids[span]] = max(longest[uids[span]], ends[span])
        own = answer_uids[request]
        if own != -1:
            longest[own] = max(longest[own], sequence_tokens[request])
        begin = span_ends[request]
