"""From the ids of a trace to prompt contents, and what prompts share inside a partial last id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from kvsim.cache.content import POSITION_BITS, Content, Ints
from kvsim.workload.request import Request

# Ids below the first mark are uids as they are; larger ones (hashes) are numbered as they come, up
# to the second; then come shared tails, and from the last mark on each answer has its own. All stay
# below the core's 2**35.
_FIRST_NUMBERED_UID = 2**33
_FIRST_TAIL_UID = 2**34 - 2**32
_FIRST_OWN_UID = 2**34


class TraceUids:
    """Uids for the ids of one trace, and for content that has none.

    Memory does not grow with the trace, except for ids of 2**33 and more, which are remembered.
    """

    def __init__(self) -> None:
        """Start without ids."""
        self._numbered: dict[int, int] = {}
        self._num_own = 0
        self._ends = np.arange(1, 257, dtype=np.int64)
        self._ends_of = 1

    def own(self) -> int:
        """A uid that nothing else has: for an answer, or for a prompt that nobody shares."""
        self._num_own += 1
        return _FIRST_OWN_UID + self._num_own - 1

    def of(self, content_id: int) -> int:
        """The uid of an id."""
        if content_id < _FIRST_NUMBERED_UID:
            return content_id
        next_uid = _FIRST_NUMBERED_UID + len(self._numbered)
        return self._numbered.setdefault(content_id, next_uid)

    def name(self, content_id: int, uid: int) -> None:
        """Give an id of 2**33 or more the uid of an answer that it stands in."""
        self._numbered.setdefault(content_id, uid)

    def content(
        self, ids: list[int] | None, num_tokens: int, block_tokens: int, own_uid: int
    ) -> Content:
        """A prompt of which each id covers a block, the last one maybe a part of it.

        Args:
            ids: chained ids from the first token on; None or empty where nothing is known. Those
                beyond the prompt's end are left out.
            num_tokens: length of the prompt.
            block_tokens: tokens an id stands for.
            own_uid: stands for what is left behind the last id.
        """
        if not ids:
            return Content(
                np.array([own_uid], dtype=np.int64), np.array([num_tokens], dtype=np.int64)
            )
        most = -(-num_tokens // block_tokens)
        if len(ids) > most:
            ids = ids[:most]
        if max(ids) >= _FIRST_NUMBERED_UID:
            ids = [self.of(content_id) for content_id in ids]
        if len(ids) > len(self._ends) or block_tokens != self._ends_of:
            self._ends_of = block_tokens
            count = max(len(self._ends), 2 * len(ids))
            self._ends = np.arange(1, count + 1, dtype=np.int64) * block_tokens
        if len(ids) * block_tokens < num_tokens:
            uids = np.array([*ids, own_uid], dtype=np.int64)
            ends = np.append(self._ends[: len(ids)], num_tokens)
        else:
            uids = np.array(ids, dtype=np.int64)
            ends = self._ends[: len(ids)].copy()
            ends[-1] = num_tokens
        return Content(uids, ends)


class SharedTails:
    """What prompts share inside an id that covers a partial block: the upper bound.

    The rule (`partial_tail: shared`). Take the prompts that begin with the same whole ids, one or
    more, and let R be the longest part of a next id, less than a block, with which one of them
    ends. Then all of them agree on the next R tokens, each as far as it goes. So where two prompts
    agree up to a partial last id, the shorter one's tail is a prefix of the longer one's next id,
    whichever came first; what is shared beyond whole ids can be no more than that without two
    different ids being the same.
    """

    def __init__(
        self, block_tokens: int, requests: Iterable[Request], *, own_is_known: bool = False
    ) -> None:
        """Read all prompts once; a number is kept for every place at which one ends.

        Args:
            block_tokens: tokens an id stands for.
            requests: of the whole trace.
            own_is_known: what a prompt has without ids is known to be its own, not just unknown.
        """
        self._block_tokens = block_tokens
        self._own_is_known = own_is_known
        self._tails: dict[int, tuple[int, int]] = {}
        for request in requests:
            num_whole, tail = divmod(request.num_prompt_tokens, block_tokens)
            if tail == 0 or num_whole == 0:
                continue
            content = request.content
            span = int(np.searchsorted(content.ends, num_whole * block_tokens))
            uid = int(content.uids[span])
            # Nobody shares what comes behind content of one's own, and content that goes on from a
            # whole block into the tail is known there.
            if uid >= _FIRST_OWN_UID or content.ends[span] != num_whole * block_tokens:
                continue
            if self._is_known(int(content.uids[span + 1]), request):
                continue
            key = uid << POSITION_BITS | num_whole
            longest, tail_uid = self._tails.get(key, (0, _FIRST_TAIL_UID + len(self._tails)))
            self._tails[key] = (max(longest, tail), tail_uid)
        self._keys = np.array(sorted(self._tails), dtype=np.int64)

    def content(self, request: Request) -> Content:
        """The prompt of a request with shared tails in it."""
        content, block = request.content, self._block_tokens
        num_before = (request.num_prompt_tokens - 1) // block
        if num_before == 0 or len(self._keys) == 0:
            return content
        numbers = np.arange(1, num_before + 1, dtype=np.int64)
        spans = np.searchsorted(content.ends, numbers * block)
        keys = content.uids[spans] << POSITION_BITS | numbers
        places = np.searchsorted(self._keys, keys)
        places[places == len(self._keys)] = 0
        found = numbers[self._keys[places] == keys]
        if len(found) == 0:
            return content
        return _overlaid(content, self._overlays(found.tolist(), keys, request))

    def _is_known(self, uid: int, request: Request) -> bool:
        """Whether content in a prompt is known to be an earlier answer, or shared by nobody."""
        return uid >= _FIRST_OWN_UID and (self._own_is_known or uid != request.output_uid)

    def _overlays(
        self, numbers: list[int], keys: Ints, request: Request
    ) -> Iterator[tuple[int, int, int]]:
        """`(start, end, uid)` of each shared tail in a prompt, each inside one span."""
        ends = request.content.ends
        for number in numbers:
            longest, tail_uid = self._tails[int(keys[number - 1])]
            start = number * self._block_tokens
            span = int(np.searchsorted(ends, start, side="right"))
            # Where a span ends inside the block, what follows is known to be something else.
            if not self._is_known(int(request.content.uids[span]), request):
                yield start, min(start + longest, int(ends[span])), tail_uid


def _overlaid(content: Content, overlays: Iterable[tuple[int, int, int]]) -> Content:
    """Content with other uids in some places, each place inside one span."""
    spans = content.ends.tolist()
    uids, ends = [], []
    index = 0
    for start, end, uid in overlays:
        while spans[index] <= start:
            uids.append(int(content.uids[index]))
            ends.append(spans[index])
            index += 1
        if start > (ends[-1] if ends else 0):
            uids.append(int(content.uids[index]))
            ends.append(start)
        uids.append(uid)
        ends.append(end)
        if spans[index] == end:
            index += 1
    uids += content.uids[index:].tolist()
    ends += spans[index:]
    return Content(np.array(uids, dtype=np.int64), np.array(ends, dtype=np.int64))
