"""What prompts share in traces that record lengths only: drawn from a named model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvsim.cache.content import Content
from kvsim.workload.streams import stream


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Every prompt begins with one of some system prompts; the rest is its own.

    Which one is drawn with a share in proportion to ``rank ** -zipf_exponent``. A prompt that is
    no longer than its prefix is a beginning of it.

    Attributes:
        num_prefixes: system prompts there are.
        prefix_tokens: length of each.
        zipf_exponent: 0 for equal shares.
        seed: the scenario's.
    """

    num_prefixes: int
    prefix_tokens: int
    zipf_exponent: float
    seed: int

    def contents(self) -> Callable[[int, int], Content]:
        """Draws prompts one after another, from their lengths and their own uids."""
        weights = np.arange(1, self.num_prefixes + 1) ** -self.zipf_exponent
        cumulative = np.cumsum(weights) / weights.sum()
        draws = stream(self.seed, "reuse")

        def draw(num_tokens: int, own_uid: int) -> Content:
            # Prompts' own uids are 2**34 and more, so small numbers are free.
            uid = min(int(np.searchsorted(cumulative, draws.random())), self.num_prefixes - 1)
            shared = min(self.prefix_tokens, num_tokens)
            return Content.from_spans([(uid, shared), (own_uid, num_tokens - shared)])

        return draw
