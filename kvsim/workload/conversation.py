"""A prompt that grows: what was said stays in front of what is said next."""

from __future__ import annotations

import numpy as np

from kvsim.cache.content import Content


class Conversation:
    """Spans one after another; contents are views, so all turns cost what the longest costs."""

    def __init__(self, begin: Content | None = None) -> None:
        """Start empty, or with what a branch has in common with its parent."""
        self._num_spans = 0 if begin is None else len(begin.uids)
        self._num_tokens = 0 if begin is None else begin.num_tokens
        self._uids = np.empty(max(8, 2 * self._num_spans), dtype=np.int64)
        self._ends = np.empty_like(self._uids)
        if begin is not None:
            self._uids[: self._num_spans] = begin.uids
            self._ends[: self._num_spans] = begin.ends

    @property
    def num_tokens(self) -> int:
        """Length so far, tokens."""
        return self._num_tokens

    def append(self, uid: int, num_tokens: int) -> None:
        """Add a span at the end; nothing where it has no tokens."""
        if num_tokens == 0:
            return
        place = self._num_spans
        if place == len(self._uids):
            # What was handed out keeps the arrays it looks at.
            self._uids = np.concatenate([self._uids, np.empty_like(self._uids)])
            self._ends = np.concatenate([self._ends, np.empty_like(self._ends)])
        self._num_tokens += num_tokens
        self._uids[place] = uid
        self._ends[place] = self._num_tokens
        self._num_spans = place + 1

    def content(self) -> Content:
        """What has been said so far."""
        return Content(self._uids[: self._num_spans], self._ends[: self._num_spans])
