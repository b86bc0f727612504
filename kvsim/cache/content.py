"""What a prompt is: spans of tokens, and the number that stands for each of its prefixes.

No tokens are made and nothing is hashed. A span has a uid that is only ever used after the same
content, so the prefix that ends at token ``p`` is identified by the uid of the span that holds
token ``p - 1`` and by ``p``; with the KV cache group that makes one integer, a block's key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.jit import njit

POSITION_BITS = 24
"""Positions are below 2**24 tokens (16 times the longest context of most of today's models)."""
GROUP_BITS = 6
"""At most 64 KV cache groups (a hybrid of today has up to 31)."""
NUMBER_BITS = 22
"""Block numbers are below 2**21; the bit above tells the end of a prompt from them."""
UID_BITS = 63 - NUMBER_BITS - GROUP_BITS
"""Uids are below 2**35, so that a key is a positive 64-bit integer."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Content:
    """The spans of a token sequence.

    Attributes:
        uids: int64, the uid of each span.
        ends: int64, the position in tokens at which each span ends; strictly increasing.
    """

    uids: Ints
    ends: Ints

    @classmethod
    def from_spans(cls, spans: Iterable[Sequence[int]]) -> Content:
        """Make content from ``(uid, tokens)`` pairs; spans without tokens are left out.

        Raises:
            ValueError: a negative length, or a uid or a position out of range.
        """
        pairs = [(uid, length) for uid, length in spans if length != 0]
        uids = np.array([uid for uid, _ in pairs], dtype=np.int64)
        lengths = np.array([length for _, length in pairs], dtype=np.int64)
        ends = np.cumsum(lengths)
        if len(pairs) and (lengths.min() < 0 or ends[-1] >= 1 << POSITION_BITS):
            raise ValueError(f"span lengths must be positive and sum to below 2**{POSITION_BITS}")
        if len(pairs) and (uids.min() < 0 or uids.max() >= 1 << UID_BITS):
            raise ValueError(f"span uids must lie in [0, 2**{UID_BITS})")
        return cls(uids, ends)

    @property
    def num_tokens(self) -> int:
        """Length of the sequence in tokens."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def spans(self) -> list[tuple[int, int]]:
        """The spans as ``(uid, tokens)`` pairs."""
        lengths = np.diff(self.ends, prepend=0)
        return list(zip(self.uids.tolist(), lengths.tolist(), strict=True))


@njit
def block_key(uid: int, index: int, group: int) -> int:
    """The key of a group's block number ``index``, whose last token lies in span ``uid``.

    A position is a block number here: within a group the two say the same.
    """
    return (uid << (NUMBER_BITS + GROUP_BITS)) | (index << GROUP_BITS) | group


@njit
def span_at(ends: Ints, num_spans: int, position: int) -> int:
    """Index of the span that holds token ``position - 1``."""
    low, high = 0, num_spans - 1
    while low < high:
        middle = (low + high) >> 1
        if ends[middle] < position:
            low = middle + 1
        else:
            high = middle
    return low
